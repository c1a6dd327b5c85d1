"""Policy-gradient losses: pure functions `(logprobs, batch, **options) -> loss [B, T]`, minimised.

Every function returns the loss of each token, 0 where `loss_mask` is False. None of them divides by
a number of tokens: `packing.pack` gives each token the weight of the chosen normaliser, and the
loss of an optimizer step is the sum of `batch.weights * loss` over all its microbatches.

Notation: pi is the learner, mu the sampler that drew the token, A the advantage (constant over a
rollout), |y| the sampled tokens of a rollout. The ratio is pi / mu, from the recorded
log-probabilities of the sampler ("bypass mode", pi_old = mu: https://arxiv.org/abs/2602.02276 eq. 1
uses the same), so it carries both the drift of the weights and the mismatch of the two engines.

Alphabet: B rows, T time.
"""

from __future__ import annotations

import dataclasses
import difflib
import inspect
import math
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp

from jaxrl_agents.config.ranges import shown
from jaxrl_agents.learner.packing import Batch, Normaliser

MAX_LOG_RATIO = 20.0
"""Log-ratios are clamped to +-20 before exp: e^20 = 4.9e8 is finite and beyond any bound."""


def cispo(
  logprobs: jax.Array,
  batch: Batch,
  *,
  low: float = 0.0,
  high: float = 5.0,
  unified_mask: bool = False,
) -> jax.Array:
  """CISPO: `-sg(clip(pi / mu, low, high)) * A * log pi`. Every token keeps a gradient.

  Published with advantages (R - mean) / std; harness-1 takes R - mean.
  Source: MiniMax-M1, https://arxiv.org/abs/2506.13585 eq. 4-7. The bounds are absolute bounds of
  the ratio ([0, 5] as in harness-1, https://arxiv.org/abs/2606.02373), not distances from 1.

  Args:
    logprobs: log pi of the target tokens, float32 [B, T].
    batch: the packed rows.
    low: lower bound of the ratio, 0 to leave it unbounded.
    high: upper bound of the ratio.
    unified_mask: eq. 7: drop tokens with A > 0 above `high` or A < 0 below `low`, as PPO does.

  Returns:
    float32 [B, T].
  """
  ratio = jnp.exp(log_ratio(logprobs, batch))
  clipped = jax.lax.stop_gradient(jnp.clip(ratio, low, high))
  loss = -clipped * batch.advantages * jnp.where(batch.loss_mask, logprobs, 0.0)
  if not unified_mask:
    return loss
  advantages = batch.advantages
  drop = ((advantages > 0) & (ratio > high)) | ((advantages < 0) & (ratio < low))
  return jnp.where(drop, 0.0, loss)


def ppo_clip(
  logprobs: jax.Array, batch: Batch, *, epsilon_low: float = 0.2, epsilon_high: float = 0.2
) -> jax.Array:
  """PPO: `-min(rA, clip(r, 1 - epsilon_low, 1 + epsilon_high) A)`, r = pi / mu, float32 [B, T].

  A token whose ratio has left the interval in the direction of its advantage has no gradient.
  Source: https://arxiv.org/abs/1707.06347 eq. 7.
  """
  ratio = jnp.exp(log_ratio(logprobs, batch))
  return _pessimistic(ratio, batch.advantages, epsilon_low, epsilon_high)


def grpo(
  logprobs: jax.Array, batch: Batch, *, epsilon: float = 0.2, beta: float = 0.0
) -> jax.Array:
  """GRPO: PPO's clip plus `beta * k3(pi || reference)` on every token, float32 [B, T].

  Published with advantages (R - mean) / (std + delta) and the normaliser "rollout_mean".
  Source: https://arxiv.org/abs/2402.03300 eq. 3.

  Raises:
    ValueError: beta is not 0 and the batch carries no `reference_logprobs`.
  """
  loss = ppo_clip(logprobs, batch, epsilon_low=epsilon, epsilon_high=epsilon)
  if beta == 0.0:
    return loss
  if batch.reference_logprobs is None:
    raise ValueError(
      f"grpo with beta={beta} needs batch.reference_logprobs; give them or set beta=0"
    )
  log_r = jnp.where(batch.loss_mask, batch.reference_logprobs - logprobs, 0.0)
  return loss + beta * k3(jnp.minimum(log_r, MAX_LOG_RATIO))


