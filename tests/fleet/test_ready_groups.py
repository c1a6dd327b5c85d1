"""Groups on the disk: written in the background, found again, left out where they must not be."""

import resource
import signal
import subprocess
import sys
import textwrap
import threading

import numpy as np
import pytest

from jaxrl_agents import full_disk
from jaxrl_agents.fleet.ready_groups import ReadyGroups
from jaxrl_agents.types import Group, Segment, Task, Trajectory


def group(name, *, version=0, began=0, reward=1.0, tokens=4, errors=("",)):
  mask = np.arange(tokens) > 0
  segment = Segment(
    np.arange(tokens, dtype=np.int32),
    mask,
    np.where(mask, -0.5, 0).astype(np.float32),
    np.where(mask, version, -1).astype(np.int32),
    np.zeros((tokens, 1, 1), np.uint16),
    began,
  )
  finished = Trajectory("t", (segment,), (), {"reward": reward}, "end")
  failed = lambda error: Trajectory("t", (), (), {}, "", error=error)
  trajectories = tuple(failed(error) if error else finished for error in errors)
  return Group(Task("t", "toy", "", {}), trajectories, name)


def test_groups_are_on_the_disk_after_a_flush_and_told_of_one_by_one(tmp_path):
  told = []
  with ReadyGroups(tmp_path, told.append) as ready:
    for place in range(3):
      ready.keep(group(f"step 0 {place}"))
    ready.flush()
    assert told == ["step 0 0", "step 0 1", "step 0 2"]
    found = {each.id: each for each in ready.load(newest=0)}
    assert sorted(found) == told
    assert found["step 0 1"].trajectories[0].segments[0].routing.shape == (4, 1, 1)
    ready.remove(["step 0 0", "step 7 7"])
    ready.remove_others(["step 0 2"])
    assert [path.name for path in tmp_path.iterdir()] == ["step_0_2.npz"]


def test_what_a_killed_process_left_of_a_group_is_removed_with_what_is_not_needed(tmp_path):
  program = f"""
    import os, signal
    import numpy as np
    from jaxrl_agents.harness import group_files
    from jaxrl_agents.types import Group, Task
    os.fsync = lambda file: os.kill(os.getpid(), signal.SIGKILL)
    group = Group(Task("t", "", "", {{}}), ())
    group_files.save_groups({str(tmp_path / "step_0_0.npz")!r}, [group])
  """
  killed = subprocess.run([sys.executable, "-c", textwrap.dedent(program)], timeout=60.0)
  assert killed.returncode == -signal.SIGKILL
  assert [path.suffix for path in tmp_path.iterdir()] == [".partial"]
  with ReadyGroups(tmp_path, lambda name: None) as ready:
    assert ready.load(newest=0) == []
    ready.remove_others([])
  assert list(tmp_path.iterdir()) == []


def test_groups_of_later_weights_than_the_checkpoints_and_damaged_ones_are_left_out(
  tmp_path, capfd
):
  with ReadyGroups(tmp_path, lambda name: None) as ready:
    ready.keep(group("step 0 0", version=4))
    ready.keep(group("step 0 1", version=5))
    ready.keep(group("step 0 2", version=4, began=5))
    ready.keep(group("step 0 3"))
    ready.flush()
    (tmp_path / "step_0_3.npz").write_bytes(b"no zip")
    assert [each.id for each in ready.load(newest=4)] == ["step 0 0"]
  assert "step_0_3.npz is damaged" in capfd.readouterr().err


def test_a_group_whose_reward_the_learner_refuses_is_not_kept(tmp_path):
  with ReadyGroups(tmp_path, lambda name: None) as ready:
    for reward in (float("nan"), 1e16, -float("inf")):
      ready.keep(group("step 0 0", reward=reward))
    ready.flush()
  assert list(tmp_path.iterdir()) == []


def test_a_group_is_kept_if_one_of_its_rollouts_did_not_fail(tmp_path):
  with ReadyGroups(tmp_path, lambda name: None) as ready:
    ready.keep(group("step 0 0", errors=("OSError: a", "OSError: b")))
    ready.keep(group("step 0 1", errors=("OSError: a", "")))
    ready.flush()
  assert [path.name for path in tmp_path.iterdir()] == ["step_0_1.npz"]


def test_a_full_disk_is_a_named_error_of_the_next_call_and_of_the_flush(tmp_path):
  old = resource.getrlimit(resource.RLIMIT_FSIZE)
  ignored = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
  resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 12, old[1]))
  try:
    with ReadyGroups(tmp_path, lambda name: None) as ready:
      ready.keep(group("step 0 0", tokens=4000))
      with pytest.raises(full_disk.FullDiskError, match="Free some space there"):
        ready.flush()
      with pytest.raises(full_disk.FullDiskError):
        ready.keep(group("step 0 1"))
  finally:
    resource.setrlimit(resource.RLIMIT_FSIZE, old)
    signal.signal(signal.SIGXFSZ, ignored)
  assert list(tmp_path.iterdir()) == []


def test_a_disk_that_does_not_answer_is_named_after_the_timeout(tmp_path):
  answers = threading.Event()
  with ReadyGroups(tmp_path, lambda name: answers.wait(10), timeout_s=0.2) as ready:
    ready.keep(group("step 0 0"))
    with pytest.raises(TimeoutError, match=r"did not take 1 groups within 0\.2 s; see whether"):
      ready.flush()
    answers.set()
