"""Losses against values worked out by hand and against plain loops in float64."""

import functools
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl_agents.learner import losses, metrics
from jaxrl_agents.learner.packing import Batch


def make_batch(behaviour, advantages, mask=None, rollout_ids=None, reference=None):
  behaviour = np.asarray(behaviour, np.float32)
  shape = behaviour.shape
  zeros = np.zeros(shape, np.int32)
  mask = np.ones(shape, bool) if mask is None else np.asarray(mask, bool)
  return Batch(
    tokens=zeros,
    targets=zeros,
    depths=zeros,
    ends=zeros,
    loss_mask=mask,
    behaviour_logprobs=np.where(mask, behaviour, 0).astype(np.float32),
    advantages=np.where(mask, np.broadcast_to(advantages, shape), 0).astype(np.float32),
    weights=np.where(mask, 1.0, 0.0).astype(np.float32),
    rollout_ids=zeros if rollout_ids is None else np.asarray(rollout_ids, np.int32),
    reference_logprobs=reference,
    proximal_logprobs=np.where(mask, behaviour, 0).astype(np.float32),
  )


def at_ratio(ratio, advantage):
  """One token with pi = 0.3 and mu = 0.3 / ratio: (logprobs, batch)."""
  logprob = math.log(0.3)
  batch = make_batch([[logprob - math.log(ratio)]], advantage)
  return jnp.full((1, 1), logprob, jnp.float32), batch


def value_and_slope(loss, ratio, advantage, **numbers):
  """Loss of the token of `at_ratio` and its derivative by log pi."""
  logprobs, batch = at_ratio(ratio, advantage)
  value, slope = jax.value_and_grad(lambda lp: loss(lp, batch, **numbers).sum())(logprobs)
  return float(value), float(slope[0, 0])


def test_ppo_stops_and_cispo_keeps_the_gradient_of_a_token_that_became_three_times_as_likely():
  # PPO: min(3 * 2, 1.2 * 2) = 2.4, constant in pi. CISPO at a cap of 2: -2 * 2 * log 0.3.
  value, slope = value_and_slope(losses.ppo_clip, 3.0, 2.0)
  assert value == pytest.approx(-2.4, rel=1e-6)
  assert slope == 0.0
  value, slope = value_and_slope(losses.cispo, 3.0, 2.0, high=2.0)
  assert value == pytest.approx(-4.0 * math.log(0.3), rel=1e-6)
  assert slope == pytest.approx(-4.0, rel=1e-6)


def test_cispo_default_bounds_are_absolute_bounds_of_the_ratio():
  assert value_and_slope(losses.cispo, 4.0, 1.0)[1] == pytest.approx(-4.0, rel=1e-6)
  assert value_and_slope(losses.cispo, 9.0, 1.0)[1] == pytest.approx(-5.0, rel=1e-6)
  assert value_and_slope(losses.cispo, 0.1, 1.0)[1] == pytest.approx(-0.1, rel=1e-6)


def test_unified_mask_drops_a_clipped_token_on_the_side_of_its_advantage_only():
  numbers = {"low": 0.5, "high": 2.0, "unified_mask": True}
  assert value_and_slope(losses.cispo, 3.0, 1.0, **numbers) == (0.0, 0.0)
  assert value_and_slope(losses.cispo, 0.1, -1.0, **numbers) == (0.0, 0.0)
  assert value_and_slope(losses.cispo, 3.0, -1.0, **numbers)[1] == pytest.approx(2.0, rel=1e-6)
  assert value_and_slope(losses.cispo, 0.1, 1.0, **numbers)[1] == pytest.approx(-0.5, rel=1e-6)


@pytest.mark.parametrize("advantage", [1.5, -1.5])
def test_k25_masks_an_out_of_range_token_for_both_signs_and_keeps_the_proximal_pull(advantage):
  # d/dlogpi of tau * log(3)^2 = 2 * 0.1 * log 3; the policy-gradient part is a constant.
  value, slope = value_and_slope(losses.k25, 3.0, advantage, tau=0.1)
  assert value == pytest.approx(0.1 * math.log(3) ** 2 - 3 * advantage, rel=1e-6)
  assert slope == pytest.approx(0.2 * math.log(3), rel=1e-6)


