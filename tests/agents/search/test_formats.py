"""The search environment in the chat formats of other models."""

import asyncio
import dataclasses

import numpy as np
import pytest

from jaxrl_agents.agents.search import env as search
from jaxrl_agents.harness.rollout import Sampling, run_episode
from jaxrl_agents.harness.scripted_player import Scripted
from jaxrl_agents.types import Generation
from tests.agents.search.arena import answer, calls, make_task
from tests.chat import families


class Watched:
  """Passes an environment on and keeps its contexts."""

  def __init__(self, env):
    self.env, self.contexts = env, []
    self.rewards, self.close = env.rewards, env.close

  async def start(self):
    self.contexts.append(await self.env.start())
    return self.contexts[-1]

  async def step(self, reply):
    self.contexts.append(await self.env.step(reply))
    return self.contexts[-1]


@pytest.fixture(params=families.FAMILIES)
def family(request, limited, tmp_path):
  # The small tokenizers need about five times the tokens of the shipped one.
  roomy = limited(
    token_budget=9_000,
    threshold_tokens=8_000,
    tool_output_tokens=2_000,
    max_new_tokens=1_000,
    system_prompt="Find the documents.",
  )
  return dataclasses.replace(roomy, chat=families.load(tmp_path, request.param))


def play(family, turns):
  env = Watched(search.make(make_task(split="test"), family))
  script = iter(turns)
  player = Scripted(env, family.chat, lambda _: next(script))
  task, sampling = make_task(split="test"), Sampling(max_new_tokens=1_000)
  return env, asyncio.run(run_episode(player, family.chat, player, task=task, sampling=sampling))


def test_an_episode_is_one_segment_and_the_usage_is_the_length_of_its_prompts(family):
  turns = [
    calls(("search_corpus", "river"), ("grep_corpus", "part 5")),
    calls(("read_document", "103")),
    dataclasses.replace(answer("100_0"), reasoning="Enough."),
  ]
  env, trajectory = play(family, turns)
  assert (trajectory.error, trajectory.stop, len(trajectory.segments)) == ("", "answer", 1)
  assert trajectory.rewards["output_recall"] == 0.5
  for context in env.contexts[:-1]:
    prompt = family.chat.render(context.messages, context.tools)
    assert context.max_new_tokens == min(1_000, 9_000 - len(prompt))
  segment = trajectory.segments[0]
  replies = [m.tokens for m in trajectory.log if m.role == "assistant"]
  np.testing.assert_array_equal(segment.tokens[segment.loss_mask], np.concatenate(replies))


def test_a_prune_opens_a_segment_in_which_results_still_name_their_calls(family):
  turns = [
    calls(("search_corpus", "river")),
    calls(("prune_chunks", ["100_0"])),
    calls(("search_corpus", "violin")),
    answer("100_0"),
  ]
  _, trajectory = play(family, turns)
  assert (trajectory.error, len(trajectory.segments)) == ("", 2)
  text = family.chat.decode(trajectory.segments[1].tokens)
  quoted = {
    "qwen3": "<tool_response>\nPruned",
    "kimi_k2": "## Return of functions.prune_chunks:1\nPruned",
    "kimi_k25": "## Return of functions.prune_chunks:1\nPruned",
    "deepseek_v31": "<｜tool▁output▁begin｜>Pruned",
    "harmony": "functions.prune_chunks to=assistant<|channel|>commentary<|message|>Pruned",
  }
  assert quoted[family.chat.name] in text


def test_a_malformed_call_is_answered_with_its_error(family):
  chat = family.chat
  whole = chat.encode_reply(calls(("search_corpus", "x")))
  broken = np.array([i for i in whole if "{" not in chat.decode([i])], np.int32)
  replies = iter([broken, chat.encode_reply(answer("100_0"))])

  class Says:
    async def generate(self, prompt, limits):
      tokens = next(replies)
      zeros = np.zeros(len(tokens), np.float32)
      return Generation(tokens, zeros, zeros.astype(np.int32), None, "stop")

  task = make_task(split="test")
  env = search.make(task, family)
  trajectory = asyncio.run(run_episode(env, chat, Says(), task=task, sampling=Sampling()))
  (result,) = [m for m in trajectory.log if m.role == "tool"]
  assert trajectory.stop == "answer" and len(trajectory.segments) == 1
  assert result.content.startswith("Error: the ") and "not valid JSON" in result.content
