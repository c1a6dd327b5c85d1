"""States of rollouts: by hand, after kills, of damaged and of grown files."""

import errno
import os
import resource
import signal
import subprocess
import sys

import pytest

from jaxrl_agents import full_disk, record_log
from jaxrl_agents.fleet import ledger as ledger_lib
from jaxrl_agents.fleet.ledger import KILLED, Ledger, State
from jaxrl_agents.types import Group, Task, Trajectory


def group(name, *errors):
  task = Task(f"t{name[-1]}", "toy", "", {})
  played = tuple(Trajectory(task.id, (), (), {}, "end", error=error) for error in errors)
  return Group(task, played, name)


def states(path):
  return sorted(ledger_lib.read(path), key=lambda s: (s.group, s.sample, s.attempt))


A, B = "step 0 1", "step 0 2"


def test_a_rollout_goes_from_dispatched_to_trained_and_a_failed_one_is_dropped(tmp_path):
  path = tmp_path / "ledger.log"
  with Ledger(path, 0) as ledger:
    ledger.dispatched(A, "t1", 2)
    assert states(path) == [State(A, "t1", 0, 1, "dispatched"), State(A, "t1", 1, 1, "dispatched")]
    ledger.finished(group(A, "", "EpisodeError: late\nmore"))
    assert {each.state for each in states(path)} == {"finished"}
    ledger.ready(A)
    assert {each.state for each in states(path)} == {"ready"}
    ledger.learnt(7, {A: ""})
  assert states(path) == [
    State(A, "t1", 0, 1, "trained", 7),
    State(A, "t1", 1, 1, "dropped", 7, "EpisodeError: late"),
  ]


def test_a_group_that_nothing_was_learnt_from_is_dropped_with_the_reason(tmp_path):
  path = tmp_path / "ledger.log"
  with Ledger(path, 0) as ledger:
    for name in (A, B):
      ledger.dispatched(name, "t", 1)
      ledger.finished(group(name, ""))
    ledger.learnt(0, {A: "", B: "5 publications old"})
    ledger.ready(B)  # the disk was slower than the step
  assert [(s.state, s.step, s.why) for s in states(path)] == [
    ("trained", 0, ""),
    ("dropped", 0, "5 publications old"),
  ]


def test_each_death_of_a_worker_begins_an_attempt_of_the_samples_that_it_played(tmp_path):
  path = tmp_path / "ledger.log"
  with Ledger(path, 0) as ledger:
    ledger.dispatched(A, "t1", 2)
    ledger.played_again(A, (), "SIGKILL")
    ledger.played_again(A, (1,), "SIGALRM")
    ledger.played_again("warm start 3", (), "of an evaluation")
    ledger.finished(group(A, "", ""))
    ledger.learnt(0, {A: ""})
  assert [(s.sample, s.attempt, s.state, s.why) for s in states(path)] == [
    (0, 1, "dropped", "SIGKILL"),
    (0, 2, "trained", ""),
    (1, 1, "dropped", "SIGKILL"),
    (1, 2, "dropped", "SIGALRM"),
    (1, 3, "trained", ""),
  ]


def test_what_was_trained_after_the_checkpoint_is_undone_and_trained_once_more_at_most(tmp_path):
  path = tmp_path / "ledger.log"
  with Ledger(path, 0) as ledger:
    for step, name in enumerate((A, B)):
      ledger.dispatched(name, "t", 1)
      ledger.finished(group(name, ""))
      ledger.learnt(step, {name: ""})
  with Ledger(path, 1) as ledger:  # the checkpoint has step 0 alone
    assert [(s.group, s.attempt, s.state) for s in states(path)] == [
      (A, 1, "trained"),
      (B, 1, "finished"),
    ]
    ledger.dispatched(B, "t", 1)
    ledger.finished(group(B, ""))
    ledger.learnt(1, {B: ""})
  assert [(s.group, s.attempt, s.state, s.step, s.why) for s in states(path)] == [
    (A, 1, "trained", 0, ""),
    (B, 1, "dropped", -1, KILLED),
    (B, 2, "trained", 1, ""),
  ]


def test_a_group_that_two_steps_use_is_told_of_until_the_second_is_undone(tmp_path):
  path = tmp_path / "ledger.log"
  with Ledger(path, 0) as ledger:
    ledger.dispatched(A, "t1", 1)
    ledger.finished(group(A, ""))
    ledger.learnt(3, {A: ""})
    assert ledger_lib.read(path).doubled == {}
    ledger.learnt(4, {A: ""})
  assert ledger_lib.read(path).doubled == {A: 4}
  Ledger(path, 4).__exit__()
  assert ledger_lib.read(path).doubled == {} and states(path)[0].step == 3


