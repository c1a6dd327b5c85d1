"""The saved weights of models, as folders of one directory, by their tinker:// paths.

    DIRECTORY/MODEL/weights/NAME           a training state       tinker://MODEL/weights/NAME
    DIRECTORY/MODEL/sampler_weights/NAME   weights for sampling   tinker://MODEL/sampler_weights/NAME

A folder has a file `checkpoint.json` with what must be known to load it. It gets its name when all
of it is written; names that begin with a dot are of folders that are being written or replaced.
"""

from __future__ import annotations

import dataclasses
import datetime
import json
import os
import pathlib
import re
import shutil
from collections.abc import Mapping
from typing import Any

from jaxrl_agents import durable
from jaxrl_agents.gateway.requests import Refusal

KINDS = {"weights": "training", "sampler_weights": "sampler"}
RECORD = "checkpoint.json"
_PARTIAL, _BEFORE = ".partial", ".before"

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:-]{0,127}")


@dataclasses.dataclass(frozen=True)
class Lora:
  """The adapters of a model.

  Attributes:
    rank: of each; 0 for a model whose parameters are all trained.
    seed: of their first values.
    train_attn, train_mlp: which matrices of a layer have one.
  """

  rank: int = 0
  seed: int = 0
  train_attn: bool = True
  train_mlp: bool = True


@dataclasses.dataclass(frozen=True)
class Checkpoint:
  """A saved state or saved weights.

  Attributes:
    path: tinker://...
    folder: where its files are.
    lora: of its model.
    time: when it was saved, ISO 8601.
    user_metadata: whatever the client attached.
  """

  path: str
  folder: pathlib.Path
  lora: Lora
  time: str
  user_metadata: Mapping[str, str]

  @property
  def weights(self) -> str:
    """A name of the weights, which `saved_folder` reads; others that are saved in the same place
    later have another name.
    """
    return f"{self.folder}@{self.time}"

  def describe(self) -> dict[str, Any]:
    """As Tinker's lists of checkpoints show it."""
    _, kind, name = self.path.removeprefix("tinker://").split("/")
    files = (file for file in self.folder.rglob("*") if file.is_file())
    return {
      "checkpoint_id": f"{kind}/{name}",
      "checkpoint_type": KINDS[kind],
      "time": self.time,
      "tinker_path": self.path,
      "size_bytes": sum(file.stat().st_size for file in files),
      "user_metadata": dict(self.user_metadata),
    }


class Checkpoints:
  """What is saved. Invariant: what `find` returns is complete.

  Args:
    directory: holds the folders; made if it is not there.
  """

  def __init__(self, directory: str | pathlib.Path):
    self._directory = pathlib.Path(directory).expanduser()
    self._directory.mkdir(parents=True, exist_ok=True)
    for before in self._directory.glob(f"*/*/.*{_BEFORE}"):  # a process died as it replaced it
      place = before.with_name(before.name.removeprefix(".").removesuffix(_BEFORE))
      if not place.exists():
        os.replace(before, place)

  def begin(self, model: str, kind: str, name: str, *, overwrite: bool) -> pathlib.Path:
    """An empty folder for a new checkpoint, which `complete` puts in its place. Until then an
    earlier one of its name is there.

    Raises:
      ValueError: the name cannot be that of a folder, or is taken.
    """
    if not _NAME.fullmatch(name):
      raise ValueError(f"{name!r} cannot name a checkpoint; use letters, digits and . _ : -")
    folder = self._directory / model / kind / name
    if (folder / RECORD).exists() and not overwrite:
      raise ValueError(f"{path_of(model, kind, name)} exists; save with overwrite, or another name")
    partial = folder.with_name(f".{name}{_PARTIAL}")
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir(parents=True)
    return partial

  def complete(self, folder: pathlib.Path, lora: Lora, user_metadata: Mapping[str, str]) -> str:
    """Writes the record of a folder whose other files are written; returns its path."""
    record = {
      "lora": dataclasses.asdict(lora),
      "time": datetime.datetime.now(datetime.UTC).isoformat(),
      "user_metadata": dict(user_metadata),
    }
    (folder / RECORD).write_text(json.dumps(record, indent=2) + "\n")
    place = folder.with_name(folder.name.removeprefix(".").removesuffix(_PARTIAL))
    before = folder.with_name(f".{place.name}{_BEFORE}")
    shutil.rmtree(before, ignore_errors=True)
    if place.exists():
      os.replace(place, before)
    durable.replace(folder, place)
    shutil.rmtree(before, ignore_errors=True)
    return path_of(*place.relative_to(self._directory).parts)

  def find(self, path: str, kind: str = "") -> Checkpoint:
    """The checkpoint of a path, of one kind if it is given.

    Raises:
      Refusal: 404, there is none.
    """
    parts = path.removeprefix("tinker://").split("/")
    fits = path.startswith("tinker://") and len(parts) == 3 and all(map(_NAME.fullmatch, parts))
    file = self._directory.joinpath(*parts) / RECORD
    if not fits or parts[1] not in KINDS or not file.is_file():
      known = ", ".join(c.path for c in self.all()) or "none"
      raise Refusal(404, f"no checkpoint {path!r}; there are: {known}", retry=False)
    if kind and parts[1] != kind:
      raise Refusal(400, f"{path} is not of the kind {kind!r}, which is needed here", retry=False)
    record = json.loads(file.read_bytes())
    lora = Lora(**record["lora"])
    return Checkpoint(path, file.parent, lora, record["time"], record["user_metadata"])

  def all(self, model: str = "") -> list[Checkpoint]:
    """All checkpoints, or those of a model, the oldest first."""
    files = self._directory.glob(f"{model or '*'}/*/*/{RECORD}")
    places = (file.parent.relative_to(self._directory).parts for file in files)
    whole = (parts for parts in places if parts[1] in KINDS and _NAME.fullmatch(parts[2]))
    found = [self.find(path_of(*parts)) for parts in whole]
    return sorted(found, key=lambda checkpoint: checkpoint.time)

  def remove(self, path: str) -> None:
    """Deletes a checkpoint.

    Raises:
      Refusal: 404, there is none.
    """
    shutil.rmtree(self.find(path).folder)


def saved_folder(weights: str) -> pathlib.Path:
  """The folder of the weights of a name (`Checkpoint.weights`).

  Raises:
    ValueError: they are not there any more.
  """
  place, _, time = weights.rpartition("@")
  folder = pathlib.Path(place)
  try:
    saved = json.loads((folder / RECORD).read_bytes())["time"]
  except FileNotFoundError:
    saved = "nothing"
  if saved != time:
    raise ValueError(
      f"{folder.name!r} held weights that were saved at {time}, and now holds those of {saved}; "
      "create a sampling session of what is there"
    )
  return folder


def path_of(model: str, kind: str, name: str) -> str:
  """The tinker:// path of a checkpoint."""
  return f"tinker://{model}/{kind}/{name}"
