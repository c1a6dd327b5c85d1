"""The control channel: order of messages, requests to stop, and the loss of a process."""

import os
import socket
import time
from multiprocessing.connection import Pipe

import numpy as np
import pytest

from jaxrl_agents.wire.control_channel import ControlChannel, LostError


def pair(**options):
  """The first of two processes and the other, in one."""
  ours, theirs = Pipe()
  return (
    ControlChannel({1: ours}, is_first=True, **options),
    ControlChannel({0: theirs}, is_first=False, **options),
    (ours, theirs),
  )


def die(connection):
  """Cuts a connection as its process's death does; a close would wait for the reading thread."""
  with socket.socket(fileno=os.dup(connection.fileno())) as shared:
    shared.shutdown(socket.SHUT_RDWR)


def test_messages_of_the_first_process_arrive_whole_and_in_order():
  first, other, _ = pair()
  with first, other:
    for i in range(50):
      first.broadcast(("calls", i, np.arange(i)))
    first.broadcast("x" * 3_000_000)
    for i in range(50):
      kind, number, array = other.receive()
      assert (kind, number, array.tolist()) == ("calls", i, list(range(i)))
    assert len(other.receive()) == 3_000_000


def test_a_request_to_stop_reaches_the_first_process():
  first, other, _ = pair()
  asked = []
  first.on_stop = lambda: asked.append(True)
  with first, other:
    other.ask_to_stop()
    deadline = time.monotonic() + 5
    while not asked:
      assert time.monotonic() < deadline
      time.sleep(0.01)


def test_a_dead_process_is_named_to_receivers_and_senders():
  first, other, (_, theirs) = pair()
  with first, other:
    die(theirs)
    with pytest.raises(LostError, match="process 1 of the run is gone"):
      deadline = time.monotonic() + 5
      while time.monotonic() < deadline:
        first.broadcast("anybody?")
        time.sleep(0.01)


def test_an_error_caused_by_the_death_of_another_process_is_reported_as_that():
  first, other, (_, theirs) = pair()
  with other, pytest.raises(LostError, match="process 1 of the run is gone") as found:
    with first:
      die(theirs)
      raise RuntimeError("a collective failed")
  assert str(found.value.__cause__) == "a collective failed"


@pytest.mark.slow
def test_an_error_of_the_process_itself_is_raised_unchanged():
  first, other, _ = pair()
  with other, pytest.raises(ZeroDivisionError), first:
    raise ZeroDivisionError


def test_a_process_without_heartbeats_counts_as_gone():
  ours, theirs = Pipe()
  with ControlChannel({0: ours}, is_first=False, silence_s=0.2) as other:
    with pytest.raises(LostError, match="process 0 of the run is gone: it was silent for 0.2 s"):
      other.receive()
  theirs.close()


def test_a_goodbye_is_not_a_loss_and_earlier_messages_are_received():
  first, other, _ = pair()
  with other:
    with first:
      first.broadcast("last")
    time.sleep(0.1)
    assert other.receive() == "last"
    with pytest.raises(LostError, match="the first process has ended the run"):
      other.receive()


def test_a_single_process_broadcasts_to_nobody():
  with ControlChannel({}, is_first=True) as alone:
    alone.broadcast("nothing")
    assert not alone.several
