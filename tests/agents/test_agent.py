"""What agents bring: rewards weighed by the options of the run, segments that are imitated."""

import dataclasses

import numpy as np
import pytest

from examples.number_game.agent import AGENT as NUMBER_GAME
from jaxrl_agents import config as config_lib
from jaxrl_agents.agents import agent as agent_lib
from jaxrl_agents.agents.coding.agent import AGENT as CODING
from jaxrl_agents.agents.coding.config import CodingConfig, CodingReward
from jaxrl_agents.agents.search import reward
from jaxrl_agents.agents.search.agent import AGENT as SEARCH
from jaxrl_agents.agents.search.config import SearchConfig, SearchReward
from jaxrl_agents.agents.swarm import agent as swarm
from jaxrl_agents.agents.swarm.config import SwarmConfig
from jaxrl_agents.learner import segment_files
from jaxrl_agents.runs import agent_setting
from jaxrl_agents.types import Group, Task, Trajectory

TASK = Task("t", "search", "?", {})


def rewards_of(agent, options, *parts, progress=None):
  """The reward of each rollout; None for one that failed."""
  rollouts = tuple(
    Trajectory("t", (), (), found, "answer", error="" if found else "lost") for found in parts
  )
  (group,) = agent_lib.rewarded(agent, options, [Group(TASK, rollouts)], progress)
  return [t.metrics.get("reward") for t in group.trajectories]


def test_a_search_is_weighed_by_its_own_options_and_a_failed_rollout_has_no_reward():
  parts = {"completed": 1, "precision": 0.5, "output_recall": 0.5, "trajectory_recall": 1}
  parts |= {"answer_found": 1, "prune_penalty": 0.2}
  parts |= {"repeat_penalty": 0, "turn_penalty": 0}
  options = SearchConfig(reward=SearchReward(answer_found=2, betas=(4, 1)))
  found, lost = rewards_of(SEARCH, options, parts, {})
  # 0.7 F + 0.3 trajectory recall + 2 answer found - 0.2, F = 0.5 whatever beta.
  assert found == pytest.approx(0.35 + 0.3 + 2 - 0.2) and lost is None


def test_rewards_without_a_reward_are_an_error_that_names_their_parts():
  with pytest.raises(ValueError, match=r"agent number_game have no part .* only \['score'\]"):
    rewards_of(NUMBER_GAME, None, {"score": 1.0})


@pytest.mark.parametrize("name", ["phase", "step", "time", "tasks", "failed"])
def test_a_part_with_a_name_that_metrics_have_for_something_else_is_refused(name):
  with pytest.raises(ValueError, match=f"agent search have a part called '{name}'"):
    rewards_of(SEARCH, SearchConfig(), {"completed": 1.0, name: 3.0})


def test_beta_falls_in_five_equal_phases_as_published():
  betas = [reward.beta_of((4, 3.5, 3, 2.5, 2), step / 10) for step in range(11)]
  assert betas == [4, 4, 3.5, 3.5, 3, 3, 2.5, 2.5, 2, 2, 2]
  thirds = [reward.beta_of((3, 2, 1), step / 60) for step in range(60)]
  assert [thirds.count(beta) for beta in (3, 2, 1)] == [20, 20, 20]


def test_an_evaluation_of_a_swarm_is_weighed_by_its_performance_alone():
  parts = {"performance": 0.5, "width": 2.0, "finish_rate": 0.5}
  assert rewards_of(swarm.AGENT, SwarmConfig(), parts) == [0.5]
  (first,) = rewards_of(swarm.AGENT, SwarmConfig(), parts, progress=0.0)
  assert first == pytest.approx(0.5 + 0.1 * 2 / 4 + 0.1 * 0.5)


def test_a_coding_episode_is_weighed_by_its_own_options():
  parts = {"solved": 1.0, "mended": 1.0, "mended_hidden": 1.0, "kept": 1.0, "completed": 1.0}
  parts |= {"broken_calls": 2.0, "open_todos": 0.0, "comment_thinking": 0.0, "shell_only": 0.0}
  parts |= {"effort": 1.0, "suspicious": 0.0}
  options = CodingConfig(reward=CodingReward(broken_calls=0.03, length=0.1))
  # C(1) of the length penalty with k = q = 1 is log 2.
  (found,) = rewards_of(CODING, options, parts)
  assert found == pytest.approx(1 - 0.06 - 0.1 * np.log(2))


def test_of_a_swarm_both_roles_are_imitated_and_only_so_many_sub_agents():
  def episode(name, children=(), stop="answer", error=""):
    segment = segment_files.to_imitate(np.arange(3, dtype=np.int32), np.arange(3) > 0)
    segments = () if error else (dataclasses.replace(segment, tokens=np.full(3, name, np.int32)),)
    return Trajectory(str(name), segments, (), {}, stop, children=children, error=error)

  children = tuple(episode(100 + i, stop="finished") for i in range(5))
  lost = episode(9, stop="error", error="RuntimeError: gone")
  first = episode(1, (*children, episode(200, stop="empty"), lost))
  group = Group(Task("t", "swarm", "?", {}), (first, lost, episode(2)))
  names = [int(segment.tokens[0]) for segment in swarm.both_roles([group], max_children=2, seed=0)]
  assert names[0] == 1 and names[-1] == 2 and len(names) == 4
  assert set(names[1:3]) < {100, 101, 102, 103, 104}


def played(name, repo, *rewards):
  """An evaluation of one task, solved where the reward is 1."""
  rollouts = tuple(
    Trajectory(name, (), (), {"solved": float(r == 1.0)}, "answer", {"reward": r}) for r in rewards
  )
  return Group(Task(name, "coding", "?", {"repo": repo}), rollouts)


def setting(config, *options):
  return agent_setting.setting(config_lib.load(config, list(options)))


def test_the_entry_of_an_evaluation_has_bounds_over_repositories_and_pass_at_k():
  groups = [played("a1", "a", 1.0, 0.0), played("a2", "a", 1.0, 1.0), played("b", "b", 0.0, 0.0)]
  found = CODING.entry(setting("configs/coding_cpu.py"), groups)
  # Each repository is drawn twice in a quarter of the resamples: means of 0.75 and 0.
  assert (found["reward_lower95"], found["reward"], found["reward_upper95"]) == (0.0, 0.5, 0.75)
  assert found["pass_at_1"] == 0.5 and found["pass_at_2"] == pytest.approx(2 / 3)
  once = CODING.entry(setting("configs/coding_cpu.py"), [played("a", "a", 1.0)])
  assert once["reward_lower95"] == 1.0 and "pass_at_1" not in once


def test_an_agent_without_a_part_of_success_has_pass_at_k_by_its_reward_and_a_threshold_alone():
  groups = [played("a", "a", 0.75, 0.25)]
  assert "pass_at_1" not in SEARCH.entry(setting("configs/search_cpu.py"), groups)
  given = setting("configs/search_cpu.py", "eval.threshold=0.5", "eval.rollouts=2")
  assert SEARCH.entry(given, groups)["pass_at_1"] == 0.5
  with pytest.raises(ValueError, match="threshold=0.5 has no effect with eval.rollouts=1"):
    setting("configs/search_cpu.py", "eval.threshold=0.5")
