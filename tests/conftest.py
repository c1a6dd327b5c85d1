"""Tests run on the CPU, and compile far more than they compute: without LLVM's optimizations they
take a third of the time.
"""

import os
import sys
from collections.abc import Iterator

import pytest

from tests.forced_devices import QUICK

os.environ["JAX_PLATFORMS"] = "cpu"
os.environ["XLA_FLAGS"] = f"{QUICK} {os.environ.get('XLA_FLAGS', '')}"


@pytest.fixture(scope="module", autouse=True)
def programs_of_one_module() -> Iterator[None]:
  """Programs are dropped as the module ends: each holds memory maps, of which a process may have
  65,530 on Linux, and XLA crashes without a message where there are none left.
  """
  yield
  if "jax" in sys.modules:
    sys.modules["jax"].clear_caches()
