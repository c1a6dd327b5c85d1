"""PARL: critical steps, the parts, and auxiliaries that vanish."""

import math

import pytest

from jaxrl_agents.agents.swarm import parl
from jaxrl_agents.agents.swarm.config import ParlConfig
from jaxrl_agents.agents.swarm.parl import Assigned, Stage


def stage(*steps, status="finished", **fields):
  return Stage(tuple(Assigned(status, n) for n in steps), **fields)


EXAMPLE = [stage(3, 7, 5), stage(), stage(4)]


def test_the_worked_example_has_14_critical_steps_and_22_in_all():
  assert parl.critical_steps(EXAMPLE) == (1 + 7) + 1 + (1 + 4) == 14
  assert parl.total_steps(EXAMPLE) == 3 + 3 + 7 + 5 + 4 == 22


def test_the_parts_of_the_worked_example():
  parts = parl.swarm_parts(EXAMPLE)
  assert parts["width"] == 3 and parts["serial_rate"] == 0 and parts["finish_rate"] == 1
  assert parts["parallelism"] == pytest.approx((3 + 7 + 5 + 4) / (7 + 4))


def test_ten_sub_agents_of_which_none_finishes_earn_r_parallel_and_not_r_finish():
  parts = parl.swarm_parts([stage(*[5] * 10, status="step_limit")])
  assert parl.parallel_reward(parts["width"], 4) == 1.0
  assert parts["finish_rate"] == 0.0 and parts["sub_step_limit"] == 10
  start = parl.parl_total({"performance": 0.0, **parts}, u=0.0, weights=ParlConfig())
  assert start == pytest.approx(0.1)


def test_one_at_a_time_is_not_paid_as_parallel_however_often():
  parts = parl.swarm_parts([stage(2)] * 6)
  assert parts["serial_rate"] == 1.0 and parts["assigned"] == 6
  assert parl.parallel_reward(parts["width"], 4) == 0.0
  assert [parl.parallel_reward(width, 4) for width in (2, 3, 4, 9)] == [0.5, 0.75, 1.0, 1.0]


def test_refused_assignments_lower_the_finish_rate_and_faults_leave_it_alone():
  lost = Assigned("error", 1, fault=True)
  parts = parl.swarm_parts([Stage((Assigned("finished", 2), lost), refused=2)])
  assert parts["finish_rate"] == pytest.approx(1 / 3) and parts["faults"] == 1
  all_lost = {"performance": 0.0, **parl.swarm_parts([Stage((lost,))])}
  assert "finish_rate" not in all_lost and all_lost["used_agents"] == 1.0
  assert parl.parl_total(all_lost, u=0.0, weights=ParlConfig(finish=0.1)) == pytest.approx(0.1)
  nothing = {"performance": 0.0, **parl.swarm_parts([Stage()])}
  assert not {"parallelism", "finish_rate"} & set(nothing) and nothing["used_agents"] == 0.0
  assert parl.parl_total(nothing, u=0.0, weights=ParlConfig(finish=0.1)) == 0.0


def test_auxiliaries_follow_a_cosine_and_are_exactly_zero_from_the_end_on():
  parts = {"performance": 0.37, "width": 4.0, "finish_rate": 0.5}
  weights = ParlConfig(parallel=0.2, finish=0.1, anneal_end=0.6)
  total = lambda u: parl.parl_total(parts, u=u, weights=weights)
  assert total(0.0) == pytest.approx(0.37 + 0.2 + 0.05)
  assert total(0.3) == pytest.approx(0.37 + 0.1 + 0.025)
  assert total(0.15) == pytest.approx(0.37 + 0.25 * 0.5 * (1 + math.cos(math.pi / 4)))
  assert [total(u) for u in (0.6, 0.8, 1.0)] == [0.37] * 3
