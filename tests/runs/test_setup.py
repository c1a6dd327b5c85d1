"""The devices of a run, and the chat format of its processes."""

import dataclasses
import importlib

import jax
import jax.numpy as jnp
import pytest

from jaxrl_agents import config as config_lib
from jaxrl_agents.agents.agent import Tasks
from jaxrl_agents.chat import qwen3
from jaxrl_agents.runs import agent_setting, rl, setup
from jaxrl_agents.types import Message
from tests.chat import families


class NoTasks(Tasks):
  tasks, digest = {}, ""


def test_a_mesh_of_one_device_is_refused_where_there_are_more_accelerators(monkeypatch):
  config = config_lib.load("configs/search_cpu.py")
  with setup.devices(config):
    pass
  monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
  monkeypatch.setattr(jax, "device_count", lambda: 1)
  with setup.devices(config):
    pass
  monkeypatch.setattr(jax, "device_count", lambda: 8)
  with pytest.raises(ValueError, match=r"set mesh\.fsdp=8 .* CUDA_VISIBLE_DEVICES=0"):
    with setup.devices(config):
      pass


def test_the_learning_rate_of_training_is_constant_or_falls_to_a_tenth_at_the_end():
  config = config_lib.load(
    "configs/search_cpu.py", ["learner.lr=1", "learner.warmup_steps=2", "learner.schedule=cosine"]
  )
  rate = setup.learning_rate(config.learner, 10)
  assert [float(rate(i)) for i in (0, 1, 2, 6, 10)] == pytest.approx([0.0, 0.5, 1.0, 0.55, 0.1])
  constant = dataclasses.replace(config.learner, schedule="constant")
  assert float(setup.learning_rate(constant, 10)(10)) == 1.0
  for learner in (config.learner, constant):  # a run that only evaluates has no updates
    assert float(setup.learning_rate(learner, 0)(2)) == 1.0


def test_the_decays_of_moments_are_those_of_the_config():
  config = config_lib.load(
    "configs/search_cpu.py",
    ["learner.beta1=0.25", "learner.beta2=0.5", "learner.max_grad_norm=1e9"],
  )
  tx = rl.optimizer(config)
  params = setup.initial_params(config)
  _, after = tx.update(
    jax.tree.map(lambda x: jnp.full_like(x, 2.0), params), tx.init(params), params
  )
  moments = {float(leaf.ravel()[0]) for leaf in jax.tree.leaves(after) if leaf.ndim}
  assert {0.75 * 2.0, 0.5 * 4.0} <= moments


def test_learner_and_workers_tell_the_policy_to_think_as_the_config_says(tmp_path):
  folder = families.write_tokenizer(tmp_path, qwen3.CONTROL_TOKENS)
  overrides = [f"policy.tokenizer={folder}", "policy.thinking=off", "agent=external"]
  module = "tests.agents.external.agents_of_tests"
  own = [f"external.reward={module}:length", "external.command=true"]
  config = config_lib.load("configs/search_cpu.py", [*overrides, *own])
  spec = setup.worker_spec(config, NoTasks())
  module, _, build = spec.build.partition(":")
  services = getattr(importlib.import_module(module), build)(*spec.arguments)
  for chat in (agent_setting.load_chat(config), services.chat):
    text = chat.decode(chat.render([Message("user", "Go.")]))
    assert text.endswith("<|im_start|>assistant\n<think>\n\n</think>\n\n")
