"""The run that `scripts/chaos.py` kills, the evaluator that follows it, and what befalls them.

python scripts/chaos.py --json=FILE
"""

from __future__ import annotations

import contextlib
import pathlib
import random
import resource
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from typing import IO, Any

import psutil

from jaxrl_agents.fleet import ledger as ledger_lib
from jaxrl_agents.weights import manifest

CONFIG = "scripts/bench/chaos_config.py"

FULL_BYTES = 1_000
"""To which files may grow on a disk that is full."""

END_S = 600.0
"""Longest time from a full disk to the end of the run, and from its last step to the follower's."""

SLICE_START_S = 6.0
"""Within so many seconds of a slice's new process falls the kill of one that starts."""
LOAD_S = 0.3
"""Within so many seconds of a version's manifest falls the kill of a slice that loads it."""
NEWS_S = 60.0
"""Longest wait for a new process of a slice, or for a new version."""

OF_SLICES = ("slice", "starting_slice", "loading_slice")
"""The victims that need a run with sampler slices."""


class Run:
  """The command, and the evaluator that follows it.

  Invariant: at most one process of each runs, which this object started.

  Args:
    workdir: of the run.
    steps: of the run.
    options: further ones, as "name=value".
  """

  def __init__(self, workdir: pathlib.Path, steps: int, options: Sequence[str] = ()):
    self.workdir, self.steps = workdir, steps
    self.starts, self.errors, self.unexpected, self.unnamed = 0, 0, 0, 0
    self.output = workdir.parent / "output.txt"
    settings = [f"learner.steps={steps}", *options]
    self._options = [f"--config={CONFIG}", *(f"--set={setting}" for setting in settings)]
    self._begun = 0  # bytes of output before the newest start
    self._killed_slice = 0  # pid of the last one
    self._log = self.output.open("ab", buffering=0)
    self._process: subprocess.Popen[bytes] | None = None
    self._copy: threading.Thread | None = None
    self._follower: subprocess.Popen[bytes] | None = None

  def __enter__(self) -> Run:
    return self

  def __exit__(self, *_: object) -> None:
    for process in (self._process, self._follower):
      if process:
        process.kill()
        process.wait(30)
    self._finish_output()
    self._log.close()

  def is_done(self) -> bool:
    """Whether the run has ended well; starts it, and the follower, if they are not running."""
    status = self._process.poll() if self._process else None
    if status == 0:
      return True
    if self._follower is None or self._follower.poll() is not None:
      command = ["scripts/evaluate.py", *self._options, f"--checkpoint={self.workdir}", "--follow"]
      self._follower = subprocess.Popen(
        [sys.executable, *command], stdout=self._log, stderr=self._log
      )
    if self._process is None or status is not None:
      if status is not None and status > 0:
        self.errors += 1
        self.unexpected += not self._told(b"SlicesError: ", self._begun)
      self._begun = self.output.stat().st_size
      command = ["scripts/train_rl.py", *self._options, f"--workdir={self.workdir}"]
      # Through a pipe: the output is not on the disk that becomes full.
      self._process = subprocess.Popen(
        [sys.executable, *command], stdout=subprocess.PIPE, stderr=subprocess.STDOUT
      )
      assert self._process.stdout
      output = (self._process.stdout, self._log)
      self._copy = threading.Thread(target=_copied, args=output, daemon=True)
      self._copy.start()
      self.starts += 1
    return False

  def kill(self, victim: str, draw: random.Random) -> bool:
    """Sends SIGKILL to a victim, or fills the learner's disk; False if there is none.

    Raises:
      TimeoutError: the learner did not end after its disk was full.
    """
    assert self._process and self._follower
    if victim == "disk":
      return self._fill_disk(self._process)
    if victim in ("learner", "follower"):
      process = self._process if victim == "learner" else self._follower
      if process.poll() is not None:
        return False
      process.kill()
      process.wait(30)
      return True
    if victim in OF_SLICES:
      return self._kill_slice(victim, draw)
    found = self._workers() if victim == "worker" else self._evaluators()
    return bool(found) and _killed(draw.choice(found))

  def _workers(self) -> list[psutil.Process]:
    """The workers: processes of the learner, or of the actors on the cluster's nodes."""
    assert self._process
    nodes = [each.pid for each in _actors("WorkerNode")]
    return [each for pid in (self._process.pid, *nodes) for each in _children(pid, "worker_main")]

  def _evaluators(self) -> list[psutil.Process]:
    """The evaluator that the learner started: its own process, or an actor on the cluster."""
    assert self._process
    return _children(self._process.pid, "spawn_main") or _actors("EvaluatorNode")

  def _kill_slice(self, victim: str, draw: random.Random) -> bool:
    """Kills a slice: now; or while the next one starts, after such a kill; or while it loads the
    next version. False if there is none, or nothing new for NEWS_S.
    """
    found = lambda: [each for each in _actors("SliceMember") if each.pid != self._killed_slice]
    if victim == "loading_slice":
      versions = lambda: {*manifest.versions(self.workdir / "weights")}
      before = versions()
      if not _came(lambda: versions() - before):
        return False
      time.sleep(draw.uniform(0.0, LOAD_S))
    if victim == "starting_slice":
      if not _came(found):
        return False
      time.sleep(draw.uniform(0.0, SLICE_START_S))
    if not (slices := found()):
      return False
    chosen = draw.choice(slices)
    self._killed_slice = chosen.pid
    return _killed(chosen)

  def _fill_disk(self, process: subprocess.Popen[bytes]) -> bool:
    """From now on no file of the learner may grow; returns once it has ended for that reason."""
    before = self.output.stat().st_size
    try:
      limits = (FULL_BYTES, resource.RLIM_INFINITY)
      psutil.Process(process.pid).rlimit(resource.RLIMIT_FSIZE, limits)
      status = process.wait(END_S)
    except psutil.Error:
      return False
    except subprocess.TimeoutExpired:
      raise TimeoutError(f"no end within {END_S:g} s after the disk was full") from None
    if status == 0:
      return False  # the limit came after the last write
    self.unnamed += not self._told(b"could not be written: ", before)
    self._process = None
    return True

  def _told(self, text: bytes, since: int) -> bool:
    """Whether the output of a learner that has ended has this after so many bytes."""
    self._finish_output()
    with self.output.open("rb") as file:
      file.seek(since)
      return text in file.read()

  def _finish_output(self) -> None:
    """Returns when all output of a learner that has ended is in the file."""
    if self._copy:
      self._copy.join(30)

  def wait_for_follower(self) -> None:
    """Returns when the follower has seen the end of the run.

    Raises:
      TimeoutError: it did not end.
    """
    assert self._follower
    try:
      self._follower.wait(END_S)
    except subprocess.TimeoutExpired:
      raise TimeoutError(
        f"scripts/evaluate.py --follow did not end within {END_S:g} s after its run"
      ) from None

  def steps_done(self) -> int:
    """Steps that the ledger has; those of the last checkpoint or one more."""
    path = self.workdir / "ledger.log"
    if not path.exists():
      return 0
    return 1 + max((state.step for state in ledger_lib.read(path)), default=-1)


def _copied(source: IO[bytes], target: IO[bytes]) -> None:
  with contextlib.suppress(ValueError):  # the file was closed
    for line in source:
      target.write(line)


def _children(pid: int, name: str) -> list[psutil.Process]:
  """Child processes whose command has `name` in it."""
  try:
    return [each for each in psutil.Process(pid).children() if _is_called(each, name)]
  except psutil.Error:
    return []


def _actors(name: str) -> list[psutil.Process]:
  """Processes of the cluster that this one has started whose command has `name` in it."""
  return [each for each in psutil.Process().children(recursive=True) if _is_called(each, name)]


def _is_called(process: psutil.Process, name: str) -> bool:
  try:
    return any(name in part for part in process.cmdline())
  except psutil.Error:  # it has ended
    return False


def _killed(process: psutil.Process) -> bool:
  try:
    process.kill()
  except psutil.NoSuchProcess:
    return False
  return True


def _came(news: Callable[[], Any]) -> bool:
  """Whether there is something new within NEWS_S."""
  deadline = time.monotonic() + NEWS_S
  while not (found := news()) and time.monotonic() < deadline:
    time.sleep(0.02)
  return bool(found)
