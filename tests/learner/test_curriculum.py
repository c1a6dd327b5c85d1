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


@pytest.mark.parametrize("single_epoch", [False, True])
def test_without_weights_all_tasks_are_drawn_equally_often(single_epoch):
  """900 tasks of level 3 and 100 of level 9: of 500 draws 450 and 50, 4 deviations off at most."""
  tasks = [Task(f"t{i}", "toy", f"{i}", {"level": 9 if i % 10 == 0 else 3}) for i in range(1_000)]
  drawn = curriculum.TaskStream(tasks, 0, single_epoch=single_epoch).next(500, 0, ())
  assert sum(task.facts["level"] == 3 for task in drawn) == pytest.approx(450, abs=27)


@pytest.mark.parametrize("level", ["easy", "1", 1.0, -1, None])
def test_a_level_that_is_no_whole_number_is_named_with_its_task(level):
  tasks = [*TASKS, Task("odd", "external", "", {"level": level})]
  named = f"task 'odd' has the field level={level!r}, .* another name"
  with pytest.raises(ValueError, match=named):
    curriculum.TaskStream(tasks, 0)


def test_levels_without_weight_are_not_drawn():
  stream = curriculum.TaskStream(TASKS, seed=0)
  assert all(task.facts["level"] == 1 for task in stream.next(50, 0, (0.0, 1.0)))
  with pytest.raises(ValueError, match="no weight to the levels present"):
    stream.next(1, 1, (0.0,))


def test_a_single_epoch_hands_no_task_out_twice_across_restarts_and_then_ends():
  tasks = [
    Task(f"{level}-{i}", "toy", f"{level}-{i}", {"level": level})
    for level in (0, 1)
    for i in range(6)
  ]
  handed, state = [], None
  for step in range(3):
    stream = curriculum.TaskStream(tasks, 5, state, single_epoch=True)  # each step is a new process
    handed += [task.id for task in stream.next(4, step, (0.9, 0.1))]
    state = stream.state()
  assert sorted(handed) == sorted(task.id for task in tasks)
  with pytest.raises(ValueError, match="has 0 tasks left, and step 3 needs 4"):
    curriculum.TaskStream(tasks, 5, state, single_epoch=True).next(4, 3, (0.9, 0.1))


def test_a_level_without_weight_is_not_used_up_in_a_single_epoch():
  tasks = [
    Task(f"{level}-{i}", "toy", f"{level}-{i}", {"level": level})
    for level in (0, 1)
    for i in range(3)
  ]
  stream = curriculum.TaskStream(tasks, 0, single_epoch=True)
  assert {task.facts["level"] for task in stream.next(3, 0, (1.0, 0.0))} == {0}
  with pytest.raises(ValueError, match="0 tasks left"):
    stream.next(1, 1, (1.0, 0.0))


def test_a_single_epoch_knows_what_it_trained_under_another_seed_and_among_new_tasks():
  tasks = [Task(f"t{i}", "counting", f"count {i}", {"level": 0}) for i in range(6)]
  first = curriculum.TaskStream(tasks, 1, single_epoch=True)
  seen = {task.prompt for task in first.next(4, 0, (1.0,))}
  more = [Task(f"t{i}", "counting", f"count {9 - i}", {"level": 0}) for i in range(10)]
  again = curriculum.TaskStream(more, 2, first.state(), single_epoch=True)
  then = {task.prompt for task in again.next(6, 1, (1.0,))}
  assert len(then) == 6 and not seen & then
  with pytest.raises(ValueError, match="0 tasks left"):
    again.next(1, 2, (1.0,))
