"""Which records a run may replay."""

import pytest

from jaxrl_agents import config as config_lib
from jaxrl_agents.fleet.schedule import Recorded
from jaxrl_agents.runs import schedules

CONFIG = config_lib.load("configs/search_cpu.py", ["fleet.depth=1", "workers.deterministic=False"])


def options(*overrides):
  return config_lib.with_overrides(CONFIG, overrides)


def opened(folder, config=CONFIG, *, step=0, start="s"):
  return schedules.opened(folder / "schedule.log", config, step=step, start=start)


def replay(folder, of):
  return opened(folder, options(f"fleet.replay={of}"))


@pytest.fixture
def recorded(tmp_path):
  """The folder of a run that has made a step."""
  with opened(tmp_path / "recorded") as schedule:
    schedule.draft_costs({})
    schedule.stepped()
  return tmp_path / "recorded"


@pytest.mark.parametrize(
  ("overrides", "text"),
  [
    (["seed=7"], r"other options: seed=0 -> 7; set them as they were, or leave fleet.replay"),
    (["learner.lr=0.5", "fleet.depth=2"], r"fleet.depth=1 -> 2, learner.lr=.* -> 0.5"),
  ],
)
def test_a_record_of_other_options_is_refused_by_their_names(recorded, tmp_path, overrides, text):
  config = options(f"fleet.replay={recorded}", *overrides)
  with pytest.raises(ValueError, match=text), opened(tmp_path / "r", config):
    pass


def test_options_that_decide_nothing_may_differ(recorded, tmp_path):
  free = ["workers.processes=5", "monitor.port=8000", "eval.tasks=3", "name=again"]
  with opened(tmp_path / "r", options(f"fleet.replay={recorded}", *free)) as schedule:
    assert schedule.follows


def test_a_record_of_another_warm_start_is_refused(recorded, tmp_path):
  config = options(f"fleet.replay={recorded}")
  with (
    pytest.raises(ValueError, match=r"another warm start; copy its warm_start/ into this"),
    opened(tmp_path / "r", config, start="t"),
  ):
    pass


def test_a_folder_without_a_record_is_refused(tmp_path):
  with (
    pytest.raises(ValueError, match=r"x/schedule.log is not there: fleet.replay must name"),
    replay(tmp_path / "r", tmp_path / "x"),
  ):
    pass


def test_the_own_folder_is_refused_and_its_record_stays(recorded):
  with pytest.raises(ValueError, match="is the folder of this run"), replay(recorded, recorded):
    pass
  assert Recorded(recorded / "schedule.log").start == "s"


def test_the_record_of_a_resumed_run_is_refused(recorded, tmp_path):
  with opened(recorded, step=2) as schedule:
    assert schedule is None
  with (
    pytest.raises(ValueError, match="was resumed at step 2.*only a run that was never resumed"),
    replay(tmp_path / "r", recorded),
  ):
    pass


def test_a_replay_does_not_go_on_from_a_checkpoint(recorded, tmp_path):
  config = options(f"fleet.replay={recorded}")
  with (
    pytest.raises(ValueError, match="cannot go on from the checkpoint of step 1"),
    opened(tmp_path / "r", config, step=1),
  ):
    pass


def test_a_run_that_begins_anew_before_its_first_checkpoint_is_recorded_anew(recorded):
  with opened(recorded) as schedule:
    schedule.draft_costs({})
  assert not Recorded(recorded / "schedule.log").events


def test_a_run_on_a_cluster_keeps_no_record(tmp_path):
  config = options("fleet.backend=ray", "fleet.address=auto", "sampler.slices=1")
  with opened(tmp_path, config) as schedule:
    assert schedule is None
  with opened(tmp_path, config, step=2) as schedule:
    assert schedule is None
  assert not (tmp_path / "schedule.log").exists()
