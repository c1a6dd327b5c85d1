"""Several processes, each with devices of its own, as one run: how they start, who writes.

Every process runs the same command on the same code. The arrays of a mesh over all their devices
are one array; what is computed on the host is computed by all alike, and written by the first.
"""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Callable, Iterator
from typing import Any

import jax
from absl import flags
from jax.experimental import multihost_utils

COORDINATOR = "JAX_COORDINATOR_ADDRESS"
"""Where jax.distributed itself looks, as for JAX_NUM_PROCESSES and JAX_PROCESS_ID."""


def define() -> Callable[[], None]:
  """Defines --coordinator, --num_processes and --process_id; returns what starts by them, once
  parsed.
  """
  coordinator = flags.DEFINE_string(
    "coordinator", os.environ.get(COORDINATOR, ""), "host:port of the first of several processes"
  )
  count = flags.DEFINE_integer(
    "num_processes", None, "how many processes; None: as the cluster says"
  )
  number = flags.DEFINE_integer("process_id", None, "which this is, from 0; None: likewise")
  for flag in (coordinator, count, number):  # shown by --help beside the script's own
    flags.FLAGS.register_key_flag_for_module(sys.argv[0], flags.FLAGS[flag.name])
  return lambda: start(coordinator.value, count.value, number.value)


def start(
  coordinator: str, num_processes: int | None = None, process_id: int | None = None
) -> None:
  """Joins the other processes, before any device is used; does nothing without a coordinator.

  On a TPU pod or under Slurm the numbers may be left out: jax asks the cluster.

  Raises:
    ValueError: numbers without a coordinator.
  """
  if not coordinator:
    if num_processes is not None or process_id is not None:
      raise ValueError(
        f"num_processes={num_processes} and process_id={process_id} have no effect without "
        f"--coordinator=host:port (or {COORDINATOR})"
      )
    return
  jax.distributed.initialize(coordinator, num_processes, process_id)


def is_first() -> bool:
  """Whether this process writes what only one may write."""
  return jax.process_index() == 0


@contextlib.contextmanager
def first_alone(name: str) -> Iterator[None]:
  """What the first process makes on a shared disk here, the others then find made."""
  if not is_first():
    wait_for_all(name)
  yield
  if is_first():
    wait_for_all(name)


def gathered(tree: Any) -> Any:
  """The arrays of a tree whole on the host of every process; as they are where there is but one."""
  return multihost_utils.process_allgather(tree, tiled=True) if jax.process_count() > 1 else tree


def wait_for_all(name: str) -> None:
  """Returns when every process has come here."""
  if jax.process_count() > 1:
    multihost_utils.sync_global_devices(name)
