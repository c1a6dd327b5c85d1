"""Run by test_training_options.py on 8 host devices: options of training on a mesh and without one.

Prints "equal" where a run's first step, on rows whose time is split, gives the metrics and merged
parameters of one device, and leaves every array where its state was laid out.
"""

import dataclasses

import jax
import numpy as np

from jaxrl_agents.config import LearnerConfig, LoraConfig, MeshConfig, PolicySection, RunConfig
from jaxrl_agents.learner import train_step
from jaxrl_agents.policy import lora
from jaxrl_agents.policy import params as params_lib
from jaxrl_agents.runs import rl, setup
from tests.learner import eight_devices as common

CFG = dataclasses.replace(common.CFG, num_layers=1, qk_norm=False)
MESH = MeshConfig(fsdp=2, expert=2, context=2)
ADAPTERS = RunConfig(
  name="adapters",
  policy=PolicySection(model=CFG),
  learner=LearnerConfig(lr=1e-2, remat="attention"),
  lora=LoraConfig(rank=2, targets=("qkv", "experts.down")),
)
NARROW = RunConfig(
  name="narrow",
  policy=PolicySection(model=CFG, dtype="bfloat16"),
  learner=LearnerConfig(lr=1e-2, optimizer="adamw8bit", qk_clip=0.01, remat="layer"),
)


def stepped(config):
  """(metrics, merged parameters) after one step of the optimizer."""
  batch = common.make_batches()[0]
  batch = batch._replace(routing=batch.routing[:, :, :1])
  with setup.devices(config):
    params = params_lib.init(CFG, jax.random.key(0), config.policy.dtype)
    tx = rl.optimizer(config)
    fresh = setup.fresh_state(config, setup.with_adapters(config, params), tx)
    places = jax.tree.map(lambda x: x.sharding, fresh)
    after, metrics = train_step.update(fresh, [batch], CFG, rl.objective(config), tx)
    at_home = jax.tree.map(lambda x, s: x.sharding.is_equivalent_to(s, x.ndim), after, places)
    assert all(jax.tree.leaves(at_home)), at_home
    merged = lora.merged(after.policy.params)
    return metrics, jax.tree.map(lambda x: np.asarray(x, np.float32), merged)


def compare(config, rtol, atol):
  expected, alone = stepped(config)
  metrics, params = stepped(dataclasses.replace(config, mesh=MESH))
  for name in {"loss", "grad_norm", "applied", "attention_score_max"} & expected.keys():
    np.testing.assert_allclose(metrics[name], expected[name], rtol=rtol, err_msg=name)
  for found, wanted in zip(jax.tree.leaves(params), jax.tree.leaves(alone), strict=True):
    np.testing.assert_allclose(found, wanted, atol=atol)


if __name__ == "__main__":
  compare(ADAPTERS, rtol=1e-5, atol=1e-5)
  compare(NARROW, rtol=1e-2, atol=3e-2)  # Adam's first step of 0.01 may turn where gradients are 0
  print("equal")
