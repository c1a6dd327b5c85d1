"""Our own attention kernels for trees, interpreted, against the plain tiles."""

import importlib.util
import os

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl_agents.policy.attention import causal, tree_flash, tree_flash_tpu, tree_tiles
from tests.policy import triton_kernels

LENGTH, WIDTH, VALUE_WIDTH = 384, 24, 16
"""Three tiles of queries and of keys on TPU, twelve on GPU."""

ROWS, GROUPS, REPEATS = 2, 2, 2
WINDOW = 40


def tree(rng, start, tokens):
  """(ends, depths) of a random tree in depth-first order: its path is cut now and then."""
  ends, depths = np.zeros((2, tokens), np.int32)
  path: list[int] = []
  for token in range(tokens):
    kept = rng.integers(1, len(path) + 1) if path and rng.random() < 0.03 else len(path)
    ends[path[kept:]] = start + token
    path = [*path[:kept], token]
    depths[token] = kept
  ends[path] = start + tokens
  return ends, depths


def forest():
  """(ends, depths) int32 [B, T]: two trees and padding, and a tree as long as the row."""
  rng = np.random.default_rng(0)
  ends, depths = np.zeros((2, ROWS, LENGTH), np.int32)
  for row, first, last in ((0, 0, 150), (0, 150, 300), (1, 0, LENGTH)):
    ends[row, first:last], depths[row, first:last] = tree(rng, first, last - first)
  return jnp.asarray(ends), jnp.asarray(depths)


def draws(seed=0):
  """q, k, v, sinks, cotangent."""
  rng = np.random.default_rng(seed)
  make = lambda *shape: jnp.asarray(rng.normal(size=shape), jnp.float32)
  heads = ROWS, GROUPS, REPEATS, LENGTH
  keys = ROWS, GROUPS, LENGTH
  sinks = make(GROUPS, REPEATS)
  return (
    make(*heads, WIDTH),
    make(*keys, WIDTH),
    make(*keys, VALUE_WIDTH),
    sinks,
    make(*heads, VALUE_WIDTH),
  )


def both(function, inputs, cotangent):
  """Value and gradients; the value of padding means nothing and counts as zero."""
  valid = (forest()[0] > 0)[:, None, None, :, None]
  out, pull = jax.vjp(lambda *inputs: jnp.where(valid, function(*inputs), 0.0), *inputs)
  return out, pull(cotangent)


@pytest.mark.slow
@pytest.mark.parametrize("window", [None, WINDOW])
@pytest.mark.parametrize("sinks", [False, True])
@pytest.mark.parametrize("kernels", ["tpu", "gpu"])
def test_trees_are_attended_as_by_plain_tiles_forward_and_backward(kernels, sinks, window):
  *inputs, cotangent = draws()
  inputs = inputs if sinks else inputs[:3]
  ends, depths = forest()
  given = None if window is None else jnp.asarray(window)

  def kernel(q, k, v, sinks=None):
    arrays = q, k, v, ends, depths, sinks, given
    return tree_flash.attend(*arrays, kernels=kernels, interpret=True)

  def plain(q, k, v, sinks=None):
    return causal.attend(q, k, v, ends, depths, sinks, given)

  found, expected = both(kernel, inputs, cotangent), both(plain, inputs, cotangent)
  jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=1e-5), found, expected)


