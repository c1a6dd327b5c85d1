"""Rejection sampling keeps short, different, right rollouts."""

import numpy as np

from jaxrl_agents.agents.rejection import chosen
from jaxrl_agents.types import Group, Segment, Task, Trajectory


def rollout(name, tokens, right=True, error=""):
  tokens = np.asarray(tokens, np.int32)
  n = len(tokens)
  segment = Segment(tokens, np.arange(n) > 0, np.zeros(n, np.float32), np.zeros(n, np.int32))
  return Trajectory(name, (segment,), (), {"success": float(right)}, "answer", error=error)


def names(*rollouts):
  group = Group(Task("t", "swarm", "prompt", {}), rollouts)
  is_right = lambda trajectory: trajectory.rewards["success"] == 1
  return [t.task_id for t in chosen([group], is_right)]


LONG = rollout("long", range(40))
MIDDLE = rollout("middle", range(100, 130))
SHORT = rollout("short", range(200, 220))
WRONG = rollout("wrong", range(10), right=False)
LOST = rollout("lost", range(5), error="RuntimeError: gone")


def test_the_two_chosen_rollouts_of_a_task_are_kept():
  assert names(LONG, WRONG, SHORT, LOST, MIDDLE) == ["short", "middle"]


def test_of_an_easy_task_one_is_kept():
  assert names(LONG, SHORT, MIDDLE) == ["short"]
  assert names(WRONG, LOST) == []
  nine = [rollout(f"r{i}", [*range(100 * i, 100 * i + 20), 7]) for i in range(9)]
  assert len(names(*nine, WRONG)) == 1 and len(names(*nine[:8], WRONG, WRONG)) == 2


def test_a_rollout_that_repeats_one_that_is_kept_is_left_out():
  copy = rollout("copy", [*range(200, 220), 7])
  assert names(SHORT, copy, LONG, WRONG) == ["short", "long"]
  half = rollout("half", [*range(200, 215), *range(300, 310)])  # 7 of its 17 8-grams
  assert names(SHORT, half, LONG, WRONG) == ["short", "half"]


def test_groups_of_one_task_are_pooled_and_tasks_with_one_prompt_are_not():
  one = Group(Task("t", "swarm", "prompt", {}), (SHORT, WRONG))
  other = Group(Task("t", "swarm", "prompt", {}), (MIDDLE, LONG))
  right = lambda t: t.rewards["success"] == 1
  assert [t.task_id for t in chosen([one, other], right)] == ["short", "middle"]
  hidden = Group(
    Task("u", "swarm", "prompt", {}), (MIDDLE, LONG)
  )  # the same question, another gold
  assert [t.task_id for t in chosen([one, hidden], right, per_task=1)] == ["short", "middle"]