def test_k25_inside_its_interval_is_the_ordinary_ratio_gradient():
  value, slope = value_and_slope(losses.k25, 1.5, 2.0, tau=0.1)
  assert value == pytest.approx(-(3.0 - 0.1 * math.log(1.5) ** 2), rel=1e-6)
  assert slope == pytest.approx(-3.0 + 0.2 * math.log(1.5), rel=1e-5)


def test_dapo_clips_higher_above_than_below():
  assert value_and_slope(losses.dapo, 1.25, 1.0)[1] == pytest.approx(-1.25, rel=1e-6)
  assert value_and_slope(losses.grpo, 1.25, 1.0)[1] == 0.0
  assert value_and_slope(losses.dapo, 1.3, 1.0) == (pytest.approx(-1.28, rel=1e-6), 0.0)
  assert value_and_slope(losses.dapo, 0.7, -1.0) == (pytest.approx(0.8, rel=1e-6), 0.0)


def test_dr_grpo_token_loss_is_the_clip_of_grpo():
  for ratio, advantage in ((0.5, 1.0), (0.5, -1.0), (1.1, 1.0), (1.9, -1.0)):
    expected = value_and_slope(losses.grpo, ratio, advantage)
    assert value_and_slope(losses.dr_grpo, ratio, advantage) == expected


def test_grpo_adds_the_k3_divergence_from_the_reference():
  # pi = 0.3, reference = 0.6: k3 = (2 - 1) - log 2, d/dlogpi = 1 - 2 = -1.
  logprobs, batch = at_ratio(1.0, 1.0)
  batch = batch._replace(reference_logprobs=np.full((1, 1), math.log(0.6), np.float32))
  f = lambda lp: losses.grpo(lp, batch, beta=0.5).sum()
  value, slope = jax.value_and_grad(f)(logprobs)
  assert float(value) == pytest.approx(-1 + 0.5 * (1 - math.log(2)), rel=1e-6)
  assert float(slope[0, 0]) == pytest.approx(-1 - 0.5, rel=1e-6)
  with pytest.raises(ValueError, match="reference_logprobs"):
    losses.grpo(logprobs, batch._replace(reference_logprobs=None), beta=0.5)


def test_drift_is_k1_from_the_reference_without_a_gradient():
  # pi = 0.3, reference = 0.6: log(pi / pi_0) = -log 2.
  logprobs, batch = at_ratio(1.0, 1.0)
  batch = batch._replace(reference_logprobs=np.full((1, 1), math.log(0.6), np.float32))
  value, slope = jax.value_and_grad(lambda lp: losses.drift(lp, batch).sum())(logprobs)
  assert float(value) == pytest.approx(-math.log(2), rel=1e-6) and float(slope[0, 0]) == 0.0
  off = batch._replace(loss_mask=np.zeros((1, 1), bool))
  assert float(losses.drift(logprobs, off).sum()) == 0.0
  with pytest.raises(ValueError, match="kl needs batch.reference_logprobs"):
    losses.drift(logprobs, batch._replace(reference_logprobs=None))


def test_gspo_ratio_is_the_geometric_mean_over_all_segments_of_a_rollout():
  # Rollout 0: log-ratios 0.3 (row 0) and -0.1 (row 1), mean 0.1. Rollout 1: one token, 0.2.
  batch = make_batch(np.zeros((2, 2)), [[1.0, 2.0], [1.0, 0.0]], [[1, 1], [1, 0]], [[0, 1], [0, 0]])
  logprobs = jnp.array([[0.3, 0.2], [-0.1, 5.0]])
  loss = losses.gspo(logprobs, batch, epsilon_low=0.5, epsilon_high=0.5)
  expected = [[-math.exp(0.1), -2 * math.exp(0.2)], [-math.exp(0.1), 0.0]]
  np.testing.assert_allclose(loss, expected, rtol=1e-6)
  # Weights 1 / (G |y|) make the sum the published objective; its slope by one token is
  # -s A / (G |y|) = -e^0.1 / 4 for both tokens of rollout 0.
  weights = jnp.array([[0.25, 0.5], [0.25, 0.0]])
  slope = jax.grad(
    lambda lp: (weights * losses.gspo(lp, batch, epsilon_low=0.5, epsilon_high=0.5)).sum()
  )(logprobs)
  np.testing.assert_allclose(slope[:, 0], [-math.exp(0.1) / 4] * 2, rtol=1e-6)
  assert slope[1, 1] == 0.0


