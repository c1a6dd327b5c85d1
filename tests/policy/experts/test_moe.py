import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl_agents.policy.experts import local as dispatch
from jaxrl_agents.policy.experts import moe
from tests.policy import tiny

CFG = dataclasses.replace(tiny.GQA, num_experts=4, route_scale=2.0)
# One token whose router logits are these numbers: the router is the identity.
LOGITS = np.array([[2.0, 1.0, 0.5, -1.0]], np.float32)
ROUTER = {"router": jnp.eye(4), "router_bias": jnp.zeros(4)}


def sigmoid(x):
  return 1 / (1 + np.exp(-np.asarray(x)))


def route(weights=ROUTER, cfg=CFG, **options):
  weight, chosen = moe.route(weights, jnp.asarray(LOGITS), cfg, **options)
  return np.asarray(weight[0]), chosen[0].tolist()


def test_best_experts_share_the_scale_by_their_scores():
  weight, chosen = route()
  assert chosen == [0, 1]
  scores = sigmoid([2.0, 1.0])
  np.testing.assert_allclose(weight, 2.0 * scores / scores.sum(), rtol=1e-6)


def test_the_bias_changes_which_experts_are_chosen_but_not_their_weights():
  weight, chosen = route(ROUTER | {"router_bias": jnp.asarray([0.0, 0.0, 0.0, 9.0])})
  assert chosen == [3, 0]
  scores = sigmoid([-1.0, 2.0])
  np.testing.assert_allclose(weight, 2.0 * scores / scores.sum(), rtol=1e-6)


def test_softmax_router_weighs_by_a_softmax_over_the_chosen():
  weight, chosen = route(cfg=dataclasses.replace(CFG, router="softmax", route_scale=1.0))
  assert chosen == [0, 1]
  np.testing.assert_allclose(weight, np.exp([2.0, 1.0]) / np.exp([2.0, 1.0]).sum(), rtol=1e-6)


def test_groups_are_chosen_by_their_two_best_and_others_are_out_of_reach():
  # Groups (0, 1), (2, 3) by sums of scores; a bias makes the second group the better one.
  cfg = dataclasses.replace(CFG, router_groups=2, router_topk_groups=1)
  assert route(cfg=cfg)[1] == [0, 1]
  bias = jnp.asarray([0.0, 0.0, 0.0, 0.9])
  biased = sigmoid(LOGITS[0]) + np.asarray(bias)
  assert biased[2:].sum() > biased[:2].sum() and biased[0] > biased[2]
  assert route(ROUTER | {"router_bias": bias}, cfg)[1] == [3, 2]


def test_replayed_experts_weigh_by_the_routers_own_scores_of_them():
  weight, chosen = route(replay=jnp.asarray([[3, 1]]))
  assert chosen == [3, 1]
  scores = sigmoid([-1.0, 1.0])
  np.testing.assert_allclose(weight, 2.0 * scores / scores.sum(), rtol=1e-6)


def test_a_token_that_was_not_recorded_chooses_natively():
  assert route(replay=jnp.asarray([[65535, 65535]]))[1] == [0, 1]
  assert route(replay=jnp.asarray([[65535, 65535]]), replay_threshold=0.5)[1] == [0, 1]


def test_gradient_reaches_the_router_through_replayed_scores_and_never_the_bias():
  def first_weight(weights):
    weight, _ = moe.route(weights, jnp.asarray(LOGITS), CFG, replay=jnp.asarray([[3, 1]]))
    return weight[0, 0]

  grads = jax.grad(first_weight)(ROUTER)
  np.testing.assert_array_equal(grads["router_bias"], 0.0)
  a, b = sigmoid([-1.0, 1.0])
  by_hand = 2.0 * b / (a + b) ** 2 * a * (1 - a)  # d weight / d logit of expert 3
  np.testing.assert_allclose(grads["router"][:, 3], by_hand * LOGITS[0], rtol=1e-5)
  np.testing.assert_array_equal(grads["router"][:, 0], 0.0)


