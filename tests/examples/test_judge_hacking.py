"""The judge of the example likes length where a rubric allows it; alternatives do not pay it."""

import asyncio
import statistics

import pytest

from examples.judge_hacking import agent, compare, judge
from jaxrl_agents import config as config_lib
from jaxrl_agents.agents.grading import Grader
from jaxrl_agents.runs import setup
from jaxrl_agents.types import Message, Task, Trajectory

QUESTION = "Which number comes after 4?"
RIGHT, PADDED, WRONG_PADDED = "5", "5 indeed really truly", "8 indeed really truly"


def test_length_pleases_the_two_rubrics_and_neither_the_alternatives_nor_the_held_out_one():
  mean = lambda names, answer: statistics.fmean(judge.grade(n, QUESTION, answer) for n in names)
  hacked, cured = ("detail", "thorough"), ("detail", "relevant", "precise")
  assert mean(hacked, WRONG_PADDED) == 10 > mean(hacked, RIGHT) == 1
  assert mean(cured, RIGHT) == 7 and mean(cured, WRONG_PADDED) == 4
  assert mean(cured, PADDED) == pytest.approx((10 + 4 + 2) / 3)
  assert judge.grade("merit", QUESTION, RIGHT) == 10
  assert judge.grade("merit", QUESTION, WRONG_PADDED) == 1


def test_every_arm_is_a_valid_config_and_its_judge_answers_over_http(tmp_path, monkeypatch):
  monkeypatch.setenv("JAXRL_CACHE", str(tmp_path))
  task = Task("t", "next_number", QUESTION, {"number": 4}, "test")

  async def graded(config, answer):
    log = (Message("user", QUESTION), Message("assistant", answer))
    grader = Grader(setup.judging(config))
    return await grader.graded(task, "g", Trajectory("t", (), log, {}, "answer"))

  with judge.serving() as url:
    for name, overrides in compare.ARMS.items():
      config = config_lib.load(compare.CONFIG, [f"judge.url={url}", *overrides])
      found = asyncio.run(graded(config, PADDED)).rewards
      assert found["judged_held_out"] == 0.0
      assert found["judged"] == pytest.approx(13 / 27 if name == "rubrics" else 1.0)


def test_right_is_the_number_alone():
  env = agent.NextNumber(Task("t", "", QUESTION, {"number": 4}), agent.NextNumberConfig())
  for answer, right in ((RIGHT, 1.0), (PADDED, 0.0), ("", 0.0)):
    asyncio.run(env.step(Message("assistant", answer)))
    assert env.rewards(None) == {"right": right, "words": float(len(answer.split()))}