def reference_loss(name, pi, mu, a, mask, ids, n, old):
  """Every loss as a plain loop in float64."""
  loss = np.zeros_like(pi)
  for b, t in np.argwhere(mask):
    log_r = pi[b, t] - mu[b, t]
    if name == "gspo":
      same = mask & (ids == ids[b, t])
      log_r = (pi - mu)[same].mean()
    r, adv = math.exp(log_r), a[b, t]
    if name == "cispo":
      value = -min(max(r, n["low"]), n["high"]) * adv * pi[b, t]
    elif name == "importance_sampling":
      value = -r * adv
    elif name == "dro":
      value = -(adv * pi[b, t] - n["beta"] / 2 * log_r**2)
    elif name == "k25":
      value = -(r * adv - n["tau"] * log_r**2)
    elif name in ("decoupled_ppo", "icepop"):
      weight, drift = np.exp(old[b, t] - mu[b, t]), np.exp(pi[b, t] - old[b, t])
      clipped = min(max(drift, 1 - n["epsilon_low"]), 1 + n["epsilon_high"])
      value = -weight * min(drift * adv, clipped * adv)
      if name == "decoupled_ppo":
        value *= min(weight, n["cap"]) / weight
      elif not n["low"] <= weight <= n["high"]:
        value = 0.0
    else:
      low = 1 - n.get("epsilon_low", n.get("epsilon"))
      high = 1 + n.get("epsilon_high", n.get("epsilon"))
      value = -min(r * adv, min(max(r, low), high) * adv)
    loss[b, t] = value
  return loss


NUMBERS = {
  "cispo": {"low": 0.4, "high": 1.6},
  "ppo_clip": {"epsilon_low": 0.1, "epsilon_high": 0.3},
  "grpo": {"epsilon": 0.2},
  "dr_grpo": {"epsilon": 0.3},
  "dapo": {"epsilon_low": 0.2, "epsilon_high": 0.28},
  "gspo": {"epsilon_low": 0.05, "epsilon_high": 0.1},
  "importance_sampling": {},
  "dro": {"beta": 0.3},
  "k25": {"alpha": 0.5, "beta": 2.0, "tau": 0.02},
  "decoupled_ppo": {"epsilon_low": 0.1, "epsilon_high": 0.3, "cap": 1.2},
  "icepop": {"epsilon_low": 0.1, "epsilon_high": 0.3, "low": 0.7, "high": 1.3},
}


@pytest.mark.parametrize("name", sorted(losses.LOSSES))
@pytest.mark.parametrize("seed", range(3))
def test_every_loss_equals_a_plain_loop_on_random_batches(name, seed):
  rng = np.random.default_rng(seed)
  mu = -rng.exponential(1.0, (4, 9)).astype(np.float32)
  pi = (mu + rng.normal(0, 0.5, mu.shape)).astype(np.float32)
  mask = rng.random(mu.shape) < 0.6
  ids = rng.integers(0, 4, mu.shape)
  old = (mu + rng.normal(0, 0.3, mu.shape)).astype(np.float32)
  batch = make_batch(mu, rng.normal(size=mu.shape), mask, ids)
  batch = batch._replace(proximal_logprobs=old)
  loss = losses.named(name).set(NUMBERS[name])(jnp.asarray(pi), batch)
  expected = reference_loss(
    name,
    pi.astype(np.float64),
    mu.astype(np.float64),
    batch.advantages,
    mask,
    ids,
    NUMBERS[name],
    old.astype(np.float64),
  )
  assert loss.dtype == jnp.float32
  np.testing.assert_allclose(loss, expected, atol=1e-6, rtol=1e-6)


