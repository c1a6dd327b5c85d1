import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl_agents.policy.attention import causal, layer

LENGTH, PADDING = 18, 3


def plain(q, k, v, ends, depths, sinks=None, window=100):
  """All scores at once, differentiated by jax; a sink is one more key whose value is zero.

  The keys that a query sees are found by walking up from it. Padding yields zeros.
  """
  del ends
  seen = np.zeros((len(depths), LENGTH, LENGTH), bool)
  for row, depth in enumerate(np.asarray(depths)):
    for query in range(LENGTH - PADDING):
      above = depth[query] + 1
      for key in range(query, -1, -1):
        if depth[key] < above:  # the next token up the path
          above = depth[key]
          seen[row, query, key] = depth[query] - above < window
  scores = jnp.einsum("bgrqh,bgkh->bgrqk", q, k) * q.shape[-1] ** -0.5
  scores = jnp.where(seen[:, None, None], scores, -1e30)
  nowhere = jnp.full((1, 1), -jnp.inf) if sinks is None else sinks
  nowhere = jnp.broadcast_to(nowhere[:, :, None, None], (*scores.shape[:-1], 1))
  weights = jax.nn.softmax(jnp.concatenate([scores, nowhere], axis=-1), axis=-1)[..., :-1]
  weights = jnp.where(seen[:, None, None], weights, 0.0)
  return jnp.einsum("bgrqk,bgkh->bgrqh", weights, v)


def tiled(q, k, v, ends, depths, *more):
  """`causal.attend` with zeros for padding, whose output means nothing."""
  out = causal.attend(q, k, v, ends, depths, *more)
  return jnp.where((ends > 0)[:, None, None, :, None], out, 0.0)


def forest(rng, rows):
  """(ends, depths) of random trees in depth-first order, with padding after them."""
  depths, ends = np.zeros((2, rows, LENGTH), np.int32)
  for row in range(rows):
    for t in range(1, LENGTH - PADDING):
      grows = rng.random() < 0.7
      depths[row, t] = depths[row, t - 1] + 1 if grows else rng.integers(0, depths[row, t - 1] + 1)
    for t in range(LENGTH - PADDING):
      later = range(t + 1, LENGTH - PADDING)
      after = (u for u in later if depths[row, u] <= depths[row, t])
      ends[row, t] = next(after, LENGTH - PADDING)
  return jnp.asarray(ends), jnp.asarray(depths)


def draws(rows, groups, shared, length, width, value_width):
  rng = np.random.default_rng(0)
  make = lambda *shape: jnp.asarray(rng.normal(size=shape), jnp.float32)
  return (
    make(rows, groups, shared, length, width),
    make(rows, groups, length, width),
    make(rows, groups, length, value_width),
    forest(rng, rows),
    make(rows, groups, shared, length, value_width),
  )


@pytest.mark.slow
@pytest.mark.parametrize("block", [4, 7, 64])
def test_blocks_of_queries_agree_with_all_scores_at_once_forward_and_backward(block, monkeypatch):
  monkeypatch.setattr(causal, "BLOCK", block)
  monkeypatch.setattr(causal, "SHORT_BLOCK", block)
  q, k, v, trees, cotangent = draws(2, 2, 3, LENGTH, 6, 5)

  def both(function):
    @jax.jit
    def run(q, k, v):
      out, pull = jax.vjp(lambda q, k, v: function(q, k, v, *trees), q, k, v)
      return out, pull(cotangent)

    return run(q, k, v)

  jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=2e-6), both(tiled), both(plain))


@pytest.mark.slow
def test_a_part_of_the_queries_gives_its_part_of_the_row_forward_and_backward(monkeypatch):
  monkeypatch.setattr(causal, "SHORT_BLOCK", 4)
  q, k, v, trees, cotangent = draws(2, 2, 3, LENGTH, 6, 5)
  window = jnp.asarray(7)

  @jax.jit
  def parts(q, k, v):
    cut = lambda i: causal.attend(q[..., i : i + 9, :], k, v, *trees, None, window, jnp.asarray(i))
    whole = jnp.concatenate([cut(0), cut(9)], axis=-2)
    return jnp.where((trees[0] > 0)[:, None, None, :, None], whole, 0.0)

  @jax.jit
  def whole(q, k, v):
    return tiled(q, k, v, *trees, None, window)

  def both(function):
    out, pull = jax.vjp(function, q, k, v)
    return out, pull(cotangent)

  jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=2e-6), both(parts), both(whole))