def dr_grpo(logprobs: jax.Array, batch: Batch, *, epsilon: float = 0.2) -> jax.Array:
  """Dr.GRPO: GRPO's clip with advantages R - mean and the normaliser "constant", float32 [B, T].

  What it removes (1 / |y| and 1 / std) is removed in the weights and the advantages; the token's
  own formula is PPO's. Source: https://arxiv.org/abs/2503.20783.
  """
  return ppo_clip(logprobs, batch, epsilon_low=epsilon, epsilon_high=epsilon)


def dapo(
  logprobs: jax.Array, batch: Batch, *, epsilon_low: float = 0.2, epsilon_high: float = 0.28
) -> jax.Array:
  """DAPO: the clip with more room above than below ("clip higher"), normaliser "token_mean".

  Published with advantages (R - mean) / std.
  Source: https://arxiv.org/abs/2503.14476 eq. 8-9. Returns float32 [B, T].
  """
  return ppo_clip(logprobs, batch, epsilon_low=epsilon_low, epsilon_high=epsilon_high)


def gspo(
  logprobs: jax.Array, batch: Batch, *, epsilon_low: float = 3e-4, epsilon_high: float = 4e-4
) -> jax.Array:
  """GSPO: `-min(sA, clip(s, ..) A)` with one ratio per rollout, `s = exp(mean_t log(pi / mu))`.

  A rollout is one sequence however many segments its context was cut into, so the mean runs over
  `rollout_ids`; pack with `keep_rollouts_together=True`. Each token carries its rollout's loss:
  under "rollout_mean" (weights 1 / (G |y|)) and with advantages (R - mean) / std the sum over
  tokens is the published objective.
  Source: https://arxiv.org/abs/2507.18071 eq. 5-7. Returns float32 [B, T].
  """
  ratio = jnp.exp(rollout_log_ratio(logprobs, batch))
  return _pessimistic(ratio, batch.advantages, epsilon_low, epsilon_high)


def k25(
  logprobs: jax.Array, batch: Batch, *, alpha: float = 0.5, beta: float = 2.0, tau: float = 0.02
) -> jax.Array:
  """Kimi K2.5: `-(r A - tau (log r)^2)`; outside [alpha, beta] only tau's term has a gradient.

  The clip is a mask that ignores the sign of A: out-of-range tokens contribute r A as a constant.
  Source: https://arxiv.org/abs/2602.02276 section 4.4.2 eq. 1, read as an objective to maximise
  with bounds on the ratio. alpha, beta and tau were never published: the defaults are ours.
  Returns float32 [B, T].
  """
  log_r = log_ratio(logprobs, batch)
  ratio = jnp.exp(log_r)
  inside = (ratio >= alpha) & (ratio <= beta)
  gain = jnp.where(inside, ratio, jax.lax.stop_gradient(ratio)) * batch.advantages
  distance = jnp.where(batch.loss_mask, logprobs - batch.behaviour_logprobs, 0.0)
  return jnp.where(batch.loss_mask, tau * jnp.square(distance) - gain, 0.0)


def dro(logprobs: jax.Array, batch: Batch, *, beta: float = 0.05) -> jax.Array:
  """Direct reward optimisation: `-(A log pi - beta / 2 (log r)^2)`, float32 [B, T].

  Its gradient is `-(A - beta log r) grad log pi`: no ratio weighs a token, and what has moved away
  from the sampler is pulled back. So it takes rollouts of any age.
  Sources: https://arxiv.org/abs/2405.19107; Kimi k1.5, https://arxiv.org/abs/2501.12599 section
  2.3.2; the form per token is that of Tinker's loss of this name, whose example has beta 0.05.
  """
  log_pi = jnp.where(batch.loss_mask, logprobs, 0.0)
  distance = jnp.where(batch.loss_mask, logprobs - batch.behaviour_logprobs, 0.0)
  return 0.5 * beta * jnp.square(distance) - batch.advantages * log_pi


