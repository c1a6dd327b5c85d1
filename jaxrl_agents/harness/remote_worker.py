"""Rollout workers on another machine: they connect to a run's listener, work, and reconnect.

A supervisor keeps the requested number of worker processes alive. Each process has a connection of
its own, so the death of one leaves the others alone. A worker whose run ended or died connects
again, so a restarted run finds its workers waiting.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import threading
import time
from typing import NoReturn

from jaxrl_agents.harness.worker_pool import environment
from jaxrl_agents.harness.worker_process import UNFIT, live
from jaxrl_agents.wire import key as key_lib
from jaxrl_agents.wire import listener as listener_lib

NOBODY_ANSWERED = 3
_RESTART_S = 1.0
_BOOT = (
  "import json, sys; sys.path[:] = json.loads(sys.argv[1]); "
  "from jaxrl_agents.harness.remote_worker import joined_main; "
  "joined_main(sys.argv[2], float(sys.argv[3]))"
)


def supervise(address: str, processes: int, patience_s: float) -> None:
  """Keeps `processes` workers joined to the runs at `address`, one run after the other.

  Returns when there has been no run for `patience_s`.

  Raises:
    ValueError: there is no key, no run ever answered, the run refused the workers, or they could
      not build its services; stderr has the messages of the workers.
  """
  if processes < 1:
    raise ValueError(f"processes={processes}; start at least 1")
  key = key_lib.read()
  began = time.monotonic()
  children = [_start(address, key, patience_s) for _ in range(processes)]
  worked = False
  try:
    while children:
      time.sleep(_RESTART_S)
      for child in [each for each in children if each.poll() is not None]:
        children.remove(child)
        status = child.returncode
        if status == UNFIT:
          raise ValueError(f"a worker of {address} gave up; see its message above")
        worked |= status != NOBODY_ANSWERED
        if status < 0 or status == 1:
          print(f"a worker died (status {status}); another is started", file=sys.stderr, flush=True)
        if status != NOBODY_ANSWERED:
          children.append(_start(address, key, patience_s))
  finally:
    for child in children:
      child.kill()
      child.wait()
  if not worked:
    waited = time.monotonic() - began
    raise ValueError(f"no run answered at {address} for {waited:.0f} s; see the messages above")


def joined_main(address: str, patience_s: float) -> NoReturn:
  """The main function of a worker process that connects to a run.

  Its standard input is a pipe from its supervisor: the key is the first line, and the process ends
  when the supervisor ends in any way.
  """
  key = sys.stdin.buffer.readline().strip()
  threading.Thread(target=_end_with_parent, daemon=True).start()
  try:
    connection = listener_lib.connect(
      address, key, role="worker", runs=listener_lib.code(), patience_s=patience_s
    )
  except TimeoutError as error:
    print(f"a worker leaves: {error}", file=sys.stderr, flush=True)
    os._exit(NOBODY_ANSWERED)
  except ValueError as error:
    print(f"error: {error}", file=sys.stderr, flush=True)
    os._exit(UNFIT)
  live(connection)


def _start(address: str, key: bytes, patience_s: float) -> subprocess.Popen[bytes]:
  command = [sys.executable, "-c", _BOOT, json.dumps(sys.path), address, str(patience_s)]
  process = subprocess.Popen(command, stdin=subprocess.PIPE, env=environment())
  assert process.stdin is not None
  with contextlib.suppress(BrokenPipeError):  # a worker that has died already is seen later
    process.stdin.write(key + b"\n")
    process.stdin.flush()
  return process


def _end_with_parent() -> None:
  sys.stdin.buffer.read()
  os._exit(0)
