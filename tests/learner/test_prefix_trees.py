"""Shared beginnings are computed once, and every loss token is trained as if it stood alone."""

import dataclasses

import jax
import numpy as np
import pytest

from jaxrl_agents.learner import losses, packing, prefix_trees, train_step
from jaxrl_agents.learner.advantage import Rollout
from jaxrl_agents.types import NOT_ROUTED, Segment
from tests.learner.test_packing import related
from tests.policy import tiny

RL = train_step.Objective("rl", losses.LOSSES["cispo"], max_unrolled_layers=0)


def rollouts_for(cfg, seed):
  """Rollouts of random trees, with experts of `cfg` replayed; of some tokens none is known."""
  rng = np.random.default_rng(seed)
  routes, made = {}, []
  for rollout in related(seed):
    (segment,) = rollout.segments
    routing = []
    for t in range(len(segment.tokens)):
      key = segment.tokens[: t + 1].tobytes()
      if key not in routes:
        drawn = rng.permuted(np.tile(np.arange(cfg.num_experts), (cfg.num_moe_layers, 1)), axis=1)
        known = rng.random() < 0.7
        routes[key] = drawn[:, : cfg.experts_per_token] if known else int(NOT_ROUTED)
      routing.append(np.broadcast_to(routes[key], (cfg.num_moe_layers, cfg.experts_per_token)))
    segment = dataclasses.replace(
      segment,
      tokens=segment.tokens % cfg.vocab_size,
      routing=np.asarray(routing, np.uint16) if cfg.num_moe_layers else None,
    )
    made.append(dataclasses.replace(rollout, segments=(segment,)))
  return made


def trained(params, cfg, rollouts, objective, **options):
  """(log-probabilities by what identifies a loss token, gradients, loss, places used)."""
  batches = packing.pack(rollouts, row_tokens=160, rows_per_microbatch=2, **options)
  total, found = None, []
  for batch in batches:
    grads = train_step.gradients(params, batch, cfg, objective)
    total = grads if total is None else train_step.add(total, grads)
    logprobs = np.asarray(train_step.recompute_logprobs(params, batch, cfg, objective))
    fields = (batch.advantages, batch.behaviour_logprobs, batch.targets, logprobs)
    found += zip(*(field[batch.loss_mask].tolist() for field in fields), strict=True)
  return sorted(found), total, sum(int((batch.ends > 0).sum()) for batch in batches)


@pytest.mark.slow
@pytest.mark.parametrize("seed", [0, 1, 2])
@pytest.mark.parametrize("cfg", [tiny.GQA, tiny.MLA, tiny.DENSE, tiny.BIASED],
                         ids=["grouped", "latents", "dense", "sinks and windows"])  # fmt: skip
def test_log_probabilities_and_gradients_are_those_of_plain_packing(cfg, seed):
  params, rollouts = tiny.init(cfg), rollouts_for(cfg, seed)
  plain, plain_grads, plain_places = trained(params, cfg, rollouts, RL)
  shared, shared_grads, places = trained(params, cfg, rollouts, RL, share_prefixes=True)
  assert places < plain_places
  assert [row[:3] for row in shared] == [row[:3] for row in plain]
  np.testing.assert_allclose([r[3] for r in shared], [r[3] for r in plain], atol=1e-5)
  np.testing.assert_allclose(shared_grads.sums["loss"], plain_grads.sums["loss"], atol=1e-5)
  squares = lambda tree: sum(float((np.asarray(x) ** 2).sum()) for x in jax.tree.leaves(tree))
  difference = jax.tree.map(lambda a, b: a - b, plain_grads.grads, shared_grads.grads)
  assert squares(difference) ** 0.5 <= 1e-5 * squares(plain_grads.grads) ** 0.5


@pytest.mark.slow
def test_drafting_modules_learn_the_same_from_sequences_without_forks():
  cfg = dataclasses.replace(tiny.GQA, mtp_depth=2)
  objective = dataclasses.replace(RL, mtp_weight=0.3)
  params, rollouts = tiny.init(cfg), [rollouts_for(cfg, seed)[0] for seed in (3, 4, 5)]
  _, plain, places = trained(params, cfg, rollouts, objective)
  _, shared, same_places = trained(params, cfg, rollouts, objective, share_prefixes=True)
  assert same_places == places
  close = lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-6)
  jax.tree.map(close, shared.grads["mtp"], plain.grads["mtp"])
  for name in ("mtp_kl", "mtp_tokens", "mtp_acceptance"):
    close(shared.sums[name], plain.sums[name])


def segment_of(tokens, *, routing=None, versions=None):
  tokens = np.asarray(tokens, np.int32)
  n = len(tokens)
  return Segment(
    tokens,
    np.arange(n) == n - 1,
    np.zeros(n, np.float32),
    np.asarray([-1] * n if versions is None else versions, np.int32),
    None if routing is None else np.asarray(routing, np.uint16).reshape(n, 1, 1),
  )


def test_tokens_are_shared_where_tokens_experts_and_versions_agree():
  shared = lambda a, b: prefix_trees.shared_tokens(segment_of(**a), segment_of(**b))
  first = {"tokens": [1, 2, 3, 4]}
  assert shared(first, {"tokens": [1, 2, 9, 4]}) == 2
  assert shared(first, {"tokens": [1, 2, 3, 4]}) == 3  # the last is one's own
  assert shared(first, {"tokens": [1, 2, 3, 4, 5]}) == 4
  assert shared(first, {"tokens": [7]}) == 0
  routed = first | {"routing": [5, 6, 7, 65535]}
  longer = {"tokens": [1, 2, 3, 4, 5]}
  assert (
    shared(routed, longer | {"routing": [5, 6, 7, 8, 65535]}) == 4
  )  # none is read from the last
  assert shared(routed, longer | {"routing": [5, 0, 7, 8, 65535]}) == 1
  assert shared(routed, longer) == 0
  sampled = first | {"versions": [-1, -1, 4, 4]}
  assert shared(sampled, longer | {"versions": [-1, -1, 4, 5, 5]}) == 3
  assert shared(sampled, longer) == 4  # context has no version


def test_the_experts_of_a_sequence_that_ends_early_come_from_the_one_that_goes_on():
  short = segment_of([*range(1, 18)], routing=[3] * 16 + [65535])
  long = segment_of([*range(1, 20)], routing=[3] * 18 + [65535])
  (tree,) = prefix_trees.grow([(0, long), (1, short)], row_tokens=32)
  written = prefix_trees.write(tree, 0)
  assert written["tokens"].tolist() == [*range(1, 20)]
  assert written["routing"].ravel().tolist() == [3] * 18 + [65535]
  assert written["rollouts"].tolist() == [1, 0]
  assert written["sources"].tolist() == [15, 17]


def test_a_tree_that_does_not_fit_a_row_is_cut_and_its_prefix_repeated():
  prompt = list(range(1, 21))
  segments = [(i, segment_of([*prompt, 30 + i, 40 + i, 50 + i])) for i in range(5)]
  trees = prefix_trees.grow(segments, row_tokens=27)
  assert [len(tree.branches) for tree in trees] == [2, 2, 1]
  assert [tree.tokens for tree in trees] == [26, 26, 23]
  rollouts = [Rollout((segment,), 1.0) for _, segment in segments]
  batches = packing.pack(rollouts, row_tokens=27, rows_per_microbatch=3, share_prefixes=True)
  assert [int(batch.loss_mask.sum()) for batch in batches] == [5]
