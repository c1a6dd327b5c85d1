"""The folder of a run: where everything it leaves is found again.

metrics.jsonl     one JSON object per optimizer step or batch: phase, step, time, numbers, digest
demonstrations/   what the warm-up imitates, a folder per source
trajectories/     what was played, a file per step
checkpoints/      orbax steps: parameters, optimizer, key, cursor, progress
weights/          published versions
ledger.log        the state of every rollout (fleet.ledger)
ready/            groups that were played ahead and not trained yet
replies.log       what was sampled for groups that are being played ahead
schedule.log      what decided an asynchronous run, for a replay (fleet.schedule)
evaluations/      scores of versions, a file per version (fleet.version_scores)
tensorboard/      the metrics as event files of TensorBoard, if they are asked for
services/         what each service does and waits for, a file per service (service_log)
warm_start/       the policy after supervised warm-up (policy.safetensors)
trained/          the policy after reinforcement learning
summary.json      the result, with its digest
report.html       the result, to look at
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import math
import os
import pathlib
import secrets
import shutil
import socket
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from typing import IO, Any

import psutil

from jaxrl_agents import durable, file_digests, full_disk, stopwatch
from jaxrl_agents.full_disk import FullDiskError
from jaxrl_agents.weights import places

WARM_START = "warm_start"

HELD_S = 60.0
"""A run that was told to stop, and whose place another takes, ends within this time."""


Listener = Callable[[str, int, Mapping[str, Any], float], None]
"""(phase, step, numbers, seconds since the epoch) of a line of metrics."""


class Workdir:
  """Paths and append-only metrics of one run. Invariant: a line of metrics is whole or absent.

  Args:
    path: the folder of the run.
    weights: where versions of the weights are published (`publish.folder`); "": in this folder.

  Attributes:
    listeners: what else is told each line of metrics.

  Raises:
    ValueError: the path is that of a file, cannot be resolved, may not be written to, or its disk
      cannot rename folders.
  """

  def __init__(self, path: str | os.PathLike[str], *, weights: str = ""):
    self.listeners: list[Listener] = []
    self.path = _made(pathlib.Path(path))
    _check_renames(self.path)
    self.trajectories = self._folder("trajectories")
    self.checkpoints = self._folder("checkpoints")
    self.weights = places.of(weights) if weights else self._folder("weights")
    self.evaluations = self.path / "evaluations"
    self.services = self.path / "services"
    self.demonstrations = self.path / "demonstrations"
    self.warm_start = self.path / WARM_START
    self.trained = self.path / "trained"
    self.metrics = self.path / "metrics.jsonl"
    self.summary = self.path / "summary.json"
    self.report = self.path / "report.html"

  def check_hard_links(self) -> None:
    """Raises ValueError if the disk has no hard links, by which evaluators agree on one result."""
    probe = self.path / f".probe-{secrets.token_hex(8)}"
    linked = probe.with_name(f"{probe.name}-linked")
    try:
      with full_disk.named(self.path):
        probe.touch()
        os.link(probe, linked)
    except FullDiskError:
      raise
    except OSError as error:
      raise ValueError(
        f"the disk of {self.path} makes no hard links ({error}), which an evaluator needs; choose "
        "a --workdir on NFS, Filestore, Lustre or a local disk, or set evaluator.every=0"
      ) from None
    finally:
      for path in (probe, linked):
        path.unlink(missing_ok=True)

  @contextlib.contextmanager
  def held(self, wait_s: float = HELD_S) -> Iterator[None]:
    """Keeps other runs out of the folder while the context lasts. Waits `wait_s` for one that ends.

    Raises:
      ValueError: another run is in it.
    """
    with (self.path / ".lock").open("a+") as file:
      _lock(file, self.path, wait_s)
      file.truncate(0)
      file.write(f"process {os.getpid()} on {socket.gethostname()}\n")
      file.flush()
      yield

  def log(self, phase: str, step: int, numbers: Mapping[str, float]) -> None:
    """Appends one line to metrics.jsonl; numbers that are not finite become null."""
    finite = {k: v if math.isfinite(v) else None for k, v in numbers.items()}
    now = time.time()
    record = {"phase": phase, "step": step, "time": now, **finite}
    line = json.dumps(file_digests.with_digest(record)) + "\n"
    with full_disk.named(self.path), self.metrics.open("ab+") as file:
      if file.tell() and os.pread(file.fileno(), 1, file.tell() - 1) != b"\n":
        line = "\n" + line  # what a crash cut off ends there
      file.write(line.encode())
    for listener in self.listeners:
      listener(phase, step, finite, now)

  def drop_metrics_from(self, phase: str, step: int) -> None:
    """Removes the lines of `phase` at or after `step`: a resumed run writes them again.

    Says on the standard error how many of the steps before it have no line.
    """
    kept = [line for line in self.lines() if line["phase"] != phase or line["step"] < step]
    lost = set(range(step)) - {line["step"] for line in kept if line["phase"] == phase}
    if lost:
      text = f"{self.metrics} has no line for {len(lost)} of the first {step} steps of {phase}"
      print(f"{text}; its curves and means leave them out", file=sys.stderr, flush=True)
    lines = (json.dumps(file_digests.with_digest(line)) + "\n" for line in kept)
    if self.metrics.exists():
      _replace(self.metrics, "".join(lines))

  def lines(self) -> list[dict[str, Any]]:
    """The metrics so far. Lines that are damaged, or cut off by a crash, are left out and named on
    the standard error.
    """
    if not self.metrics.exists():
      return []
    found, damaged = [], []
    with self.metrics.open("rb") as file:
      for number, text in enumerate(file, start=1):
        if text.strip():
          try:
            found.append(metrics_line(text))
          except ValueError as error:
            damaged.append(f"line {number}: {error}")
    if damaged:
      shown = "; ".join(damaged[:3]) + ("; ..." if len(damaged) > 3 else "")
      print(f"{self.metrics}: {len(damaged)} left out, {shown}", file=sys.stderr, flush=True)
    return found

  def read_summary(self) -> dict[str, Any]:
    """summary.json so far.

    Raises:
      ValueError: it is damaged.
    """
    if not self.summary.exists():
      return {}
    try:
      return file_digests.read_record(self.summary.read_bytes())
    except ValueError as error:
      raise ValueError(
        f"{self.summary} is damaged: {error}. Restore it from a copy; a run can only be resumed "
        "with it, since it holds the options that the run began with"
      ) from None

  def merge_summary(self, part: Mapping[str, Any]) -> dict[str, Any]:
    """Adds `part` to summary.json, section by section, by an atomic rename; returns the whole.

    Raises:
      ValueError: the summary so far is damaged.
    """
    whole = self.read_summary()
    for key, value in part.items():
      old = whole.get(key)
      whole[key] = {**old, **value} if isinstance(old, dict) and isinstance(value, dict) else value
    _replace(self.summary, json.dumps(file_digests.with_digest(whole), indent=2) + "\n")
    return whole

  def drop_from_summary(self, *names: str) -> None:
    """Removes sections from summary.json, by an atomic rename.

    Raises:
      ValueError: the summary so far is damaged.
    """
    whole = self.read_summary()
    left = {key: value for key, value in whole.items() if key not in names}
    if left != whole:
      _replace(self.summary, json.dumps(file_digests.with_digest(left), indent=2) + "\n")

  def keep_seconds(self) -> None:
    """Adds the parts of the stopwatch to `wall_s` of summary.json.

    Those that the run has from an earlier process stay: later ones find the files of the first.

    Raises:
      ValueError: the summary so far is damaged.
    """
    known = self.read_summary().get("wall_s")
    self.merge_summary({"wall_s": stopwatch.seconds() | (known if isinstance(known, dict) else {})})

  def _folder(self, name: str) -> pathlib.Path:
    folder = self.path / name
    folder.mkdir(exist_ok=True)
    return folder


def _made(path: pathlib.Path) -> pathlib.Path:
  """The folder, resolved and made if missing, once it is known that it can be written to."""
  try:
    folder = path.expanduser().resolve()
    folder.mkdir(parents=True, exist_ok=True)
  except (FileExistsError, NotADirectoryError):
    raise ValueError(f"{path} is a file, or lies in one; --workdir must name a folder") from None
  except (OSError, RuntimeError, ValueError) as error:  # RuntimeError: links that form a loop
    raise ValueError(f"{path} cannot be made: {error}; choose another --workdir") from None
  if not os.access(folder, os.W_OK | os.X_OK):
    raise ValueError(
      f"{folder} may not be written to by this user; change its mode or owner, or choose another "
      "--workdir"
    )
  return folder


def _check_renames(folder: pathlib.Path) -> None:
  """Raises ValueError if the disk cannot rename a folder that holds a file, as buckets cannot:
  checkpoints and demonstrations appear whole by such a rename.
  """
  probe = folder / f".probe-{secrets.token_hex(8)}"
  renamed = probe.with_name(f"{probe.name}-renamed")
  try:
    with full_disk.named(folder):
      probe.mkdir()
      (probe / "file").touch()
      os.rename(probe, renamed)
  except FullDiskError:
    raise
  except OSError as error:
    raise ValueError(
      f"the disk of {folder} cannot rename folders ({error}), by which checkpoints appear whole; "
      "choose a --workdir on NFS, Filestore, Lustre or a local disk; a bucket needs a hierarchical "
      "namespace"
    ) from None
  finally:
    for path in (probe, renamed):
      shutil.rmtree(path, ignore_errors=True)


def _lock(file: IO[str], folder: pathlib.Path, wait_s: float) -> None:
  deadline = time.monotonic() + wait_s
  while True:
    try:
      fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
      return
    except BlockingIOError:
      if time.monotonic() > deadline:
        file.seek(0)
        raise ValueError(
          f"another run ({file.read().strip()}) is in {folder}; stop it, or choose another "
          "--workdir"
        ) from None
    except OSError as error:  # a file system without locks
      print(f"{folder} cannot be locked: {error}; start no other run in it", file=sys.stderr)
      return
    time.sleep(0.1)


def metrics_line(text: str | bytes) -> dict[str, Any]:
  """The record in a line of metrics.jsonl. Raises ValueError, with the reason, if it is damaged."""
  record = file_digests.read_record(text)
  if not isinstance(record.get("phase"), str) or not isinstance(record.get("step"), int):
    raise ValueError("it has no phase and step")
  return record


def _replace(path: pathlib.Path, text: str) -> None:
  """Replaces a file by an atomic rename, once its content is on the disk."""
  fresh = path.with_suffix(".new")
  with full_disk.named(path.parent):
    fresh.write_text(text, encoding="utf-8")
    durable.replace(fresh, path)


def rss_mib() -> float:
  """Resident memory of this process and its children, MiB."""
  return sum(_status_kib("VmRSS")) / 1024


def peak_rss_mib() -> float:
  """The most that each of these processes has ever held in memory, summed, MiB: more than any
  `rss_mib` between steps, because an update frees most of what it needs.
  """
  return sum(_status_kib("VmHWM")) / 1024


def _status_kib(field: str) -> Iterator[int]:
  """A field of /proc/PID/status of this process and its children, KiB."""
  me = psutil.Process()
  for process in (me, *me.children(recursive=True)):
    with contextlib.suppress(OSError):  # it has ended
      for line in pathlib.Path(f"/proc/{process.pid}/status").read_text().splitlines():
        name, _, value = line.partition(":")
        if name == field:
          yield int(value.split()[0])
