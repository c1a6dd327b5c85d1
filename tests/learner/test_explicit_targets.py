"""Sequences with given targets: where they stand, and what their losses are."""

import jax
import numpy as np
import pytest

from jaxrl_agents.learner import losses, packing, train_step
from jaxrl_agents.learner.explicit_targets import ExplicitTargets, pack
from jaxrl_agents.policy import params as params_lib
from jaxrl_agents.policy import transformer
from jaxrl_agents.policy.config import PolicyConfig

CFG = PolicyConfig(
  vocab_size=32,
  embed_dim=8,
  num_layers=1,
  num_heads=2,
  num_kv_heads=1,
  head_dim=4,
  num_dense_layers=1,
  dense_ffw_dim=8,
)


def sequence(n, seed):
  random = np.random.default_rng(seed)
  return ExplicitTargets(
    tokens=random.integers(0, 32, n).astype(np.int32),
    targets=random.integers(0, 32, n).astype(np.int32),
    weights=random.normal(size=n).astype(np.float32),
    behaviour_logprobs=random.normal(size=n).astype(np.float32) - 3,
    advantages=random.normal(size=n).astype(np.float32),
  )


def test_every_sequence_stands_once_and_unchanged():
  data = [sequence(n, n) for n in (5, 1, 9, 12, 2, 3)]
  batches = pack(data, row_tokens=12, rows_per_microbatch=2)
  seen = []
  for batch, places in batches:
    assert batch.tokens.shape == (2, 12)
    assert batch.loss_mask.sum() == sum(p.end - p.start for p in places)
    for place in places:
      seen.append(place.index)
      here = (place.row, slice(place.start, place.end))
      given = data[place.index]
      np.testing.assert_array_equal(batch.tokens[here], given.tokens)
      np.testing.assert_array_equal(batch.targets[here], given.targets)
      np.testing.assert_array_equal(batch.weights[here], given.weights)
      np.testing.assert_array_equal(batch.depths[here], np.arange(len(given.tokens)))
      assert (batch.ends[here] == place.end).all()
  assert sorted(seen) == list(range(6))
  with pytest.raises(ValueError, match="sequence 1 has no tokens"):
    pack([data[0], sequence(0, 0)], row_tokens=12, rows_per_microbatch=2)
  with pytest.raises(ValueError, match="segment of 13 tokens"):
    pack([sequence(13, 0)], row_tokens=12, rows_per_microbatch=2)


def test_cross_entropy_is_the_weighted_sum_whatever_the_signs():
  params = params_lib.init(CFG, jax.random.key(0))
  given = sequence(6, 1)
  ((batch, (place,)),) = pack([given], row_tokens=12, rows_per_microbatch=2)
  found = train_step.gradients(params, batch, CFG, train_step.Objective("sft"))
  logprobs = plain_logprobs(params, given)
  assert (given.weights < 0).any()
  np.testing.assert_allclose(
    found.sums["loss"], -(given.weights * logprobs).sum(), rtol=1e-5, atol=1e-5
  )
  mine = train_step.recompute_logprobs(params, batch, CFG, train_step.Objective("sft"))
  np.testing.assert_allclose(mine[place.row, place.start : place.end], logprobs, atol=1e-5)


def test_importance_sampling_is_not_clipped():
  """By hand: ratios e^2 and e^-1 times advantages 1 and -3."""
  batch = packing.empty((1, 2))
  batch.loss_mask[:] = True
  batch.behaviour_logprobs[0] = [-3.0, -1.0]
  batch.advantages[0] = [1.0, -3.0]
  found = losses.LOSSES["importance_sampling"](np.float32([[-1.0, -2.0]]), batch)
  np.testing.assert_allclose(found, [[-np.exp(2), 3 * np.exp(-1)]], rtol=1e-6)


@pytest.mark.parametrize(
  "objective",
  [
    train_step.Objective("sft"),
    train_step.Objective("rl", loss=losses.LOSSES["importance_sampling"]),
  ],
)
def test_gradients_of_parts_add_up_to_those_of_the_whole(objective):
  params = params_lib.init(CFG, jax.random.key(0))
  data = [sequence(n, n) for n in (5, 9, 12, 2, 7)]
  whole = summed(params, [data], objective)
  for parts in ([data[3:], data[:3]], [[each] for each in data]):
    found = summed(params, parts, objective)
    scale = max(float(np.abs(x).max()) for x in jax.tree.leaves(whole))
    for a, b in zip(jax.tree.leaves(whole), jax.tree.leaves(found), strict=True):
      np.testing.assert_allclose(a, b, atol=1e-5 * scale)


def summed(params, parts, objective):
  total = None
  for part in parts:
    for batch, _ in pack(part, row_tokens=12, rows_per_microbatch=2):
      more = train_step.gradients(params, batch, CFG, objective).grads
      total = more if total is None else jax.tree.map(np.add, total, more)
  return total


def plain_logprobs(params, given):
  """Of the sequence alone in a row, by a log-softmax of all logits."""
  output = transformer.forward(params, given.tokens[None], CFG)
  logits = np.asarray(output.hidden[0] @ transformer.head_matrix(params, CFG), np.float64)
  logits -= logits.max(-1, keepdims=True)
  logprobs = logits - np.log(np.exp(logits).sum(-1, keepdims=True))
  return logprobs[np.arange(len(given.tokens)), given.targets]
