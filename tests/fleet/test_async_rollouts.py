"""The thread that plays ahead: what it hands over, and how its errors and silence are told."""

import threading
import time

import pytest

from jaxrl_agents.fleet.async_rollouts import AsyncRollouts
from jaxrl_agents.fleet.pacing import Pacing
from jaxrl_agents.types import Group, Task


def drawn(batch):
  return [Task(f"t{batch}.{place}", "toy", "", {}) for place in range(2)]


def pacing(depth=1, batches=4):
  return Pacing(drawn, batch=2, depth=depth, batches=batches)


class Instant:
  """Plays each job at once and notes the thread and the weights that it was played with."""

  def __init__(self):
    self.weights, self.played = 0, []

  def round(self, next_job):
    draw = next_job()
    if draw is None:
      return []
    self.played.append((draw.task.id, self.weights, threading.get_ident()))
    return [Group(draw.task, (), draw.label)]


class Stuck:
  def round(self, next_job):
    time.sleep(3.0)
    return []


class Broken:
  def round(self, next_job):
    raise ValueError("no engine")


def test_all_batches_come_in_order_and_are_played_in_the_other_thread():
  server = Instant()
  with AsyncRollouts(server, pacing(), lambda draw: draw) as ahead:
    batches = []
    for _ in range(4):
      batches.append([group.task.id for group in ahead.take(2)])
      ahead.learnt(2)
  assert batches == [[f"t{b}.0", f"t{b}.1"] for b in range(4)]
  assert {thread for _, _, thread in server.played} != {threading.get_ident()}
  assert len({thread for _, _, thread in server.played}) == 1


def test_what_is_played_after_a_swap_is_played_with_the_new_weights():
  server = Instant()
  with AsyncRollouts(server, pacing(depth=0), lambda draw: draw) as ahead:
    ahead.take(2)
    for _ in range(3):
      ahead.between_steps(lambda: setattr(server, "weights", server.weights + 1))
    ahead.learnt(2)
    ahead.take(2)
  assert [weights for _, weights, _ in server.played] == [0, 0, 3, 3]


def test_a_swap_is_made_though_nothing_is_played_after_it():
  server = Instant()
  with AsyncRollouts(server, pacing(batches=1), lambda draw: draw) as ahead:
    ahead.take(2)
    ahead.between_steps(lambda: time.sleep(0.2))
    ahead.between_steps(lambda: setattr(server, "weights", 1))
  assert server.weights == 1


def test_an_error_in_the_last_swap_is_raised_when_the_context_ends():
  def damaged():
    raise OSError("version 7 is damaged")

  with pytest.raises(OSError, match="version 7 is damaged"):
    with AsyncRollouts(Instant(), pacing(batches=1), lambda draw: draw) as ahead:
      ahead.take(2)
      ahead.between_steps(lambda: time.sleep(0.2))
      ahead.between_steps(damaged)


def test_an_error_of_the_thread_is_raised_where_groups_are_taken():
  with AsyncRollouts(Broken(), pacing(), lambda draw: draw) as ahead:
    with pytest.raises(ValueError, match="no engine"):
      ahead.take(2)
    with pytest.raises(ValueError, match="no engine"):
      ahead.between_steps(lambda: None)


def test_a_thread_that_hangs_is_an_error_after_its_timeout():
  with (
    pytest.raises(RuntimeError, match="did not end within 0.2 s"),
    AsyncRollouts(Stuck(), pacing(), lambda draw: draw, timeout_s=0.2) as ahead,
    pytest.raises(RuntimeError, match="gave no sign for"),
  ):
    ahead.take(2)


def test_the_idle_time_of_the_sampler_is_measured():
  began = time.monotonic()
  with AsyncRollouts(Instant(), pacing(batches=1), lambda draw: draw) as ahead:
    ahead.take(2)
    time.sleep(0.3)
    assert 0.1 < ahead.take_idle_s() <= time.monotonic() - began
