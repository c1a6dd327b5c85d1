"""The agent of another project plays through the gateway, with players in the policy's place."""

import asyncio

import pytest

from jaxrl_agents import config as config_lib
from jaxrl_agents.agents.agent import worker_services
from jaxrl_agents.harness.rollout import Sampling, run_group
from jaxrl_agents.types import Task

pytest.importorskip("agents", reason="needs openai-agents")
from examples.external_agent import game

CONFIG = "examples/external_agent/config.py"


def played(player):
  """One rollout of each number."""
  options = config_lib.load(CONFIG).agent_config
  services = worker_services("external", "base", options, None, player)

  async def run():
    groups = []
    for number in range(1, game.SIZE + 1):
      task = Task(f"t{number}", "external", "Find it.", {"number": number})
      groups.append(
        await run_group(
          services.make_episode, task, 4, chat=services.chat, sampler=None, sampling=Sampling()
        )
      )
    return [trajectory for group in groups for trajectory in group.trajectories]

  return asyncio.run(run())


def test_halving_wins_every_game_and_each_game_is_one_segment():
  for trajectory in played("halving"):
    assert not trajectory.error, trajectory.error
    assert trajectory.rewards["reward"] == 1.0 and len(trajectory.segments) == 1
    assert trajectory.metrics["sampled_tokens"] == trajectory.metrics["trained_tokens"]


def test_careless_guesses_win_some_games_and_no_more_guesses_count_than_allowed():
  rewards = [trajectory.rewards for trajectory in played("careless")]
  assert {r["reward"] for r in rewards} == {0.0, 1.0}
  assert max(r["guesses"] for r in rewards) == game.GUESSES
