"""Weights of a folder go onto a mesh tensor by tensor, each device its slice."""

import subprocess
import sys

import pytest

from tests import forced_devices


@pytest.mark.slow
def test_weights_are_read_to_their_shardings_and_memory_holds_them_once_and_a_tensor_twice(
  tmp_path,
):
  """In a process of its own with 8 host devices; its memory beside mapped files is measured.

  At the peak it may grow by the weights, twice the largest tensor and 16 MiB.
  """
  done = subprocess.run(
    [sys.executable, "-m", "tests.runs.eight_devices", str(tmp_path / "policy")],
    env=forced_devices.environment(8),
    capture_output=True,
    text=True,
    timeout=280,
    check=False,
  )
  assert done.returncode == 0, done.stderr[-3000:]
  assert "MiB at the peak" in done.stdout
