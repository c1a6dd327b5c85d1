"""Which groups are played when: by hand, and in simulations of slow and fast episodes."""

import heapq
import random

import numpy as np
import pytest

from jaxrl_agents.fleet import pacing
from jaxrl_agents.fleet.pacing import Pacing
from jaxrl_agents.types import Group, Segment, Task, Trajectory

BATCH = 4


def task(name):
  return Task(name, "toy", name, {})


def drawn(batch):
  return [task(f"t{batch}.{place}") for place in range(BATCH)]


def group(draw):
  return Group(draw.task, (), draw.label)


def made(depth, batches=3, **more):
  return Pacing(drawn, batch=BATCH, depth=depth, batches=batches, **more)


def all_of(paced):
  found = []
  while draw := paced.next():
    found.append(draw)
  return found


@pytest.mark.parametrize(("depth", "played"), [(0, 4), (1, 8), (2, 12), (5, 12)])
def test_so_many_groups_are_played_before_any_was_taken(depth, played):
  """(depth + 1) batches, and never more than the run has."""
  assert len(all_of(made(depth))) == played


def test_a_batch_holds_the_groups_that_ended_first_in_the_order_in_which_they_were_drawn():
  paced = made(1)
  draws = all_of(paced)
  for place in (6, 1, 3):
    paced.finished(group(draws[place]))
  assert paced.take(BATCH) is None
  paced.finished(group(draws[0]))
  assert [g.task.id for g in paced.take(BATCH)] == ["t0.0", "t0.1", "t0.3", "t1.2"]
  assert paced.next() is None  # while the learner has them
  paced.learnt(BATCH)
  assert [draw.task.id for draw in all_of(paced)] == ["t2.0", "t2.1", "t2.2", "t2.3"]


def sized(draw, tokens):
  """A group of one rollout with a sub-agent: 13 bytes a token, and 16 for its routing."""
  arrays = [np.zeros(tokens, kind) for kind in (np.int32, bool, np.float32, np.int32)]
  own, sub = Segment(*arrays, np.zeros((tokens, 4, 2), np.uint16)), Segment(*arrays)
  child = Trajectory("t", (sub,), (), {}, "answer")
  return Group(
    draw.task, (Trajectory("t", (own,), (), {}, "answer", children=(child,)),), draw.label
  )


def test_beyond_a_batch_no_group_begins_for_which_there_is_no_room_in_memory():
  each = (13 + 16 + 13) * 10
  paced = made(2, ready_bytes=6 * each)
  first = paced.next()
  assert pacing.nbytes(sized(first, 10)) == each
  paced.finished(sized(first, 10))  # from now on, one in flight counts as much
  draws = all_of(paced)
  assert len(draws) == 5
  for draw in draws[:3]:
    paced.finished(sized(draw, 10))
  assert paced.next() is None
  assert len(paced.take(BATCH)) == BATCH  # of whose memory the learner takes care
  assert len(all_of(paced)) == 4


def test_large_groups_never_keep_a_batch_from_being_complete():
  paced = made(2, batches=4, ready_bytes=1)
  draws = [paced.next()]
  paced.finished(sized(draws[0], 10))
  for lack in (BATCH - 1, BATCH, BATCH, BATCH):
    draws = all_of(paced)
    assert len(draws) == lack
    for draw in draws:
      paced.finished(sized(draw, 10))
    assert len(paced.take(BATCH)) == BATCH
    paced.learnt(BATCH)
  assert paced.next() is None


def test_groups_of_an_earlier_run_count_from_the_start_and_failed_ones_not_at_all():
  first = made(1)
  draws = all_of(first)
  kept = [sized(draws[place], 10) for place in (0, 5)]
  each = pacing.nbytes(kept[0])
  again = made(1, groups=kept, ready_bytes=2 * each)
  draws = all_of(again)  # a batch with one that is ready; two wait, so there is no room for more
  assert [draw.label for draw in draws] == ["step 0 1", "step 0 2", "step 0 3"]
  for draw in draws:
    again.finished(group(draw))  # of failed rollouts
  assert again.next() is None
  assert len(again.take(BATCH)) == BATCH
  again.learnt(BATCH)
  assert len(all_of(again)) == 7  # the mean of those in flight is not known


