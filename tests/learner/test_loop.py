"""The canary of the loop: what it lets pass, and what it stops."""

import jax
import numpy as np
import pytest

from jaxrl_agents.learner import loop, packing, state, train_step
from jaxrl_agents.learner.advantage import Rollout
from jaxrl_agents.policy import params as params_lib
from jaxrl_agents.policy.config import PolicyConfig
from jaxrl_agents.types import Segment

CFG = PolicyConfig(
  vocab_size=13,
  embed_dim=8,
  num_layers=1,
  num_heads=1,
  num_kv_heads=1,
  head_dim=4,
  num_dense_layers=1,
  dense_ffw_dim=8,
)
RL = train_step.Objective("rl")
BOUND = 1e-4
TOKENS = 201


@pytest.fixture(scope="module")
def fresh():
  """(state, a row of 200 loss tokens whose behaviour is the policy's own)."""
  params = params_lib.init(CFG, jax.random.key(0))
  tx = state.make_optimizer(CFG, learning_rate=1e-3)
  made = state.make_state(params, tx, jax.random.key(0))
  mask = np.arange(TOKENS) > 0
  segment = Segment(
    tokens=np.random.default_rng(0).integers(1, CFG.vocab_size, TOKENS).astype(np.int32),
    loss_mask=mask,
    logprobs=np.zeros(TOKENS, np.float32),
    versions=np.where(mask, 0, -1).astype(np.int32),
  )
  (batch,) = packing.pack([Rollout((segment,), 1.0)], row_tokens=TOKENS, rows_per_microbatch=1)
  own = train_step.recompute_logprobs(params, batch, CFG, RL)
  return made, batch._replace(behaviour_logprobs=np.asarray(own))


def disturbed(batch, count, by):
  """`batch` with `count` of its 200 behaviour log-probabilities moved."""
  moved = batch.behaviour_logprobs.copy()
  moved[0, np.flatnonzero(batch.loss_mask[0])[:count]] += by
  return batch._replace(behaviour_logprobs=moved)


@pytest.mark.slow
def test_rollouts_of_the_same_weights_pass(fresh):
  made, batch = fresh
  found = loop.canary(made, [[batch]], CFG, RL, BOUND)
  assert found["canary_max_abs_logprob_difference"] == 0


def test_one_token_that_rounding_moved_passes_and_is_reported(fresh):
  made, batch = fresh
  found = loop.canary(made, [[disturbed(batch, 1, 5 * BOUND)]], CFG, RL, BOUND)
  assert found["canary_max_abs_logprob_difference"] == pytest.approx(5 * BOUND, rel=0.01)


@pytest.mark.parametrize(("count", "by"), [(10, 2 * BOUND), (1, 20 * BOUND), (200, np.nan)])
def test_many_tokens_off_or_one_by_far_stop_the_step(fresh, count, by):
  made, batch = fresh
  with pytest.raises(loop.CanaryError, match="disagree on fresh rollouts at version 0"):
    loop.canary(made, [[disturbed(batch, count, by)]], CFG, RL, BOUND)


def test_other_weights_than_the_sampler_held_stop_the_step(fresh):
  made, batch = fresh
  other = jax.tree.map(lambda x: x * 1.01, made.policy.params)
  stale = made.replace(policy=made.policy.replace(params=other))
  with pytest.raises(loop.CanaryError, match="holds other weights"):
    loop.canary(stale, [[batch]], CFG, RL, BOUND)
