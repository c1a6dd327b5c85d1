"""SIGTERM: at once where it may, at the end of what must not be cut."""

import os
import signal
import threading

import pytest

from jaxrl_agents.learner import preemption


def send():
  os.kill(os.getpid(), signal.SIGTERM)


def test_a_signal_is_raised_at_once_outside_of_what_is_held():
  with preemption.watched(), pytest.raises(preemption.Preempted):
    send()


def test_in_a_thread_without_signals_the_handlers_stay_as_they_are():
  seen = []

  def body():
    with preemption.watched() as notice, notice.held():
      seen.append(signal.getsignal(signal.SIGTERM))

  thread = threading.Thread(target=body)
  thread.start()
  thread.join(10)
  assert seen == [signal.getsignal(signal.SIGTERM)]


def test_a_signal_inside_waits_for_the_end_of_the_outermost_hold_and_is_raised_once():
  done = []
  with preemption.watched() as notice:
    with pytest.raises(preemption.Preempted), notice.held():
      with notice.held():
        send()
        done.append("inner")
      done.append("outer")
    with notice.held():
      done.append("again")
  assert done == ["inner", "outer", "again"]


def test_an_error_inside_comes_before_the_signal():
  with preemption.watched() as notice:
    with pytest.raises(ZeroDivisionError), notice.held():
      send()
      raise ZeroDivisionError
    with pytest.raises(preemption.Preempted), notice.held():
      pass


def test_the_handler_of_before_is_back_afterwards():
  before = signal.getsignal(signal.SIGTERM)
  with preemption.watched():
    assert signal.getsignal(signal.SIGTERM) != before
  assert signal.getsignal(signal.SIGTERM) == before
