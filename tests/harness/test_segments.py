"""The prefix rule, by hand and by brute force over random edits of a context."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from jaxrl_agents.harness.segments import Turn, routed_tokens, to_segments
from jaxrl_agents.types import NOT_ROUTED, Generation


def ids(*values):
  return np.asarray(values, np.int32)


def turn(prompt, reply, *, logprob=-1.0, version=0, routing=None, trained=True):
  n = len(reply)
  logprobs, versions = np.full(n, logprob, np.float32), np.full(n, version, np.int32)
  return Turn(prompt, Generation(reply, logprobs, versions, routing, "stop", trained))


def test_a_prompt_that_extends_what_was_seen_continues_the_segment():
  turns = [
    turn(ids(1, 2), ids(3), logprob=-0.5),
    turn(ids(1, 2, 3, 4), ids(5, 6), logprob=-0.25, version=7),
  ]
  (segment,) = to_segments(turns)
  assert segment.tokens.tolist() == [1, 2, 3, 4, 5, 6]
  assert segment.loss_mask.tolist() == [False, False, True, False, True, True]
  assert segment.logprobs.tolist() == [0, 0, -0.5, 0, -0.25, -0.25]
  assert segment.versions.tolist() == [-1, -1, 0, -1, 7, 7]
  assert segment.routing is None


def test_a_cache_is_known_where_the_version_of_the_first_prompt_computed_all_of_a_prompt():
  def call(prompt, versions, *, began, kept=True):
    reply = ids(*range(10, 10 + len(versions)))
    logprobs = np.zeros(len(versions), np.float32)
    made = Generation(reply, logprobs, ids(*versions), None, "stop", began=began, kept=kept)
    return Turn(prompt, made)

  first = call(ids(1, 2), (4, 4), began=4)
  prompt = ids(1, 2, 10, 11, 3)
  known = lambda second: to_segments([first, second])[0].kept[2:].tolist()
  assert known(call(prompt, (4, 7), began=4)) == [True, True, False, True, True]
  computed_by_others = [
    call(prompt, (7, 7), began=7),
    call(prompt, (7, 7), began=4),
    call(prompt, (4, 7), began=4, kept=False),
  ]
  for second in computed_by_others:
    assert known(second) == [True, True, False, False, False]


def test_pruning_starts_a_new_segment_and_trains_each_sampled_token_once():
  turns = [turn(ids(1, 2, 9), ids(3)), turn(ids(1, 2, 3), ids(4)), turn(ids(1, 2, 3, 4, 5), ids(6))]
  first, second = to_segments(turns)
  assert first.tokens.tolist() == [1, 2, 9, 3]
  assert first.loss_mask.tolist() == [False, False, False, True]
  assert second.tokens.tolist() == [1, 2, 3, 4, 5, 6]
  assert second.loss_mask.tolist() == [False, False, False, True, False, True]


def test_a_prompt_shorter_than_what_was_seen_starts_a_new_segment():
  assert len(to_segments([turn(ids(1), ids(2, 3)), turn(ids(1, 2), ids(4))])) == 2


def test_a_reply_that_is_not_to_be_trained_is_context():
  turns = [turn(ids(1, 2), ids(3), trained=False), turn(ids(1, 2, 3, 4), ids(5))]
  (segment,) = to_segments(turns)
  assert segment.tokens.tolist() == [1, 2, 3, 4, 5]
  assert segment.loss_mask.tolist() == [False, False, False, False, True]
  assert segment.logprobs.tolist() == [0, 0, 0, 0, -1] and segment.versions.tolist()[2] == -1
  assert to_segments(turns[:1]) == ()


def test_each_call_adds_the_experts_of_the_tokens_that_no_earlier_call_returned():
  first = np.full((3, 1, 2), 1, np.uint16)
  first[2] = NOT_ROUTED  # the sampled token itself was never fed back
  turns = [turn(ids(1, 2), ids(3), routing=first)]
  assert routed_tokens(turns, ids(1, 2, 3, 4)) == 2
  second = np.full((3, 1, 2), 2, np.uint16)  # of the tokens 3, 4 and 5
  second[2] = NOT_ROUTED
  turns.append(turn(ids(1, 2, 3, 4), ids(5), routing=second))
  (segment,) = to_segments(turns)
  assert segment.routing.dtype == np.uint16
  assert segment.routing[:, 0, 0].tolist() == [1, 1, 2, 2, NOT_ROUTED]


def test_a_prompt_that_opens_a_segment_needs_the_experts_of_all_its_tokens():
  routing = np.ones((3, 1, 2), np.uint16)
  assert routed_tokens([], ids(1, 2)) == 0
  assert routed_tokens([turn(ids(1, 2), ids(3), routing=routing)], ids(1, 3, 4)) == 0
  assert routed_tokens([turn(ids(1, 2), ids(3))], ids(1, 2, 3, 4)) == 0  # none was recorded


def test_no_turns_make_no_segments():
  assert to_segments([]) == ()


EDITS = st.lists(
  st.tuples(
    st.sampled_from(["grow", "prune", "notice"]),
    st.integers(0, 30),
    st.lists(st.integers(0, 3), min_size=1, max_size=4),
    st.lists(st.integers(0, 3), min_size=1, max_size=4),
  ),
  min_size=1,
  max_size=12,
)


@settings(max_examples=150, deadline=None)
@given(EDITS)
def test_every_sampled_token_is_trained_once_in_the_context_it_was_sampled_in(edits):
  context = [0, 1]
  turns = []
  for number, (kind, at, observation, reply) in enumerate(edits):
    if kind == "prune" and len(context) > 2:
      del context[1 + at % (len(context) - 1)]
    prompt = context + ([3] if kind == "notice" else [])
    turns.append(turn(ids(*prompt), ids(*reply), version=number))
    context = context + reply + observation
  segments = to_segments(turns)
  trained = [s.versions[s.loss_mask].tolist() for s in segments]
  flat = [version for versions in trained for version in versions]
  assert flat == [number for number, t in enumerate(turns) for _ in t.generation.tokens]
  for segment in segments:
    for number in set(segment.versions[segment.loss_mask].tolist()):
      start, end = (at := np.flatnonzero(segment.versions == number))[0], at[-1] + 1
      assert segment.tokens[:start].tolist() == turns[number].prompt.tolist()
      assert segment.tokens[start:end].tolist() == turns[number].generation.tokens.tolist()
    assert not segment.logprobs[~segment.loss_mask].any()
    assert (segment.versions[~segment.loss_mask] == -1).all()
