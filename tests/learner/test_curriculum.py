"""The task stream: every task once an epoch, resumable from its state, levels drawn by weight."""

import pytest

from jaxrl_agents.learner import curriculum
from jaxrl_agents.types import Task

TASKS = [Task(f"t{i}", "search", "", {"level": i % 2}) for i in range(20)]


def ids(tasks):
  return [task.id for task in tasks]


def test_a_task_comes_once_in_an_epoch_of_its_level():
  stream = curriculum.TaskStream(TASKS, seed=0)
  drawn = ids(stream.next(10, 0, (1.0, 0.0)))
  assert sorted(drawn) == sorted(f"t{i}" for i in range(0, 20, 2))


def test_a_stream_restored_from_its_state_goes_on_where_it_stopped():
  whole = curriculum.TaskStream(TASKS, seed=3)
  expected = [ids(whole.next(7, step, (0.5, 0.5))) for step in range(9)]
  first = curriculum.TaskStream(TASKS, seed=3)
  drawn = [ids(first.next(7, step, (0.5, 0.5))) for step in range(4)]
  second = curriculum.TaskStream(TASKS, seed=3, state=first.state())
  drawn += [ids(second.next(7, step, (0.5, 0.5))) for step in range(4, 9)]
  assert drawn == expected


def test_levels_without_weight_are_not_drawn():
  stream = curriculum.TaskStream(TASKS, seed=0)
  assert all(task.facts["level"] == 1 for task in stream.next(50, 0, (0.0, 1.0)))
  with pytest.raises(ValueError, match="no weight to the levels present"):
    stream.next(1, 1, (0.0,))


def test_beta_falls_in_five_equal_phases_as_published():
  betas = [curriculum.phase_value((4, 3.5, 3, 2.5, 2), step, 10) for step in range(10)]
  assert betas == [4, 4, 3.5, 3.5, 3, 3, 2.5, 2.5, 2, 2]
