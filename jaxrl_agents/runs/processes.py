"""One run in several processes, each with devices of its own.

Every process runs the same command on the same code. An array of the mesh spans the devices of all
processes. Every process does the same work on the host; only the first writes files.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from multiprocessing.connection import Connection
from typing import Any, NoReturn

import jax
import numpy as np
from absl import flags
from jax.experimental import multihost_utils

from jaxrl_agents import config as config_lib
from jaxrl_agents.config import RunConfig
from jaxrl_agents.learner import preemption
from jaxrl_agents.learner.preemption import Notice
from jaxrl_agents.wire import listener as listener_lib
from jaxrl_agents.wire.control_channel import ControlChannel, LostError
from jaxrl_agents.wire.listener import Listener

COORDINATOR = "JAX_COORDINATOR_ADDRESS"
"""Where jax.distributed itself looks, as for JAX_NUM_PROCESSES and JAX_PROCESS_ID."""

_MEET_S = 120.0
_KEY_BYTES = 32


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
  )
  signal.signal(signal.SIGTERM, signal.SIG_DFL)  # which jax has just taken to note it, no more
  os.environ[COORDINATOR] = coordinator  # where the others find the first, see bound


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


def gathered(tree: Any) -> Any:
  """The whole arrays of a tree on the host of every process; unchanged in a single process."""
  return multihost_utils.process_allgather(tree, tiled=True) if jax.process_count() > 1 else tree


def wait_for_all(name: str) -> None:
  """Returns when every process has called it with this name."""
  if jax.process_count() > 1:
    multihost_utils.sync_global_devices(name)


def any_of(happened: bool) -> bool:
  """Whether it happened in any process. Every process must call it."""
  if jax.process_count() == 1:
    return happened
  return bool(multihost_utils.process_allgather(np.asarray(happened)).any())


@contextlib.contextmanager
def bound(config: RunConfig) -> Iterator[ControlChannel]:
  """The control channel between the processes of the run; without peers in a single process.

  Raises:
    ValueError: another process has another config, or there is no mesh over their devices.
    LostError: another process did not connect.
  """
  if jax.process_count() == 1:
    yield ControlChannel({}, is_first=True)
    return
  if jax.sharding.get_mesh().empty:
    raise ValueError(
      f"{jax.process_count()} processes without a mesh would each do the same work; set mesh.data, "
      f"fsdp, expert, context or tensor to factors of their {jax.device_count()} devices"
    )
  with ControlChannel(_connections(config), is_first=is_first()) as channel:
    yield channel


@contextlib.contextmanager
def stoppable(channel: ControlChannel) -> Iterator[Notice]:
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


def _connections(config: RunConfig) -> dict[int, Connection]:
  """Of the first process to all others, or of another to the first.

  Key and port are drawn by the first and reach the others as an array of the run's own devices.
  """
  runs = {**listener_lib.code(), "config": config_lib.sha256(config)}
  host = os.environ[COORDINATOR].rpartition(":")[0]
  shared = np.zeros(_KEY_BYTES + 2, np.uint8)
  if not is_first():
    shared = np.asarray(multihost_utils.broadcast_one_to_all(shared))
    key, port = shared[:-2].tobytes(), int(shared[-2:].view(np.uint16)[0])
    connection = listener_lib.connect(
      f"{host}:{port}", key, role="process", runs=runs, patience_s=_MEET_S
    )
    connection.send_bytes(str(jax.process_index()).encode())
    return {0: connection}
  anywhere = "[::]:0" if ":" in host else "0.0.0.0:0"
  key = secrets.token_bytes(_KEY_BYTES)
  with Listener(anywhere, key, {"process": runs}) as listener:
    shared[:-2] = np.frombuffer(key, np.uint8)
    shared[-2:] = np.asarray([listener.port], np.uint16).view(np.uint8)
    multihost_utils.broadcast_one_to_all(shared)
    deadline = time.monotonic() + _MEET_S
    found: dict[int, Connection] = {}
    while len(found) < jax.process_count() - 1:
      for _, connection in listener.take("process"):
        found[int(connection.recv_bytes())] = connection
      if time.monotonic() > deadline:
        missing = set(range(1, jax.process_count())) - set(found)
        raise LostError(f"processes {sorted(missing)} did not come within {_MEET_S:g} s")
      time.sleep(0.01)
    return found
