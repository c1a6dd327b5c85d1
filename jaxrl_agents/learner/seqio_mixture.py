"""Demonstrations as seqio tasks, mixed at stated rates and packed into rows for the learner.

The only file that imports seqio or tensorflow: the import takes 7 to 10 seconds and 950 MB, which
spawned workers cannot afford, so only the SFT script pays for it.
"""

# ruff: noqa: E402  TensorFlow is configured before anything else that may start it is imported.

from __future__ import annotations

import os

# Read while TensorFlow is being imported. jax sets 1, with which TensorFlow calls it an error that
# a machine has no GPU.
if os.environ.get("TF_CPP_MIN_LOG_LEVEL", "1") == "1":
  os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"

import tensorflow as tf

for _kind in ("GPU", "TPU"):  # they belong to jax; TensorFlow would take all their memory
  tf.config.set_visible_devices([], _kind)

import dataclasses
import functools
import hashlib
import itertools
import math
from collections.abc import Iterator, Mapping

import numpy as np
import seqio

from jaxrl_agents.learner import segment_files

SPLIT = "train"
WINDOW = 256
"""Segments that are looked at together to find those that share a row."""

# Ids pass through: the vocabulary exists because seqio asks for one, and encodes nothing.
_FEATURES = {
  "tokens": seqio.Feature(seqio.PassThroughVocabulary(2**31 - 1), add_eos=False, dtype=tf.int32),
  "loss_mask": seqio.Feature(seqio.PassThroughVocabulary(2), add_eos=False, dtype=tf.uint8),
}


@dataclasses.dataclass(frozen=True)
class Source:
  """A folder of demonstrations, and how often it is drawn from relative to the other sources."""

  folder: str
  rate: float = 1.0


def register(sources: Mapping[str, Source], row_tokens: int) -> seqio.Mixture:
  """The seqio Mixture of `sources`, one Task each, to be packed into rows of `row_tokens`.

  The names in seqio's registries end in a digest of the contents and rates, so that registering the
  same sources twice gives the same objects, and changed ones others.

  Raises:
    ValueError: no source, a rate that is not a positive number, a folder that cannot be read, or a
      segment longer than a row.
  """
  if not sources:
    raise ValueError("no sources to mix; name at least one folder of demonstrations")
  rates = []
  for name, source in sources.items():
    if not (math.isfinite(source.rate) and source.rate > 0):
      raise ValueError(f"rate of {name!r} must be positive, not {source.rate}; else leave it out")
    read = segment_files.read_segments(source.folder)
    longest = int(np.diff(read.offsets).max())
    if longest > row_tokens:
      raise ValueError(
        f"a segment of {longest} tokens in {name!r} ({source.folder}) does not fit rows of"
        f" {row_tokens}; raise learner.row_tokens or write shorter segments"
      )
    rates.append((_register_task(name, read), float(source.rate)))
  mixture = f"demonstrations_{hashlib.sha256(repr(rates).encode()).hexdigest()[:16]}"
  if mixture not in seqio.MixtureRegistry.names():
    seqio.MixtureRegistry.add(mixture, rates)
  return seqio.MixtureRegistry.get(mixture)


def packed_batches(
  sources: Mapping[str, Source],
  *,
  rows: int,
  row_tokens: int,
  seed: int,
  skip_batches: int = 0,
) -> Iterator[dict[str, np.ndarray]]:
  """Endless batches of packed rows, a function of (contents, rates, rows, row_tokens, seed) alone.

  Of each source all segments come once, shuffled, before any comes again. seqio packs one segment
  after another into a row until the next does not fit; to waste less, each `WINDOW` of segments is
  first put in the order of a first-fit-decreasing packing (rows of 1,024 tokens with segments of 60
  to 1,000: 97 % full instead of 77 %).

  Args:
    sources: name -> folder and rate.
    rows: B.
    row_tokens: T.
    seed: of shuffling and of mixing.
    skip_batches: how many batches were consumed before: the cursor to resume from. What is skipped
      is packed again, at some hundred rows of 1,024 tokens a second.

  Yields:
    A dict of arrays [B, T] in the learner's convention, where what belongs to token t + 1 stands at
    t, the position that predicts it: "tokens" int32, 0 in padding; "targets" int32, the next token
    of the segment, 0 where there is none; "depths" int32, places in the segment; "ends" int32, the
    place after the segment, 0 in padding; "loss_mask" bool, True where the target is trained.

  Raises:
    ValueError: as `register`, before anything is yielded.
  """
  mixed = register(sources, row_tokens).get_dataset(
    split=SPLIT, shuffle=False, seed=seed, num_epochs=1, try_in_mem_cache=False
  )
  dataset = tf.data.Dataset.from_generator(
    lambda: _neighbours_fit(mixed.as_numpy_iterator(), row_tokens, seed),
    output_signature=mixed.element_spec,
  )
  # seqio takes a 0 for the end of a segment, so that both features travel through it plus one.
  dataset = dataset.map(lambda x: {name: tf.cast(x[name], tf.int32) + 1 for name in _FEATURES})
  dataset = seqio.trim_and_pack_dataset(dataset, dict.fromkeys(_FEATURES, row_tokens))
  dataset = dataset.batch(rows).skip(skip_batches).prefetch(2)
  return (_to_learner(packed) for packed in dataset.as_numpy_iterator())


