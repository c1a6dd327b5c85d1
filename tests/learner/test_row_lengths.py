"""Rows of several lengths train every token as rows of one length do, each compiled once."""

import dataclasses

import jax
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jaxrl_agents.config import LearnerConfig
from jaxrl_agents.learner import loop, losses, packing, state, train_step
from jaxrl_agents.types import Group, Task, Trajectory
from tests.learner.test_packing import lengths_lists, make_rollouts, related
from tests.policy import tiny

CFG = dataclasses.replace(tiny.GQA, num_layers=1, num_dense_layers=0, dense_ffw_dim=0, mtp_depth=0)
RL = train_step.Objective("rl", losses.LOSSES["cispo"], max_unrolled_layers=0)
LONGEST, SHORTER = 160, (96, 128)


def identified(batch):
  """What belongs to each loss token of a microbatch."""
  fields = (batch.targets, batch.behaviour_logprobs, batch.advantages, batch.weights)
  return list(zip(*(field[batch.loss_mask].tolist() for field in fields), strict=True))


@settings(max_examples=80, deadline=None)
@given(
  st.integers(0, 999),
  lengths_lists,
  st.lists(st.integers(1, 16), max_size=3),
  st.integers(1, 5),
  st.sampled_from(["plain", "together", "shared"]),
)
def test_a_microbatch_has_the_shortest_rows_that_hold_its_fullest_one(
  seed, lengths, shorter, rows, kind
):
  rollouts = make_rollouts(seed, lengths)
  options = {
    "row_tokens": 16,
    "rows_per_microbatch": max(rows, 4) if kind == "together" else rows,
    "keep_rollouts_together": kind == "together",
    "share_prefixes": kind == "shared",
  }
  whole = packing.pack(rollouts, **options)
  batches = packing.pack(rollouts, shorter_row_tokens=shorter, **options)
  found = [token for batch in batches for token in identified(batch)]
  assert sorted(found) == sorted(token for batch in whole for token in identified(batch))
  for batch in batches:
    used = np.arange(1, batch.tokens.shape[1] + 1) * (batch.ends.max(axis=0) > 0)
    predictions = np.arange(1, batch.tokens.shape[1] + 1) * batch.loss_mask.any(axis=0)
    fullest = max(used.max(), predictions.max())
    assert batch.tokens.shape[1] == min(n for n in (*shorter, 16) if n >= fullest)
    assert {field.shape[:2] for field in batch if field is not None} == {batch.tokens.shape}


def trained(params, rollouts, **options):
  """(log-probability of each loss token by what identifies it, gradients, shapes of rows)."""
  batches = packing.pack(rollouts, row_tokens=LONGEST, rows_per_microbatch=2, **options)
  total, found = None, []
  for batch in batches:
    grads = train_step.gradients(params, batch, CFG, RL)
    total = grads if total is None else train_step.add(total, grads)
    logprobs = np.asarray(train_step.recompute_logprobs(params, batch, CFG, RL))
    found += zip(identified(batch), logprobs[batch.loss_mask].tolist(), strict=True)
  return sorted(found), total, {batch.tokens.shape for batch in batches}


def in_vocabulary(rollouts):
  """The rollouts with tokens that the policy has, and without experts."""
  alter = lambda s: dataclasses.replace(s, tokens=s.tokens % CFG.vocab_size, routing=None)
  return [dataclasses.replace(r, segments=tuple(map(alter, r.segments))) for r in rollouts]


@pytest.mark.slow
@pytest.mark.parametrize("shared", [False, True], ids=["plain", "shared"])
def test_log_probabilities_and_gradients_are_those_of_rows_of_one_length(shared):
  params, lengths = tiny.init(CFG), set()
  for seed in range(6):
    rollouts = in_vocabulary(related(seed))
    one, one_grads, _ = trained(params, rollouts, share_prefixes=shared)
    several, grads, found = trained(
      params, rollouts, share_prefixes=shared, shorter_row_tokens=SHORTER
    )
    lengths |= found
    assert [token for token, _ in several] == [token for token, _ in one]
    np.testing.assert_allclose([lp for _, lp in several], [lp for _, lp in one], atol=1e-5)
    squares = lambda tree: sum(float((np.asarray(x) ** 2).sum()) for x in jax.tree.leaves(tree))
    difference = jax.tree.map(lambda a, b: a - b, one_grads.grads, grads.grads)
    assert squares(difference) ** 0.5 <= 1e-5 * squares(one_grads.grads) ** 0.5
    np.testing.assert_allclose(grads.sums["loss"], one_grads.sums["loss"], atol=1e-5)
    assert float(grads.sums["loss_tokens"]) == float(one_grads.sums["loss_tokens"])
  assert lengths == {(2, n) for n in (*SHORTER, LONGEST)}


@pytest.mark.slow
def test_nothing_compiles_once_each_length_was_seen():
  tx = state.make_optimizer(CFG, learning_rate=1e-3)
  current = state.init_state(CFG, tx, jax.random.key(0))
  compiled, seen, checked = [], set(), 0
  listen = lambda name, *_, **__: compiled.append(name) if "backend_compile" in name else None
  jax.monitoring.register_event_duration_secs_listener(listen)
  try:
    for seed in range(12):
      batches = packing.pack(
        in_vocabulary(related(seed)),
        row_tokens=LONGEST,
        rows_per_microbatch=2,
        shorter_row_tokens=SHORTER,
        share_prefixes=True,
      )
      is_complete = len(seen) == 3
      compiled.clear()
      current, _ = train_step.update(current, batches, CFG, RL, tx)
      checked += is_complete
      assert not (is_complete and compiled)
      seen |= {batch.tokens.shape[1] for batch in batches}
    assert checked >= 4
  finally:
    jax.monitoring.clear_event_listeners()


@pytest.mark.slow
def test_a_step_trains_the_same_tokens_with_less_padding():
  play = lambda i, rollout: Trajectory("t", rollout.segments, (), {}, "end", {"reward": i % 2})
  rollouts = in_vocabulary(related(3))
  group = Group(Task("t", "search", "", {}), tuple(map(play, range(len(rollouts)), rollouts)))
  one = LearnerConfig(
    substeps=1, row_tokens=LONGEST, rows_per_microbatch=2, mtp_weight=0.0, canary_bound=100.0
  )
  several = dataclasses.replace(one, rollout_row_tokens=(LONGEST, *SHORTER))
  tx, found = state.make_optimizer(CFG, learning_rate=1e-3), []
  for learner in (one, several):
    begin = state.init_state(CFG, tx, jax.random.key(0))
    _, step, _ = loop.learn(begin, [group], cfg=CFG, learner=learner, tx=tx, objective=RL)
    found.append(step)
  assert found[0]["loss_tokens"] == found[1]["loss_tokens"] > 0
  assert found[1]["loss"] == pytest.approx(found[0]["loss"], abs=1e-5)
  assert found[1]["padding_share"] < found[0]["padding_share"]