@pytest.mark.parametrize("name", sorted(losses.LOSSES))
def test_tokens_outside_the_mask_have_no_loss_and_no_gradient_even_if_they_are_wild(name):
  batch = make_batch([[-1.0, 0.0]], [[1.0, 0.0]], [[True, False]])
  logprobs = jnp.array([[-1.2, -300.0]])
  loss = losses.LOSSES[name](logprobs, batch)
  slope = jax.grad(lambda lp: losses.LOSSES[name](lp, batch).sum())(logprobs)
  assert loss[0, 1] == 0.0
  assert slope[0, 1] == 0.0
  assert np.isfinite(slope).all()


@pytest.mark.parametrize("name", sorted(losses.LOSSES))
def test_a_ratio_beyond_float32_stays_finite(name):
  batch = make_batch([[-500.0]], 1.0)
  loss, slope = jax.value_and_grad(lambda lp: losses.LOSSES[name](lp, batch).sum())(
    jnp.zeros((1, 1))
  )
  assert np.isfinite(loss) and np.isfinite(slope).all()


def test_a_token_far_below_the_reference_has_a_finite_divergence_and_no_pull():
  batch = make_batch([[-120.0]], 0.0, reference=np.float32([[-1.0]]))
  f = lambda lp: losses.grpo(lp, batch, beta=0.1).sum()
  loss, slope = jax.value_and_grad(f)(jnp.full((1, 1), -120.0))
  assert float(loss) == pytest.approx(0.1 * (math.exp(20) - 21), rel=1e-6)
  assert float(slope[0, 0]) == 0.0


def test_clipped_counts_tokens_below_and_above_the_bounds_of_the_loss():
  batch = make_batch(np.zeros((1, 5)), 1.0, [[1, 1, 1, 1, 0]])
  logprobs = jnp.log(jnp.array([[0.7, 0.9, 1.25, 3.0, 9.0]]))
  places = lambda loss: [np.flatnonzero(side[0]).tolist() for side in loss.clipped(logprobs, batch)]
  outside = lambda name, **options: places(losses.named(name).set(options))
  assert outside("cispo") == [[], []]
  assert outside("cispo", low=0.8, high=2.0) == [[0], [3]]
  assert outside("grpo") == [[0], [2, 3]]
  assert outside("dapo") == [[0], [3]]
  plain = losses.PolicyLoss(lambda logprobs, batch: -logprobs, whole_rollouts=True)
  assert places(plain) == [[], []]
  # One ratio for the rollout, (0.7 * 0.9 * 1.25 * 3) ** 0.25 = 1.24.
  assert outside("gspo") == [[], [0, 1, 2, 3]]


def test_a_loss_that_clips_one_side_alone_counts_the_tokens_of_that_side():
  def low(logprobs, batch, *, epsilon_low: float = 0.2):
    return -logprobs

  def high(logprobs, batch, *, epsilon_high: float = 0.2):
    return -logprobs

  batch = make_batch(np.zeros((1, 4)), 1.0)
  logprobs = jnp.log(jnp.array([[0.7, 0.9, 1.1, 3.0]]))
  clipped = lambda function: losses.PolicyLoss(function).clipped(logprobs, batch)
  counted = lambda function: [np.flatnonzero(side[0]).tolist() for side in clipped(function)]
  assert counted(low) == [[0], []]
  assert counted(high) == [[], [3]]


