"""Run by test_state.py on 8 forced host devices: every optimizer, bfloat16 and adapters, sharded.

Shardings stay as they were asked for, and the parameters equal those of one device.
"""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np

from jaxrl_agents.learner import state, train_step
from jaxrl_agents.policy import lora, sharding
from jaxrl_agents.policy import params as params_lib
from tests.learner import eight_devices as common

CFG = dataclasses.replace(common.CFG, num_layers=1)
NUMBERS = {"learning_rate": 1e-2, "weight_decay": 0.1, "eps": 1e-3}


def drawn(dtype):
  """Parameters drawn on the host: jax.random would take longest of all to compile."""
  rng = np.random.default_rng(0)
  draw = lambda x: rng.normal(size=x.shape).astype(x.dtype)
  return jax.tree.map(draw, params_lib.abstract(CFG, dtype))


def place(mesh, params, tx):
  """A state of `params`, born sharded, and its shardings."""
  make = functools.partial(state.make_state, tx=tx, key=jax.random.key(0))
  places = lora.shardings(CFG, params, mesh)
  shardings = state.shardings_of(jax.eval_shape(make, params), tx, places, mesh)
  return jax.jit(make, out_shardings=shardings)(params), shardings


def updated(mesh, params, tx):
  """The state after one update by given gradients; its arrays lie where they were asked to."""
  with jax.set_mesh(mesh):
    current, shardings = place(mesh, params, tx)
    rng = np.random.default_rng(0)
    draw = lambda x: rng.normal(size=x.shape).astype(np.float32)
    grads = jax.tree.map(draw, lora.trained(current.policy.params))
    current, step = train_step.apply(current, grads, tx)
    assert step["applied"] == 1
  same = jax.tree.map(lambda x, s: x.sharding.is_equivalent_to(s, x.ndim), current, shardings)
  assert all(jax.tree.leaves(same)), same
  return current


def compare(params, tx, atol):
  found = updated(sharding.make_mesh(data=2, fsdp=2, expert=2), params, tx)
  alone = updated(sharding.make_mesh(devices=jax.devices()[:1]), params, tx)
  for a, b in zip(*(jax.tree.leaves(s.policy.params) for s in (found, alone)), strict=True):
    np.testing.assert_allclose(np.asarray(a, np.float32), np.asarray(b, np.float32), atol=atol)
  return found


def local(array):
  return array.addressable_shards[0].data.shape


def main():
  for kind, dtype, atol in (("adamw8bit", jnp.float32, 2e-5), ("muon", jnp.bfloat16, 2e-2)):
    tx = state.make_optimizer(CFG, kind=kind, dtype=dtype, **NUMBERS)
    found = compare(drawn(dtype), tx, atol)
    held = [x for x in jax.tree.leaves(found.opt_state) if x.shape == (1, 4, 8, 8)]
    assert len(held) == 2 and all(local(x) == (1, 2, 8, 4) for x in held), "of the experts' down"

  tx = state.make_optimizer(CFG, trained="adapters", **NUMBERS)
  adapters = {"rank": 2, "alpha": 4.0, "targets": ("qkv", "experts.down")}
  params = lora.adapt(drawn(jnp.float32), CFG, jax.random.key(1), **adapters)
  node = compare(params, tx, 2e-5).policy.params["moe_layers"]["moe"]["experts"]["down"]
  shapes = [local(x) for x in (node.weight, node.a, node.b)]
  assert shapes == [(1, 2, 8, 4), (1, 2, 8, 2), (1, 2, 2, 4)], shapes
  print("eight devices equal one")


if __name__ == "__main__":
  main()
