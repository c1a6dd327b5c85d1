"""A loss of one's own: CISPO whose weights fade out instead of being cut off.

Every loss is a pure function of the learner's log-probabilities and the packed batch. Its keyword
arguments are what `learner.loss_options` may set.
"""

import jax
import jax.numpy as jnp

from jaxrl_agents.learner import losses


def faded(logprobs, batch, *, width: float = 1.0):
  """`-sg(r exp(-(log r / width)^2)) * A * log pi`, r = pi / mu, float32 [B, T]."""
  log_r = losses.log_ratio(logprobs, batch)
  weight = jax.lax.stop_gradient(jnp.exp(log_r - jnp.square(log_r / width)))
  return -weight * batch.advantages * jnp.where(batch.loss_mask, logprobs, 0.0)