def test_the_weights_of_stale_tokens_that_a_loss_caps_or_drops_are_counted():
  # pi_old / mu is 0.4, 1, 1.5 and 3; the fifth token has no loss.
  batch = make_batch(np.zeros((1, 5)), 1.0, [[1, 1, 1, 1, 0]])
  batch = batch._replace(proximal_logprobs=np.log(np.float32([[0.4, 1.0, 1.5, 3.0, 9.0]])))
  places = lambda loss: np.flatnonzero(loss.limited(batch)[0]).tolist()
  assert places(losses.named("icepop")) == [0, 3]
  assert places(losses.named("decoupled_ppo")) == [3]
  assert places(losses.named("decoupled_ppo").set({"cap": 1.2})) == [2, 3]
  assert losses.named("grpo").limited(batch) is None
  # pi / pi_old is 2.5, 1, 0.5 and 1: one of four tokens on each side.
  logprobs = np.log(np.float32([[1.0, 1.0, 0.75, 3.0, 1.0]]))
  sums, maxima = metrics.ratio_metrics(logprobs, batch, losses.named("icepop"))
  step = {"loss": np.float32(0), "loss_tokens": np.float32(4), "expert_load": np.zeros((0, 0))}
  found = metrics.summary(sums | step, maxima)
  assert found["clipped_low_fraction"] == found["clipped_high_fraction"] == 0.25
  assert (found["clipped_fraction"], found["weight_limited_fraction"]) == (0.5, 0.5)


def test_divergence_estimators_have_their_known_means_on_two_gaussians():
  # x ~ q = N(0, 1), p = N(m, 1): KL = m^2 / 2, Var[k1] = m^2.
  m = 0.5
  x = np.random.default_rng(0).normal(size=200_000)
  log_r = jnp.asarray(m * x - m * m / 2)
  for estimator in (losses.k1, losses.k3):
    assert float(estimator(log_r).mean()) == pytest.approx(m**2 / 2, abs=4e-3)
  variances = [float(k(log_r).var()) for k in (losses.k1, losses.k3)]
  np.testing.assert_allclose(variances, [0.25, 0.03], atol=8e-3)


def test_an_unknown_loss_or_option_names_the_nearest():
  with pytest.raises(ValueError, match="no loss 'cipso'; did you mean 'cispo'"):
    losses.named("cipso")
  with pytest.raises(ValueError, match="loss cispo has no option 'hihg'; did you mean 'high'"):
    losses.named("cispo").set({"hihg": 3.0})


def test_an_option_of_another_type_is_an_error():
  with pytest.raises(ValueError, match="unified_mask=1.0 of the loss cispo must be a bool"):
    losses.named("cispo").set({"unified_mask": 1.0})
  with pytest.raises(ValueError, match="high=True of the loss cispo must be a float"):
    losses.named("cispo").set({"high": True})
  with pytest.raises(ValueError, match="high='3' of the loss cispo must be a float"):
    losses.named("cispo").set({"high": "3"})


def test_an_option_without_a_default_must_be_given():
  def scaled(logprobs, batch, *, scale):
    return -scale * logprobs

  with pytest.raises(ValueError, match="scaled cannot be called .*: missing a required .*'scale'"):
    losses.PolicyLoss(scaled).set({})
  assert losses.PolicyLoss(scaled).set({"scale": 2.0}).all_options == {"scale": 2.0}


def test_a_partial_function_is_a_loss():
  wide = losses.PolicyLoss(functools.partial(losses.ppo_clip, epsilon_high=0.3))
  assert wide.set({"epsilon_low": 0.1}).all_options == {"epsilon_low": 0.1, "epsilon_high": 0.3}
  with pytest.raises(ValueError, match="has no option 'epsilon_hihg'; did you mean 'epsilon_high'"):
    wide.set({"epsilon_hihg": 0.1})


def test_a_loss_reads_the_reference_where_its_option_is_not_0():
  assert not losses.named("grpo").needs_reference
  assert losses.named("grpo").set({"beta": 0.1}).needs_reference
  assert not losses.named("k25").needs_reference  # its beta is a bound


def test_options_change_the_loss_and_keep_those_that_were_set_before():
  batch = make_batch([[0.0]], 1.0)
  loss = losses.named("cispo").set({"high": 2.0}).set({"low": 0.5})
  assert loss.all_options == {"low": 0.5, "high": 2.0, "unified_mask": False}
  assert float(loss(jnp.log(jnp.array([[3.0]])), batch)[0, 0]) == pytest.approx(-2 * np.log(3))


