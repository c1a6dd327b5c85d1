"""The run that `scripts/chaos.py` kills, the evaluator that follows it, and what befalls them.

python scripts/chaos.py --json=FILE
"""

from __future__ import annotations

import contextlib
import pathlib
import random
import resource
import signal
import subprocess
import sys
import threading
from typing import IO

import psutil

from jaxrl_agents.fleet import ledger as ledger_lib

CONFIG = "scripts/bench/chaos_config.py"

FULL_BYTES = 1_000
"""To which files may grow on a disk that is full."""

END_S = 600.0
"""Longest time from a full disk to the end of the run, and from its last step to the follower's."""


class Run:
  """The command, and the evaluator that follows it.

  Invariant: at most one process of each runs, which this object started.
  """

  def __init__(self, workdir: pathlib.Path, steps: int):
    self.workdir, self.steps = workdir, steps
    self.starts, self.errors, self.unnamed = 0, 0, 0
    self.output = workdir.parent / "output.txt"
    self._options = [f"--config={CONFIG}", "--set", f"learner.steps={steps}"]
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
      self.errors += status is not None and status > 0
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
    name = "worker_main" if victim == "worker" else "spawn_main"
    found = _children(self._process.pid, name)
    if not found:
      return False
    try:
      draw.choice(found).send_signal(signal.SIGKILL)
    except psutil.NoSuchProcess:
      return False
    return True

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
    self._finish_output()
    with self.output.open("rb") as file:
      file.seek(before)
      self.unnamed += b"could not be written: " not in file.read()
    self._process = None
    return True

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
    children = psutil.Process(pid).children()
    return [each for each in children if any(name in part for part in each.cmdline())]
  except psutil.Error:
    return []
