"""Self-distillation of the multi-token-prediction modules from the policy's own head.

Module k at position i and the trunk at position i + k predict the same token, t_{i+k+1}; the module
learns the trunk's whole distribution there:
  L = (1 / M) sum_k sum_p weights[p] * KL(p_main(. | p) || q_k(. | p - k)),  p = i + k a loss token.
Composer 2 (https://arxiv.org/abs/2603.24477, section 3) matches "the exact logit distribution" of
the main head; the direction of the divergence and the weighting by loss tokens (what a sampler
drafts) are ours. The trunk, the embedding and the head are constants here, so that adding this term
leaves the gradient of the policy as it is.

Alphabet: B rows, T time, C tokens of a chunk, D width, M modules, V vocab.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from jaxrl_agents.learner.packing import Batch
from jaxrl_agents.policy import head as head_lib
from jaxrl_agents.policy import mtp, transformer
from jaxrl_agents.policy.attention import layer
from jaxrl_agents.policy.config import PolicyConfig


def distill_loss(
  params: dict[str, Any],
  hidden: jax.Array,
  batch: Batch,
  cfg: PolicyConfig,
  *,
  temperature: float = 1.0,
) -> tuple[jax.Array, dict[str, jax.Array]]:
  """The distillation loss of one microbatch; its gradient reaches params["mtp"] only.

  Args:
    params: of the policy, with at least one module.
    hidden: [B, T, D], the trunk's Output.hidden.
    batch: the packed rows; each loss token counts with its weight.
    cfg: sizes.
    temperature: divides both logits, as in sampling.

  Returns:
    (loss float32 [], sums over loss tokens and modules: "mtp_tokens", "mtp_kl",
    "mtp_agreement" of the most likely token, "mtp_acceptance" = sum_v min(p, q), the probability
    that a token drawn from q is accepted, https://arxiv.org/abs/2211.17192).
  """
  params = {n: p if n == "mtp" else jax.lax.stop_gradient(p) for n, p in params.items()}
  hidden = jax.lax.stop_gradient(hidden)
  rows = rows_of(batch)
  place = jnp.arange(batch.tokens.shape[1])
  # At a fork the place that follows belongs to the first branch, and the modules draft that one.
  following = jnp.where(place + 1 < batch.ends, mtp.shift_left(batch.tokens, 1), 0)
  drafts = mtp.mtp(params, hidden, following, cfg, rows=rows)
  sources = place[None] if batch.sources is None else batch.sources
  sources = jnp.broadcast_to(sources, batch.tokens.shape)
  teacher = at_sources(hidden, batch)

  head = transformer.head_matrix(params, cfg)

  def compare(head, teacher, student):
    scores = lambda x: jnp.matmul(x, head, preferred_element_type=jnp.float32) / temperature
    kl, *metrics = divergence(scores(teacher), scores(student))
    return kl, *jax.lax.stop_gradient(metrics)

  loss = jnp.zeros((), jnp.float32)
  sums: dict[str, jax.Array] = dict.fromkeys(
    ("mtp_tokens", "mtp_kl", "mtp_agreement", "mtp_acceptance"), loss
  )
  for k in range(1, cfg.mtp_depth + 1):
    valid = batch.loss_mask & mtp.is_path(rows, sources, k)
    earlier = jnp.pad(drafts[k - 1][:, :-k], ((0, 0), (k, 0), (0, 0)))
    draft = at_sources(earlier, batch)
    kl, agreement, acceptance = head_lib.of_tokens(compare, head, valid, teacher, draft)
    loss += jnp.sum(batch.weights * kl) / cfg.mtp_depth
    step = (valid, kl, agreement, acceptance)
    sums = {
      name: total + jnp.sum(x, dtype=jnp.float32)
      for (name, total), x in zip(sums.items(), step, strict=True)
    }
  return loss, jax.lax.stop_gradient(sums)


def rows_of(batch: Batch) -> layer.Rows:
  """What the rows of a batch hold."""
  return layer.Rows(batch.ends, batch.depths, has_forks=batch.sources is not None)


def at_sources(values: jax.Array, batch: Batch) -> jax.Array:
  """values [B, T, D] of places, at the place that makes each prediction: [B, T, D]."""
  if batch.sources is None:
    return values
  return jnp.take_along_axis(values, batch.sources[..., None], axis=1)


def divergence(
  teacher_logits: jax.Array, student_logits: jax.Array
) -> tuple[jax.Array, jax.Array, jax.Array]:
  """KL(p || q), whether both argmax agree (1.0 or 0.0), and sum_v min(p, q): each float32 [...].

  Args:
    teacher_logits: of p, float32 [..., V].
    student_logits: of q, float32 [..., V].
  """
  log_p = jax.nn.log_softmax(teacher_logits)
  log_q = jax.nn.log_softmax(student_logits)
  p = jnp.exp(log_p)
  # Two maxima and a comparison: XLA's argmax over a vocabulary is an order slower on CPU.
  likeliest = lambda log_x: log_x == jnp.max(log_x, axis=-1, keepdims=True)
  agree = jnp.any(likeliest(log_p) & likeliest(log_q), axis=-1)
  overlap = jnp.sum(jnp.minimum(p, jnp.exp(log_q)), axis=-1)
  return jnp.sum(p * (log_p - log_q), axis=-1), agree.astype(jnp.float32), overlap