def test_a_group_that_was_ready_is_used_under_its_attempt_and_one_of_a_lost_ledger_too(
  tmp_path, capfd
):
  path = tmp_path / "ledger.log"
  with Ledger(path, 0) as ledger:
    ledger.dispatched(A, "t1", 1)
    ledger.finished(group(A, ""))
    ledger.ready(A)
  with Ledger(path, 3) as ledger:
    ledger.kept(group(A, ""))
  assert states(path) == [State(A, "t1", 0, 1, "ready")]
  path.unlink()
  with Ledger(path, 3) as ledger:
    ledger.kept(group(A, ""))
  assert states(path) == [State(A, "t1", 0, 1, "ready")]
  assert "ledger.log is gone: it will not know of rollouts before step 3" in capfd.readouterr().err


def test_a_torn_end_is_cut_and_named_and_damage_elsewhere_is_an_error(tmp_path, capfd):
  path = tmp_path / "ledger.log"
  with Ledger(path, 0) as ledger:
    ledger.dispatched(A, "t1", 1)
    ledger.dispatched(B, "t2", 1)
  whole = path.read_bytes()
  path.write_bytes(whole[:-9])
  assert [each.group for each in states(path)] == [A]
  with Ledger(path, 0):
    assert [each.group for each in states(path)] == [A]
  error = capfd.readouterr().err
  assert "ledger.log: the last" in error and "record that a crash cut off; they are" in error
  path.write_bytes(whole.replace(b"t1", b"t9"))
  with pytest.raises(record_log.DamagedLog, match="is damaged at byte"):
    Ledger(path, 0)


def filled(ledger, steps, rollouts=8):
  for step in range(steps):
    names = [f"step {step} {place}" for place in range(8)]
    for name in names:
      ledger.dispatched(name, f"task {hash(name) % 1000}", rollouts)
      ledger.finished(group(name, *[""] * rollouts))
      ledger.ready(name)
    ledger.learnt(step, dict.fromkeys(names, ""))


def test_a_grown_file_is_compacted_to_a_byte_or_two_a_rollout_and_says_the_same(
  tmp_path, monkeypatch
):
  monkeypatch.setattr(ledger_lib, "_ROOM_BYTES", 1 << 12)
  path = tmp_path / "ledger.log"
  with Ledger(path, 0) as ledger:
    filled(ledger, 50)
    ledger.dispatched("step 50 1", "open", 2)
    ledger.played_again("step 50 1", (1,), "SIGKILL")
    ledger.finished(group("step 50 1", "EpisodeError", ""))
    before, grown = states(path), path.stat().st_size
    ledger.saved()
    assert states(path) == before and path.stat().st_size < grown / 20
    assert path.stat().st_size / len(before) < 2
    ledger.ready("step 50 1")  # and it goes on
  with Ledger(path, 50) as ledger:
    ledger.learnt(50, {"step 50 1": ""})
    ledger.saved()
  found = {(s.sample, s.attempt): (s.state, s.why) for s in states(path) if s.task == "open"}
  assert found == {
    (0, 1): ("dropped", "EpisodeError"),
    (1, 1): ("dropped", "SIGKILL"),
    (1, 2): ("trained", ""),
  }
  assert [path.name for path in tmp_path.iterdir()] == ["ledger.log"]


WRITER = """
import itertools, pathlib, sys
from jaxrl_agents.fleet import ledger as ledger_lib
from tests.fleet.test_ledger import group
ledger_lib._ROOM_BYTES = 1 << 10
with ledger_lib.Ledger(pathlib.Path(sys.argv[1]), int(sys.argv[2])) as ledger:
  for step in itertools.count(int(sys.argv[2])):
    ledger.dispatched(f"step {step} 1", "t1", 2)
    ledger.finished(group(f"step {step} 1", "", ""))
    ledger.learnt(step, {f"step {step} 1": ""})
    ledger.saved()
    print(step, flush=True)
"""


def test_a_writer_killed_at_any_moment_loses_no_acknowledged_step(tmp_path):
  path, first = tmp_path / "ledger.log", 0
  for delay in (40, 41):
    command = [sys.executable, "-c", WRITER, str(path), str(first)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    told = [int(process.stdout.readline()) for _ in range(delay)]
    os.kill(process.pid, signal.SIGKILL)
    rest, _ = process.communicate(timeout=30)
    acknowledged = [*told, *(int(line) for line in rest.split("\n")[:-1])]
    trained = {s.step for s in states(path) if s.state == "trained"}
    assert trained >= set(acknowledged) | set(range(first))
    first = acknowledged[-1] + 1


def test_a_full_disk_is_named_and_the_ledger_is_as_it_was(tmp_path):
  path = tmp_path / "ledger.log"
  with Ledger(path, 0) as ledger:
    ledger.dispatched(A, "t1", 1)
    before = path.read_bytes()
    old = resource.getrlimit(resource.RLIMIT_FSIZE)
    ignored = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (len(before) + 20, old[1]))
    try:
      with pytest.raises(full_disk.FullDiskError, match=os.strerror(errno.EFBIG)):
        ledger.finished(group(A, ""))
    finally:
      resource.setrlimit(resource.RLIMIT_FSIZE, old)
      signal.signal(signal.SIGXFSZ, ignored)
    assert path.read_bytes() == before
    ledger.finished(group(A, ""))
  assert [each.state for each in states(path)] == ["finished"]
