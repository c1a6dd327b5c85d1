import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl_agents.policy.attention import causal, layer


def plain(q, k, v, segments):
  """All scores at once, differentiated by jax."""
  same = (segments[:, :, None] == segments[:, None, :]) & jnp.tril(
    jnp.ones((q.shape[3], q.shape[3]), bool)
  )
  scores = jnp.einsum("bgrqh,bgkh->bgrqk", q, k) * q.shape[-1] ** -0.5
  weights = jax.nn.softmax(jnp.where(same[:, None, None], scores, -jnp.inf), axis=-1)
  return jnp.einsum("bgrqk,bgkh->bgrqh", weights, v)


def draws(rows, groups, shared, length, width, value_width):
  rng = np.random.default_rng(0)
  make = lambda *shape: jnp.asarray(rng.normal(size=shape), jnp.float32)
  segments = np.sort(rng.integers(0, 3, (rows, length)), axis=1)
  return (
    make(rows, groups, shared, length, width),
    make(rows, groups, length, width),
    make(rows, groups, length, value_width),
    jnp.asarray(segments),
    make(rows, groups, shared, length, value_width),
  )


@pytest.mark.slow
@pytest.mark.parametrize("block", [4, 7, 64])
def test_blocks_of_queries_agree_with_all_scores_at_once_forward_and_backward(block, monkeypatch):
  monkeypatch.setattr(causal, "BLOCK", block)
  monkeypatch.setattr(causal, "SHORT_BLOCK", block)
  q, k, v, segments, cotangent = draws(2, 2, 3, 18, 6, 5)

  def both(function):
    @jax.jit
    def run(q, k, v):
      out, pull = jax.vjp(lambda q, k, v: function(q, k, v, segments), q, k, v)
      return out, pull(cotangent)

    return run(q, k, v)

  jax.tree.map(
    lambda a, b: np.testing.assert_allclose(a, b, atol=2e-6), both(causal.attend), both(plain)
  )


@pytest.mark.slow
def test_a_part_of_the_queries_gives_its_part_of_the_row_forward_and_backward(monkeypatch):
  monkeypatch.setattr(causal, "SHORT_BLOCK", 4)
  q, k, v, segments, cotangent = draws(2, 2, 3, 18, 6, 5)
  window = jnp.asarray(7)

  @jax.jit
  def parts(q, k, v):
    cut = lambda i: causal.attend(
      q[..., i : i + 9, :], k, v, segments, None, window, jnp.asarray(i)
    )
    return jnp.concatenate([cut(0), cut(9)], axis=-2)

  @jax.jit
  def whole(q, k, v):
    return causal.attend(q, k, v, segments, None, window)

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
  shapes = jax.eval_shape(lambda: draws(1, 1, 2, length, 4, 4))
  jaxpr = jax.make_jaxpr(jax.grad(lambda q, k, v, s: causal.attend(q, k, v, s).sum()))(*shapes[:4])
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


def plain_with_sinks_and_window(q, k, v, segments, sinks, window):
  """All scores at once; a sink is one more key whose value is zero."""
  place = jnp.arange(q.shape[3])
  seen = (segments[:, :, None] == segments[:, None, :]) & (place[:, None] >= place)
  seen = seen & (place[:, None] - place < window)
  scores = jnp.einsum("bgrqh,bgkh->bgrqk", q, k) * q.shape[-1] ** -0.5
  scores = jnp.where(seen[:, None, None], scores, -jnp.inf)
  nowhere = jnp.broadcast_to(sinks[:, :, None, None], (*scores.shape[:-1], 1))
  weights = jax.nn.softmax(jnp.concatenate([scores, nowhere], axis=-1), axis=-1)[..., :-1]
  return jnp.einsum("bgrqk,bgkh->bgrqh", weights, v)


@pytest.mark.slow
@pytest.mark.parametrize("window", [1, 5, 100])
@pytest.mark.parametrize("block", [4, 64])
def test_sinks_and_windows_agree_with_all_scores_at_once_forward_and_backward(
  block, window, monkeypatch
):
  monkeypatch.setattr(causal, "BLOCK", block)
  monkeypatch.setattr(causal, "SHORT_BLOCK", block)
  q, k, v, segments, cotangent = draws(2, 2, 3, 18, 6, 5)
  sinks = jnp.asarray(np.random.default_rng(1).normal(size=(2, 3)), jnp.float32)

  def both(function):
    @jax.jit
    def run(*inputs):
      out, pull = jax.vjp(lambda q, k, v, s: function(q, k, v, segments, s, window), *inputs)
      return out, pull(cotangent)

    return run(q, k, v, sinks)

  jax.tree.map(
    lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-6, atol=2e-6),
    both(causal.attend),
    both(plain_with_sinks_and_window),
  )


def test_a_sink_of_minus_infinity_and_a_window_of_the_row_change_nothing():
  q, k, v, segments, _ = draws(2, 2, 3, 18, 6, 5)
  bare = causal.attend(q, k, v, segments)
  never = jnp.full((2, 3), -1e9)
  np.testing.assert_allclose(causal.attend(q, k, v, segments, never, 18), bare, atol=1e-6)


def test_tiles_before_the_window_are_not_computed():
  """Keys that no query may see are not even read: they may hold anything."""
  length, window = 4 * causal.SHORT_BLOCK, 3
  q, k, v, _, _ = draws(1, 1, 2, length, 4, 4)
  whole = jnp.ones((1, length), jnp.int32)
  last = length - causal.SHORT_BLOCK
  broken = k.at[:, :, : last - causal.SHORT_BLOCK].set(jnp.nan)
  clean = causal.attend(q, k, v, whole, None, window)
  np.testing.assert_array_equal(
    causal.attend(q, broken, v, whole, None, window)[:, :, :, last:], clean[:, :, :, last:]
  )