def decoupled(loss, *, old, behaviour, advantage, logprob=math.log(0.3), **numbers):
  """(loss, slope) of one token with these log-probabilities under pi_old and mu."""
  batch = make_batch([[behaviour]], advantage)
  batch = batch._replace(proximal_logprobs=np.float32([[old]]))
  value = lambda lp: loss(lp, batch, **numbers).sum()
  found, slope = jax.value_and_grad(value)(jnp.full((1, 1), logprob, jnp.float32))
  return float(found), float(slope[0, 0])


@pytest.mark.parametrize("loss", [losses.decoupled_ppo, losses.icepop])
def test_the_weight_of_a_stale_token_is_old_over_behaviour_and_the_clip_is_against_old(loss):
  # pi / pi_old = 1.1 inside the clip; pi_old / mu = 1.5: slope -1.5 * 1.1 * A.
  at = math.log(0.3)
  numbers = {"old": at - math.log(1.1), "behaviour": at - math.log(1.1) - math.log(1.5)}
  value, slope = decoupled(loss, advantage=2.0, **numbers)
  assert value == pytest.approx(-1.5 * 1.1 * 2, rel=1e-5)
  assert slope == pytest.approx(-1.5 * 1.1 * 2, rel=1e-5)
  # pi / pi_old = 1.3 is clipped, whatever mu is.
  clipped = {"old": at - math.log(1.3), "behaviour": at - math.log(1.3)}
  assert decoupled(loss, advantage=2.0, **clipped) == (pytest.approx(-2.4, rel=1e-5), 0.0)


@pytest.mark.parametrize("shift", [0.2, -0.2, 0.5])
def test_shifting_the_behaviour_scales_the_gradient_of_a_decoupled_loss(shift):
  at = math.log(0.3)
  slope = lambda behaviour: decoupled(
    losses.decoupled_ppo, old=at, behaviour=behaviour, advantage=1.0
  )[1]
  assert slope(at - shift) == pytest.approx(math.exp(shift) * slope(at), rel=1e-5)


@pytest.mark.parametrize(
  ("loss", "slope"),
  [
    (losses.cispo, lambda s: -min(math.exp(s), 5.0)),
    (losses.ppo_clip, lambda s: -math.exp(s) if math.exp(s) <= 1.2 else 0.0),
    (losses.k25, lambda s: (-math.exp(s) if 0.5 <= math.exp(s) <= 2 else 0.0) + 2 * 0.02 * s),
    (losses.importance_sampling, lambda s: -math.exp(s)),
    (losses.dro, lambda s: -(1 - 0.05 * s)),
  ],
)
def test_shifting_the_behaviour_changes_the_gradient_as_the_formula_of_the_loss_says(loss, slope):
  """A token of advantage 1 that the sampler had as exp(s) times less likely, in closed form."""
  for s in (-0.9, -0.1, 0.0, 0.1, 0.5, 0.9, 2.0):
    assert value_and_slope(loss, math.exp(s), 1.0)[1] == pytest.approx(slope(s), rel=1e-5, abs=1e-7)


def test_a_weight_above_its_bound_is_cut_by_one_loss_and_drops_the_token_in_the_other():
  at = math.log(0.3)
  far = {"old": at, "behaviour": at - math.log(7.0), "advantage": 1.0}
  assert decoupled(losses.decoupled_ppo, **far)[1] == pytest.approx(-2.0, rel=1e-5)
  assert decoupled(losses.icepop, **far) == (0.0, 0.0)
  near = {"old": at, "behaviour": at + math.log(4.0), "advantage": 1.0}
  assert decoupled(losses.decoupled_ppo, **near)[1] == pytest.approx(-0.25, rel=1e-5)
  assert decoupled(losses.icepop, **near) == (0.0, 0.0)


def test_a_decoupled_loss_without_the_weights_of_the_step_is_an_error():
  with pytest.raises(ValueError, match="needs batch.proximal_logprobs"):
    batch = make_batch([[0.0]], 1.0)._replace(proximal_logprobs=None)
    losses.decoupled_ppo(jnp.zeros((1, 1)), batch)