def test_a_group_that_is_not_trained_makes_room_for_one_more():
  paced = made(0, batches=1)
  for draw in all_of(paced):
    paced.finished(group(draw))
  assert len(paced.take(BATCH)) == BATCH and paced.next() is None
  paced.replace(1)
  assert paced.next().task.id == "t1.0"


def test_what_was_not_taken_is_played_again_after_a_restart_and_nothing_else():
  paced = made(1)
  draws = all_of(paced)
  for place in (5, 0, 2, 7, 3):
    paced.finished(group(draws[place]))
  taken = {g.task.id for g in paced.take(BATCH)}
  assert taken == {"t0.0", "t0.2", "t1.1", "t1.3"}
  known = [t for batch in range(3) for t in drawn(batch)]
  again = made(1, batches=2, state=paced.state(), tasks=known)
  played = all_of(again)
  assert [d.task.id for d in played[:4]] == ["t0.1", "t0.3", "t1.0", "t1.2"]
  assert [d.label for d in played[:2]] == ["step 0 1", "step 0 3"]  # with their seeds
  rest = set()
  for _ in range(2):
    for draw in played:
      again.finished(group(draw))
    rest |= {g.task.id for g in again.take(BATCH)}
    again.learnt(BATCH)
    played = all_of(again)
  assert rest | taken == {t.id for t in known} and not rest & taken
  assert again.next() is None
  with pytest.raises(ValueError, match=r"names task 't0\.1', which the task set does not have"):
    made(1, state=paced.state(), tasks=[])


def test_a_run_that_played_ahead_goes_on_by_turns_with_what_was_unfinished():
  paced = made(2)
  draws = all_of(paced)
  for place in (0, 1, 2, 3):
    paced.finished(group(draws[place]))
  paced.take(BATCH)
  known = [t for batch in range(3) for t in drawn(batch)]
  again = made(0, batches=2, first=1, state=paced.state(), tasks=known)
  assert [draw.label for draw in all_of(again)] == [f"step 1 {place}" for place in range(4)]


def test_draws_of_one_task_in_a_batch_are_counted_also_after_a_restart():
  names = ["a", "b", "a", "a"]
  paced = Pacing(lambda batch: [task(n) for n in names], batch=BATCH, depth=0, batches=2)
  assert [draw.repeat for draw in all_of(paced)] == [0, 0, 1, 2]
  known = [task("a"), task("b")]
  again = Pacing(
    lambda batch: known, batch=BATCH, depth=0, batches=2, state=paced.state(), tasks=known
  )
  assert [(d.task.id, d.repeat) for d in all_of(again)] == [("a", 0), ("b", 0), ("a", 1), ("a", 2)]


def test_a_run_that_goes_on_without_such_a_state_draws_from_its_first_step_on():
  assert [draw.label for draw in all_of(made(0, first=7))] == [f"step 7 {p}" for p in range(4)]


def test_groups_that_were_ready_are_taken_after_a_restart_without_being_played_again():
  paced = made(1)
  draws = all_of(paced)
  for place in (1, 2, 3):
    paced.finished(group(draws[place]))
  kept = [ready for _, ready in paced.ready.values()]
  known = [t for batch in range(3) for t in drawn(batch)]
  again = made(1, state=paced.state(), tasks=known, groups=kept[:2])
  assert [draw.task.id for draw in all_of(again)][:2] == ["t0.0", "t0.3"]
  assert sorted(again.ready) == ["step 0 1", "step 0 2"]


def test_a_group_that_an_earlier_run_played_is_ready_as_soon_as_it_is_drawn_again():
  """Killed after its checkpoint, a run had drawn a second batch, of which two groups ended."""
  paced = made(1)
  state = paced.state()
  draws = all_of(paced)
  ended = [group(draws[5]), group(draws[7]), Group(task("another"), (), "step 0 2")]
  again = made(1, state=state, groups=ended)
  assert again.kept == {"step 1 1", "step 1 3", "step 0 2"}
  assert again.is_to_play("step 1 2") and not again.is_to_play("step 1 3")
  played = [draw.label for draw in all_of(again)]
  assert played == [*(f"step 0 {place}" for place in range(4)), "step 1 0", "step 1 2"]
  assert sorted(again.ready) == ["step 1 1", "step 1 3"]
  assert not again.is_to_play("step 0 0") and again.is_to_play("step 2 0")


