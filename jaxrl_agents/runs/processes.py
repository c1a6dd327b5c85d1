"""One run in several processes, each with devices of its own.

Every process runs the same command on the same code. An array of the mesh spans the devices of all
processes. Only the first process runs rollout workers and writes metrics, trajectories and
summaries; every process writes its own shards of weights and checkpoints.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from typing import NoReturn

import jax
from absl import flags

from jaxrl_agents import config as config_lib
from jaxrl_agents.config import RunConfig
from jaxrl_agents.fleet import cluster
from jaxrl_agents.learner import preemption
from jaxrl_agents.learner.barriers import wait_for_all
from jaxrl_agents.learner.preemption import Notice
from jaxrl_agents.runs.process_channel import ProcessChannel

COORDINATOR = "JAX_COORDINATOR_ADDRESS"
"""Where jax.distributed itself looks, as for JAX_NUM_PROCESSES and JAX_PROCESS_ID."""

HEARTBEAT_S = 30
"""Seconds without a heartbeat after which jax counts a process as gone and ends the others."""


class LostError(RuntimeError):
  """Another process of the run is gone; the message says which."""


def define() -> Callable[[], None]:
  """Defines --coordinator, --num_processes and --process_id; returns a function that calls `start`
  with their values, for after the flags are parsed.
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
  # Under Slurm jax would else take it for one process a GPU, and show each but one of them.
  named = num_processes is not None and process_id is not None
  jax.distributed.initialize(
    coordinator,
    num_processes,
    process_id,
    cluster_detection_method="deactivate" if named else None,
    heartbeat_timeout_seconds=HEARTBEAT_S,
  )
  signal.signal(signal.SIGTERM, signal.SIG_DFL)  # which jax has just taken to note it, no more


def leave(status: int) -> NoReturn:
  """Ends this process; with other processes, without jax's shutdown, which would wait for them."""
  if status and jax.distributed.is_initialized() and jax.process_count() > 1:
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)
  sys.exit(status)


def is_first() -> bool:
  """Whether this process writes what only one may write."""
  return jax.process_index() == 0


@contextlib.contextmanager
def first_alone(name: str) -> Iterator[None]:
  """The first process runs the body alone; the others run it after that, and find its files."""
  if not is_first():
    wait_for_all(name)
  yield
  if is_first():
    wait_for_all(name)


@contextlib.contextmanager
def bound(config: RunConfig) -> Iterator[ProcessChannel]:
  """The channel between the processes of the run; without peers in a single process.

  Raises:
    ValueError: another process has another config or code, or there is no mesh over their devices.
    LostError: from the error of a device program that the loss of another process has caused.
  """
  channel = ProcessChannel()
  if not channel.several:
    yield channel
    return
  if jax.sharding.get_mesh().empty:
    raise ValueError(
      f"{jax.process_count()} processes without a mesh would each do the same work; set mesh.data, "
      f"fsdp, expert, context or tensor to factors of their {jax.device_count()} devices"
    )
  channel.agree("code", cluster.code())
  channel.agree("config", config_lib.sha256(config))
  try:
    yield channel
  except jax.errors.JaxRuntimeError as error:  # a device program that waits for a lost process
    if gone := channel.gone(2.0 * HEARTBEAT_S):
      raise LostError(
        f"{' and '.join(f'process {i}' for i in gone)} of the run is gone; all processes end; run "
        "the same commands again to continue from the last checkpoint"
      ) from error
    raise


@contextlib.contextmanager
def stoppable(channel: ProcessChannel) -> Iterator[Notice]:
  """SIGTERM raises `Preempted`, in several processes (and there Ctrl-C too) in all of them alike.

  Of several, whichever is told to stop, the first stops, and only inside `Notice.released`: there
  the others wait for what it says.
  """
  if not channel.several:
    with preemption.watched() as notice:
      yield notice
    return
  main = threading.main_thread().ident
  assert main is not None
  channel.on_stop = lambda: signal.pthread_kill(main, signal.SIGTERM)
  both = (signal.SIGTERM, signal.SIGINT)
  with preemption.watched(both, None if channel.is_first else channel.ask_to_stop) as notice:
    with notice.held():
      yield notice
