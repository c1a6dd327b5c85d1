"""The optimizer step against full-vocabulary references, whatever the packing."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl_agents.learner import losses, metrics, packing, state, train_step
from jaxrl_agents.learner.advantage import Rollout
from jaxrl_agents.policy import head as head_lib
from jaxrl_agents.policy import params as params_lib
from jaxrl_agents.policy import sharding, transformer
from jaxrl_agents.policy.config import PolicyConfig
from jaxrl_agents.types import Segment

CFG = PolicyConfig(
  vocab_size=29,
  embed_dim=8,
  num_layers=1,
  num_heads=2,
  num_kv_heads=1,
  head_dim=4,
  num_dense_layers=1,
  dense_ffw_dim=8,
  mtp_depth=1,
)
ROW_TOKENS = 24
SFT = train_step.Objective("sft")
RL = train_step.Objective("rl", losses.named("cispo").set({"high": 2.0}))
RL_MTP = dataclasses.replace(RL, mtp_weight=0.1)


@pytest.fixture(scope="module")
def params():
  return jax.jit(lambda key: params_lib.init(CFG, key))(jax.random.key(0))


def make_rollouts(count=5, logprob=-3.3):
  rng = np.random.default_rng(0)
  rollouts = []
  for _ in range(count):
    segments = []
    for n in rng.integers(4, ROW_TOKENS, 2):
      mask = rng.random(n) < 0.4
      mask[0], mask[-1] = False, True
      segments.append(
        Segment(
          tokens=rng.integers(1, CFG.vocab_size, n).astype(np.int32),
          loss_mask=mask,
          logprobs=np.where(mask, logprob, 0).astype(np.float32),
          versions=np.where(mask, 0, -1).astype(np.int32),
        )
      )
    rollouts.append(Rollout(tuple(segments), float(rng.normal())))
  return rollouts


def pack(rollouts, rows=3, **options):
  return packing.pack(rollouts, row_tokens=ROW_TOKENS, rows_per_microbatch=rows, **options)


def total_gradients(params, batches, objective):
  total = train_step.gradients(params, batches[0], CFG, objective)
  for batch in batches[1:]:
    total = train_step.add(total, train_step.gradients(params, batch, CFG, objective))
  return total


@jax.jit
def whole_logprobs(params, tokens):
  """log p(token t + 1 | tokens up to t) of rows [B, T] of one segment each: [B, T - 1]."""
  output = transformer.forward(params, tokens, CFG)
  logprobs = jax.nn.log_softmax(transformer.logits(params, output.hidden, CFG)[:, :-1])
  return jnp.take_along_axis(logprobs, tokens[:, 1:, None], axis=-1)[..., 0]


def unpacked(rollouts):
  """One row per segment, zeros behind: (tokens, loss mask, behaviour logprobs, advantages)."""
  segments = [(s, r.advantage) for r in rollouts for s in r.segments]
  rows = [np.zeros((len(segments), ROW_TOKENS), d) for d in (np.int32, bool, np.float32)]
  for i, (s, _) in enumerate(segments):
    for row, values in zip(rows, (s.tokens, s.loss_mask, s.logprobs), strict=True):
      row[i, : len(values)] = values
  return *rows, np.array([a for _, a in segments], np.float32)[:, None]


@pytest.fixture(scope="module")
def reference(params):
  """Loss and gradient of cross-entropy and of CISPO over unpacked segments and whole logits."""
  tokens, mask, behaviour, advantages = unpacked(make_rollouts())
  mask, behaviour = mask[:, 1:], behaviour[:, 1:]

  @jax.jit
  @functools.partial(jax.value_and_grad, argnums=0)
  def loss(params, rl):
    logprobs = whole_logprobs(params, tokens)
    ratio = jnp.minimum(jnp.exp(logprobs - behaviour), 2.0)
    scale = jax.lax.stop_gradient(jnp.where(rl, ratio * advantages, 1.0))
    return -jnp.sum(jnp.where(mask, scale * logprobs, 0)) / mask.sum()

  return {"sft": loss(params, False), "rl": loss(params, True)}


def assert_trees_close(got, expected, tolerance):
  for (path, a), b in zip(
    jax.tree_util.tree_leaves_with_path(got), jax.tree.leaves(expected), strict=True
  ):
    np.testing.assert_allclose(a, b, atol=tolerance, err_msg=jax.tree_util.keystr(path))


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["sft", "rl"])
def test_packed_loss_and_gradient_equal_those_of_separate_segments(params, reference, kind):
  got = total_gradients(params, pack(make_rollouts()), {"sft": SFT, "rl": RL}[kind])
  loss, grads = reference[kind]
  assert float(got.sums["loss"]) == pytest.approx(float(loss), abs=2e-6)
  assert_trees_close(got.grads, grads, 2e-6)


@pytest.mark.slow
@pytest.mark.parametrize("chunk", [512, 5])
def test_an_entropy_bonus_is_subtracted_from_the_loss_with_its_gradient(params, chunk, monkeypatch):
  """Against -0.5 mean_t H of the whole logits at a temperature of 0.7, over chunks of the head."""
  monkeypatch.setattr(head_lib, "CHUNK_TOKENS", chunk)
  tokens, mask, _, _ = unpacked(make_rollouts())
  mask = mask[:, 1:]

  def bonus(params):
    output = transformer.forward(params, tokens, CFG)
    p = jax.nn.softmax(transformer.logits(params, output.hidden, CFG)[:, :-1] / 0.7)
    return 0.5 * jnp.sum(jnp.where(mask, jnp.sum(p * jnp.log(p), axis=-1), 0)) / mask.sum()

  value, slopes = jax.jit(jax.value_and_grad(bonus))(params)
  # An objective of its own for each size, so that the head is traced with chunks of this size.
  plain = dataclasses.replace(RL, temperature=0.7, max_unrolled_layers=chunk)
  batches = pack(make_rollouts())
  without = total_gradients(params, batches, plain)
  found = total_gradients(params, batches, dataclasses.replace(plain, entropy_bonus=0.5))
  assert float(found.sums["loss"] - without.sums["loss"]) == pytest.approx(float(value), abs=2e-6)
  difference = jax.tree.map(jnp.subtract, found.grads, without.grads)
  assert_trees_close(difference, slopes, 2e-6)
  assert any(np.abs(leaf).max() > 1e-3 for leaf in jax.tree.leaves(slopes))


def test_a_bonus_for_entropy_is_refused_where_it_would_have_no_effect():
  with pytest.raises(ValueError, match="entropy_bonus=0.1 is for 'rl', not 'sft'; set it 0"):
    train_step.Objective("sft", entropy_bonus=0.1)


def test_gradient_does_not_depend_on_how_rows_fall_into_microbatches(params):
  one_by_one = pack(make_rollouts(), rows=1)
  three = pack(make_rollouts())
  assert len(one_by_one) > len(three) > 1
  first = total_gradients(params, one_by_one, RL)
  second = total_gradients(params, three, RL)
  assert_trees_close(first.grads, second.grads, 1e-6)
  assert float(first.sums["loss_tokens"]) == float(second.sums["loss_tokens"])


@pytest.mark.slow
def test_distillation_beside_rl_leaves_the_gradient_of_the_policy_as_it_is(params):
  batches = pack(make_rollouts())
  alone = total_gradients(params, batches, RL).grads
  beside = total_gradients(params, batches, RL_MTP).grads
  modules = beside.pop("mtp")
  alone.pop("mtp")
  assert_trees_close(beside, alone, 1e-7)
  assert all(np.abs(leaf).max() > 0 for leaf in jax.tree.leaves(modules))


def test_metrics_of_a_policy_that_is_its_own_sampler(params):
  batches = pack(make_rollouts())
  logprobs = [train_step.recompute_logprobs(params, b, CFG, RL) for b in batches]
  assert train_step.logprob_gap(logprobs, batches)["gap_mean"] > 1e-3
  fresh = [
    b._replace(behaviour_logprobs=np.asarray(lp)) for b, lp in zip(batches, logprobs, strict=True)
  ]
  total = total_gradients(params, fresh, RL)
  found = metrics.summary(total.sums, total.maxima)
  assert found["ratio_mean"] == pytest.approx(1, abs=1e-5)
  assert found["gap_max"] < 1e-5
  assert found["clipped_fraction"] == 0
  assert 0 < found["entropy"] <= np.log(CFG.vocab_size) + 1e-5
  assert train_step.logprob_gap(logprobs, fresh)["gap_max"] == 0


def test_recomputed_logprobs_are_those_of_the_unpacked_segment(params):
  (rollout,) = make_rollouts(count=1)
  (batch,) = pack([rollout])
  logprobs = np.asarray(train_step.recompute_logprobs(params, batch, CFG, RL))
  segment = max(rollout.segments, key=lambda s: len(s.tokens))
  padded = np.zeros((10, ROW_TOKENS), np.int32)
  padded[0, : len(segment.tokens)] = segment.tokens
  expected = np.asarray(whole_logprobs(params, padded))[0, : len(segment.tokens) - 1]
  expected = np.where(segment.loss_mask[1:], expected, 0)
  np.testing.assert_allclose(logprobs[0, : len(expected)], expected, atol=1e-5)
  assert (logprobs[~batch.loss_mask] == 0).all()


def test_gap_quantiles_by_hand():
  mask = np.array([[True] * 4 + [False]])
  batch = pack(make_rollouts(count=1))[0]._replace(
    loss_mask=mask, behaviour_logprobs=np.zeros((1, 5), np.float32)
  )
  gap = train_step.logprob_gap([np.array([[0.1, -0.2, 0.3, -0.4, 99.0]])], [batch])
  assert gap["gap_mean"] == pytest.approx(0.25)
  assert gap["gap_p50"] == pytest.approx(0.25)
  assert gap["gap_max"] == pytest.approx(0.4)


def test_histogram_quantiles_are_within_a_bin_of_the_exact_ones():
  rng = np.random.default_rng(0)
  gaps = 10 ** rng.uniform(-6, 0, (2, 500)).astype(np.float32)
  batch = packing.Batch(
    *(np.zeros((2, 500), np.int32),) * 4,
    loss_mask=np.ones((2, 500), bool),
    behaviour_logprobs=gaps,
    advantages=np.ones((2, 500), np.float32),
    weights=np.ones((2, 500), np.float32),
    rollout_ids=np.zeros((2, 500), np.int32),
  )
  cispo = losses.named("cispo")
  metrics_of = jax.jit(lambda logprobs: metrics.ratio_metrics(logprobs, batch, cispo))
  sums, maxima = metrics_of(jnp.zeros((2, 500)))
  sums |= {
    "loss": jnp.zeros(()),
    "loss_tokens": jnp.float32(1000),
    "expert_load": jnp.zeros((0, 0)),
  }
  found = metrics.summary(sums, maxima)
  assert found["gap_p50"] == pytest.approx(np.quantile(gaps, 0.5), rel=0.15)
  assert found["gap_p99"] == pytest.approx(np.quantile(gaps, 0.99), rel=0.15)
  assert found["gap_max"] == pytest.approx(gaps.max())


@pytest.mark.slow
def test_supervised_updates_learn_the_examples_by_heart():
  tx = state.make_optimizer(CFG, learning_rate=3e-2)
  trained = state.init_state(CFG, tx, jax.random.key(1))
  batches = pack(make_rollouts())
  bits = []
  for _ in range(40):
    trained, metrics = train_step.update(trained, batches, CFG, SFT, tx)
    bits.append(metrics["loss"])
  assert bits[0] > 3
  assert bits[-1] < 0.5
  assert int(trained.policy.version) == 40
  before = jax.tree.map(np.array, (trained.policy, trained.opt_state))
  kept, metrics = train_step.update(trained, [], CFG, SFT, tx)
  assert metrics == {"skipped": 1.0}
  assert_states_equal(kept, before)
  poisoned = jax.tree.map(jnp.zeros_like, kept.policy.params)
  poisoned["embed"] = poisoned["embed"].at[0, 0].set(jnp.nan)
  kept, step = train_step.apply(kept, poisoned, tx)
  assert float(step["applied"]) == 0
  assert_states_equal(kept, before)


def assert_states_equal(got, expected):
  leaves = jax.tree.leaves((got.policy, got.opt_state))
  for a, b in zip(leaves, jax.tree.leaves(expected), strict=True):
    np.testing.assert_array_equal(a, b)


def test_an_unknown_objective_is_an_error():
  with pytest.raises(ValueError, match="no objective 'rlhf'"):
    train_step.Objective("rlhf")


@pytest.mark.slow
def test_balancing_steps_the_selection_biases_against_the_load_and_only_in_supervised_training():
  cfg = dataclasses.replace(
    CFG, num_dense_layers=0, num_experts=4, experts_per_token=1, expert_ffw_dim=4, mtp_depth=0
  )
  drawn = jax.jit(lambda key: params_lib.init(cfg, key))(jax.random.key(0))
  tx = state.make_optimizer(cfg, learning_rate=0.0)
  objective = train_step.Objective("sft", balance_rate=0.25)
  batches = pack(make_rollouts())
  loads = [train_step.gradients(drawn, b, cfg, objective).sums["expert_load"][0] for b in batches]
  load = np.sum(loads, axis=0)
  assert load.min() < load.max()
  current = state.make_state(drawn, tx, jax.random.key(0))
  current, _ = train_step.update(current, batches, cfg, objective, tx)
  bias = current.policy.params["moe_layers"]["moe"]["router_bias"][0]
  np.testing.assert_array_equal(bias, 0.25 * np.sign(load.mean() - load))
  wild = [b._replace(weights=np.full_like(b.weights, np.nan)) for b in batches]
  current, metrics = train_step.update(current, wild, cfg, objective, tx)
  assert (metrics["applied"], metrics["skipped"]) == (0, 1)
  np.testing.assert_array_equal(current.policy.params["moe_layers"]["moe"]["router_bias"][0], bias)
  with pytest.raises(ValueError, match="balance_rate=0.25 is for 'sft'"):
    train_step.Objective("rl", balance_rate=0.25)


@pytest.mark.slow
def test_kl_takes_the_distance_from_the_reference_off_the_advantage_of_each_token(params):
  batches = pack(make_rollouts())
  reference = jax.tree.map(lambda p: 1.1 * p, params)
  far = lambda b: np.asarray(train_step.recompute_logprobs(reference, b, CFG, RL))
  near = lambda b: np.asarray(train_step.recompute_logprobs(params, b, CFG, RL))
  with_reference = [b._replace(reference_logprobs=far(b)) for b in batches]
  drift = [np.where(b.loss_mask, near(b) - far(b), 0.0) for b in batches]
  moved = [
    b._replace(advantages=b.advantages - 0.5 * d) for b, d in zip(batches, drift, strict=True)
  ]
  found = total_gradients(params, with_reference, dataclasses.replace(RL, kl=0.5))
  expected = total_gradients(params, moved, RL)
  assert_trees_close(found.grads, expected.grads, 1e-6)
  tokens = sum(b.loss_mask.sum() for b in batches)
  told = metrics.summary(found.sums, found.maxima)["kl_k1_to_start"]
  assert told == pytest.approx(sum(d.sum() for d in drift) / tokens, rel=1e-4)
  assert abs(told) > 1e-3


def test_rows_and_lengths_that_a_mesh_does_not_split_are_refused_with_the_option():
  mesh = jax.sharding.AbstractMesh((1, 4, 1, 2, 1), sharding.MESH_AXES)
  train_step.check_divides((4, 6), mesh)
  with pytest.raises(ValueError, match="learner.rows_per_microbatch a multiple of 4"):
    train_step.check_divides((6, 6), mesh)
  with pytest.raises(ValueError, match=r"learner.row_tokens \(and rollout_row_tokens\) .* of 2"):
    train_step.check_divides((4, 7), mesh)
