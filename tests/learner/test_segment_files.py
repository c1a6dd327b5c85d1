"""Demonstrations on disk and copying drills, checked token by token."""

import numpy as np
import pytest

from jaxrl_agents.learner import segment_files
from jaxrl_agents.types import Segment


def segment(tokens, loss_mask):
  n = len(tokens)
  return Segment(
    np.array(tokens, np.int32),
    np.array(loss_mask, bool),
    np.zeros(n, np.float32),
    np.full(n, -1, np.int32),
  )


A = segment([5, 0, 7], [False, True, True])
B = segment([9, 2**31 - 1], [False, True])


def test_segments_come_back_as_written_and_mapped_into_memory(tmp_path):
  assert segment_files.write_segments(tmp_path / "deep" / "demos", iter([A, B])) == 2
  read = segment_files.read_segments(tmp_path / "deep" / "demos")
  assert len(read) == 2
  assert isinstance(read.tokens, np.memmap)
  for n, written in enumerate([A, B]):
    tokens, loss_mask = read.example(n)
    np.testing.assert_array_equal(tokens, written.tokens)
    np.testing.assert_array_equal(loss_mask, written.loss_mask)
    assert (tokens.dtype, loss_mask.dtype) == (np.int32, np.bool_)


def test_writing_again_replaces_the_folder_and_changes_the_digest(tmp_path):
  folder = tmp_path / "demos"
  segment_files.write_segments(folder, [A, B])
  before = segment_files.read_segments(folder)
  segment_files.write_segments(folder, [B])
  after = segment_files.read_segments(folder)
  assert (len(before), len(after)) == (2, 1)
  assert before.digest != after.digest
  segment_files.write_segments(folder, [A, B])
  assert segment_files.read_segments(folder).digest == before.digest
  assert [path.name for path in tmp_path.iterdir()] == ["demos"]


def test_a_failed_write_leaves_what_was_there(tmp_path):
  folder = tmp_path / "demos"
  segment_files.write_segments(folder, [A])
  with pytest.raises(ValueError, match="segment 1"):
    segment_files.write_segments(folder, [A, segment([1, 2], [False, False])])
  assert len(segment_files.read_segments(folder)) == 1


def test_bad_segments_and_folders_are_refused_with_a_remedy(tmp_path):
  folder = tmp_path / "demos"
  with pytest.raises(ValueError, match="no segments to write"):
    segment_files.write_segments(folder, [])
  with pytest.raises(ValueError, match="unmark the first"):
    segment_files.write_segments(folder, [segment([1, 2], [True, True])])
  with pytest.raises(ValueError, match=r"tokens \(2,\) and loss_mask \(1,\)"):
    segment_files.write_segments(folder, [segment([1, 2], [True])])
  with pytest.raises(ValueError, match="write them"):
    segment_files.read_segments(folder)
  (tmp_path / "thesis").mkdir()
  (tmp_path / "thesis" / "chapter1.txt").write_text("dear to someone")
  with pytest.raises(ValueError, match="holds something else"):
    segment_files.write_segments(tmp_path / "thesis", [A])


def test_a_flipped_bit_is_found(tmp_path):
  segment_files.write_segments(tmp_path, [A, B])
  path = tmp_path / "tokens.npy"
  damaged = bytearray(path.read_bytes())
  damaged[-1] ^= 1
  path.write_bytes(damaged)
  with pytest.raises(ValueError, match="tokens.npy is missing or damaged"):
    segment_files.read_segments(tmp_path)


def test_copying_drills_train_every_repetition_of_a_random_string():
  drills = list(segment_files.copy_segments(200, 40, ids=np.arange(10, 20), max_period=20, seed=7))
  periods = []
  for drill in drills:
    period = int(np.argmax(drill.loss_mask))
    periods.append(period)
    assert drill.tokens.dtype == np.int32 and len(drill.tokens) == 40
    assert not drill.loss_mask[:period].any() and drill.loss_mask[period:].all()
    np.testing.assert_array_equal(drill.tokens[period:], drill.tokens[:-period])
    assert drill.tokens.min() >= 10 and drill.tokens.max() <= 19
  assert (min(periods), max(periods)) == (2, 20)
  again = segment_files.copy_segments(200, 40, ids=np.arange(10, 20), max_period=20, seed=7)
  assert all((a.tokens == b.tokens).all() for a, b in zip(drills, again, strict=True))
  with pytest.raises(ValueError, match=r"\[2, 20\] for 40 tokens: 21"):
    next(segment_files.copy_segments(1, 40, ids=np.arange(1, 10), max_period=21, seed=0))