def decoupled_ppo(
  logprobs: jax.Array,
  batch: Batch,
  *,
  epsilon_low: float = 0.2,
  epsilon_high: float = 0.2,
  cap: float = 2.0,
) -> jax.Array:
  """Decoupled PPO for stale rollouts: `-sg(min(w, cap)) min(rA, clip(r) A)`, float32 [B, T].

  The clip bounds one step's drift, r = pi / pi_old; w = pi_old / mu corrects for what the weights
  moved between sampling and the step, truncated from above (truncated importance sampling).
  pi_old: the weights at the start of the step (`batch.proximal_logprobs`).
  Sources: AReaL, https://arxiv.org/abs/2505.24298 (decoupled objective); the truncation and its 2:
  verl, docs on rollout correction.

  Raises:
    ValueError: the batch carries no `proximal_logprobs`.
  """
  weight, loss = _decoupled(logprobs, batch, epsilon_low, epsilon_high)
  return jnp.minimum(weight, cap) * loss


def icepop(
  logprobs: jax.Array,
  batch: Batch,
  *,
  epsilon_low: float = 0.2,
  epsilon_high: float = 0.2,
  low: float = 0.5,
  high: float = 2.0,
) -> jax.Array:
  """IcePop: as `decoupled_ppo`, but tokens with w outside [low, high] have no loss, and the others
  keep their w. float32 [B, T]. Source: verl, docs on rollout correction ("masked importance
  sampling", bounds 0.5 and 2).

  Raises:
    ValueError: the batch carries no `proximal_logprobs`.
  """
  weight, loss = _decoupled(logprobs, batch, epsilon_low, epsilon_high)
  return jnp.where((weight >= low) & (weight <= high), weight * loss, 0.0)


def importance_sampling(logprobs: jax.Array, batch: Batch) -> jax.Array:
  """The policy gradient with importance weights: `-(pi / mu) A`, float32 [B, T].

  Its gradient is `-(pi / mu) A grad log pi`. No ratio is clipped, so keep the rollouts fresh.
  """
  return -jnp.exp(log_ratio(logprobs, batch)) * batch.advantages


def around_one(options: Mapping[str, Any]) -> tuple[float, float]:
  """The bounds [1 - epsilon_low, 1 + epsilon_high] of a ratio; `epsilon` stands for both. On a side
  without such an option there is none.
  """
  epsilon = options.get("epsilon", math.inf)
  return 1 - options.get("epsilon_low", epsilon), 1 + options.get("epsilon_high", epsilon)


