"""Token sequences for imitation, on disk: segments of good rollouts, and drills.

A folder of demonstrations holds flat arrays, so that they are memory-mapped and any example is a
slice:

    tokens.npy     int32 [sum of T]     the ids of all segments, one after another
    loss_mask.npy  bool  [sum of T]     True where the token is trained
    offsets.npy    int64 [N + 1]        segment n is [offsets[n], offsets[n + 1])
    manifest.json                       counts, and the sha256 of each array; written last

Ids are stored unchanged.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
import pathlib
import shutil
import uuid
from collections.abc import Iterable, Iterator, Mapping

import numpy as np

from jaxrl_agents import durable, file_digests, full_disk
from jaxrl_agents.types import Segment

MANIFEST = "manifest.json"
_ARRAYS = ("tokens", "loss_mask", "offsets")
_FORMAT = 1
_REMEDY = "restore the folder from a copy, or remove it: the warm-up then writes it again"


@dataclasses.dataclass(frozen=True)
class Demonstrations:
  """A memory-mapped folder of demonstrations.

  Attributes:
    tokens: int32 [sum of T], read-only.
    loss_mask: bool [sum of T], read-only.
    offsets: int64 [N + 1].
    digest: sha256 of the manifest, hexadecimal: equal digests mean equal contents.
    counts: numbers about their origin.
  """

  tokens: np.ndarray
  loss_mask: np.ndarray
  offsets: np.ndarray
  digest: str
  counts: Mapping[str, int]

  def __len__(self) -> int:
    return len(self.offsets) - 1

  def example(self, n: int) -> tuple[np.ndarray, np.ndarray]:
    """The n-th segment as (tokens int32 [T], loss_mask bool [T])."""
    span = slice(self.offsets[n], self.offsets[n + 1])
    return self.tokens[span], self.loss_mask[span]


def write_segments(
  folder: str | os.PathLike[str],
  segments: Iterable[Segment],
  *,
  counts: Mapping[str, int] | None = None,
) -> int:
  """Replaces the content of `folder` by the ids and loss masks of `segments`; returns how many.

  `counts` tells their origin (such as episodes kept and refused) and is read back with them. The
  folder appears complete or not at all: it is written beside its place and renamed.

  Raises:
    ValueError: there is no segment; a segment trains no token or its first one, or its arrays
      differ in length; the folder holds anything but demonstrations.
  """
  tokens, masks = [], []
  for n, segment in enumerate(segments):
    if segment.tokens.shape != segment.loss_mask.shape or segment.tokens.ndim != 1:
      raise ValueError(
        f"segment {n}: tokens {segment.tokens.shape} and loss_mask {segment.loss_mask.shape} must"
        " be vectors of one length"
      )
    if not segment.loss_mask.any() or segment.loss_mask[0]:
      raise ValueError(
        f"segment {n} of {len(segment.tokens)} tokens must train some, but not its first, which"
        " nothing predicts; leave it out or unmark the first"
      )
    tokens.append(segment.tokens.astype(np.int32))
    masks.append(segment.loss_mask.astype(bool))
  if not tokens:
    raise ValueError(
      f"no segments to write to {folder}: the filter kept no rollout, or the generator yielded none"
    )
  arrays = {
    "tokens": np.concatenate(tokens),
    "loss_mask": np.concatenate(masks),
    "offsets": np.cumsum([0, *map(len, tokens)], dtype=np.int64),
  }
  with full_disk.named(pathlib.Path(folder).parent):
    _replace_folder(pathlib.Path(folder), arrays, dict(counts or {}))
  return len(tokens)


def read_segments(folder: str | os.PathLike[str]) -> Demonstrations:
  """Maps a folder written by `write_segments` into memory, after checking its digests.

  Raises:
    ValueError: the folder is missing, is not a folder of demonstrations, or was damaged.
  """
  folder = pathlib.Path(folder)
  if not (folder / MANIFEST).is_file():
    raise ValueError(
      f"no demonstrations in {folder} ({MANIFEST} is missing); write them, or correct the path"
    )
  text = (folder / MANIFEST).read_bytes()
  try:
    manifest = file_digests.read_record(text)
  except ValueError as error:
    raise ValueError(f"{folder / MANIFEST} is damaged: {error}; {_REMEDY}") from None
  if manifest.get("format") != _FORMAT:
    raise ValueError(
      f"{folder / MANIFEST} has format {manifest.get('format')!r}, this version reads {_FORMAT};"
      " write the demonstrations again"
    )
  for name in _ARRAYS:
    path = folder / f"{name}.npy"
    if not path.is_file() or _sha256(path) != manifest["sha256"][name]:
      raise ValueError(f"{path} is missing or damaged; {_REMEDY}")
  arrays = {name: np.load(folder / f"{name}.npy", mmap_mode="r") for name in _ARRAYS}
  digest = hashlib.sha256(text).hexdigest()
  return Demonstrations(**arrays, digest=digest, counts=manifest.get("counts", {}))


def copy_segments(
  n: int, length: int, *, ids: np.ndarray, max_period: int, seed: int
) -> Iterator[Segment]:
  """Yields `n` drills of `length` tokens in which a random string is repeated to the end.

  The string's length is uniform in [2, max_period]. Its tokens are drawn from `ids` (int32 [n]),
  where a token may occur several times to be likelier: drills with the token frequencies of the
  text do not work against it. All tokens are trained except the first pass, which cannot be
  predicted. On such sequences a small transformer forms the heads that look up what followed an
  earlier occurrence (Olsson et al. 2022, "In-context learning and induction heads",
  https://arxiv.org/abs/2209.11895), which quoting an id requires.

  Raises:
    ValueError: a string of `max_period` tokens does not fit twice, or there are no ids.
  """
  if not 2 <= max_period <= length // 2:
    raise ValueError(f"max_period must be in [2, {length // 2}] for {length} tokens: {max_period}")
  if not len(ids):
    raise ValueError("no ids to draw from; give the tokens of some text")
  rng = np.random.default_rng(seed)
  for _ in range(n):
    period = int(rng.integers(2, max_period + 1))
    string = rng.choice(ids, size=period).astype(np.int32)
    yield to_imitate(np.resize(string, length), np.arange(length) >= period)


def to_imitate(tokens: np.ndarray, loss_mask: np.ndarray) -> Segment:
  """A segment that no policy sampled: no log-probabilities, no weight version."""
  return Segment(
    tokens,
    loss_mask,
    logprobs=np.zeros(len(tokens), np.float32),
    versions=np.full(len(tokens), -1, np.int32),
  )


def _replace_folder(
  folder: pathlib.Path, arrays: dict[str, np.ndarray], counts: dict[str, int]
) -> None:
  if folder.exists() and any(folder.iterdir()) and not (folder / MANIFEST).is_file():
    raise ValueError(
      f"{folder} holds something else, or demonstrations whose {MANIFEST} is missing; remove it, "
      "or give demonstrations a folder of their own"
    )
  folder.parent.mkdir(parents=True, exist_ok=True)
  fresh = folder.with_name(f".{folder.name}.{uuid.uuid4().hex}")
  fresh.mkdir()
  try:
    for name, array in arrays.items():
      np.save(fresh / f"{name}.npy", array)
    manifest = {
      "format": _FORMAT,
      "num_segments": len(arrays["offsets"]) - 1,
      "num_tokens": len(arrays["tokens"]),
      "num_loss_tokens": int(arrays["loss_mask"].sum()),
      "max_tokens": int(np.diff(arrays["offsets"]).max()),
      "counts": counts,
      "sha256": {name: _sha256(fresh / f"{name}.npy") for name in _ARRAYS},
    }
    text = json.dumps(file_digests.with_digest(manifest), indent=2) + "\n"
    (fresh / MANIFEST).write_text(text)
    durable.sync_tree(fresh)  # a full disk fails here, while the old one has its name
    before = fresh.with_name(f"{fresh.name}.before")
    if folder.exists():
      folder.rename(before)  # and not removed until the new one is in its place
    durable.replace(fresh, folder)
    shutil.rmtree(before, ignore_errors=True)
  except BaseException:
    shutil.rmtree(fresh, ignore_errors=True)
    raise


def _sha256(path: pathlib.Path) -> str:
  with path.open("rb") as file:
    return hashlib.file_digest(file, "sha256").hexdigest()
