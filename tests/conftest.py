"""Tests run on the CPU, and compile far more than they compute: without LLVM's optimizations they
take a third of the time.
"""

import os

from tests.forced_devices import QUICK

os.environ["JAX_PLATFORMS"] = "cpu"
os.environ["XLA_FLAGS"] = f"{QUICK} {os.environ.get('XLA_FLAGS', '')}"
