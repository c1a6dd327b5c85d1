"""The optimizer and the train state: what moves, what is decayed, where it lives."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl_agents.learner import state
from jaxrl_agents.policy import params as params_lib
from jaxrl_agents.policy.config import PolicyConfig
from tests import forced_devices

CFG = PolicyConfig(
  vocab_size=16,
  embed_dim=8,
  num_layers=2,
  num_heads=2,
  num_kv_heads=2,
  head_dim=4,
  num_experts=4,
  experts_per_token=2,
  expert_ffw_dim=8,
  mtp_depth=1,
)


@pytest.fixture(scope="module")
def params():
  return jax.jit(lambda key: params_lib.init(CFG, key))(jax.random.key(0))


def step(params, grads, **numbers):
  tx = state.make_optimizer(CFG, learning_rate=0.1, **numbers)

  @jax.jit
  def run(params, grads):
    updates, _ = tx.update(grads, tx.init(params), params)
    return updates

  return run(params, grads)


@pytest.mark.slow
def test_the_first_step_moves_every_weight_by_the_learning_rate_but_never_the_router_bias(
  params,
):
  # Adam's first step is lr * sign(gradient) whatever its size (eps aside).
  updates = step(params, jax.tree.map(jnp.ones_like, params))
  assert (updates["moe_layers"]["moe"].pop("router_bias") == 0).all()
  assert (updates["mtp"]["block"]["moe"].pop("router_bias") == 0).all()
  for leaf in jax.tree.leaves(updates):
    np.testing.assert_allclose(leaf, -0.1, rtol=1e-4)


def test_decay_shrinks_matrices_and_leaves_stacked_norms_alone(params):
  # Without a gradient the update of a decayed weight w is -lr * decay * w.
  updates = step(params, jax.tree.map(jnp.zeros_like, params), weight_decay=0.5)
  np.testing.assert_allclose(updates["embed"], -0.05 * params["embed"], rtol=1e-5)
  router = params["moe_layers"]["moe"]["router"]
  np.testing.assert_allclose(updates["moe_layers"]["moe"]["router"], -0.05 * router, rtol=1e-5)
  assert (updates["moe_layers"]["attention_norm"] == 0).all()
  assert (updates["final_norm"] == 0).all()


def test_training_the_prediction_modules_alone_freezes_the_trunk_even_against_decay(params):
  grads = jax.tree.map(jnp.ones_like, params)
  updates = step(params, grads, weight_decay=0.5, trained="mtp")
  modules = updates.pop("mtp")
  assert all((leaf == 0).all() for leaf in jax.tree.leaves(updates))
  assert (modules["merge"] != 0).all()


def test_gradients_are_clipped_by_their_global_norm(params):
  # A clip to norm 1e-12 leaves gradients far below eps = 1: the first step is then -lr * g / eps.
  grads = jax.tree.map(jnp.ones_like, params)
  count = sum(leaf.size for leaf in jax.tree.leaves(params))
  updates = step(params, grads, max_grad_norm=1e-3, eps=1.0)
  np.testing.assert_allclose(updates["embed"], -0.1 * 1e-3 / np.sqrt(count), rtol=1e-3)


def rates(**numbers):
  schedule = state.learning_rate_schedule(1.0, **numbers)
  return [float(schedule(i)) for i in range(5)]


def test_learning_rate_warms_up_and_follows_a_cosine():
  constant = rates(warmup_steps=2)
  np.testing.assert_allclose(constant, [0, 0.5, 1, 1, 1])
  cosine = rates(schedule="cosine", warmup_steps=2, total_steps=4, final_fraction=0.2)
  np.testing.assert_allclose(cosine, [0, 0.5, 1, 0.6, 0.2], atol=1e-6)


@pytest.mark.parametrize(
  ("numbers", "message"),
  [
    ({"schedule": "cosine", "total_steps": 3, "warmup_steps": 3}, "total_steps=3 leaves no step"),
    ({"total_steps": 3}, "no effect on a constant schedule"),
    ({"schedule": "linear"}, "no schedule 'linear'"),
  ],
)
def test_contradicting_numbers_are_errors(numbers, message):
  with pytest.raises(ValueError, match=message):
    state.learning_rate_schedule(0.1, **numbers)


def test_modules_cannot_be_trained_where_there_are_none():
  dense = PolicyConfig(16, 8, 1, 2, 2, 4, num_dense_layers=1, dense_ffw_dim=8)
  with pytest.raises(ValueError, match="set mtp_depth"):
    state.make_optimizer(dense, learning_rate=0.1, trained="mtp")


@pytest.mark.slow
def test_moments_are_sharded_like_parameters_and_eight_devices_equal_one():
  forced_devices.check_on_eight("tests.learner.eight_devices")


@pytest.mark.slow
def test_every_optimizer_and_adapters_are_sharded_like_parameters_and_equal_one_device():
  """Parameters after an update within 2e-5 (bfloat16: 2e-2) of those of one device."""
  forced_devices.check_on_eight("tests.learner.eight_devices_optimizers")
