"""What a step tells of its rollouts beside their rewards."""

from jaxrl_agents.runs import reporter
from jaxrl_agents.types import Group, Task, Trajectory


def group(*rollouts):
  """A group of (stop, metrics) of finished rollouts, and of errors."""
  finished = lambda stop, metrics: Trajectory("t", (), (), {}, stop, metrics)
  failed = lambda error: Trajectory("t", (), (), {}, "", {"turns": 9.0}, error=error)
  trajectories = tuple(failed(r) if isinstance(r, str) else finished(*r) for r in rollouts)
  return Group(Task("t", "toy", "", {}), trajectories, "step 0 0")


GROUPS = [
  group(
    ("answer", {"turns": 2.0, "longest_context_tokens": 50.0, "agent_failed": 1.0}),
    ("turn_limit", {"turns": 4.0, "longest_context_tokens": 90.0, "reward": 1.0, "advantage": 0.5}),
  ),
  group("OSError: down", ("answer", {"turns": 6.0, "agent_failed": 0.0})),
  group(("", {"turns": 8.0})),
]


def test_numbers_of_rollouts_are_means_over_those_that_have_them_and_the_longest_a_maximum():
  assert reporter.of_rollouts(GROUPS) == {
    "rollout_agent_failed": 0.5,
    "rollout_longest_context_tokens": 90.0,
    "rollout_turns": 5.0,
  }


def test_ways_to_end_are_shares_of_the_finished_rollouts():
  assert reporter.stop_shares(GROUPS) == {"stop_answer": 0.5, "stop_turn_limit": 0.25}


def test_a_step_without_a_finished_rollout_has_neither():
  failed = [group("OSError: down")]
  assert reporter.of_rollouts(failed) == reporter.stop_shares(failed) == {}


def test_a_part_of_the_reward_that_is_called_like_a_metric_of_the_step_is_kept():
  row = reporter.beside({"reward": 0.5, "loss": 0.25}, {"loss": 2.0, "grad_norm": 1.0})
  assert row == {"reward": 0.5, "reward_loss": 0.25, "loss": 2.0, "grad_norm": 1.0}
