"""Transformations of gradients against plain NumPy, number by number."""

import dataclasses
import subprocess
import sys

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import optax
import pytest

from jaxrl_agents.learner import checkpoint, optimizers, state
from jaxrl_agents.policy import params as params_lib
from jaxrl_agents.policy.config import PolicyConfig
from jaxrl_agents.policy.params import Matrix
from tests import forced_devices
from tests.learner import states

CFG = PolicyConfig(
  vocab_size=32,
  embed_dim=16,
  num_layers=2,
  num_heads=4,
  num_kv_heads=2,
  head_dim=4,
  num_dense_layers=1,
  dense_ffw_dim=8,
  num_experts=4,
  experts_per_token=2,
  expert_ffw_dim=16,
  qk_norm=False,
  mtp_depth=1,
)
RATE, DECAY = 0.01, 0.1


def draws(shape, seed=0, scale=1.0):
  return (scale * np.random.default_rng(seed).normal(size=shape)).astype(np.float32)


def numpy_codes(x, block, levels, root, signed):
  """Codes and scales by a loop over blocks, in float64."""
  codes = np.zeros(x.shape)
  scales = []
  for row in np.ndindex(x.shape[:-1]):
    for start in range(0, x.shape[-1], block):
      part = x[row][start : start + block].astype(np.float64)
      scale = np.abs(part).max()
      scales.append(scale)
      share = np.abs(part) / (scale or 1.0)
      code = np.round(levels * share ** (1 / root))
      code = np.sign(part) * code if signed else np.maximum(code, part > 0)
      codes[row][start : start + block] = code
  return codes, np.array(scales).reshape(*x.shape[:-1], -1)


def numpy_numbers(codes, scales, block, levels, root):
  wide = np.repeat(scales, block, axis=-1)
  return np.sign(codes) * (np.abs(codes) / levels) ** root * wide


def numpy_adam8bit(params, gradients, b1=0.9, b2=0.95, eps=1e-8, block=16):
  """Parameters after AdamW with moments that pass through eight bits between steps."""
  m, v = np.zeros(params.shape), np.zeros(params.shape)
  for count, g in enumerate(gradients, start=1):
    m, v = b1 * m + (1 - b1) * g, b2 * v + (1 - b2) * g.astype(np.float64) ** 2
    step = m / (1 - b1**count) / (np.sqrt(v / (1 - b2**count)) + eps)
    params = params - RATE * (step + DECAY * params)
    m = numpy_numbers(*numpy_codes(m, block, 127, 2, True), block, 127, 2)
    v = numpy_numbers(*numpy_codes(v, block, 255, 4, False), block, 255, 4)
  return params


def numpy_muon(params, gradients, beta=0.95):
  """Parameters [R, C] after Muon: Nesterov momentum through five Newton-Schulz steps."""
  momentum = np.zeros(params.shape)
  for g in gradients:
    momentum = beta * momentum + (1 - beta) * g
    x = beta * momentum + (1 - beta) * g
    x = x / np.sqrt((x * x).sum())
    for _ in range(5):
      gram = x @ x.T
      x = 3.4445 * x - 4.7750 * gram @ x + 2.0315 * gram @ gram @ x
    params = params - RATE * (0.2 * np.sqrt(max(params.shape)) * x + DECAY * params)
  return params


def run(tx, params, gradients):
  opt_state = tx.init(params)
  for g in gradients:
    updates, opt_state = jax.jit(tx.update)(g, opt_state, params)
    params = optax.apply_updates(params, updates)
  return params, opt_state


def chain(scale):
  return optax.chain(scale, optax.add_decayed_weights(DECAY), optax.scale_by_learning_rate(RATE))


