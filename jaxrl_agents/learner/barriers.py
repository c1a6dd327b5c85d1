"""Where the processes of a run wait for one another: on the host, and not for ever.

`multihost_utils.sync_global_devices` waits in a program of the devices, without a deadline. Here
processes meet over the coordination service of jax, which ends all of them when one is gone; the
deadline is for one that lives and does not come.
"""

from __future__ import annotations

import collections
import threading
from typing import Any

import jax
import numpy as np
from jax._src import distributed  # multihost_utils has no way to wait on the host alone
from jax.experimental import multihost_utils

TIMEOUT_S = 6 * 3600.0
"""Longest time until all have come. The first process may make an index or play baselines
meanwhile."""

_met: collections.Counter[str] = collections.Counter()
_lock = threading.Lock()


def wait_for_all(name: str, timeout_s: float = TIMEOUT_S) -> None:
  """Returns when every process has called it with this name, as often as this one has.

  Threads of a process may wait at the same time, each under names of its own.

  Raises:
    TimeoutError: not all have come within timeout_s; says which name they were waited for at.
  """
  if jax.process_count() == 1:
    return
  client: Any = distributed.global_state.client
  with _lock:
    _met[name] += 1
    barrier = f"jaxrl_agents/barrier {_met[name]} of {name}"
  try:
    client.wait_at_barrier(barrier, int(1000 * timeout_s))
  except jax.errors.JaxRuntimeError as error:
    if "DEADLINE_EXCEEDED" not in str(error):
      raise
    raise TimeoutError(
      f"not all {jax.process_count()} processes of the run came to {name!r} within {timeout_s:g} "
      "s; one of them hangs. Stop all, and run the same commands again"
    ) from None


def gathered(tree: Any, name: str = "arrays to gather") -> Any:
  """The whole arrays of a tree on the host of every process; unchanged in a single process.

  All processes meet first, so that the program that gathers does not wait for one that is late.
  """
  if jax.process_count() == 1:
    return tree
  wait_for_all(name)
  return multihost_utils.process_allgather(tree, tiled=True)


def any_of(happened: bool, name: str = "a question to all") -> bool:
  """Whether it happened in any process. Every process must call it."""
  return bool(np.any(gathered(np.asarray([happened]), name)))
