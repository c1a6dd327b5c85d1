"""An agent with a tool, a service for its workers, a reward of two parts and players to beat."""

import asyncio
import types

import numpy as np
import pytest

from examples.tool_use.agent import AGENT, ToolUseConfig
from jaxrl_agents import chat as chat_lib
from jaxrl_agents.types import Message, SamplingLimits, ToolCall, Trajectory
from tests.runs.whole_run import run

pytestmark = pytest.mark.slow

CHAT = chat_lib.load("base")
LIMITS = SamplingLimits(max_new_tokens=64, stop_tokens=CHAT.stop_tokens)


@pytest.fixture(scope="module")
def tasks(tmp_path_factory):
  return AGENT.tasks(types.SimpleNamespace(cache=tmp_path_factory.mktemp("cache")))


@pytest.fixture(scope="module")
def services(tasks):
  return AGENT.services(CHAT, ToolUseConfig(), tasks.shared)


def parts(env, context):
  return env.rewards(Trajectory("t", (), (), {}, context.stop))


async def _played(name, task, services, seed):
  player = AGENT.player(name, task, services, seed, CHAT)
  context = await player.start()
  while not context.done:
    generation = await player.generate(np.zeros(0, np.int32), LIMITS)
    context = await player.step(CHAT.parse(generation.tokens))
  return parts(player, context)


def mean(name, tasks, services, part, count=200):
  test = tasks.tasks["test"][:count]
  played = [asyncio.run(_played(name, task, services, 0)) for task in test]
  return sum(p[part] for p in played) / count


def test_asking_until_certain_is_always_right_with_five_thirds_of_a_call(tasks, services):
  assert mean("ask_until_certain", tasks, services, "right") == 1.0
  # 1 call with probability 1/3, else 2; standard error sqrt(2/9/200) = 0.033.
  assert mean("ask_until_certain", tasks, services, "calls") == pytest.approx(5 / 3, abs=0.1)


def test_asking_for_all_costs_three_calls_and_guessing_none(tasks, services):
  assert mean("ask_all", tasks, services, "right", 20) == 1.0
  assert mean("ask_all", tasks, services, "calls", 20) == 3.0
  assert mean("guess", tasks, services, "calls", 20) == 0.0
  assert mean("guess", tasks, services, "right") == pytest.approx(1 / 3, abs=0.1)


def test_an_unknown_shelf_is_an_error_that_the_policy_reads_and_a_call_that_counts(tasks, services):
  env = AGENT.episode(tasks.tasks["test"][0], services, 0, None)
  asyncio.run(env.start())
  call = ToolCall("1", "look", {"shelf": "gold"})
  context = asyncio.run(env.step(Message("assistant", "", (call,))))
  assert context.messages[-1].content.startswith("Error: there is no shelf 'gold'")
  context = asyncio.run(env.step(Message("assistant", "gold")))
  assert context.done and parts(env, context) == {"right": 0.0, "calls": 1.0}


def test_a_context_that_calls_fill_ends_the_episode_which_pays_for_them(tasks, services):
  env = AGENT.episode(tasks.tasks["test"][0], services, 0, None)
  asyncio.run(env.start())
  made = tuple(ToolCall(str(i), "look", {"shelf": "gold"}) for i in range(15))
  context = asyncio.run(env.step(Message("assistant", "", made)))
  assert context.done and context.stop == "context_overflow"
  assert parts(env, context) == {"right": 0.0, "calls": 15.0}


def test_the_reward_is_being_right_less_what_the_calls_cost():
  options = ToolUseConfig(call_cost=0.1)
  assert AGENT.reward(options, {"right": 1.0, "calls": 2.0}) == pytest.approx(0.8)


def test_it_trains_and_the_report_has_a_section_of_its_own(tmp_path, monkeypatch):
  monkeypatch.setenv("JAXRL_CACHE", str(tmp_path / "cache"))
  summary, rows, html = run("examples/tool_use/config.py", tmp_path, "tool_use.call_cost=0.25")
  assert set(summary["eval"]) >= {"trained", "guess", "ask_all", "ask_until_certain"}
  entry = summary["eval"]["ask_all"]
  assert entry["reward"] == pytest.approx(1 - 0.25 * 3)
  assert "<h2>Calls</h2>" in html and "ask until certain" in html and "right" in rows["rl"]
  assert rows["rl"]["rollout_turns"] >= 1
  assert sum(x for name, x in rows["rl"].items() if name.startswith("stop_")) == pytest.approx(1)