def test_moments_in_eight_bits_step_as_the_loop_in_numpy_does():
  """Within 2e-6 after four steps: a code on the edge of rounding may fall either way."""
  params = draws((3, 48))
  gradients = [draws((3, 48), seed) * draws((3, 48), 9) ** 4 for seed in range(1, 5)]
  assert optimizers.block_size(48) == 48
  found, opt_state = run(chain(optimizers.scale_by_adam8bit(0.9, 0.95, 1e-8)), params, gradients)
  np.testing.assert_allclose(found, numpy_adam8bit(params, gradients, block=48), atol=2e-6)
  moments = opt_state[0]
  assert moments.mu.codes.dtype == jnp.int8 and moments.nu.codes.dtype == jnp.uint8
  assert moments.mu.scales.shape == (3, 1)


def test_blocks_are_the_largest_divisors_and_bound_what_rounding_loses():
  sizes = {4096: 64, 11008: 64, 5096: 56, 24: 24, 8: 8, 257: 257, 521 * 2: 1042}
  assert {n: optimizers.block_size(n) for n in sizes} == sizes
  x = draws((2, 512)) ** 3
  signed = optimizers.signed_codes(x)
  # The spacing of roots: half a step of 1/127 below the largest, of 1/255 for fourth roots.
  loss = np.abs(optimizers.signed_numbers(*signed) - x)
  wide = np.repeat(signed.scales, 64, axis=-1)
  assert (loss <= wide * (np.sqrt(np.abs(x) / wide) / 127 + 1 / 254**2) + 1e-7).all()
  squares = x * x
  positive = optimizers.positive_codes(squares)
  back = optimizers.positive_numbers(*positive)
  assert (np.asarray(back) > 0).all()
  large = squares > 1e-4 * np.repeat(positive.scales, 64, axis=-1)
  np.testing.assert_allclose(back[large], squares[large], rtol=0.09)  # (1 + 0.5 / 25.5)^4 - 1 = 8 %


WHOLE_BLOCKS = """
import jax, jax.numpy as jnp
from jax.sharding import NamedSharding, PartitionSpec
from jaxrl_agents.learner import optimizers
mesh = jax.make_mesh((8,), ("fsdp",))
split = NamedSharding(mesh, PartitionSpec(None, "fsdp"))
params = jax.device_put(jnp.ones((4, 3_584)), split)
tx = optimizers.scale_by_adam8bit(0.9, 0.95, 1e-8)
state = jax.tree.map(lambda x: jax.device_put(x, split if x.ndim else None), tx.init(params))
print(jax.jit(tx.update).lower(params, state).compile().as_text())
"""


@pytest.mark.slow
def test_devices_that_share_an_axis_hold_whole_blocks_and_exchange_no_moments():
  """3,584 over eight devices are seven blocks each: nothing is gathered, only the step counted."""
  program = subprocess.run(
    [sys.executable, "-c", WHOLE_BLOCKS],
    env=forced_devices.environment(8),
    capture_output=True,
    text=True,
    timeout=300,
    check=True,
  ).stdout
  assert "s8[4,448]" in program
  for kind in ("all-gather", "all-to-all", "all-reduce", "collective-permute"):
    assert kind not in program


def test_muon_steps_as_numpy_and_as_the_one_of_optax_and_treats_a_stack_one_by_one():
  """Within 1e-5 of both."""
  params = draws((5, 6, 2, 4))  # two matrices [6, 4] side by side in each of five
  gradients = [draws((5, 6, 2, 4), seed) for seed in (1, 2, 3)]
  matrix = Matrix((-3,), (-1,))
  found, _ = run(chain(optimizers.scale_by_muon(matrix)), params, gradients)
  for i, half in np.ndindex(5, 2):
    alone = numpy_muon(params[i, :, half], [g[i, :, half] for g in gradients])
    np.testing.assert_allclose(found[i, :, half], alone, atol=1e-5)
  theirs = optax.chain(
    optax.contrib.scale_by_muon(
      weight_dimension_numbers=optax.contrib.MuonDimensionNumbers((1,), (3,))
    ),
    optax.scale_by_learning_rate(0.2 * 6**0.5 * RATE),
  )
  plain = optax.chain(
    optimizers.scale_by_muon(matrix),
    optax.scale_by_learning_rate(RATE),
  )
  # One step: later ones differ in that theirs corrects the momentum for its start.
  np.testing.assert_allclose(
    run(plain, params, gradients[:1])[0], run(theirs, params, gradients[:1])[0], atol=1e-5
  )


