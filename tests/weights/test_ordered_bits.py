"""Differences in the order of numbers, for every pattern of bits, and digests by a loop."""

import math

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest

from jaxrl_agents.weights import ordered_bits


def signed(new, old):
  return np.asarray(ordered_bits.difference(new, old)).view(np.int32).tolist()


def test_a_number_and_the_next_differ_by_one_across_zero_and_infinity_too():
  infinity = np.float32(np.inf)
  numbers = np.array([-3.5, -1e-45, 1.0, np.finfo(np.float32).max], np.float32)
  with np.errstate(over="ignore"):
    after = np.nextafter(numbers, infinity)
  assert signed(after, numbers) == [1, 1, 1, 1]  # -1e-45 is followed by -0.0
  assert signed(numbers, after) == [-1, -1, -1, -1]
  assert signed(np.float32([0.0]), np.float32([-0.0])) == [1]
  assert signed(np.float32([1.0, -1.0]), np.float32([2.0, -2.0])) == [-(2**23), 2**23]


def test_every_pattern_of_sixteen_bits_is_reached_from_every_other_exactly():
  old = np.arange(2**16, dtype=np.uint16)
  for seed in range(4):
    new = np.random.default_rng(seed).permutation(old)
    one, other = (jnp.asarray(x.view(ml_dtypes.bfloat16)) for x in (old, new))
    found = ordered_bits.moved(one, ordered_bits.difference(other, one))
    np.testing.assert_array_equal(np.asarray(found).view(np.uint16), new)  # NaN as well


def test_other_types_are_refused():
  for dtype in (jnp.int32, jnp.float8_e4m3fn):
    with pytest.raises(ValueError, match=r"not of .*; set publish\.kind=full"):
      ordered_bits.bits_of(dtype)


def hashed(index, axis, lane):
  x = (index * 0x9E3779B1 + 0x85EBCA6B * (2 * axis + lane + 1)) % 2**32
  x = ((x ^ x >> 16) * 0x85EBCA6B) % 2**32
  x = ((x ^ x >> 13) * 0xC2B2AE35) % 2**32
  return (x ^ x >> 16) | 1


def digest_of(array):
  """In plain integers, one element after the other."""
  lanes = [0, 0]
  bits = array.view(np.uint16 if array.itemsize == 2 else np.uint32)
  for index in np.ndindex(array.shape):
    for lane in range(2):
      product = math.prod(hashed(i, axis, lane) for axis, i in enumerate(index))
      lanes[lane] = (lanes[lane] + int(bits[index]) * product) % 2**32
  return lanes


@pytest.mark.parametrize("dtype", [np.float32, ml_dtypes.bfloat16])
@pytest.mark.parametrize("free", [None, [], [0], [1, 2]])
def test_a_digest_is_the_sum_of_bits_times_hashes_of_their_index(dtype, free):
  array = np.random.default_rng(0).normal(size=(3, 4, 8)).astype(dtype)
  expected = digest_of(array)
  assert ordered_bits.digest(jnp.asarray(array), free=free).tolist() == expected
  by_layer = sum(
    np.asarray(ordered_bits.digest(jnp.asarray(array[i]), layer=i), np.uint64) for i in range(3)
  )
  assert (by_layer % 2**32).tolist() == expected


def test_a_digest_does_not_depend_on_how_arrays_are_laid_out_but_on_where_each_number_stands():
  rng = np.random.default_rng(1)
  tree = {"embed": rng.normal(size=(6, 5)), "layers": {"up": rng.normal(size=(2, 4, 2, 3))}}
  tree = jax.tree.map(lambda x: jnp.asarray(x, jnp.bfloat16), tree)
  shapes = {"embed": (6, 5), "layers.up": (2, 4, 2, 3)}
  layers = tuple({"up": tree["layers"]["up"][i].reshape(4, 6)} for i in range(2))
  served = {"embed": jnp.pad(tree["embed"], ((0, 0), (0, 3))), "layers": layers}
  places = lambda tree: jax.tree.map(lambda x: x.sharding, tree)
  found = lambda tree: ordered_bits.digests(tree, shapes, places(tree))
  values = lambda tree: {name: pair.tolist() for name, pair in found(tree).items()}
  assert values(served) == values(tree)
  assert values(tree)["embed"] == digest_of(np.asarray(tree["embed"]))
  turned = values({**tree, "embed": tree["embed"][::-1]})
  assert (
    turned["embed"] != values(tree)["embed"] and turned["layers.up"] == values(tree)["layers.up"]
  )