@pytest.mark.parametrize("kernels", ["tpu", "gpu"])
def test_a_part_of_the_queries_sees_the_keys_before_it(kernels):
  q, k, v, sinks, _ = draws()
  ends, depths = forest()
  late = slice(LENGTH // 3, 2 * LENGTH // 3)
  arrays = q[..., late, :], k, v, ends, depths, sinks, jnp.asarray(WINDOW)
  start = jnp.asarray(late.start)
  found = tree_flash.attend(*arrays, start, kernels=kernels, interpret=True)
  expected = causal.attend(q, *arrays[1:])[..., late, :]
  valid = (ends[:, late] > 0)[:, None, None, :, None]
  np.testing.assert_allclose(
    jnp.where(valid, found, 0.0), jnp.where(valid, expected, 0.0), atol=1e-5
  )


@pytest.mark.parametrize("kernels", ["tpu", "gpu"])
def test_a_row_of_padding_gives_zeros_and_no_gradients(kernels):
  q, k, v, _, cotangent = draws()
  empty = jnp.zeros((ROWS, LENGTH), jnp.int32)

  def attend(*inputs):
    return tree_flash.attend(*inputs, empty, empty, kernels=kernels, interpret=True)

  out, pull = jax.vjp(attend, q, k, v)
  for array in (out, *pull(cotangent)):
    np.testing.assert_array_equal(array, 0.0)


def test_a_plan_lists_tiles_in_which_some_query_sees_some_key():
  """Two siblings of two tiles each below a stem of one tile, and a tile of padding."""
  side, length = 4, 24
  ends, depths = np.zeros((2, 1, length), np.int32)
  for first, last, end, depth in ((0, 4, 20, 0), (4, 12, 12, 4), (12, 20, 20, 4)):
    ends[0, first:last] = end
    depths[0, first:last] = depth + np.arange(last - first)
  lists = lambda plan: [
    plan.tiles[i * plan.most :][:count].tolist() for i, count in enumerate(plan.counts.tolist())
  ]

  def plans(window):
    places = tree_tiles.Places(*map(jnp.asarray, (ends, 0)), window, *[jnp.asarray(depths)] * 2)
    return [lists(plan) for plan in tree_tiles.plans(places, side, side)]

  over_keys, over_queries = plans(None)
  assert over_keys == [[0], [0, 1], [0, 1, 2], [0, 3], [0, 3, 4], []]
  assert over_queries == [[0, 1, 2, 3, 4], [1, 2], [2], [3, 4], [4], []]
  over_keys, over_queries = plans(jnp.asarray(4))  # the stem is too far from the last tiles
  assert over_keys == [[0], [0, 1], [1, 2], [0, 3], [3, 4], []]
  assert over_queries == [[0, 1, 3], [1, 2], [2], [3, 4], [4], []]


def gradients_of(kernels, rows, length, *, width, value_width, window=None, sharding=None):
  """A jitted gradient of all that has one, and its abstract arguments."""
  like = lambda dtype, *shape: jax.ShapeDtypeStruct(shape, dtype, sharding=sharding)
  given = None if window is None else jnp.int32(window)

  def loss(q, k, v, sinks, ends, depths):
    out = tree_flash.attend(q, k, v, ends, depths, sinks, given, kernels=kernels)
    return jnp.sum(out.astype(jnp.float32))

  arguments = (
    like(jnp.bfloat16, rows, 2, 2, length, width),
    like(jnp.bfloat16, rows, 2, length, width),
    like(jnp.bfloat16, rows, 2, length, value_width),
    like(jnp.float32, 2, 2),
    like(jnp.int32, rows, length),
    like(jnp.int32, rows, length),
  )
  return jax.jit(jax.grad(loss, argnums=(0, 1, 2, 3))), arguments


@pytest.mark.parametrize(("width", "value_width"), [(128, 128), (192, 128), (64, 64)])
@pytest.mark.parametrize("window", [None, 512])
def test_both_passes_lower_to_kernels_that_triton_accepts(width, value_width, window):
  sizes = {"width": width, "value_width": value_width, "window": window}
  gradient, arguments = gradients_of("gpu", 1, 1_024, **sizes)
  lowered = gradient.trace(*arguments).lower(lowering_platforms=("cuda",))
  assert triton_kernels.verified(lowered) == [
    "tree_attention_forward",
    "tree_attention_backward_of_queries",
    "tree_attention_backward_of_keys",
  ]


@pytest.mark.skipif(importlib.util.find_spec("libtpu") is None, reason="needs the extra libtpu")
@pytest.mark.parametrize(
  ("rows", "length", "sizes"),
  [
    (2, 4_096, {"width": 192, "value_width": 128}),
    (4, 131_072, {"width": 128, "value_width": 128, "window": 4_096}),
  ],
)
def test_both_passes_over_long_rows_compile_for_a_tpu(rows, length, sizes):
  os.environ |= {"TPU_SKIP_MDS_QUERY": "1", "TPU_MIN_LOG_LEVEL": "3"}
  from jax.experimental import topologies

  devices = topologies.get_topology_desc(platform="tpu", topology_name="v5e:2x2").devices
  one = jax.sharding.SingleDeviceSharding(devices[0])
  gradient, arguments = gradients_of("tpu", rows, length, sharding=one, **sizes)
  assert gradient.lower(*arguments).compile().as_text().count("tpu_custom_call") == 3


def test_tiles_of_long_rows_on_tpu_are_wider_so_that_their_list_fits():
  like = lambda rows, length: jax.ShapeDtypeStruct((rows, 2, length, 128), jnp.bfloat16)
  sides = lambda rows, length: tree_flash_tpu.sides(like(rows, length), like(rows, length))
  assert sides(8, 384) == (128, 128)
  assert sides(8, 32_768) == (512, 512)
  assert sides(4, 131_072) == (512, 1_024)
  with pytest.raises(ValueError, match="8 rows of 131072 tokens.* 262144 tiles"):
    sides(8, 131_072)