@dataclasses.dataclass(frozen=True)
class PolicyLoss:
  """A loss, with what the packer, the metrics and the loop must know about it. Static under jit.

  Attributes:
    function: `(logprobs [B, T], batch, *, options) -> loss [B, T]`, pure, as those of this module.
    normaliser: the divisor of the sum over tokens (`packing.token_weights`).
    advantage_std: whether it was published with advantages that are divided by the standard
      deviation of their group.
    whole_rollouts: whether the loss couples the tokens of a rollout, so that a microbatch must hold
      whole rollouts.
    bounds: options -> (low, high) of the ratio; tokens outside count as clipped in the metrics.
      None for a loss without such bounds.
    proximal: whether the loss reads `batch.proximal_logprobs`, and clips the ratio pi / pi_old.
    weight_bounds: options -> (low, high) of the weight pi_old / mu of a loss with `proximal`;
      tokens outside count as limited in the metrics. None for a loss without such bounds.
    reference: name of the option that makes the loss read `batch.reference_logprobs` if it is not
      0; "" if there is none.
    options: values that differ from the defaults of the signature, as sorted pairs.
  """

  function: Callable[..., jax.Array]
  normaliser: Normaliser = "token_mean"
  advantage_std: bool = False
  whole_rollouts: bool = False
  bounds: Callable[[Mapping[str, Any]], tuple[float, float]] | None = around_one
  reference: str = ""
  proximal: bool = False
  weight_bounds: Callable[[Mapping[str, Any]], tuple[float, float]] | None = None
  options: tuple[tuple[str, Any], ...] = ()

  def __call__(self, logprobs: jax.Array, batch: Batch) -> jax.Array:
    """The loss of each token, float32 [B, T]."""
    return self.function(logprobs, batch, **dict(self.options))

  @property
  def all_options(self) -> dict[str, Any]:
    """{option: value}, with the defaults of the signature."""
    parameters = inspect.signature(self.function).parameters.values()
    keywords = [p for p in parameters if p.kind is inspect.Parameter.KEYWORD_ONLY]
    return {p.name: p.default for p in keywords} | dict(self.options)

  @property
  def needs_reference(self) -> bool:
    """Whether the batch must carry `reference_logprobs`."""
    return bool(self.reference and self.all_options[self.reference])

  def set(self, options: Mapping[str, Any]) -> PolicyLoss:
    """A copy with other values for some options.

    Raises:
      ValueError: the signature lacks an option, a value has another type, or the function cannot be
        called with the options.
    """
    taken, name = self.all_options, getattr(self.function, "__name__", repr(self.function))
    for option, value in options.items():
      if option not in taken:
        raise ValueError(f"the loss {name} has no option {option!r}; {_nearest(option, taken)}")
      default = taken[option]
      is_number = isinstance(value, int | float) or not isinstance(default, int | float)
      if isinstance(default, bool) != isinstance(value, bool) or not is_number:
        kind = type(default).__name__
        raise ValueError(f"{option}={value!r} of the loss {name} must be a {kind}")
    chosen = {**dict(self.options), **options}
    try:
      inspect.signature(self.function).bind(None, None, **chosen)
    except TypeError as error:
      raise ValueError(
        f"the loss {name} cannot be called with (logprobs, batch) and the options {chosen}: "
        f"{error}; let it take both, and give its options defaults"
      ) from None
    return dataclasses.replace(self, options=tuple(sorted(chosen.items())))

  def clipped(self, logprobs: jax.Array, batch: Batch) -> tuple[jax.Array, jax.Array]:
    """Where the ratio is (below, above) the bounds, bool [B, T] each; nowhere without bounds."""
    if self.bounds is None:
      return (jnp.zeros_like(batch.loss_mask),) * 2
    if self.proximal:
      batch = batch._replace(behaviour_logprobs=batch.proximal_logprobs)
    log_r = (rollout_log_ratio if self.whole_rollouts else log_ratio)(logprobs, batch)
    return _outside(jnp.exp(log_r), batch, self.bounds(self.all_options))

  def limited(self, batch: Batch) -> jax.Array | None:
    """Where the weight pi_old / mu is outside of its bounds, bool [B, T]; None without bounds, or
    without pi_old.
    """
    old = batch.proximal_logprobs
    if self.weight_bounds is None or old is None:
      return None
    weight = jnp.exp(log_ratio(old, batch))
    low, high = _outside(weight, batch, self.weight_bounds(self.all_options))
    return low | high


def _outside(ratio, batch, bounds):
  low, high = bounds
  return batch.loss_mask & (ratio < low), batch.loss_mask & (ratio > high)


LOSSES: dict[str, PolicyLoss] = {
  "cispo": PolicyLoss(
    cispo, advantage_std=True, bounds=lambda options: (options["low"], options["high"])
  ),
  "ppo_clip": PolicyLoss(ppo_clip),
  "grpo": PolicyLoss(grpo, normaliser="rollout_mean", advantage_std=True, reference="beta"),
  "dr_grpo": PolicyLoss(dr_grpo, normaliser="constant"),
  "dapo": PolicyLoss(dapo, advantage_std=True),
  "gspo": PolicyLoss(gspo, normaliser="rollout_mean", advantage_std=True, whole_rollouts=True),
  "decoupled_ppo": PolicyLoss(
    decoupled_ppo, proximal=True, weight_bounds=lambda options: (0.0, options["cap"])
  ),
  "icepop": PolicyLoss(
    icepop, proximal=True, weight_bounds=lambda options: (options["low"], options["high"])
  ),
  "dro": PolicyLoss(dro, bounds=None),
  "importance_sampling": PolicyLoss(importance_sampling, bounds=None),
  "k25": PolicyLoss(k25, bounds=lambda options: (options["alpha"], options["beta"])),
}