def test_a_tall_matrix_of_many_heads_is_one_matrix_and_its_update_has_even_singular_values():
  x = draws((2, 3, 4, 6))  # [layers, heads, head, D]: a product sums over heads and head
  found = np.asarray(optimizers.orthogonal(x, Matrix((-3, -2), (-1,)))).reshape(2, 12, 6)
  values = np.linalg.svd(found / (0.2 * 12**0.5), compute_uv=False)
  assert (values > 0.6).all() and (values < 1.25).all()


def test_a_bfloat16_parameter_is_its_float32_master_rounded_and_steps_below_its_precision_add_up():
  inner = optax.adam(1e-4)
  start = draws((4, 8)).astype(ml_dtypes.bfloat16)
  gradients = [abs(draws((4, 8), seed)).astype(ml_dtypes.bfloat16) for seed in range(50)]
  params = {"w": jnp.asarray(start), "router": jnp.asarray(draws((3,)))}
  tree = [{"w": g, "router": np.ones(3, np.float32)} for g in gradients]
  found, opt_state = run(optimizers.float32_master(inner), params, tree)
  wide = {"w": start.astype(np.float32), "router": draws((3,))}
  float32 = [{"w": g["w"].astype(np.float32), "router": g["router"]} for g in tree]
  expected, _ = run(inner, wide, float32)
  np.testing.assert_array_equal(opt_state.master["w"], expected["w"])
  np.testing.assert_array_equal(found["router"], expected["router"])
  assert isinstance(opt_state.master["router"], optax.MaskedNode)
  assert found["w"].dtype == jnp.bfloat16
  np.testing.assert_array_equal(found["w"], np.asarray(expected["w"]).astype(ml_dtypes.bfloat16))
  assert (found["w"] != start).mean() > 0.5  # 1e-4 a step alone is lost on a bfloat16 of 1


@pytest.mark.slow
@pytest.mark.parametrize("kv_heads", [4, 2])
def test_qk_clip_bounds_the_scores_of_the_heads_that_exceed_it_and_changes_no_other(kv_heads):
  """The score of a head after the clip is the bound, within 1e-5 relative, by its definition."""
  cfg = dataclasses.replace(CFG, num_kv_heads=kv_heads)
  params = params_lib.init(cfg, jax.random.key(0))
  peaks = jnp.asarray([[50.0, 200.0, 400.0, 99.0], [800.0, 1.0, 1.0, 1.0]])
  zero = jax.tree.map(jnp.zeros_like, params)
  tx = optimizers.qk_clip(cfg, 100.0)
  updates, _ = tx.update(zero, tx.init(params), params, attention_peaks=peaks)
  clipped = optax.apply_updates(params, updates)
  shared = 4 // kv_heads
  for layer, kind in enumerate(("dense_layers", "moe_layers")):
    before, after = (t[kind]["attention"]["qkv"][0] for t in (params, clipped))
    for head in range(4):
      g, r = divmod(head, shared)
      x, y = draws(16, 1), draws(16, 2)
      score = lambda w: (x @ w[:, g, r]) @ (y @ w[:, g, shared])  # noqa: B023
      gamma = min(1.0, 100.0 / float(peaks[layer, head]))
      np.testing.assert_allclose(score(after), gamma * score(before), rtol=1e-5)
    np.testing.assert_array_equal(after[:, :, -1], before[:, :, -1])  # values
  rest = {name: leaf for name, leaf in updates.items() if not name.endswith("layers")}
  assert not any(leaf.any() for leaf in jax.tree.leaves(rest))


