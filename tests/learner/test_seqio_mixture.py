"""The seqio mixture against plain numpy. Importing TensorFlow takes most of this file's time."""

import itertools

import numpy as np
import pytest

from jaxrl_agents.learner import segment_files, seqio_mixture
from jaxrl_agents.learner.seqio_mixture import Source
from jaxrl_agents.types import Segment

ROW_TOKENS = 16


def random_segments(n, seed, first_id=0):
  rng = np.random.default_rng(seed)
  for _ in range(n):
    length = int(rng.integers(2, ROW_TOKENS + 1))
    tokens = rng.integers(first_id, first_id + 50, size=length, dtype=np.int32)
    loss_mask = rng.random(length) < 0.5
    loss_mask[0], loss_mask[-1] = False, True
    yield Segment(tokens, loss_mask, np.zeros(length, np.float32), np.full(length, -1, np.int32))


def take(n, folder, **overrides):
  arguments = {"rows": 4, "row_tokens": ROW_TOKENS, "seed": 5} | overrides
  sources = folder if isinstance(folder, dict) else {"demos": Source(str(folder))}
  return list(itertools.islice(seqio_mixture.packed_batches(sources, **arguments), n))


def unpack(batches):
  """(tokens, loss_mask by token) of every segment in the rows, read off position by position."""
  for batch in batches:
    for row in range(len(batch["tokens"])):
      ends = batch["ends"][row]
      for end in np.unique(ends[ends > 0]):
        (at,) = np.nonzero(ends == end)
        assert (np.diff(at) == 1).all() and at[-1] + 1 == end
        np.testing.assert_array_equal(batch["depths"][row, at], np.arange(len(at)))
        np.testing.assert_array_equal(batch["targets"][row, at[:-1]], batch["tokens"][row, at[1:]])
        assert batch["targets"][row, at[-1]] == 0 and not batch["loss_mask"][row, at[-1]]
        yield batch["tokens"][row, at], np.array([False, *batch["loss_mask"][row, at[:-1]]])
      padding = ends == 0
      for name in ("tokens", "targets", "depths", "loss_mask"):
        assert not batch[name][row, padding].any()


@pytest.fixture
def folder(tmp_path):
  segment_files.write_segments(tmp_path / "demos", random_segments(128, seed=0))
  return tmp_path / "demos"


def test_packed_rows_hold_every_segment_once_a_pass_with_its_ids_and_mask_untouched(folder):
  written = [(s.tokens.tobytes(), s.loss_mask.tobytes()) for s in random_segments(128, seed=0)]
  assert any(0 in np.frombuffer(tokens, np.int32) for tokens, _ in written)
  batches = take(90, folder)
  assert {name: (x.shape, x.dtype.name) for name, x in batches[0].items()} == {
    "tokens": ((4, 16), "int32"),
    "targets": ((4, 16), "int32"),
    "depths": ((4, 16), "int32"),
    "ends": ((4, 16), "int32"),
    "loss_mask": ((4, 16), "bool"),
  }
  read = [(tokens.tobytes(), mask.tobytes()) for tokens, mask in unpack(batches)]
  # Segments are reordered to fill rows inside a window, which holds two passes over the 128.
  assert seqio_mixture.WINDOW == 256
  assert sorted(read[:256]) == sorted(read[256:512]) == sorted(2 * written)
  assert read[:256] != read[256:512]


def test_rows_are_filled_with_segments_that_fit_together(folder):
  # Lengths uniform in [2, 16], one after another into rows of 16, would fill 3/4 of them.
  ends = np.concatenate([batch["ends"] for batch in take(30, folder)])
  assert (ends > 0).mean() > 0.9


@pytest.mark.slow
def test_a_seed_fixes_the_stream_and_a_cursor_resumes_it_bitwise(folder):
  whole = take(30, folder)
  for skip in (0, 1, 17):
    for a, b in zip(whole[skip:], take(30 - skip, folder, skip_batches=skip), strict=True):
      for name in a:
        np.testing.assert_array_equal(a[name], b[name])
  other = take(1, folder, seed=6)[0]
  assert (other["tokens"] != whole[0]["tokens"]).any()


@pytest.mark.slow
def test_sources_are_mixed_at_their_rates(folder, tmp_path):
  segment_files.write_segments(tmp_path / "text", random_segments(30, seed=1, first_id=5000))
  sources = {"demos": Source(str(folder), 3.0), "text": Source(str(tmp_path / "text"), 1.0)}
  from_text = [tokens[0] >= 5000 for tokens, _ in unpack(take(250, sources))]
  # More than 1,000 draws of probability 1/4: standard deviation below 0.014.
  assert len(from_text) > 1000
  assert np.mean(from_text) == pytest.approx(0.25, abs=0.05)


def test_registering_is_idempotent_and_follows_the_contents(folder):
  sources = {"demos": Source(str(folder))}
  mixture = seqio_mixture.register(sources, ROW_TOKENS)
  assert seqio_mixture.register(sources, ROW_TOKENS) is mixture
  (task,) = mixture.tasks
  assert task.num_input_examples("train") == 128
  assert len(list(task.get_dataset(shuffle=False))) == 128
  segment_files.write_segments(folder, random_segments(2, seed=2))
  assert seqio_mixture.register(sources, ROW_TOKENS) is not mixture


def test_bad_sources_are_refused_before_anything_is_read(folder, tmp_path):
  with pytest.raises(ValueError, match="at least one folder"):
    take(1, {})
  with pytest.raises(ValueError, match="nowhere .manifest.json is missing.; write them"):
    take(1, tmp_path / "nowhere")
  with pytest.raises(ValueError, match="rate of 'demos' must be positive, not 0"):
    take(1, {"demos": Source(str(folder), 0.0)})
  with pytest.raises(ValueError, match="segment of 16 tokens in 'demos'.*raise learner.row_tokens"):
    take(1, folder, row_tokens=15)


def test_tensorflow_is_left_without_accelerators():
  import tensorflow as tf

  assert tf.config.get_visible_devices("GPU") == tf.config.get_visible_devices("TPU") == []
