"""Run by test_state.py on 8 forced host devices: every optimizer, bfloat16 and adapters, sharded.

Shardings stay as they were asked for through two updates, and the parameters equal those of one
device.
"""

import jax
import jax.numpy as jnp
import numpy as np

from jaxrl_agents.learner import state, train_step
from jaxrl_agents.policy import lora, sharding
from jaxrl_agents.policy import params as params_lib
from tests.learner import eight_devices as common

CFG, OBJECTIVE = common.CFG, common.OBJECTIVE
NUMBERS = {"learning_rate": 1e-2, "weight_decay": 0.1, "eps": 1e-3}
ADAPTERS = {"rank": 2, "alpha": 4.0, "targets": ("qkv", "experts.down")}


def place(mesh, make, tx):
  """The state that `make` draws, born sharded, and its shardings."""
  abstract = jax.eval_shape(make, jax.random.key(0))
  places = lora.shardings(CFG, abstract.policy.params, mesh)
  shardings = state.shardings_of(abstract, tx, places, mesh)
  return jax.jit(make, out_shardings=shardings)(jax.random.key(0)), shardings


def two_updates(mesh, make, tx):
  with jax.set_mesh(mesh):
    current, shardings = place(mesh, make, tx)
    batches = [train_step.place_batch(b, mesh) for b in common.make_batches()]
    for _ in range(2):
      current, metrics = train_step.update(current, batches, CFG, OBJECTIVE, tx)
    assert metrics["applied"] == 1
  same = jax.tree.map(lambda x, s: x.sharding.is_equivalent_to(s, x.ndim), current, shardings)
  assert all(jax.tree.leaves(same)), same
  return current


def compare(make, tx, atol):
  found = two_updates(sharding.make_mesh(data=2, fsdp=2, expert=2), make, tx)
  alone = two_updates(sharding.make_mesh(devices=jax.devices()[:1]), make, tx)
  for a, b in zip(*(jax.tree.leaves(s.policy.params) for s in (found, alone)), strict=True):
    np.testing.assert_allclose(np.asarray(a, np.float32), np.asarray(b, np.float32), atol=atol)
  return found


def local(array):
  return array.addressable_shards[0].data.shape


def main():
  for kind, dtype, atol in (
    ("adamw8bit", jnp.float32, 2e-4),
    ("muon", jnp.float32, 2e-4),
    ("adamw", jnp.bfloat16, 2e-2),
  ):
    tx = state.make_optimizer(CFG, kind=kind, dtype=dtype, **NUMBERS)
    found = compare(lambda key, tx=tx, d=dtype: state.init_state(CFG, tx, key, d), tx, atol)
    held = [x for x in jax.tree.leaves(found.opt_state) if x.shape == (2, 4, 8, 8)]
    assert held and all(local(x) == (2, 2, 8, 4) for x in held), "of the experts' down"

  tx = state.make_optimizer(CFG, trained="adapters", **NUMBERS)

  def make(key):
    params = lora.adapt(params_lib.init(CFG, key), CFG, key, **ADAPTERS)
    return state.make_state(params, tx, key)

  found = compare(make, tx, 2e-5)
  node = found.policy.params["moe_layers"]["moe"]["experts"]["down"]
  assert (local(node.weight), local(node.a), local(node.b)) == (
    (2, 2, 8, 4),
    (2, 2, 8, 2),
    (2, 2, 2, 4),
  )
  print("eight devices equal one")


if __name__ == "__main__":
  main()
