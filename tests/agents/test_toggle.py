"""Toggle: when the length cap binds, and that it never moves."""

import math

import numpy as np
import pytest

from jaxrl_agents.agents import toggle
from jaxrl_agents.types import Group, Segment, Task, Trajectory

LENGTHS = [100, 200, 300, 400]
GATE = {"part": "performance", "solved": 0.875, "percentile": 90.0}


def test_phases_alternate_every_few_steps_and_begin_limited():
  assert [toggle.is_limited(step, 2) for step in range(6)] == [True, True, False, False, True, True]
  assert [toggle.is_limited(step, 1) for step in range(3)] == [True, False, True]


def test_a_long_right_rollout_loses_its_reward_only_where_the_problem_is_solved():
  gate = lambda rewards, limited: toggle.toggled(
    rewards, LENGTHS, limited=limited, budget=250, solved=0.875
  )
  assert gate([1, 1, 0, 0], True) == [1, 1, 0, 0]
  assert gate([0, 0, 1, 1], True) == [0, 0, 1, 1]  # half are right: the cap does not bind
  assert gate([1, 1, 1, 1], True) == [1, 1, 0, 0]
  assert gate([1, 1, 1, 1], False) == [1, 1, 1, 1]


def test_the_budget_is_a_percentile_of_the_right_rollouts():
  assert toggle.length_budget(range(10, 101, 10), [1] * 10, 90) == 91.0
  assert toggle.length_budget([10, 20, 1000], [1, 1, 0.9], 50) == 15.0
  assert toggle.length_budget([10], [0], 90) == math.inf


def test_a_budget_is_set_by_the_first_right_rollout_and_then_fixed():
  budgets = toggle.LengthBudgets()
  budgets.note("t", [10, 20], [0, 0], percentile=90)
  assert budgets.of("t") == math.inf
  budgets.note("t", [10, 20], [0, 1], percentile=90)
  budgets.note("t", [5, 6], [1, 1], percentile=90)
  assert budgets.of("t") == 20.0
  again = toggle.LengthBudgets(budgets.state())
  assert again.of("t") == 20.0 and again.of("u") == math.inf


def episode(length, performance, error=""):
  mask = np.arange(100) < length
  segment = Segment(np.zeros(100, np.int32), mask, np.zeros(100, np.float32), np.zeros(100, int))
  rewards = {} if error else {"performance": performance, "width": 2.0}
  return Trajectory("t", (segment,), (), rewards, "answer", error=error)


def test_the_gate_goes_over_performance_alone_and_leaves_the_lost_out_of_the_mean():
  lost = episode(5, 0.0, error="RuntimeError: gone")
  group = Group(Task("t", "swarm", "?", {}), (episode(10, 1.0), lost, episode(90, 1.0)))
  budgets = toggle.LengthBudgets({"t": 50.0})
  (gated,) = toggle.gated([group], budgets, **GATE, limited=True)
  short, still_lost, long = gated.trajectories
  assert still_lost is lost
  assert short.rewards == {"performance": 1.0, "width": 2.0, "ungated": 1.0}
  assert long.rewards == {"performance": 0.0, "width": 2.0, "ungated": 1.0}
  (free,) = toggle.gated([group], budgets, **GATE, limited=False)
  assert [t.rewards.get("performance") for t in free.trajectories] == [1.0, None, 1.0]


def test_a_group_is_not_gated_by_its_own_lengths_but_the_next_one_is():
  episodes = tuple(episode(n, 1.0) for n in range(10, 90, 10))
  group = lambda: Group(Task("t", "swarm", "?", {}), episodes)
  budgets = toggle.LengthBudgets()
  (first,) = toggle.gated([group()], budgets, **GATE, limited=True)
  assert [t.rewards["performance"] for t in first.trajectories] == [1.0] * 8
  assert budgets.of("t") == pytest.approx(73.0)  # the 90th percentile of 10, 20, ..., 80
  (second,) = toggle.gated([group()], budgets, **GATE, limited=True)
  assert [t.rewards["performance"] for t in second.trajectories] == [1.0] * 7 + [0.0]
