"""The processor cores of this process."""

from __future__ import annotations

import os


def usable() -> int:
  """How many cores this process may use."""
  has_affinity = hasattr(os, "sched_getaffinity")  # not on macOS
  return len(os.sched_getaffinity(0)) if has_affinity else os.cpu_count() or 1
