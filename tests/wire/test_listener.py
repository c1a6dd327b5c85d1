"""Who may come in: the key, the code, the role; and that a stranger's pickle is never loaded."""

import os
import pathlib
import pickle
import socket
import time
from multiprocessing.connection import Connection

import pytest

from jaxrl_agents.wire import key as key_lib
from jaxrl_agents.wire import listener as listener_lib
from jaxrl_agents.wire.listener import Listener, RefusedError, connect

RUNS = {"code": "abc", "python": "3.11"}
SECRET = b"0123456789abcdef"


@pytest.fixture
def listener():
  with Listener("127.0.0.1:0", SECRET, {"worker": RUNS}) as listener:
    yield listener


def come(listener, *, key=SECRET, role="worker", runs=RUNS, patience_s=5.0):
  return connect(listener.address, key, role=role, runs=runs, patience_s=patience_s)


def taken(listener, role="worker", limit_s=5.0):
  deadline = time.monotonic() + limit_s
  while not (found := listener.take(role)):
    assert time.monotonic() < deadline
    time.sleep(0.01)
  return found[0][1]


def test_messages_pass_both_ways_between_ends_with_the_same_key(listener):
  theirs = come(listener)
  ours = taken(listener)
  ours.send(("group", 3))
  theirs.send({"tokens": b"x" * 1_000_000})
  assert theirs.recv() == ("group", 3)
  assert len(ours.recv()["tokens"]) == 1_000_000
  theirs.close()
  with pytest.raises(EOFError):
    ours.recv()


def test_another_key_is_refused_with_the_remedy(listener, capfd):
  with pytest.raises(RefusedError, match="has another key; set JAXRL_KEY"):
    come(listener, key=b"another key of length")
  said, deadline = "", time.monotonic() + 10
  while "does not hold the key of this run" not in said and time.monotonic() < deadline:
    time.sleep(0.02)
    said += capfd.readouterr().err
  assert "does not hold the key of this run" in said
  assert listener.take("worker") == []


def test_other_code_or_another_role_is_refused_by_name(listener):
  with pytest.raises(RefusedError, match="code is def there and abc here"):
    come(listener, runs={"code": "def", "python": "3.11"})
  with pytest.raises(RefusedError, match="expects the role worker, not 'sampler'"):
    come(listener, role="sampler")
  assert listener.take("worker") == []


class Bomb:
  """A pickle that leaves a file behind when it is loaded."""

  def __init__(self, path):
    self.path = path

  def __reduce__(self):
    return pathlib.Path.touch, (pathlib.Path(self.path),)


def test_the_pickle_of_an_unauthenticated_peer_is_never_loaded(listener, tmp_path):
  mark = tmp_path / "loaded"
  with socket.create_connection(("127.0.0.1", listener.port)) as stranger:
    connection = Connection(os.dup(stranger.fileno()))
    with pytest.raises((EOFError, OSError)):  # the listener may shut before all is sent
      for _ in range(3):
        connection.send_bytes(pickle.dumps(Bomb(str(mark))))
      while True:
        connection.recv_bytes()
    connection.close()
  assert not mark.exists() and listener.take("worker") == []
  come(listener).close()  # the listener still opens to others


def test_a_silent_peer_does_not_block_others(listener):
  with socket.create_connection(("127.0.0.1", listener.port)):
    began = time.monotonic()
    come(listener).close()
    assert time.monotonic() - began < 2


def test_connecting_waits_until_the_listener_is_there():
  with socket.create_server(("127.0.0.1", 0)) as probe:
    port = probe.getsockname()[1]
  with pytest.raises(TimeoutError, match="nothing answered at 127.0.0.1.*for 0.2 s"):
    connect(f"127.0.0.1:{port}", SECRET, role="worker", runs=RUNS, patience_s=0.2)


def test_the_key_comes_from_the_environment_or_a_file(tmp_path, monkeypatch):
  monkeypatch.setattr(key_lib, "_taken", {})
  monkeypatch.delenv("JAXRL_KEY", raising=False)
  monkeypatch.delenv("JAXRL_KEY_FILE", raising=False)
  with pytest.raises(ValueError, match="need a key: set JAXRL_KEY"):
    key_lib.read()
  file = tmp_path / "key"
  file.write_bytes(SECRET + b"\n")
  file.chmod(0o600)
  monkeypatch.setenv("JAXRL_KEY_FILE", str(file))
  assert key_lib.read() == SECRET
  monkeypatch.setenv("JAXRL_KEY", "short")
  with pytest.raises(ValueError, match="5 bytes in .JAXRL_KEY is too short"):
    key_lib.read()


def test_addresses_are_host_and_port():
  assert listener_lib.parse("[::1]:7000") == ("::1", 7000)
  assert listener_lib.parse("node-3:80") == ("node-3", 80)
  for wrong in ("node", "node:", "node:seven", "node:70000"):
    with pytest.raises(ValueError, match="write HOST:PORT"):
      listener_lib.parse(wrong)
