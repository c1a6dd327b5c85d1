"""The policy of a checkpoint: the parameters that were saved, adapters merged."""

import dataclasses
import pathlib

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl_agents.config import LoraConfig
from jaxrl_agents.learner import checkpoint
from jaxrl_agents.policy import params as params_lib
from jaxrl_agents.runs import rl, saved_policy, setup, sft, weight_files
from jaxrl_agents.runs.saved_policy import Saved
from tests.runs.small_run import CFG, CONFIG

ADAPTED = dataclasses.replace(CONFIG, lora=LoraConfig(rank=2, alpha=4.0, targets=("qkv",)))


def save(run, phase, *steps, config=CONFIG):
  """Saves a state for each step, whose parameters are drawn from the step; returns the last."""
  tx = {"rl": rl, "sft": sft}[phase].optimizer(config)
  with checkpoint.open_manager(run / "checkpoints" / phase) as manager:
    for step in steps:
      params = setup.with_adapters(config, params_lib.init(CFG, jax.random.key(step)))
      ones = jax.tree.map(lambda x: x if x.any() else jnp.ones_like(x), params)
      state = setup.fresh_state(config, ones, tx)
      checkpoint.save(manager, step, state, {}, keep=3)
  return state.policy.params


def leave_weights(folder):
  folder.mkdir(parents=True)
  (folder / weight_files.WEIGHTS).touch()


@pytest.mark.parametrize("phase", ["rl", "sft"])
def test_each_kept_step_can_be_loaded_and_the_error_for_another_one_names_them(tmp_path, phase):
  expected = save(tmp_path, phase, 2, 4)
  found = saved_policy.load(CONFIG, tmp_path, Saved(phase, 4), dtype="float32")
  jax.tree.map(np.testing.assert_array_equal, found, expected)
  earlier = saved_policy.load(CONFIG, tmp_path, Saved(phase, 2), dtype="bfloat16")
  assert not np.array_equal(earlier["embed"], expected["embed"])
  assert earlier["embed"].dtype == jnp.bfloat16
  with pytest.raises(FileNotFoundError, match=r"of step 3 in .* steps \[2, 4\]"):
    saved_policy.load(CONFIG, tmp_path, Saved(phase, 3), dtype="float32")


def test_adapters_are_merged_into_the_matrices_that_they_belong_to(tmp_path):
  trained = save(tmp_path, "rl", 1, config=ADAPTED)
  found = saved_policy.load(ADAPTED, tmp_path, Saved("rl", 1), dtype="float32")
  adapted = trained["moe_layers"]["attention"]["qkv"]
  product = np.tensordot(np.asarray(adapted.a[0]), np.asarray(adapted.b[0]), 1)  # of one layer
  matrix = found["moe_layers"]["attention"]["qkv"][0]
  np.testing.assert_allclose(matrix, adapted.weight[0] + 4.0 / 2 * product, rtol=1e-5, atol=1e-6)
  np.testing.assert_array_equal(found["embed"], trained["embed"])


def test_without_a_step_the_newest_checkpoint_is_taken_of_a_phase_that_did_not_end(tmp_path):
  save(tmp_path, "sft", 3)
  assert saved_policy.chosen(tmp_path, None) == Saved("sft", 3)
  leave_weights(tmp_path / "warm_start")
  assert saved_policy.chosen(tmp_path, None) is None
  assert saved_policy.chosen(tmp_path, 3) == Saved("sft", 3)
  save(tmp_path, "rl", 2, 5)
  assert saved_policy.chosen(tmp_path, None) == Saved("rl", 5)
  leave_weights(tmp_path / "trained")
  assert saved_policy.chosen(tmp_path, None) is None
  assert saved_policy.chosen(tmp_path, 2) == Saved("rl", 2)


def test_a_step_of_a_folder_without_checkpoints_is_an_error_and_nothing_is_created(tmp_path):
  with pytest.raises(ValueError, match="has no checkpoint of step 2, nor any other"):
    saved_policy.chosen(tmp_path, 2)
  assert saved_policy.chosen(pathlib.Path("base"), None) is None
  assert list(tmp_path.iterdir()) == []


def test_a_checkpoint_follows_the_warm_up_and_the_steps_before_it():
  assert Saved("rl", 2).follows("sft", 9) and Saved("rl", 2).follows("rl", 1)
  assert not Saved("rl", 2).follows("rl", 2) and not Saved("sft", 2).follows("rl", 0)
