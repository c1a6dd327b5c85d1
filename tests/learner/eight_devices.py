"""Run by test_state.py on 8 forced host devices: shardings of the state, and the sharded update."""

import jax
import numpy as np

from jaxrl_agents.learner import packing, state, train_step
from jaxrl_agents.learner.advantage import Rollout
from jaxrl_agents.policy import sharding
from jaxrl_agents.policy.config import PolicyConfig
from jaxrl_agents.types import Segment
from tests.learner import states

CFG = PolicyConfig(
  vocab_size=16,
  embed_dim=8,
  num_layers=2,
  num_heads=2,
  num_kv_heads=2,
  head_dim=4,
  num_experts=4,
  experts_per_token=2,
  expert_ffw_dim=8,
)
OBJECTIVE = train_step.Objective("rl")


def make_batches():
  rng = np.random.default_rng(0)
  rollouts = []
  for _ in range(10):
    tokens = rng.integers(1, CFG.vocab_size, 12).astype(np.int32)
    mask = np.arange(12) >= 6
    logprobs = np.where(mask, -2.8, 0).astype(np.float32)
    routing = rng.integers(0, 4, (12, 2, 2)).astype(np.uint16)
    routing[:, :, 1] = (routing[:, :, 0] + 1) % 4
    segment = Segment(tokens, mask, logprobs, np.zeros(12, np.int32), routing)
    rollouts.append(Rollout((segment,), float(rng.normal())))
  return packing.pack(rollouts, row_tokens=12, rows_per_microbatch=8)


def two_updates(mesh):
  tx = state.make_optimizer(CFG, learning_rate=1e-2, weight_decay=0.1, eps=1e-3)
  with jax.set_mesh(mesh):
    shardings = states.shardings(CFG, tx, mesh)
    init = jax.jit(lambda key: state.init_state(CFG, tx, key), out_shardings=shardings)
    trained = init(jax.random.key(0))
    batches = [train_step.place_batch(b, mesh) for b in make_batches()]
    for _ in range(2):
      trained, metrics = train_step.update(trained, batches, CFG, OBJECTIVE, tx)
  same = jax.tree.map(lambda x, s: x.sharding.is_equivalent_to(s, x.ndim), trained, shardings)
  assert all(jax.tree.leaves(same)), same
  return trained, metrics


def main():
  eight = sharding.make_mesh(data=2, fsdp=2, expert=2)
  trained, metrics = two_updates(eight)
  moments = [x for x in jax.tree.leaves(trained.opt_state) if x.shape == (16, 8)]
  assert len(moments) == 2, "both moments of the embedding"
  for moment in moments:
    assert moment.addressable_shards[0].data.shape == (16, 2), moment.sharding
  experts = trained.policy.params["moe_layers"]["moe"]["experts"]["down"]
  assert experts.addressable_shards[0].data.shape == (2, 2, 8, 4), experts.sharding
  alone, expected = two_updates(sharding.make_mesh(devices=jax.devices()[:1]))
  for a, b in zip(
    jax.tree.leaves(trained.policy.params), jax.tree.leaves(alone.policy.params), strict=True
  ):
    np.testing.assert_allclose(a, b, atol=2e-5)
  for name, value in expected.items():
    np.testing.assert_allclose(metrics[name], value, rtol=1e-3, atol=1e-5, err_msg=name)
  print("eight devices equal one")


if __name__ == "__main__":
  main()