def test_rotation_turns_pairs_by_position_times_frequency():
  rope = layer.rope_table(jnp.asarray([[0, 3]]), 4, 100.0)
  x = jnp.asarray([[[1.0, 2.0, 0.0, 0.0]] * 2])
  turned = layer.rotate(x, rope)
  np.testing.assert_allclose(turned[0, 0], x[0, 0], atol=1e-7)
  angles = 3 * np.array([1.0, 0.1])
  expected = [np.cos(angles[0]), 2 * np.cos(angles[1]), np.sin(angles[0]), 2 * np.sin(angles[1])]
  np.testing.assert_allclose(turned[0, 1], expected, rtol=1e-6)


def test_no_array_of_all_scores_is_made():
  length = 1024
  make = lambda *shape: jax.ShapeDtypeStruct(shape, jnp.float32)
  shapes = make(1, 1, 2, length, 4), make(1, 1, length, 4), make(1, 1, length, 4)
  ends = jnp.full((1, length), length)
  loss = lambda q, k, v: causal.attend(q, k, v, ends, jnp.arange(length)[None]).sum()
  jaxpr = jax.make_jaxpr(jax.grad(loss))(*shapes)
  assert largest(jaxpr.jaxpr) <= 2 * causal.BLOCK**2


def largest(jaxpr):
  """Elements of the largest array that a jaxpr, or one inside it, makes."""
  sizes = [0]
  for eqn in jaxpr.eqns:
    sizes += [int(np.prod(v.aval.shape)) for v in eqn.outvars]
    for inner in jax.tree.leaves(eqn.params, is_leaf=is_jaxpr):
      if is_jaxpr(inner):
        sizes.append(largest(getattr(inner, "jaxpr", inner)))
  return max(sizes)


def is_jaxpr(node):
  return hasattr(node, "eqns") or hasattr(node, "jaxpr")


@pytest.mark.slow
@pytest.mark.parametrize("window", [1, 5, 100])
@pytest.mark.parametrize("block", [4, 64])
def test_sinks_and_windows_agree_with_all_scores_at_once_forward_and_backward(
  block, window, monkeypatch
):
  monkeypatch.setattr(causal, "BLOCK", block)
  monkeypatch.setattr(causal, "SHORT_BLOCK", block)
  q, k, v, trees, cotangent = draws(2, 2, 3, LENGTH, 6, 5)
  sinks = jnp.asarray(np.random.default_rng(1).normal(size=(2, 3)), jnp.float32)

  def both(function):
    @jax.jit
    def run(*inputs):
      out, pull = jax.vjp(lambda q, k, v, s: function(q, k, v, *trees, s, window), *inputs)
      return out, pull(cotangent)

    return run(q, k, v, sinks)

  jax.tree.map(
    lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-6, atol=2e-6),
    both(tiled),
    both(plain),
  )


def test_a_sink_of_minus_infinity_and_a_window_of_the_row_change_nothing():
  q, k, v, trees, _ = draws(2, 2, 3, LENGTH, 6, 5)
  bare = tiled(q, k, v, *trees)
  never = jnp.full((2, 3), -1e9)
  np.testing.assert_allclose(tiled(q, k, v, *trees, never, LENGTH), bare, atol=1e-6)


def large(length):
  rng = np.random.default_rng(0)
  make = lambda *shape: jnp.asarray(rng.normal(size=shape), jnp.float32)
  return make(1, 1, 2, length, 4), make(1, 1, length, 4), make(1, 1, length, 4)


def test_tiles_before_the_window_are_not_computed():
  """Keys that no query may see are not even read: they may hold anything."""
  length, window = 4 * causal.SHORT_BLOCK, 3
  q, k, v = large(length)
  whole = jnp.full((1, length), length), jnp.arange(length)[None]
  last = length - causal.SHORT_BLOCK
  broken = k.at[:, :, : last - causal.SHORT_BLOCK].set(jnp.nan)
  clean = causal.attend(q, k, v, *whole, None, window)
  np.testing.assert_array_equal(
    causal.attend(q, broken, v, *whole, None, window)[:, :, :, last:], clean[:, :, :, last:]
  )


def test_tiles_of_siblings_are_not_computed():
  """A prompt of a block and three replies of one each: a reply reads the prompt and itself."""
  block = causal.SHORT_BLOCK
  q, k, v = large(4 * block)
  part = jnp.arange(4 * block)
  ends = jnp.where(part < block, 4 * block, (part // block + 1) * block)[None]
  depths = jnp.where(part < block, part, block + part % block)[None]
  clean = causal.attend(q, k, v, ends, depths)
  broken = k.at[:, :, block : 3 * block].set(jnp.nan)
  found = causal.attend(q, broken, v, ends, depths)
  np.testing.assert_array_equal(found[..., 3 * block :, :], clean[..., 3 * block :, :])
  np.testing.assert_array_equal(found[..., :block, :], clean[..., :block, :])