@pytest.mark.parametrize(
  ("replay", "used"),
  [
    ([0, 1], [0, 1]),  # both are the router's own
    ([2, 0], [2, 0]),  # 0.40 >= 0.5 * 0.6: kept, in the recorded order
    ([3, 0], [0, 1]),  # 0.10 < 0.30: out; the router's best that is not there already comes in
    ([3, 2], [2, 0]),
  ],
)
def test_implausible_experts_give_way_to_the_routers_best(replay, used):
  selection = jnp.asarray([[0.9, 0.6, 0.4, 0.1]])
  own = jnp.asarray([[0, 1]])
  got = moe.replayed_experts(selection, own, jnp.asarray([replay]), 0.5)
  assert got[0].tolist() == used


def test_the_routers_own_choice_is_plausible_even_when_biases_make_scores_negative():
  selection = jnp.asarray([[-0.2, -0.4, -0.5, -0.6]])
  own = jnp.asarray([[0, 1]])
  assert moe.replayed_experts(selection, own, own, 0.5)[0].tolist() == [0, 1]


def test_bias_moves_towards_equal_load():
  bias = moe.balanced_bias(jnp.zeros((1, 3)), jnp.asarray([[6.0, 2.0, 4.0]]), 0.01)
  np.testing.assert_allclose(bias, [[-0.01, 0.01, 0.0]])


def drawn(tokens, num_experts=5, choices=2, embed=6, width=4):
  rng = np.random.default_rng(1)
  make = lambda *shape: jnp.asarray(rng.normal(size=shape), jnp.float32)
  experts = {
    "gate_up": make(num_experts, embed, 2, width),
    "down": make(num_experts, width, embed),
  }
  # Expert 1 gets nobody; expert `num_experts` is no expert; some tokens have none at all.
  choice = rng.choice([0, 2, 3, 4, 5], (tokens, choices))
  choice[:3] = num_experts
  return experts, make(tokens, embed), make(tokens, choices), jnp.asarray(choice, jnp.int32)


def looped(experts, x, weight, choice):
  out = np.zeros_like(x)
  for n, k in np.ndindex(*choice.shape):
    e = choice[n, k]
    if e < len(experts["down"]):
      expert = {name: np.asarray(experts[name][e]) for name in experts}
      out[n] += weight[n, k] * tiny.swiglu(expert, np.asarray(x[n]))
  return out


@pytest.mark.parametrize("tokens", [5, 150])
def test_blocks_and_dense_products_equal_one_token_and_expert_at_a_time(tokens):
  arrays = drawn(tokens)
  expected = looped(*jax.tree.map(np.asarray, arrays))
  np.testing.assert_allclose(jax.jit(dispatch.blocks)(*arrays), expected, atol=2e-5)
  np.testing.assert_allclose(jax.jit(dispatch.dense)(*arrays), expected, atol=2e-5)


@pytest.mark.parametrize("share_of_one", [0.0, 0.3, 0.6, 1.0])
def test_slots_hold_the_tokens_of_experts_however_uneven_their_load(share_of_one):
  experts, x, weight, choice = drawn(61)
  rng = np.random.default_rng(2)
  choice = np.array(choice)
  choice[rng.random(61) < share_of_one] = [0, 3]
  choice[::7] = 5  # no expert
  arrays = experts, x, weight, jnp.asarray(choice)
  expected = jax.jit(dispatch.dense)(*arrays)
  np.testing.assert_allclose(jax.jit(dispatch.slots)(*arrays), expected, atol=2e-5)


def test_gradients_of_blocks_are_those_of_the_dense_product():
  experts, x, weight, choice = drawn(150)
  cotangent = jnp.cos(jnp.arange(x.size, dtype=jnp.float32)).reshape(x.shape)
  weight = jnp.where(choice < 5, weight, 0.0)

  def grads(function):
    loss = lambda experts, x, weight: jnp.sum(function(experts, x, weight, choice) * cotangent)
    return jax.jit(jax.grad(loss, argnums=(0, 1, 2)))(experts, x, weight)

  jax.tree.map(
    lambda a, b: np.testing.assert_allclose(a, b, atol=5e-5),
    grads(dispatch.blocks),
    grads(dispatch.dense),
  )
