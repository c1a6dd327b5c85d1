"""Parameters as an engine holds them: in buffers of its own, laid out for serving."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from jaxrl_agents.policy import params as params_lib
from jaxrl_agents.policy import sharding
from jaxrl_agents.policy.config import PolicyConfig


def own(params: dict[str, Any], cfg: PolicyConfig) -> dict[str, Any]:
  """Parameters in buffers of their own, laid out for serving."""
  mesh, kinds = jax.sharding.get_mesh(), params_lib.LAYER_KINDS
  if mesh.empty:
    copied = {name: value if name in kinds else jnp.copy(value) for name, value in params.items()}
    return committed(jax.jit(sharding.served)(copied))
  copy = lambda params: sharding.served(jax.tree.map(jnp.copy, params))
  places = sharding.served_shardings(cfg, mesh)
  stacked = sharding.shardings(cfg, mesh, sharding.SERVE_RULES)
  return jax.jit(copy, out_shardings=places)(sharding.place(params, stacked))


def committed(tree: Any) -> Any:
  """Arrays fixed to the device that they are on, as those that a learner hands over: for a mix of
  fixed and other arrays XLA would compile each program again."""
  return jax.tree.map(lambda x: jax.device_put(x, x.sharding), tree)


def sizes(params: dict[str, Any]) -> Any:
  """Shape and dtype of every array, in the structure of the parameters."""
  return jax.tree.map(lambda array: (array.shape, array.dtype), params)
