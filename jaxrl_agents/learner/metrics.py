"""Metrics of an optimizer step: sums and maxima on the device, floats on the host.

Sums and maxima of microbatches combine exactly, whatever the packing. Quantiles of the gap between
learner and sampler are read from a histogram, so that they combine too.

Alphabet: B rows, T time, L mixture layers, E experts.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np

from jaxrl_agents.learner import losses
from jaxrl_agents.learner.packing import Batch

GAP_BINS = 256
GAP_RANGE = (-8.0, 2.0)
"""Bins of log10 |dlogp|: 9 % wide. Gaps below 1e-8 count as 0."""


def ratio_metrics(
  logprobs: jax.Array, batch: Batch, loss: losses.PolicyLoss
) -> tuple[dict[str, jax.Array], dict[str, jax.Array]]:
  """(sums, maxima) of how far the learner is from the sampler, over loss tokens.

  Args:
    logprobs: log pi of the targets, float32 [B, T].
    batch: the packed rows.
    loss: its bounds decide which tokens count as clipped, and which weights as limited.
  """
  log_r = losses.log_ratio(logprobs, batch)
  ratio = jnp.where(batch.loss_mask, jnp.exp(log_r), 0.0)
  gap = jnp.where(batch.loss_mask, jnp.abs(logprobs - batch.behaviour_logprobs), 0.0)
  below, above = loss.clipped(logprobs, batch)
  low, high = GAP_RANGE
  place = (jnp.log10(jnp.maximum(gap, 10.0**low)) - low) / (high - low) * GAP_BINS
  place = jnp.clip(place.astype(jnp.int32), 0, GAP_BINS - 1).reshape(-1)
  counted = batch.loss_mask.reshape(-1).astype(jnp.float32)
  sums = {
    "ratio": jnp.sum(ratio),
    "clipped_low": jnp.sum(below, dtype=jnp.float32),
    "clipped_high": jnp.sum(above, dtype=jnp.float32),
    "k3": jnp.sum(losses.k3(log_r)),
    "gap": jnp.sum(gap),
    "gap_histogram": jnp.zeros(GAP_BINS, jnp.float32).at[place].add(counted),
  }
  if (limited := loss.limited(batch)) is not None:
    sums["weight_limited"] = jnp.sum(limited, dtype=jnp.float32)
  return sums, {"ratio_max": jnp.max(ratio), "gap_max": jnp.max(gap)}


def summary(sums: dict[str, jax.Array], maxima: dict[str, jax.Array]) -> dict[str, float]:
  """Metrics of a step as floats: sums over loss tokens become means.

  "kl_k3" estimates KL(mu || pi), "kl_k1_to_start" KL(pi || pi_0); "gap_p50" and "gap_p99" are
  upper edges of bins 9 % wide; "clipped_fraction" is the sum of "clipped_low_fraction", below the
  bounds of the ratio, and "clipped_high_fraction", above them; "weight_limited_fraction" counts
  tokens whose weight for stale rollouts the loss caps or drops;
  "expert_load_max" is the load of the busiest expert of a layer over the even share, worst layer.
  """
  sums, maxima = jax.device_get((sums, maxima))
  tokens = max(float(sums["loss_tokens"]), 1.0)
  metrics = {"loss": float(sums["loss"]), "loss_tokens": float(sums["loss_tokens"])}
  means = {"entropy": "entropy", "ratio": "ratio_mean", "k3": "kl_k3", "gap": "gap_mean"}
  means |= {"drift": "kl_k1_to_start"}
  means |= {name: f"{name}_fraction" for name in ("clipped_low", "clipped_high", "weight_limited")}
  metrics |= {new: float(sums[old]) / tokens for old, new in means.items() if old in sums}
  if "clipped_low" in sums:
    sides = (metrics["clipped_low_fraction"], metrics["clipped_high_fraction"])
    metrics["clipped_fraction"] = sum(sides)
  metrics |= {name: float(np.max(value)) for name, value in maxima.items()}
  if "gap_histogram" in sums:
    metrics["gap_p50"] = _quantile(sums["gap_histogram"], 0.5)
    metrics["gap_p99"] = _quantile(sums["gap_histogram"], 0.99)
  if "mtp_tokens" in sums:
    drafted = max(float(sums["mtp_tokens"]), 1.0)
    for name in ("mtp_kl", "mtp_agreement", "mtp_acceptance"):
      metrics[name] = float(sums[name]) / drafted
  load = sums["expert_load"]
  if load.size:
    share = load / np.maximum(load.sum(axis=-1, keepdims=True), 1.0)
    metrics["expert_load_max"] = float(share.max() * load.shape[-1])
    metrics["experts_unused"] = float((load == 0).sum())
  return metrics


def _quantile(histogram, q):
  low, high = GAP_RANGE
  place = int(np.searchsorted(np.cumsum(histogram), q * histogram.sum()))
  return 0.0 if place == 0 else float(10.0 ** (low + (place + 1) * (high - low) / GAP_BINS))
