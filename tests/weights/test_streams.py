"""Streams of differences: values by hand, and round trips of random ones."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jaxrl_agents.weights import streams


def decoded(found, size, dtype=np.uint16):
  onto = np.zeros(size, dtype)
  streams.add(found, onto)
  return onto


def test_streams_by_hand():
  differences = np.zeros(10, np.uint16)
  differences[[2, 4, 9]] = [1, -1 % 2**16, 7]
  found = {name: stream.tolist() for name, stream in streams.encode(differences).items()}
  assert found == {
    "blocks": [0b10000000],
    "gaps": [2, 1, 4],
    "signs": [0b01000000],
    "far": [2],  # two moves by one before it
    "byte0": [5],
    "byte1": [0],
  }


def test_long_gaps_go_on_and_blocks_without_a_change_cost_a_bit():
  differences = np.zeros(10 * streams.BLOCK, np.uint16)
  differences[[255, 256 + 600, 5 * streams.BLOCK]] = 1
  found = streams.encode(differences)
  assert found["blocks"].tolist() == [0b10000100, 0]
  # What lies between the last two in the blocks that have any: 1,024 - 857 = 167 unchanged values.
  assert found["gaps"].tolist() == [255, 0, 255, 255, 90, 167]
  np.testing.assert_array_equal(decoded(found, differences.size), differences)


def test_many_changes_are_written_out_with_small_moves_of_both_signs_in_the_low_bytes():
  differences = np.array([1, -1, 2, -2, 300, 0], np.int16).view(np.uint16)
  found = streams.encode(differences)
  assert {n: s.tolist() for n, s in found.items()} == {
    "byte0": [2, 1, 4, 3, 600 % 256, 0],
    "byte1": [0, 0, 0, 0, 2, 0],
  }
  np.testing.assert_array_equal(decoded(found, 6), differences)


def test_no_change_is_no_stream():
  assert streams.encode(np.zeros(5_000, np.uint32)) == {}
  assert streams.encode(np.zeros(0, np.uint16)) == {}


@st.composite
def differences_of(draw, size=None):
  dtype = draw(st.sampled_from([np.uint16, np.uint32]))
  size = draw(st.integers(1, 5_000)) if size is None else size
  rng = np.random.default_rng(draw(st.integers(0, 2**32)))
  changed = rng.random(size) < draw(st.sampled_from([0.0, 0.001, 0.02, 0.2, 0.39, 0.6, 1.0]))
  bits = 8 * np.dtype(dtype).itemsize
  spread = draw(st.sampled_from([1, 3, 300, 2**bits]))
  values = rng.integers(0, spread, size, np.uint64) - np.uint64(spread // 2)
  return np.where(changed, values.astype(dtype), dtype(0))


@settings(deadline=None, max_examples=150)
@given(differences_of())
def test_decoding_is_the_inverse_of_encoding(differences):
  found = streams.encode(differences)
  assert set(found) <= set(streams.NAMES) and all(s.dtype == np.uint8 for s in found.values())
  np.testing.assert_array_equal(decoded(found, differences.size, differences.dtype), differences)


@settings(deadline=None, max_examples=50)
@given(st.lists(differences_of(size=3_000), min_size=2, max_size=4))
def test_differences_of_several_versions_add_up(versions):
  onto = np.zeros(3_000, np.uint32)
  expected = np.zeros(3_000, np.uint64)
  for differences in versions:
    streams.add(streams.encode(differences.astype(np.uint32)), onto)
    expected += differences
  np.testing.assert_array_equal(onto, (expected % 2**32).astype(np.uint32))


@pytest.mark.parametrize("name", ["blocks", "gaps", "signs", "far", "byte0", "byte1"])
def test_a_stream_that_ends_early_or_does_not_fit_is_an_error(name):
  rng = np.random.default_rng(0)
  differences = np.where(rng.random(4_096) < 0.1, rng.integers(1, 400, 4_096), 0).astype(np.uint16)
  found = streams.encode(differences)
  assert decoded(found, 4_096).tolist() == differences.tolist()
  with pytest.raises(ValueError, match=r"bytes of|its gaps|large moves|does not end"):
    decoded(found | {name: found[name][:-1]}, 4_096)
  with pytest.raises(ValueError, match=r"bytes of|its gaps"):
    decoded(found, 100)
