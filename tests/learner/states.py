"""Train states without arrays, and where their arrays live on a mesh."""

import jax
import jax.numpy as jnp

from jaxrl_agents.learner import state
from jaxrl_agents.policy import sharding


def abstract(cfg, tx, dtype=jnp.float32):
  """The tree of jax.ShapeDtypeStruct of a state with freshly drawn parameters."""
  return jax.eval_shape(lambda key: state.init_state(cfg, tx, key, dtype), jax.random.key(0))


def shardings(cfg, tx, mesh):
  """The sharding of every array of the state of a policy without adapters."""
  return state.shardings_of(abstract(cfg, tx), tx, sharding.shardings(cfg, mesh), mesh)
