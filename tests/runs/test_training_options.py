"""What the options of precision, optimizer and adapters make of a run's parameters and state."""

import subprocess
import sys

import jax
import jax.numpy as jnp
import pytest

from jaxrl_agents import config as config_lib
from jaxrl_agents.learner import state
from jaxrl_agents.policy import lora
from jaxrl_agents.runs import rl, setup
from tests import forced_devices

pytestmark = pytest.mark.slow

PATH = "configs/search_cpu.py"


def abstract(*overrides):
  """(config, parameters, optimizer state) of a run from the shipped policy, nothing computed."""
  config = config_lib.load(PATH, overrides)
  loaded = setup.initial_params(config)
  params = jax.eval_shape(lambda: setup.with_adapters(config, loaded))
  fresh = jax.eval_shape(
    lambda: state.make_state(setup.with_adapters(config, loaded), rl.optimizer(config), KEY)
  )
  return config, params, fresh.opt_state


KEY = jax.random.key(0)


def size(tree, dtype=None):
  return sum(x.size for x in jax.tree.leaves(tree) if dtype is None or x.dtype == dtype)


def test_full_parameters_in_float32_are_the_default_with_two_moments_each():
  _, params, opt_state = abstract()
  frozen = 5 * 8  # selection biases of four layers and a prediction module
  assert size(params, jnp.float32) == size(params)
  assert size(opt_state, jnp.float32) == 2 * (size(params) - frozen)


def test_bfloat16_parameters_have_a_master_and_float32_moments():
  _, params, opt_state = abstract("policy.dtype=bfloat16", "learner.canary_bound=0.3")
  routers, frozen = 5 * 8 * 192, 5 * 8
  assert size(params, jnp.bfloat16) == size(params) - routers - frozen
  moments = 2 * (size(params) - frozen)
  assert size(opt_state, jnp.float32) == moments + size(params, jnp.bfloat16)


@pytest.mark.parametrize("kind", ["adamw8bit", "muon"])
def test_the_named_optimizer_is_the_one_that_runs(kind):
  _, params, opt_state = abstract(f"learner.optimizer={kind}", "learner.qk_clip=100")
  eight_bits = size(opt_state, jnp.int8) + size(opt_state, jnp.uint8)
  if kind == "muon":
    embedding = params["embed"].size
    assert eight_bits == 0
    assert size(params) < size(opt_state) < size(params) + 1.1 * embedding
  else:
    assert 1.9 * size(params) < eight_bits < 2 * size(params)
  config = config_lib.load(PATH, ["learner.qk_clip=100"])
  assert rl.objective(config).attention_peaks


def test_adapters_alone_have_moments_and_merged_weights_look_like_the_policy():
  config, params, opt_state = abstract("lora.rank=2", "lora.targets=('qkv','down')")
  adapters = size(lora.trained(params))
  assert 0 < adapters < 0.02 * size(params)
  assert size(opt_state, jnp.float32) == 2 * adapters
  merged = jax.eval_shape(lora.merged, params)
  plain = setup.initial_params(config)
  assert jax.tree.map(lambda x: (x.shape, x.dtype), merged) == jax.tree.map(
    lambda x: (x.shape, x.dtype), plain
  )


def test_adapters_and_bfloat16_with_eight_bit_moments_train_on_a_mesh_as_on_one_device():
  """Metrics within 1e-5 and parameters within 1e-5; in bfloat16 1e-2 and 3e-2."""
  done = subprocess.run(
    [sys.executable, "-m", "tests.runs.eight_devices_options"],
    env=forced_devices.environment(8),
    capture_output=True,
    text=True,
    timeout=280,
    check=False,
  )
  assert done.stdout.strip() == "equal", done.stderr[-3000:]
