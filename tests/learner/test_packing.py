"""Packing: every loss token once, at the position that predicts it, with the weight of the step."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jaxrl_agents.learner import packing, placement
from jaxrl_agents.learner.advantage import Rollout
from jaxrl_agents.types import NOT_ROUTED, Segment


def make_segment(rng, tokens, routing=None):
  mask = rng.random(tokens) < 0.5
  mask[0], mask[-1] = False, True
  return Segment(
    tokens=rng.integers(1, 1_000_000, tokens).astype(np.int32),
    loss_mask=mask,
    logprobs=np.where(mask, -rng.random(tokens), 0).astype(np.float32),
    versions=np.where(mask, 0, -1).astype(np.int32),
    routing=None if routing is None else rng.integers(0, 8, (tokens, *routing)).astype(np.uint16),
  )


def make_rollouts(seed, lengths, routing=None):
  rng = np.random.default_rng(seed)
  return [
    Rollout(tuple(make_segment(rng, n, routing) for n in segments), float(rng.normal()), g)
    for g, segments in enumerate(lengths)
  ]


def test_a_row_of_two_segments_is_laid_out_by_hand():
  first = Segment(
    tokens=np.array([7, 8, 9, 10], np.int32),
    loss_mask=np.array([False, False, True, True]),
    logprobs=np.array([0, 0, -0.1, -0.2], np.float32),
    versions=np.array([-1, -1, 4, 5], np.int32),
  )
  second = Segment(
    tokens=np.array([20, 21], np.int32),
    loss_mask=np.array([False, True]),
    logprobs=np.array([0, -0.3], np.float32),
    versions=np.array([-1, 5], np.int32),
    routing=np.array([[[3]], [[NOT_ROUTED]]], np.uint16),
  )
  rollouts = [Rollout((first,), 2.0), Rollout((second,), -1.0)]
  (batch,) = packing.pack(rollouts, row_tokens=8, rows_per_microbatch=1)
  none = int(NOT_ROUTED)
  assert batch.tokens.tolist() == [[7, 8, 9, 10, 20, 21, 0, 0]]
  assert batch.targets.tolist() == [[8, 9, 10, 0, 21, 0, 0, 0]]
  assert batch.depths.tolist() == [[0, 1, 2, 3, 0, 1, 0, 0]]
  assert batch.ends.tolist() == [[4, 4, 4, 4, 6, 6, 0, 0]]
  assert batch.loss_mask.astype(int).tolist() == [[0, 1, 1, 0, 1, 0, 0, 0]]
  np.testing.assert_allclose(batch.behaviour_logprobs, [[0, -0.1, -0.2, 0, -0.3, 0, 0, 0]])
  np.testing.assert_allclose(batch.advantages, [[0, 2, 2, 0, -1, 0, 0, 0]])
  np.testing.assert_allclose(batch.weights, np.array([[0, 1, 1, 0, 1, 0, 0, 0]]) / 3, rtol=1e-6)
  assert batch.routing[0, :, 0, 0].tolist() == [none] * 4 + [3] + [none] * 3


lengths_lists = st.lists(
  st.lists(st.integers(2, 16), min_size=1, max_size=4), min_size=1, max_size=10
)


@settings(max_examples=80, deadline=None)
@given(st.integers(0, 999), lengths_lists, st.integers(4, 6), st.booleans())
def test_every_loss_token_appears_exactly_once_with_all_that_belongs_to_it(
  seed, lengths, rows, together
):
  rollouts = make_rollouts(seed, lengths, routing=(2, 2))
  batches = packing.pack(
    rollouts, row_tokens=16, rows_per_microbatch=rows, keep_rollouts_together=together
  )
  expected, got = [], []
  for r in rollouts:
    for s in r.segments:
      for t in np.flatnonzero(s.loss_mask):
        context = tuple(s.tokens[: t + 1].tolist())
        routing = tuple(s.routing[t - 1].ravel().tolist())
        expected.append((context, float(s.logprobs[t]), np.float32(r.advantage), routing))
  for batch in batches:
    assert batch.tokens.shape == (rows, 16)
    for b, t in np.argwhere(batch.loss_mask):
      start = t - batch.depths[b, t]
      assert len(set(batch.ends[b, start : t + 1].tolist())) == 1
      context = (*batch.tokens[b, start : t + 1].tolist(), int(batch.targets[b, t]))
      routing = tuple(batch.routing[b, t].ravel().tolist())
      logprob = float(batch.behaviour_logprobs[b, t])
      got.append((context, logprob, batch.advantages[b, t], routing))
  assert sorted(got) == sorted(expected)


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 999), lengths_lists)
def test_rollouts_kept_together_share_a_microbatch_and_an_id(seed, lengths):
  rollouts = make_rollouts(seed, lengths)
  placements = placement.place(
    rollouts, row_tokens=16, rows_per_microbatch=4, keep_rollouts_together=True
  )
  for index in range(len(rollouts)):
    own = (p for p in placements if p.tree.branches[0].rollout == index)
    assert len({p.microbatch for p in own}) == 1
  for batch in packing.pack(
    rollouts, row_tokens=16, rows_per_microbatch=4, keep_rollouts_together=True
  ):
    advantages = {
      i: set(batch.advantages[batch.loss_mask & (batch.rollout_ids == i)].tolist())
      for i in np.unique(batch.rollout_ids[batch.loss_mask])
    }
    assert all(len(a) == 1 for a in advantages.values())


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 999), lengths_lists, st.sampled_from(["token_mean", "rollout_mean"]))
def test_weights_of_a_step_sum_to_one_whatever_the_shape_of_the_rows(seed, lengths, normaliser):
  rollouts = make_rollouts(seed, lengths)
  per_rollout = []
  for row_tokens, rows in ((16, 1), (16, 5), (64, 2)):
    batches = packing.pack(
      rollouts, row_tokens=row_tokens, rows_per_microbatch=rows, normaliser=normaliser
    )
    total = sum(float(b.weights.sum(dtype=np.float64)) for b in batches)
    assert total == pytest.approx(1, abs=1e-5)
    per_rollout.append(sum(float((b.weights * b.advantages).sum()) for b in batches))
  np.testing.assert_allclose(per_rollout, per_rollout[0], rtol=1e-4, atol=1e-6)


def test_token_weights_of_the_four_normalisers_by_hand():
  weights = lambda name, **numbers: packing.token_weights([2, 6, 0], name, **numbers).tolist()
  assert weights("token_mean") == [1 / 8] * 3
  assert weights("rollout_mean")[:2] == [1 / 4, 1 / 12]
  assert weights("constant", constant_tokens=10) == [1 / 20] * 3
  assert weights("constant", constant_tokens=10, constant_rollouts=4.0) == [1 / 40] * 3
  assert weights("sum") == [1.0] * 3
  with pytest.raises(ValueError, match="constant_tokens=0"):
    weights("constant")
  with pytest.raises(ValueError, match="no effect"):
    weights("sum", constant_tokens=10)


def test_rows_of_a_microbatch_are_evened_out_by_hand():
  # Lengths 9, 7, 6, 5, 3 in rows of 12. Rows 9+3, 7+5 | 6 cost 12 + 6, and 7+3, 9 | 6, 5 10 + 6.
  rollouts = make_rollouts(0, [[5], [9], [3], [7], [6]])
  placements = placement.place(rollouts, row_tokens=12, rows_per_microbatch=2)
  where = {p.tree.branches[0].rollout: (p.microbatch, p.row, p.start) for p in placements}
  assert where == {3: (0, 0, 0), 2: (0, 0, 7), 1: (0, 1, 0), 4: (1, 0, 0), 0: (1, 1, 0)}


def test_evening_out_takes_no_more_microbatches_than_full_rows():
  rollouts = make_rollouts(0, [[6]] * 8)  # two in a row of 12; 9 or fewer would take eight rows
  placements = placement.place(rollouts, row_tokens=12, rows_per_microbatch=2)
  assert {p.microbatch for p in placements} == {0, 1}


def test_what_fits_one_row_is_split_over_the_rows_of_a_microbatch():
  rollouts = make_rollouts(0, [[3]] * 4)
  placements = placement.place(rollouts, row_tokens=48, rows_per_microbatch=2)
  assert sorted((p.microbatch, p.row, p.start) for p in placements) == [
    (0, 0, 0), (0, 0, 3), (0, 1, 0), (0, 1, 3),
  ]  # fmt: skip


def test_packing_is_deterministic():
  lengths = [[5, 9], [9], [3, 3, 3], [9]]
  first = packing.pack(make_rollouts(1, lengths), row_tokens=12, rows_per_microbatch=2)
  second = packing.pack(make_rollouts(1, lengths), row_tokens=12, rows_per_microbatch=2)
  for a, b in zip(first, second, strict=True):
    for x, y in zip(a[:9], b[:9], strict=True):
      np.testing.assert_array_equal(x, y)


def test_no_rollouts_give_no_microbatches():
  assert packing.pack([], row_tokens=8, rows_per_microbatch=2) == []


def test_a_segment_longer_than_a_row_is_an_error_with_the_remedy():
  message = "segment of 9 tokens does not fit rows of 8; raise learner.row_tokens"
  with pytest.raises(ValueError, match=message):
    packing.pack(make_rollouts(0, [[9]]), row_tokens=8, rows_per_microbatch=2)


def test_a_rollout_larger_than_a_microbatch_is_an_error_when_it_must_stay_together():
  rollouts = make_rollouts(0, [[8, 8, 8]])
  assert len(packing.pack(rollouts, row_tokens=8, rows_per_microbatch=2)) == 2
  with pytest.raises(ValueError, match="rollout of 24 tokens in 3 segments"):
    packing.pack(rollouts, row_tokens=8, rows_per_microbatch=2, keep_rollouts_together=True)


def test_a_sampled_first_token_is_an_error():
  segment = make_segment(np.random.default_rng(0), 4)
  segment.loss_mask[0] = True
  with pytest.raises(ValueError, match="first token"):
    packing.pack([Rollout((segment,))], row_tokens=8, rows_per_microbatch=1)


def related(seed):
  """Rollouts whose sequences are paths of random trees, routed alike where they begin alike."""
  rng = np.random.default_rng(seed)
  routes, rollouts = {}, []

  def grow(path, depth):
    path = [*path, *(int(t) for t in rng.integers(1, 50, rng.integers(2, 30)))]
    if depth and rng.random() < 0.8:
      for _ in range(rng.integers(1, 4)):
        grow(path, depth - 1)
      return
    tokens = np.asarray(path, np.int32)
    mask = rng.random(len(path)) < 0.5
    mask[0], mask[-1] = False, True
    known = [
      routes.setdefault(tuple(path[: t + 1]), rng.integers(0, 8, (2, 2))) for t in range(len(path))
    ]
    rollouts.append(
      Rollout(
        (
          Segment(
            tokens,
            mask,
            np.where(mask, -rng.random(len(path)), 0).astype(np.float32),
            np.where(mask, 0, -1).astype(np.int32),
            np.asarray(known, np.uint16),
          ),
        ),
        float(np.float32(rng.normal())),
      )
    )

  for _ in range(3):
    grow([], 3)
  return rollouts


def path_to(batch, b, place):
  """The places from the root to a place of row b."""
  at = np.arange(place + 1)
  return at[batch.ends[b, : place + 1] > place]


@pytest.mark.parametrize("seed", range(20))
def test_every_loss_token_of_shared_rows_is_predicted_once_from_its_own_context(seed):
  rollouts = related(seed)
  batches = packing.pack(rollouts, row_tokens=160, rows_per_microbatch=2, share_prefixes=True)
  expected, got = [], []
  for r in rollouts:
    for s in r.segments:
      for t in np.flatnonzero(s.loss_mask):
        routing = s.routing[:t].tobytes()
        row = (s.tokens[: t + 1].tolist(), float(s.logprobs[t]), r.advantage, routing)
        expected.append(row)
  for batch in batches:
    for b, e in np.argwhere(batch.loss_mask):
      places = path_to(batch, b, batch.sources[b, e])
      np.testing.assert_array_equal(batch.depths[b, places], np.arange(len(places)))
      context = [*batch.tokens[b, places].tolist(), int(batch.targets[b, e])]
      routing = np.ascontiguousarray(batch.routing[b, places]).tobytes()
      logprob = float(batch.behaviour_logprobs[b, e])
      got.append((context, logprob, float(batch.advantages[b, e]), routing))
  assert sorted(got) == sorted(expected)
  placed = sum(int((batch.ends > 0).sum()) for batch in batches)
  assert placed < sum(r.tokens for r in rollouts)
  weights = sum(batch.weights.sum() for batch in batches)
  np.testing.assert_allclose(weights, 1.0, rtol=1e-5)


def test_a_group_that_shares_its_prompt_is_laid_out_by_hand():
  prompt = list(range(1, 19))
  make = lambda reply, version=0: Segment(
    np.asarray([*prompt, *reply], np.int32),
    np.asarray([False] * 18 + [True] * len(reply)),
    np.asarray([0.0] * 18 + [-0.5] * len(reply), np.float32),
    np.asarray([-1] * 18 + [version] * len(reply), np.int32),
  )
  rollouts = [Rollout((make([30, 31]),), 1.0), Rollout((make([30, 40]),), -1.0)]
  (batch,) = packing.pack(rollouts, row_tokens=24, rows_per_microbatch=1, share_prefixes=True)
  assert batch.tokens.tolist() == [[*prompt, 30, 31, 40, 0, 0, 0]]
  assert batch.depths.tolist() == [[*range(18), 18, 19, 19, 0, 0, 0]]
  assert batch.ends.tolist() == [[21] * 18 + [21, 20, 21, 0, 0, 0]]
  assert batch.sources[0, :4].tolist() == [17, 18, 17, 18]
  assert batch.targets[0, :4].tolist() == [30, 31, 30, 40]
  assert batch.advantages[0, :5].tolist() == [1, 1, -1, -1, 0]
  other = [Rollout((make([30, 31]),), 1.0), Rollout((make([30, 40], version=1),), -1.0)]
  (batch,) = packing.pack(other, row_tokens=24, rows_per_microbatch=1, share_prefixes=True)
  assert batch.tokens.tolist() == [[*prompt, 30, 31, 30, 40, 0, 0]]


def test_prefixes_are_not_shared_where_a_rollout_must_stay_together():
  with pytest.raises(ValueError, match="set learner.share_prefixes=False"):
    packing.pack(
      related(0), row_tokens=160, rows_per_microbatch=2, keep_rollouts_together=True,
      share_prefixes=True,
    )  # fmt: skip
