"""What a policy would say next, at each place of texts that stand already."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxrl_agents.policy import transformer
from jaxrl_agents.policy.attention import layer
from jaxrl_agents.policy.config import PolicyConfig

MULTIPLE = 64
"""Rows are padded to a multiple of so many tokens: few lengths, few programs."""


def likeliest(
  cfg: PolicyConfig, params: dict[str, Any]
) -> Callable[[Sequence[np.ndarray]], list[np.ndarray]]:
  """A function of rows of token ids, int32 [T] each: for each row the most probable token at each
  place, given those before it, int32 [T]; at the first place, which has none before it, -1.
  """

  @jax.jit
  def following(tokens: jax.Array) -> jax.Array:
    hidden = transformer.forward(params, tokens, cfg, rows=layer.one_sequence(tokens)).hidden
    return jnp.argmax(transformer.logits(params, hidden, cfg), axis=-1)

  def of_rows(rows: Sequence[np.ndarray]) -> list[np.ndarray]:
    longest = max(map(len, rows))
    padded = np.zeros((len(rows), -(-longest // MULTIPLE) * MULTIPLE), np.int32)
    for row, tokens in zip(padded, rows, strict=True):
      row[: len(tokens)] = tokens
    found = np.asarray(following(padded))
    return [
      np.concatenate([[-1], each[: len(tokens) - 1]]).astype(np.int32)
      for each, tokens in zip(found, rows, strict=True)
    ]

  return of_rows
