"""The processes of a run: messages in order, wishes to stop, and the death of another by name."""

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
  """What its death does to the end of a process; a close would wait for the thread that reads."""
  with socket.socket(fileno=os.dup(connection.fileno())) as shared:
    shared.shutdown(socket.SHUT_RDWR)


def test_what_the_first_tells_is_heard_whole_and_in_order():
  first, other, _ = pair()
  with first, other:
    for i in range(50):
      first.tell(("calls", i, np.arange(i)))
    first.tell("x" * 3_000_000)
    for i in range(50):
      kind, number, array = other.hear()
      assert (kind, number, array.tolist()) == ("calls", i, list(range(i)))
    assert len(other.hear()) == 3_000_000


def test_a_wish_to_stop_reaches_the_first():
  first, other, _ = pair()
  asked = []
  first.on_stop = lambda: asked.append(True)
  with first, other:
    other.ask_to_stop()
    deadline = time.monotonic() + 5
    while not asked:
      assert time.monotonic() < deadline
      time.sleep(0.01)


def test_one_that_is_gone_is_named_to_who_listens_and_to_who_tells():
  first, other, (_, theirs) = pair()
  with first, other:
    die(theirs)
    with pytest.raises(LostError, match="process 1 of the run is gone"):
      deadline = time.monotonic() + 5
      while time.monotonic() < deadline:
        first.tell("anybody?")
        time.sleep(0.01)


def test_an_error_that_comes_of_the_death_of_another_is_told_as_that():
  first, other, (_, theirs) = pair()
  with other, pytest.raises(LostError, match="process 1 of the run is gone") as found:
    with first:
      die(theirs)
      raise RuntimeError("a collective failed")
  assert str(found.value.__cause__) == "a collective failed"


@pytest.mark.slow
def test_an_error_of_its_own_stays_what_it_is():
  first, other, _ = pair()
  with other, pytest.raises(ZeroDivisionError), first:
    raise ZeroDivisionError


def test_one_that_says_nothing_for_too_long_is_gone():
  ours, theirs = Pipe()
  with ControlChannel({0: ours}, is_first=False, silence_s=0.2) as other:
    with pytest.raises(LostError, match="process 0 of the run is gone: it was silent for 0.2 s"):
      other.hear()
  theirs.close()


def test_a_goodbye_is_no_death_and_what_came_before_it_is_heard():
  first, other, _ = pair()
  with other:
    with first:
      first.tell("last")
    time.sleep(0.1)
    assert other.hear() == "last"
    with pytest.raises(LostError, match="the first process has ended the run"):
      other.hear()


def test_one_that_is_alone_has_nobody_to_tell():
  with ControlChannel({}, is_first=True) as alone:
    alone.tell("nothing")
    assert not alone.several
