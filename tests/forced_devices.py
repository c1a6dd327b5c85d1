"""The environment of a process of its own, whose number of devices is fixed as jax starts."""

import os
import pathlib
import subprocess
import sys

QUICK = "--xla_backend_optimization_level=0 --xla_llvm_disable_expensive_passes=true"
ROOT = pathlib.Path(__file__).parents[1]


def environment(devices: int) -> dict[str, str]:
  """For `subprocess`: `devices` host devices, programs that are compiled quickly."""
  flags = f"{QUICK} --xla_force_host_platform_device_count={devices}"
  return {**os.environ, "XLA_FLAGS": flags, "JAX_PLATFORMS": "cpu", "PYTHONPATH": str(ROOT)}


def check_on_eight(module: str) -> None:
  """Runs a module that compares eight devices with one and says so if they are equal."""
  result = subprocess.run(
    [sys.executable, "-m", module],
    cwd=ROOT,
    env=environment(8),
    capture_output=True,
    text=True,
    timeout=280,
  )
  assert result.returncode == 0, result.stderr[-3000:]
  assert "eight devices equal one" in result.stdout
