"""A policy behind our own gateway is the judge of another one's episodes."""

import dataclasses
import json
import re

import pytest

from jaxrl_agents.agents.chat_endpoint import Endpoint
from tests.agents.test_grading import episode, graded, judging
from tests.gateway.serving import Says, serving, words


class Judges(Says):
  """Answers with a verdict on the criteria of its prompt, but for the first time."""

  async def generate(self, prompt, limits):
    criteria = re.findall(r'^- "(\w+)"', words(prompt), re.MULTILINE)
    grade = 10 if "a good answer" in words(prompt) else 4
    verdict = dict.fromkeys(criteria, grade) | {"violates": False, "injects": False}
    said = Says(json.dumps(verdict) if self.asked else "no verdict")
    self.asked.append(prompt)
    return await said.generate(prompt, limits)


def test_episodes_are_graded_over_http_by_a_policy_that_the_gateway_serves(tmp_path):
  sampler = Judges()
  with serving(sampler, max_context_tokens=8_192, max_new_tokens=512) as gateway:
    session = gateway.open()
    chosen = judging(f"{gateway.url}/v1", tmp_path, max_tokens=512)
    chosen = dataclasses.replace(
      chosen, endpoint=Endpoint(f"{gateway.url}/v1", "policy", session.key, 5.0, 3, 4)
    )
    good, bad = graded(chosen, episode("a good answer"), episode("another"))
  assert (good.rewards["judged"], bad.rewards["judged"]) == (1.0, pytest.approx(1 / 3))
  assert good.rewards["judged_held_out"] == 1.0
  assert len(sampler.asked) == 5  # two rubrics of two episodes, and the one that could not be read
