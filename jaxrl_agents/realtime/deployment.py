"""Which published weights are served, to whom, and which may never be trained on or served again.

All of it is one small file, replaced atomically: a process that dies leaves the deployment before
or after a step, never a half of one. A version is named with the digest of its manifest, so that
what is served is what was judged.

  propose   a new version becomes the candidate, in the shadow stage
  advance   shadow -> 5 % -> 50 % -> 100 %: at the last it is the stable version
  roll_back the candidate is quarantined; if it was stable already, the old weights are published
            again under a new number, because the numbers that a sampler serves never go back
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
import pathlib
import shutil
import time
from typing import Any

from jaxrl_agents import durable, full_disk
from jaxrl_agents.realtime.arms import CANARY, STABLE, STAGES, arm
from jaxrl_agents.weights import manifest as manifest_lib

FILE = "deployed.json"


@dataclasses.dataclass(frozen=True)
class Pointer:
  """A version of the weights and the digest of its manifest."""

  version: int
  digest: str


@dataclasses.dataclass(frozen=True)
class Deployment:
  """What is served.

  Attributes:
    stable: to all users that are not in the canary.
    candidate: the version that is being tried, or the stable one while rewards of its trial still
      come in; None before the first.
    stage: index into STAGES of the candidate.
    previous: what was stable before the candidate.
    replaced: what was stable before `previous` was, if rewards of that trial still came in when the
      candidate was proposed; None otherwise.
    quarantined: versions that were rolled back.
    same_weights: {version: the earlier version whose weights it has}, of roll-backs.
    history: versions that were stable, in their order.
    newest: the highest number that was ever proposed or served.
  """

  stable: Pointer
  candidate: Pointer | None = None
  stage: int = 0
  previous: Pointer | None = None
  replaced: Pointer | None = None
  quarantined: tuple[int, ...] = ()
  same_weights: tuple[tuple[int, int], ...] = ()
  history: tuple[int, ...] = ()
  newest: int = 0

  @property
  def trial(self) -> Pointer | None:
    """The candidate while it is not stable."""
    return None if self.candidate == self.stable else self.candidate

  @property
  def share(self) -> float:
    """The share of users in the canary; 0 once the candidate is stable."""
    return STAGES[self.stage] if self.trial else 0.0

  def arm(self, user: str) -> str:
    """The arm of a user (hash), see `arms.arm`."""
    return arm(user, self.candidate.version, self.share) if self.candidate else STABLE

  def served(self, arm: str) -> Pointer:
    """What an arm serves."""
    return self.candidate if arm == CANARY and self.candidate else self.stable

  def age(self, version: int) -> int:
    """How many other weights became stable after `version` did, or was tried. Versions with the
    same weights count once, quarantined ones not at all.
    """
    same = dict(self.same_weights)
    root = lambda v: same.get(v, v)
    later = {root(v) for v in self.history if v > version}
    return len(later - {root(version)} - set(self.quarantined))


class Deployer:
  """The deployment of a folder of published weights, and the steps that change it.

  Invariant: the file FILE of the folder holds one whole `Deployment`, and `now` is it. One process
  makes the steps; others read the file with `read`.

  Args:
    folder: of the published weights.
    first: the version that is stable if there is no file yet.

  Raises:
    FileNotFoundError, CorruptWeights: a version that is named is not published, or damaged.
    ValueError: a manifest has another digest than was deployed.
  """

  def __init__(self, folder: str | os.PathLike[str], first: int = 0):
    self.folder = pathlib.Path(folder)
    if (self.folder / FILE).exists():
      self.now = read(self.folder)
    else:
      self._become(Deployment(pointer(self.folder, first), history=(first,), newest=first))
    for named in (self.now.stable, self.now.candidate, self.now.previous):
      if named is not None:
        check(self.folder, named)

  def propose(self, version: int) -> None:
    """Makes a published version the candidate, in the shadow stage.

    Raises:
      ValueError: another candidate is being tried, or the number is not new.
    """
    now = self.now
    if now.trial:
      raise ValueError(
        f"version {now.trial.version} is being tried; advance it or roll it back first"
      )
    if version <= now.newest:
      raise ValueError(f"version {version} is not new: {now.newest} was used; count up")
    self._become(
      dataclasses.replace(
        now,
        candidate=pointer(self.folder, version),
        stage=0,
        previous=now.stable,
        replaced=now.previous if now.candidate == now.stable else None,
        newest=version,
      )
    )

  def advance(self) -> None:
    """Takes the candidate to the next stage; at the last it becomes the stable version.

    Raises:
      ValueError: no candidate is being tried.
    """
    now, trial = self.now, self.now.trial
    if trial is None:
      raise ValueError("no candidate is being tried; propose a version first")
    changed = dataclasses.replace(now, stage=now.stage + 1)
    if STAGES[changed.stage] == 1.0:
      history = (*now.history, trial.version)
      changed = dataclasses.replace(changed, stable=trial, history=history)
    self._become(changed)

  def roll_back(self, promised: int = 0) -> None:
    """Withdraws the candidate for good. If it is the stable version already, the weights that were
    stable before are published under a new number, above `promised`, and become stable. If it is
    not, the stable version is again the one whose rewards still come in.

    Raises:
      ValueError: there is no candidate.
    """
    now = self.now
    if now.candidate is None or now.previous is None:
      raise ValueError(f"version {now.stable.version} replaced no other; there is nothing to undo")
    bad, old = now.candidate, now.previous
    stable, same, newest, history = old, now.same_weights, now.newest, now.history
    if now.stable == bad:
      # A version above `newest` may lie there from a step that ended before its pointer was set.
      newest = max(newest, promised, *manifest_lib.versions(self.folder)) + 1
      republish(self.folder, old.version, newest)
      check(self.folder, old)
      stable = pointer(self.folder, newest)
      same = (*same, (newest, dict(same).get(old.version, old.version)))
      history = (*history, newest)
    again = now.replaced is not None and now.stable != bad
    self._become(
      Deployment(
        stable,
        candidate=now.stable if again else None,
        stage=len(STAGES) - 1 if again else 0,
        previous=now.replaced if again else None,
        quarantined=(*now.quarantined, bad.version),
        same_weights=same,
        history=history,
        newest=newest,
      )
    )

  def _become(self, deployment: Deployment) -> None:
    """Replaces the file, durably."""
    content = _to_json(deployment)
    partial = self.folder / f"{FILE}.{os.getpid()}.tmp"
    with full_disk.named(self.folder):
      with open(partial, "w", encoding="utf-8") as file:
        json.dump({"sha256": _digest(content), "deployment": content}, file)
      durable.replace(partial, self.folder / FILE)
    self.now = deployment


def read(folder: str | os.PathLike[str]) -> Deployment:
  """The deployment of a folder.

  Raises:
    FileNotFoundError: nothing was deployed from it.
    ValueError: the file is damaged.
  """
  folder = pathlib.Path(folder)
  place = folder / FILE
  try:
    whole = json.loads(place.read_bytes())
    found = whole["deployment"]
    if whole["sha256"] != _digest(found):
      raise ValueError("its content does not have its digest")
    named = lambda name: Pointer(**found[name]) if found.get(name) else None
    return Deployment(
      stable=Pointer(**found["stable"]),
      candidate=named("candidate"),
      stage=found["stage"],
      previous=named("previous"),
      replaced=named("replaced"),
      quarantined=tuple(found["quarantined"]),
      same_weights=tuple((new, old) for new, old in found["same_weights"]),
      history=tuple(found["history"]),
      newest=found["newest"],
    )
  except FileNotFoundError:
    raise
  except (ValueError, KeyError, TypeError) as error:
    raise ValueError(
      f"{place} is damaged ({type(error).__name__}: {error}); restore it from a copy, or remove it "
      f"and choose the stable version among {manifest_lib.versions(folder)} again"
    ) from None


def pointer(folder: str | os.PathLike[str], version: int) -> Pointer:
  """The pointer to a published version.

  Raises:
    FileNotFoundError, CorruptWeights: see `weights.manifest.read`.
  """
  manifest_lib.read(pathlib.Path(folder), version)
  content = manifest_lib.path(pathlib.Path(folder), version).read_bytes()
  return Pointer(version, hashlib.sha256(content).hexdigest())


def check(folder: str | os.PathLike[str], wanted: Pointer) -> None:
  """Checks that a version is still the one that was deployed.

  Raises:
    FileNotFoundError, CorruptWeights: see `weights.manifest.read`.
    ValueError: its manifest has another digest.
  """
  found = pointer(folder, wanted.version)
  if found != wanted:
    raise ValueError(
      f"the manifest of version {wanted.version} in {folder} has the digest "
      f"{found.digest[:12]}..., and {wanted.digest[:12]}... was deployed; somebody published it "
      "again: restore the folder"
    )


def republish(folder: str | os.PathLike[str], version: int, new: int) -> None:
  """Publishes the weights of a version under a new number: hard links to the same files.

  Raises:
    FileNotFoundError, CorruptWeights: see `weights.manifest.read`.
  """
  place = pathlib.Path(folder)
  found = manifest_lib.read(place, version)
  files = manifest_lib.files(place, new)
  shutil.rmtree(files, ignore_errors=True)  # left by a process that died before its manifest
  with full_disk.named(place):
    shutil.copytree(manifest_lib.files(place, version), files, copy_function=os.link)
    renumbered = dataclasses.replace(found, version=new, created_s=time.time())
    manifest_lib.write(place, renumbered)


def _to_json(deployment: Deployment) -> dict[str, Any]:
  found = dataclasses.asdict(deployment)
  return json.loads(json.dumps(found))


def _digest(content: Any) -> str:
  return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()
