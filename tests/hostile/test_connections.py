"""Strangers at the listener of a run, and who may see its key."""

import contextlib
import os
import pathlib
import signal
import socket
import subprocess
import sys
import threading
import time

import pytest

from jaxrl_agents.harness.worker_pool import WorkerPool
from jaxrl_agents.wire import key as key_lib
from jaxrl_agents.wire import listener as listener_lib
from jaxrl_agents.wire.listener import Listener, RefusedError, connect
from tests.harness.test_remote_worker import children, ended, opened, workers
from tests.harness.test_worker_pool import SPEC
from tests.wire.test_listener import RUNS, SECRET

pytestmark = pytest.mark.slow

ROOT = pathlib.Path(__file__).parents[2]


@contextlib.contextmanager
def strangers(port, count):
  """Connections that say nothing."""
  with contextlib.ExitStack() as stack:
    yield [stack.enter_context(socket.create_connection(("127.0.0.1", port))) for _ in range(count)]


def join(port, patience_s=10.0):
  return connect(f"127.0.0.1:{port}", SECRET, role="worker", runs=RUNS, patience_s=patience_s)


def test_many_silent_strangers_cost_a_bounded_number_of_threads_and_keep_nobody_out():
  before = threading.active_count()
  with Listener("127.0.0.1:0", SECRET, {"worker": RUNS}) as listener:
    with strangers(listener.port, 150):
      time.sleep(0.3)
      assert threading.active_count() - before <= listener_lib._MAX_STRANGERS + 2
      began = time.monotonic()
      join(listener.port).close()
      assert time.monotonic() - began < 8
  deadline = time.monotonic() + 5
  while threading.active_count() > before:
    assert time.monotonic() < deadline
    time.sleep(0.05)


def test_a_stranger_that_sends_a_byte_now_and_then_is_cut_at_the_deadline(monkeypatch, capfd):
  monkeypatch.setattr(listener_lib, "_HANDSHAKE_S", 1.0)
  with Listener("127.0.0.1:0", SECRET, {"worker": RUNS}) as listener:
    with socket.create_connection(("127.0.0.1", listener.port)) as slow:
      slow.settimeout(0.2)
      began = time.monotonic()
      with pytest.raises(OSError):  # the other end has hung up
        while time.monotonic() - began < 10:
          slow.sendall(b"\0")
          time.sleep(0.2)
      assert time.monotonic() - began < 4


def test_a_listener_that_sends_a_byte_now_and_then_does_not_hold_a_worker(monkeypatch):
  monkeypatch.setattr(listener_lib, "_HANDSHAKE_S", 1.0)

  def trickle(server):
    with contextlib.suppress(OSError):
      accepted, _ = server.accept()
      accepted.sendall(b"\0\0\0\x64")
      while True:
        accepted.sendall(b"#")
        time.sleep(0.2)

  with socket.create_server(("127.0.0.1", 0)) as server:
    threading.Thread(target=trickle, args=[server], daemon=True).start()
    began = time.monotonic()
    with pytest.raises((TimeoutError, RefusedError)):
      join(server.getsockname()[1], patience_s=0.5)
    assert time.monotonic() - began < 6


LISTEN = """
import resource, sys, time
resource.setrlimit(resource.RLIMIT_NOFILE, (40, 40))
from jaxrl_agents.wire.listener import Listener
with Listener("127.0.0.1:0", sys.argv[1].encode(), {"worker": {}}) as listener:
  print(listener.port, flush=True)
  while not (found := listener.take("worker")):
    time.sleep(0.05)
  found[0][1].send("welcome")
  time.sleep(1)
"""


def test_the_listener_goes_on_after_all_descriptors_were_taken():
  process = subprocess.Popen(
    [sys.executable, "-c", LISTEN, SECRET.decode()],
    cwd=ROOT,
    env={**os.environ, "PYTHONPATH": str(ROOT)},
    stdout=subprocess.PIPE,
    stderr=subprocess.PIPE,
    text=True,
  )
  try:
    port = int(process.stdout.readline())
    with strangers(port, 60):
      assert "Too many open files" in process.stderr.readline()
    connection = connect(f"127.0.0.1:{port}", SECRET, role="worker", runs={}, patience_s=15.0)
    assert connection.poll(10) and connection.recv() == "welcome"
    connection.close()
  finally:
    process.kill()
    process.communicate()


def test_of_thousands_of_refused_strangers_a_few_lines_are_printed(capfd):
  with Listener("127.0.0.1:0", SECRET, {"worker": RUNS}) as listener:
    for _ in range(200):
      listener._refuse("10.0.0.1:1", "it does not hold the key of this run")
  lines = capfd.readouterr().err.splitlines()
  assert len(lines) == 20 and lines[-1].endswith("(further lines of this minute are left out)")


@pytest.mark.parametrize("mode", [0o644, 0o640, 0o606])
def test_a_key_file_that_others_can_read_is_refused_with_the_command_that_mends_it(
  tmp_path, monkeypatch, mode
):
  monkeypatch.setattr(key_lib, "_taken", {})
  monkeypatch.delenv("JAXRL_KEY", raising=False)
  file = tmp_path / "key"
  file.write_bytes(SECRET)
  file.chmod(mode)
  monkeypatch.setenv("JAXRL_KEY_FILE", str(file))
  with pytest.raises(ValueError, match=f"whose mode is {mode:03o}; run chmod 600 {file}"):
    key_lib.read()
  file.chmod(0o600)
  assert key_lib.read() == SECRET


def environ(pid):
  return pathlib.Path(f"/proc/{pid}/environ").read_bytes()


def test_a_key_that_was_read_is_gone_from_the_memory_that_proc_shows():
  code = (
    "import pathlib; from jaxrl_agents.wire import key; found = key.read(); "
    "shown = pathlib.Path('/proc/self/environ').read_bytes(); "
    "print(found.decode(), found in shown, key.read() == found)"
  )
  shown = subprocess.run(
    [sys.executable, "-c", code],
    env={"PATH": os.environ["PATH"], "PYTHONPATH": str(ROOT), "JAXRL_KEY": SECRET.decode()},
    capture_output=True,
    text=True,
  )
  assert shown.stdout.split() == [SECRET.decode(), "False", "True"], shown.stderr


def test_no_worker_inherits_the_key(monkeypatch):
  monkeypatch.setenv("JAXRL_KEY", "a secret of nobody's workers")
  with WorkerPool(SPEC, 1, groups_per_worker=1) as pool:
    pool.wait_until_ready()
    [worker] = pool._workers.values()
    assert b"JAXRL_KEY" not in environ(worker.process.pid)


def test_workers_of_another_machine_have_the_key_in_no_environment():
  with opened() as listener:
    fleet = workers(listener, 1, patience_s=5.0)
    with WorkerPool(SPEC, 0, listener=listener) as pool:
      pool.wait_until_ready()
      [child] = children(fleet)
      assert b"a secret of the tests" not in environ(fleet.pid) + environ(child)
    fleet.send_signal(signal.SIGTERM)
    ended(fleet)