def simulated(depth, durations, *, batches, learn=10.0, slots=8):
  """(durations of the trained groups, largest age, time) with these durations by task."""
  now, waiting, running, published = 0.0, [], [], 0
  began, trained, ages = {}, [], []
  paced = Pacing(drawn, batch=BATCH, depth=depth, batches=batches)
  free, learnt_at = slots, None
  ready_batch = None
  while len(trained) < BATCH * batches:
    waiting += all_of(paced)
    while waiting and free:
      draw = waiting.pop(0)
      free, began[draw.label] = free - 1, published
      heapq.heappush(running, (now + durations[draw.task.id], draw.label, draw))
    if ready_batch is None and (ready_batch := paced.take(BATCH)) is not None:
      ages += [published - began[g.id] for g in ready_batch]
      learnt_at = now + learn
      continue
    next_end = running[0][0] if running else float("inf")
    if ready_batch is not None and learnt_at <= next_end:
      now, published = learnt_at, published + 1
      paced.learnt(BATCH)
      trained += [durations[g.task.id] for g in ready_batch]
      ready_batch = None
      continue
    now, _, draw = heapq.heappop(running)
    free += 1
    paced.finished(group(draw))
  return trained, max(ages), now


def test_every_dispatched_group_is_trained_however_slow_it_is():
  """One group in ten takes a hundred times as long; the lengths that are trained are those that
  were dispatched, at every moment but for those in flight: at most depth + 1 batches."""
  rng = random.Random(0)
  names = [t.id for batch in range(50) for t in drawn(batch)]
  durations = {name: 100.0 if rng.random() < 0.1 else 1.0 for name in names}
  trained, _, _ = simulated(1, durations, batches=50, slots=100)
  assert sorted(trained) == sorted(durations.values())
  slow = lambda lengths: sum(length > 1 for length in lengths)
  for n in range(BATCH, len(trained) + 1, BATCH):
    assert abs(slow(trained[:n]) - slow(durations[name] for name in names[:n])) <= 2 * BATCH


def test_playing_and_learning_overlap_to_nine_tenths_of_the_bound():
  """Latencies are fixed: a batch takes 10 s to learn and 10 s to play."""
  names = [t.id for batch in range(40) for t in drawn(batch)]
  durations = dict.fromkeys(names, 10.0)
  by_turns = simulated(0, durations, batches=40, slots=BATCH)[2]
  ahead = simulated(1, durations, batches=40, slots=BATCH)[2]
  bound = 40 * 10.0
  assert by_turns == pytest.approx(2 * bound)
  assert bound / ahead > 0.9


@pytest.mark.parametrize("depth", [0, 1, 3])
def test_groups_of_equal_duration_are_at_most_as_old_as_the_depth(depth):
  names = [t.id for batch in range(20) for t in drawn(batch)]
  _, oldest, _ = simulated(depth, dict.fromkeys(names, 3.0), batches=20, slots=100)
  assert oldest == depth


def trajectory(*versions, error=""):
  mask = np.asarray(versions) >= 0
  n = len(versions)
  zeros = np.zeros(n, np.float32)
  segment = Segment(np.zeros(n, np.int32), mask, zeros, np.asarray(versions, np.int32))
  return Trajectory("t", (segment,), (), {}, "end", error=error)


def test_the_age_counts_publications_since_the_oldest_token_with_loss():
  of = lambda *each: Group(task("t"), each, "g")
  published = [0, 4, 8, 12]
  assert pacing.age(of(trajectory(-1, 12, 12)), published) == 0
  assert pacing.age(of(trajectory(-1, 12), trajectory(-1, 4, 8)), published) == 2
  assert pacing.age(of(trajectory(12), trajectory(0, error="died")), published) == 0
  assert pacing.age(of(trajectory(-1, -1)), published) == 0