def test_qk_clip_of_latent_attention_scales_what_a_head_does_not_share():
  """Queries and keys without rotation by sqrt(gamma), rotated queries by gamma, values by 1."""
  cfg = PolicyConfig(
    vocab_size=8,
    embed_dim=8,
    num_layers=1,
    num_heads=2,
    attention="mla",
    kv_lora_rank=4,
    qk_nope_dim=3,
    qk_rope_dim=2,
    v_head_dim=5,
    num_dense_layers=1,
    dense_ffw_dim=8,
  )
  factors = optimizers.head_factors(jnp.asarray([[0.25, 1.0]]), cfg)
  query = [[0.5, 0.5, 0.5, 0.25, 0.25], [1] * 5]
  key = [[0.5, 0.5, 0.5, 1, 1, 1, 1, 1], [1] * 8]
  np.testing.assert_allclose(factors["q"][0, 0], query)
  np.testing.assert_allclose(factors["kv_up"][0, 0], key)
  table = params_lib.table(cfg)["dense_layers"]["attention"]
  for name, factor in factors.items():
    assert np.broadcast_shapes(factor.shape, table[name].shape) == table[name].shape


def test_qk_clip_of_normed_heads_is_an_error():
  with pytest.raises(ValueError, match="no effect on heads that are normed"):
    state.make_optimizer(dataclasses.replace(CFG, qk_norm=True), learning_rate=RATE, qk_clip=100.0)


def test_no_such_optimizer_is_an_error():
  with pytest.raises(ValueError, match="no optimizer 'muoon'; there are adamw, adamw8bit, muon"):
    state.make_optimizer(CFG, learning_rate=RATE, kind="muoon")


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["adamw", "adamw8bit", "muon"])
def test_every_optimizer_moves_all_but_the_selection_bias_and_resumes_bitwise(kind, tmp_path):
  dtype = jnp.bfloat16
  tx = state.make_optimizer(
    CFG, learning_rate=RATE, kind=kind, weight_decay=DECAY, qk_clip=1.0, dtype=dtype
  )
  rng = np.random.default_rng(0)
  table = params_lib.abstract(CFG)
  gradients = [
    jax.tree.map(lambda s: rng.normal(size=s.shape).astype(np.float32), table) for _ in range(4)
  ]
  peaks = jnp.asarray([[0.5, 2.0, 1.5, 1.0]] * 2)

  @jax.jit
  def step(current, grads):
    old = current.policy.params
    updates, opt_state = tx.update(grads, current.opt_state, old, attention_peaks=peaks)
    policy = current.policy.replace(params=optax.apply_updates(old, updates))
    return current.replace(policy=policy, opt_state=opt_state)

  def after(current, grads):
    for g in grads:
      current = step(current, g)
    return current

  fresh = state.init_state(CFG, tx, jax.random.key(0), dtype)
  whole = after(fresh, gradients)
  with checkpoint.open_manager(tmp_path) as manager:
    checkpoint.save(manager, 1, after(fresh, gradients[:2]), {}, keep=2)
    target = states.abstract(CFG, tx, dtype)
    resumed, _, _ = checkpoint.restore(manager, target)
  resumed = after(resumed.replace(key=whole.key), gradients[2:])
  pairs = zip(*(jax.tree.leaves(t.replace(key=None)) for t in (whole, resumed)), strict=True)
  assert all(np.asarray(x).tobytes() == np.asarray(y).tobytes() for x, y in pairs)
  changed = jax.tree.map(
    lambda x, y: bool((np.asarray(x) != np.asarray(y)).any()),
    fresh.policy.params,
    whole.policy.params,
  )
  still = [p for p, c in jax.tree_util.tree_leaves_with_path(changed) if not c]
  assert [path[-1].key for path in still] == ["router_bias", "router_bias"]
  dtypes = {str(x.dtype) for x in jax.tree.leaves(whole.opt_state)}
  assert ("int8" in dtypes) == (kind == "adamw8bit")
