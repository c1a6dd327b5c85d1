"""The environment of a process of its own, whose number of devices is fixed as jax starts."""

import os
import pathlib

QUICK = "--xla_backend_optimization_level=0 --xla_llvm_disable_expensive_passes=true"
ROOT = pathlib.Path(__file__).parents[1]


def environment(devices: int) -> dict[str, str]:
  """For `subprocess`: `devices` host devices, programs that are compiled quickly."""
  flags = f"{QUICK} --xla_force_host_platform_device_count={devices}"
  return {**os.environ, "XLA_FLAGS": flags, "JAX_PLATFORMS": "cpu", "PYTHONPATH": str(ROOT)}
