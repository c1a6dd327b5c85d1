"""The devices of a run, and the chat format of its processes."""

import importlib

import jax
import pytest

from jaxrl_agents import config as config_lib
from jaxrl_agents.agents.agent import Tasks
from jaxrl_agents.chat import qwen3
from jaxrl_agents.runs import agent_setting, setup
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
