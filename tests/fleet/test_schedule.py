"""The record of a run that plays ahead, and what a replay of it waits for."""

import contextlib
import dataclasses

import numpy as np
import pytest

from jaxrl_agents import record_log
from jaxrl_agents.fleet import schedule as schedule_lib
from jaxrl_agents.fleet.schedule import Recorded, ReplayError, Schedule
from jaxrl_agents.types import Group, Segment, Task, Trajectory


def group(name, reward=1.0, token=7, error=""):
  one = np.array([token], np.int32)
  segment = Segment(one, one > 0, np.array([-0.5], np.float32), np.array([3], np.int32))
  played = Trajectory("t", (segment,), (), {"reward": reward}, "stop", error=error)
  return Group(Task("t", "toy", "", {}), (played,), name)


@contextlib.contextmanager
def opened(folder, of=None):
  """The schedule of a run in `folder`, a replay of that in the folder `of` if there is one."""
  with record_log.Log(folder / "schedule.log") as log:
    log.append({"is": "began", "options": {}, "start": ""})
    yield Schedule(log, Recorded(of / "schedule.log") if of else None)


@pytest.fixture
def recorded(tmp_path):
  """Two steps, the second after version 5; a request that was canceled and came again."""
  with opened(tmp_path / "recorded") as schedule:
    schedule.draft_costs({"": [1.5, 2.0]})
    schedule.tick()
    schedule.called("submit", "", "b")
    schedule.called("submit", "frozen 0", "a")
    schedule.stepped()
    schedule.ended(group("g0"))
    schedule.taken([group("g0")])
    schedule.swapped(5)
    schedule.tick()
    schedule.called("cancel", "", "b")
    schedule.called("submit", "", "b")
    schedule.stepped()
    schedule.ended(group("g1"))
  return tmp_path / "recorded"


def test_a_replay_makes_the_recorded_calls_once_all_requests_of_a_step_are_there(
  recorded, tmp_path
):
  with opened(tmp_path / "r", recorded) as schedule:
    assert schedule.draft_costs({"": [9.0, 9.0]}) == {"": [1.5, 2.0]}
    assert schedule.due([]) is None and schedule.due(["a", "c"]) is None
    first = [("submit", "", "b"), ("submit", "frozen 0", "a")]
    assert schedule.due(["a", "c", "b"]) == first
    for call in first:
      schedule.called(*call)
    schedule.stepped()
    assert not schedule.is_to_come("a") and schedule.is_to_come("b")
    assert schedule.due(["c"]) is None and not schedule.swap_is_due()  # g0 has not ended
    schedule.ended(group("g0"))
    assert schedule.due(["c"]) is None and schedule.swap_is_due()
    assert schedule.batch() == ["g0"]
    schedule.swapped(5)
    assert schedule.due(["c"]) == [("cancel", "", "b"), ("submit", "", "b")]


def test_a_replay_has_the_times_of_the_record(recorded, tmp_path):
  steps = [each for each in record_log.scan(recorded / "schedule.log") if each["is"] == "step"]
  with opened(tmp_path / "r", recorded) as schedule:
    schedule.tick()
    schedule.due(["a", "b"])
    assert schedule.time() == steps[0]["now"] < steps[1]["now"]


@pytest.mark.parametrize("other", [{"reward": 0.5}, {"token": 8}, {"error": "TimeoutError: late"}])
def test_a_group_that_is_played_otherwise_ends_a_replay(recorded, tmp_path, other):
  with (
    opened(tmp_path / "r", recorded) as schedule,
    pytest.raises(ReplayError, match=r"'g0' was played otherwise than .*schedule.log says"),
  ):
    schedule.ended(group("g0", **other))


def test_the_end_of_the_record_of_a_run_that_was_stopped_is_named(recorded, tmp_path):
  with opened(tmp_path / "r", recorded) as schedule:
    for held in (["a", "b"], ["b"]):
      for call in schedule.due(held) or ():
        schedule.called(*call)
      schedule.stepped()
      if len(held) == 2:
        schedule.ended(group("g0"))
        schedule.swapped(5)
    schedule.ended(group("g1"))
    with pytest.raises(ReplayError, match="ends here, because the recorded run was stopped; 1 req"):
      schedule.due(["c"])
    assert schedule.batch() == ["g0"]
    with pytest.raises(ReplayError, match="no further batch"):
      schedule.batch()


def test_weights_of_another_version_end_a_replay(recorded, tmp_path):
  with opened(tmp_path / "r", recorded) as schedule:
    schedule.due(["a", "b"])
    schedule.stepped()
    schedule.ended(group("g0"))
    with pytest.raises(ReplayError, match="version 4 was published where .*schedule.log has .*5"):
      schedule.swapped(4)


def test_a_run_that_was_stopped_before_it_trained_has_no_record(tmp_path):
  with opened(tmp_path / "w"):
    pass
  with pytest.raises(ValueError, match="ends before the run began to train"):
    Recorded(tmp_path / "w" / "schedule.log")


def test_the_digest_of_a_group_does_not_depend_on_times():
  timed = dataclasses.replace(group("g"), id="other")
  assert schedule_lib.digest(timed) == schedule_lib.digest(group("g"))
  slow = dataclasses.replace(timed.trajectories[0], metrics={"tools_s": 3.0})
  assert schedule_lib.digest(dataclasses.replace(timed, trajectories=(slow,))) == (
    schedule_lib.digest(group("g"))
  )
