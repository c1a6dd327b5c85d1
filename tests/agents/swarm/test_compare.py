"""A swarm beside a single agent: what is compared are the tasks that both have."""

import pytest

from jaxrl_agents import config as config_lib
from jaxrl_agents.agents.swarm import comparison
from jaxrl_agents.agents.swarm.agent import AGENT
from jaxrl_agents.runs import agent_setting
from jaxrl_agents.types import Group, Task, Trajectory

METRICS = {"wall_s": 1.0, "reward": 0.0}
CONFIG = config_lib.load("configs/swarm_cpu.py", ["eval.bootstrap_resamples=100"])
SETTING = agent_setting.setting(CONFIG)


def group(number, kind, performance, steps, error=""):
  """An evaluation of one task; wide ones have a table."""
  rewards = {"performance": performance, "critical_steps": steps, "width": 0.0}
  rewards |= {"item_f1": performance} if kind.startswith("wide") else {}
  metrics = {"wall_s": 1.0, "reward": performance}
  rollout = Trajectory("t", (), (), rewards, "answer", metrics, (), error)
  return Group(Task(f"t{number}", "swarm", "", {"kind": kind}), (rollout,))


def evaluations(single_error=""):
  ours = [
    group(0, "wide def", 0.9, 4),
    group(1, "wide def", 0.5, 4),
    group(2, "deep class chain", 1.0, 5),
    group(3, "narrow def", 1.0, 2),
  ]
  alone = [
    group(0, "wide def", 0.8, 16),
    group(1, "wide def", 0.6, 20, single_error),
    group(2, "deep class chain", 1.0, 20),
    group(3, "narrow def", 1.0, 2),
  ]
  return {
    "warm_start": ours,
    "trained": ours,
    "single_agent": alone,
    "single_agent_unhurried": alone,
  }


def test_the_ratio_of_steps_is_of_the_long_tasks_by_kind_and_where_the_swarm_did_no_worse():
  found = AGENT.compare(SETTING, None, evaluations())
  assert found["critical_steps_ratio"] == pytest.approx((16 + 20 + 20) / (4 + 4 + 5))
  assert found["critical_steps_ratio_by_kind"] == {"wide": 4.5, "deep": 4.0}
  assert found["no_worse"] == pytest.approx(2 / 3)
  assert found["critical_steps_ratio_where_no_worse"] == pytest.approx((16 + 20) / (4 + 5))


def test_the_f1_of_tables_that_were_filled_in_by_parallel_work_stands_for_itself():
  scored = lambda f1, serial: {"item_f1": f1, "serial_rate": serial, "performance": f1}
  rewards = [scored(0.5, 0.0), scored(1.0, 0.0), scored(0.2, 1.0), {"serial_rate": 0.0}]
  groups = [
    Group(Task(f"t{i}", "swarm", "", {}), (Trajectory("t", (), (), each, "answer", METRICS),))
    for i, each in enumerate(rewards)
  ]
  assert AGENT.entry(SETTING, groups)["item_f1_parallel"] == 0.75
  assert "item_f1_parallel" not in AGENT.entry(SETTING, groups[2:])


def test_a_task_that_one_side_lost_counts_for_neither():
  found = AGENT.compare(SETTING, None, evaluations(single_error="lost"))
  assert found["critical_steps_ratio"] == pytest.approx((16 + 20) / (4 + 5))
  assert found["critical_steps_ratio_by_kind"]["wide"] == 4.0


def test_gains_over_both_single_agents_are_of_all_tasks_and_of_tables_alone():
  bootstrap = AGENT.compare(SETTING, None, evaluations())["paired_bootstrap"]
  for name in ("single_agent", "single_agent_unhurried"):
    assert bootstrap[f"{name}_wide_item_f1_gain"] == pytest.approx(0.0)
    assert bootstrap[f"{name}_performance_gain"] == pytest.approx(0.0)
    assert bootstrap[f"{name}_critical_steps_gain"] == pytest.approx((12 + 16 + 15) / -4)


def test_every_table_is_scored_by_its_size_however_many_rows_it_has():
  groups = [
    Group(Task(f"t{n}", "swarm", "", {"kind": "wide def", "rows": [{}] * n}), ())
    for n in (4, 40, 41, 60, 61, 95)
  ]
  found = comparison.by_size(groups, len)
  assert found == {"1-4": 1, "30-40": 1, "41-60": 2, "61-80": 1, "81-100": 1}
  assert comparison.by_size([], len) == {}