def named(name: str) -> PolicyLoss:
  """The loss of this name in LOSSES.

  Raises:
    ValueError: there is none; the message names the nearest.
  """
  if name not in LOSSES:
    raise ValueError(
      f"no loss {shown(name)}; {_nearest(name, LOSSES)} A loss of your own is named by its import "
      "path, package.module:NAME"
    )
  return LOSSES[name]


def log_ratio(logprobs: jax.Array, batch: Batch) -> jax.Array:
  """log(pi / mu) of each loss token, clamped to +-MAX_LOG_RATIO; 0 elsewhere. float32 [B, T]."""
  log_r = jnp.where(batch.loss_mask, logprobs - batch.behaviour_logprobs, 0.0)
  return jnp.clip(log_r, -MAX_LOG_RATIO, MAX_LOG_RATIO)


def rollout_log_ratio(logprobs: jax.Array, batch: Batch) -> jax.Array:
  """The mean of `log_ratio` over all loss tokens of the token's rollout, float32 [B, T]."""
  ids = batch.rollout_ids.reshape(-1)
  total = jax.ops.segment_sum(log_ratio(logprobs, batch).reshape(-1), ids, ids.size)
  count = jax.ops.segment_sum(batch.loss_mask.reshape(-1).astype(jnp.float32), ids, ids.size)
  mean = total / jnp.maximum(count, 1.0)
  return jnp.where(batch.loss_mask, mean[batch.rollout_ids], 0.0)


def drift(logprobs: jax.Array, batch: Batch) -> jax.Array:
  """`sg(log(pi / pi_0))` of each loss token, k1 of KL(pi || pi_0); 0 elsewhere. float32 [B, T].

  Raises:
    ValueError: the batch carries no `reference_logprobs`, those of pi_0.
  """
  if batch.reference_logprobs is None:
    raise ValueError("kl needs batch.reference_logprobs; give loop.train a reference, or set kl=0")
  log_r = jnp.where(batch.loss_mask, batch.reference_logprobs - logprobs, 0.0)
  return jax.lax.stop_gradient(k1(log_r))


def k1(log_r: jax.Array) -> jax.Array:
  """`-log r`, r = p / q on samples of q: unbiased for KL(q || p). http://joschu.net/blog/kl-approx.html"""
  return -log_r


def k3(log_r: jax.Array) -> jax.Array:
  """`(r - 1) - log r`: unbiased for KL(q || p), never negative; its variance is large far from q =
  p.
  """
  return jnp.expm1(log_r) - log_r


def _decoupled(logprobs, batch, epsilon_low, epsilon_high):
  """(pi_old / mu, without a gradient; PPO's loss against pi_old) of each token, float32 [B, T]."""
  if batch.proximal_logprobs is None:
    raise ValueError("this loss needs batch.proximal_logprobs, those at the start of the step")
  old = batch._replace(behaviour_logprobs=batch.proximal_logprobs)
  weight = jnp.exp(log_ratio(batch.proximal_logprobs, batch))
  return jax.lax.stop_gradient(weight), ppo_clip(
    logprobs, old, epsilon_low=epsilon_low, epsilon_high=epsilon_high
  )


def _pessimistic(ratio, advantages, epsilon_low, epsilon_high):
  bounded = jnp.clip(ratio, 1 - epsilon_low, 1 + epsilon_high)
  return -jnp.minimum(ratio * advantages, bounded * advantages)


def _nearest(name, names):
  near = difflib.get_close_matches(name, list(names), n=1, cutoff=0.0)
  return f"did you mean {near[0]!r}?" if near else "it has none"
