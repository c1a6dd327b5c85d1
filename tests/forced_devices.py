"""The environment of a process of its own, whose number of devices is fixed as jax starts."""

import importlib.metadata
import os
import pathlib

QUICK = "--xla_backend_optimization_level=0 --xla_llvm_disable_expensive_passes=true"
if importlib.metadata.version("jaxlib").startswith(("0.10.2", "0.11.")):
  # Fusions of YNNPACK can crash there: https://github.com/jax-ml/jax/issues/40412
  QUICK += " --xla_cpu_experimental_ynn_fusion_type="
ROOT = pathlib.Path(__file__).parents[1]


def environment(devices: int) -> dict[str, str]:
  """For `subprocess`: `devices` host devices, programs that are compiled quickly."""
  flags = f"{QUICK} --xla_force_host_platform_device_count={devices}"
  return {**os.environ, "XLA_FLAGS": flags, "JAX_PLATFORMS": "cpu", "PYTHONPATH": str(ROOT)}