def _register_task(name: str, read: segment_files.Demonstrations) -> str:
  task = f"{name}_{read.digest[:16]}"
  if task not in seqio.TaskRegistry.names():
    source = seqio.FunctionDataSource(
      functools.partial(_examples, read), splits=[SPLIT], num_input_examples={SPLIT: len(read)}
    )
    seqio.TaskRegistry.add(task, source=source, output_features=_FEATURES)
  return task


def _examples(
  read: segment_files.Demonstrations, split: str, shuffle_files: bool, seed: int | None = None
) -> tf.data.Dataset:
  """One pass in the order of the folder or, with a seed, endless passes in orders of their own.

  Shuffled here and not by seqio, whose buffer mixes neighbouring passes: a small folder's segments
  would then be drawn with replacement.
  """
  del split, shuffle_files

  def generate():
    rng = None if seed is None else np.random.default_rng(seed)
    while True:
      for n in np.arange(len(read)) if rng is None else rng.permutation(len(read)):
        tokens, loss_mask = read.example(n)
        yield {"tokens": tokens, "loss_mask": loss_mask.astype(np.uint8)}
      if rng is None:
        return

  return tf.data.Dataset.from_generator(
    generate,
    output_signature={name: tf.TensorSpec([None], x.dtype) for name, x in _FEATURES.items()},
  )


def _neighbours_fit(
  examples: Iterator[dict[str, np.ndarray]], row_tokens: int, seed: int
) -> Iterator[dict[str, np.ndarray]]:
  """The same examples, those that fill a row one after another, and the rows in random order."""
  rng = np.random.default_rng(seed)
  while window := list(itertools.islice(examples, WINDOW)):
    rows: list[list[dict[str, np.ndarray]]] = []
    room: list[int] = []
    for example in sorted(window, key=lambda x: -len(x["tokens"])):
      n = len(example["tokens"])
      row = next((i for i, left in enumerate(room) if left >= n), len(rows))
      if row == len(rows):
        rows.append([])
        room.append(row_tokens)
      rows[row].append(example)
      room[row] -= n
    for row in rng.permutation(len(rows)):
      yield from rows[row]


def _to_learner(packed: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
  """Takes the one off again, and shifts what belongs to the next token to its predictor."""
  segment_ids = packed["tokens_segment_ids"]
  padding = segment_ids == 0
  tokens = np.where(padding, 0, packed["tokens"] - 1)
  targets, loss_mask = np.zeros_like(tokens), np.zeros(tokens.shape, bool)
  inside = (segment_ids[:, 1:] == segment_ids[:, :-1]) & ~padding[:, 1:]
  targets[:, :-1] = np.where(inside, tokens[:, 1:], 0)
  loss_mask[:, :-1] = inside & (packed["loss_mask"][:, 1:] == 2)
  return {
    "tokens": tokens,
    "targets": targets,
    "depths": np.where(padding, 0, packed["tokens_positions"]),
    "ends": np.where(padding, 0, _ends(segment_ids)),
    "loss_mask": loss_mask,
  }


def _ends(segment_ids: np.ndarray) -> np.ndarray:
  """The place after the segment of each token: int32 [B, T]."""
  length = segment_ids.shape[1]
  is_last = np.ones(segment_ids.shape, bool)
  is_last[:, :-1] = segment_ids[:, 1:] != segment_ids[:, :-1]
  after_last = np.where(is_last, np.arange(1, length + 1), length)
  return np.minimum.accumulate(after_last[:, ::-1], axis=1)[:, ::-1].astype(np.int32)
