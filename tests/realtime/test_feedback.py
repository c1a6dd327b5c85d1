"""The join of calls and events: once each, within windows, whatever is read twice or comes late."""

import json
import random

import numpy as np
import pytest

from jaxrl_agents import record_log
from jaxrl_agents.realtime import calls as calls_lib
from jaxrl_agents.realtime import feedback
from jaxrl_agents.realtime.feedback import Event, Join, Kind
from jaxrl_agents.record_log import Log
from tests.realtime.logged import call, record

KINDS = {"persist": Kind(100.0, silence=0.25), "revert": Kind(10.0, weight=-0.5)}


def event(name, kind="persist", value=1.0, *, session="s", about="", user="u", time_s=5.0):
  return Event(name, session, about, user, kind, value, time_s).record()


def joined(*records):
  join = Join(KINDS)
  for each in records:
    join.apply(json.loads(json.dumps(each)))
  return join


def delivered(*names):
  return {"kind": feedback.DELIVERED, "calls": list(names)}


def test_an_event_about_a_call_counts_for_it_and_one_about_a_session_for_all_its_calls():
  join = joined(
    record("a"), record("b"), event("e1", about="a"), event("e2", "revert"), delivered("a", "b")
  )
  # a: persist 1, revert -0.5. b: persist is silent.
  assert join.calls["a"].reward(KINDS) == 0.5
  assert join.calls["b"].reward(KINDS) == -0.25
  assert join.counts == {"joined": 2}


def test_what_a_user_says_of_a_session_is_no_sign_that_each_reply_was_seen():
  join = joined(record("lost"), record("seen"), delivered("seen"), event("e"))
  assert [each.call.id for each in join.closed(1_000.0)] == ["seen"]
  join = joined(record("named"), event("e", about="named"))
  assert [each.call.id for each in join.closed(1_000.0)] == ["named"]


def test_silence_has_its_own_value_and_a_broken_call_costs_half():
  join = joined(record("a"), record("b", errors=["no JSON"]), delivered("a", "b"))
  assert join.calls["a"].reward(KINDS) == 0.25
  assert join.calls["b"].reward(KINDS) == -0.25


def test_the_same_event_counts_once_and_the_first_of_its_kind():
  join = joined(record("a"), event("e", value=1.0), event("e", value=0.0), event("e2", value=0.5))
  assert join.calls["a"].values == {"persist": 1.0}
  assert join.counts == {"joined": 1, "duplicate": 1, "repeated": 1}


def test_nobody_can_use_up_the_event_ids_of_another_user():
  join = joined(
    record("a"), record("b", "s2", "u2"), event("e", session="s2", user="u2"), event("e")
  )
  assert join.counts == {"joined": 2}


def test_windows_differ_by_kind_and_later_events_change_nothing():
  join = joined(
    record("a"),
    event("e1", "revert", time_s=10.0),
    event("e2", time_s=101.0),
    event("e3", time_s=102.0, value=0.5),
  )
  assert join.calls["a"].values == {"revert": 1.0}
  assert join.counts == {"joined": 1, "late": 2}


def test_a_call_is_due_after_its_longest_window_if_its_reply_was_delivered():
  join = joined(record("a"), record("b"), record("c"), delivered("a"), event("e", about="c"))
  assert join.closed(100.0) == []
  assert [each.call.id for each in join.closed(100.5)] == ["a", "c"]
  join.apply({"kind": feedback.BATCH, "number": 3, "version": 4, "calls": ["a"], "dropped": []})
  assert [each.call.id for each in join.closed(100.5)] == ["c"]
  assert join.batches == {3: ("a",)} and join.calls["a"].batch == 3


@pytest.mark.parametrize(
  ("changed", "said"),
  [
    ({"kind": "thumb"}, "kind='thumb'; there are persist, revert"),
    ({"value": 1.5}, "value=1.5; persist goes from 0 to 1"),
    ({"value": float("nan")}, "value=nan"),
    ({"session": "x"}, "session 'x' has no logged call"),
    ({"user": "u2"}, "session 's' is another user's"),
    ({"call": "b"}, "call 'b' is not of session 's'"),
    ({}, ""),
  ],
)
def test_events_that_are_wrong_are_refused_with_the_reason(changed, said):
  join = joined(record("a"), record("b", "s2"))
  fields = {"event_id": "e", "session": "s", "call": "a", "user": "u", "kind": "persist"}
  found = feedback.problem(Event(**{**fields, "value": 1.0, "time_s": 1.0, **changed}), KINDS, join)
  assert found.startswith(said) and bool(found) == bool(said)


def test_a_call_comes_back_from_its_record_and_parents_make_one_segment():
  routing = np.arange(12, dtype=np.uint16).reshape(6, 1, 2)
  first = call("a", prompt=(1, 2), tokens=(3, 4), version=5, routing=routing[:3])
  second = call("b", parent="a", prompt=(5,), tokens=(6, 7), version=6, routing=routing[3:])
  back = [
    calls_lib.from_record(json.loads(json.dumps(calls_lib.to_record(c)))) for c in (first, second)
  ]
  found = calls_lib.segment(back[1], {"a": back[0]}.__getitem__)
  assert found.tokens.tolist() == [1, 2, 3, 4, 5, 6, 7]
  assert found.loss_mask.tolist() == [False] * 5 + [True] * 2
  assert found.versions.tolist() == [-1] * 5 + [6, 6]
  assert found.logprobs[5:].tolist() == pytest.approx([0.0, -0.1])
  # Rows of the first call stand at tokens 1..3 (its last has none of its own: it was never read).
  assert found.routing[4:, 0, 0].tolist() == [6, 8, 10]
  assert back[1].versions == (6,)


def test_after_kills_at_200_random_bytes_every_acknowledged_event_is_joined_once(tmp_path):
  """Senders repeat each event until it is acknowledged; a kill cuts the file at any byte written
  since the last durable record."""
  rng, path = random.Random(0), tmp_path / "log"
  with Log(path) as log:
    for i in range(20):
      log.append(record(f"c{i}", f"s{i}"))
  waiting, kills, acknowledged = [f"e{i}" for i in range(20)], 0, []
  while waiting or kills < 200:
    join = Join(KINDS)
    with Log(path) as log:
      for each in record_log.scan(path):
        join.apply(each)
      for _ in range(rng.randrange(4)):  # until it dies
        name = rng.choice(waiting or acknowledged)
        made = event(name, session=f"s{name[1:]}")
        if not join.has(Event(**made["event"])):
          log.append(made)
          join.apply(made)
        if name in waiting:
          waiting.remove(name)
          acknowledged.append(name)
    torn = event(rng.choice(waiting or acknowledged))
    with path.open("ab") as file:
      whole = record_log.packed(torn)
      file.write(whole[: rng.randrange(len(whole))])
    kills += 1
  Log(path).close()
  join = joined(*record_log.scan(path))
  assert join.counts == {"joined": 20}
  assert all(each.values == {"persist": 1.0} for each in join.calls.values())
