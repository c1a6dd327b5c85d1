"""The devices of a run."""

import jax
import pytest

from jaxrl_agents import config as config_lib
from jaxrl_agents.runs import setup


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
