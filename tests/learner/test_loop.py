"""The canary of the loop: what it lets pass, what it stops, and where."""

import dataclasses

import jax
import numpy as np
import pytest

from jaxrl_agents.config import LearnerConfig
from jaxrl_agents.learner import canary, loop, losses, metrics, packing, state, train_step
from jaxrl_agents.learner.advantage import Rollout
from jaxrl_agents.policy import params as params_lib
from jaxrl_agents.policy.config import PolicyConfig
from jaxrl_agents.types import Group, Segment, Task, Trajectory

CFG = PolicyConfig(
  vocab_size=13,
  embed_dim=8,
  num_layers=1,
  num_heads=1,
  num_kv_heads=1,
  head_dim=4,
  num_dense_layers=1,
  dense_ffw_dim=8,
)
RL = train_step.Objective("rl")
BOUND = 1e-4
TOKENS = 201


@pytest.fixture(scope="module")
def fresh():
  """(state, a row of 200 loss tokens whose behaviour is the policy's own)."""
  params = params_lib.init(CFG, jax.random.key(0))
  tx = state.make_optimizer(CFG, learning_rate=1e-3)
  made = state.make_state(params, tx, jax.random.key(0))
  mask = np.arange(TOKENS) > 0
  segment = Segment(
    tokens=np.random.default_rng(0).integers(1, CFG.vocab_size, TOKENS).astype(np.int32),
    loss_mask=mask,
    logprobs=np.zeros(TOKENS, np.float32),
    versions=np.where(mask, 0, -1).astype(np.int32),
  )
  (batch,) = packing.pack([Rollout((segment,), 1.0)], row_tokens=TOKENS, rows_per_microbatch=1)
  own = train_step.recompute_logprobs(params, batch, CFG, RL)
  return made, batch._replace(behaviour_logprobs=np.asarray(own))


def disturbed(batch, count, by):
  """`batch` with `count` of its 200 behaviour log-probabilities moved."""
  moved = batch.behaviour_logprobs.copy()
  moved[0, np.flatnonzero(batch.loss_mask[0])[:count]] += by
  return batch._replace(behaviour_logprobs=moved)


def checked(params, batch):
  """What the canary says of the gradients of a batch, made with these parameters."""
  found = train_step.gradients(params, batch, CFG, RL)
  figures = metrics.summary(found.sums, found.maxima)
  canary.check(figures, bound=BOUND, version=7)
  return figures["gap_max"]


@pytest.mark.slow
def test_rollouts_of_the_same_weights_pass(fresh):
  made, batch = fresh
  assert checked(made.policy.params, batch) < BOUND / 10


def test_one_token_that_rounding_moved_passes_and_is_reported(fresh):
  made, batch = fresh
  gap = checked(made.policy.params, disturbed(batch, 1, 5 * BOUND))
  assert gap == pytest.approx(5 * BOUND, rel=0.01)


@pytest.mark.parametrize(("count", "by"), [(10, 2 * BOUND), (1, 20 * BOUND), (200, np.nan)])
def test_many_tokens_off_or_one_by_far_stop_the_step(fresh, count, by):
  made, batch = fresh
  with pytest.raises(canary.CanaryError, match="disagree on fresh rollouts at version 7"):
    checked(made.policy.params, disturbed(batch, count, by))


def test_other_weights_than_the_sampler_held_stop_the_step(fresh):
  made, batch = fresh
  other = jax.tree.map(lambda x: x * 1.01, made.policy.params)
  with pytest.raises(canary.CanaryError, match="holds other weights"):
    checked(other, batch)


def groups_of(batch, rewards):
  """Groups of two rollouts with these rewards, of the tokens of `batch`."""
  tokens, mask = batch.tokens[0], np.arange(TOKENS) > 0
  logprobs = np.concatenate([[0], batch.behaviour_logprobs[0, :-1]]).astype(np.float32)
  segment = Segment(tokens, mask, logprobs, np.where(mask, 0, -1).astype(np.int32))
  play = lambda reward: Trajectory("task", (segment,), (), {}, "end", {"reward": reward})
  task = Task("task", "search", "", {})
  return [Group(task, tuple(map(play, pair))) for pair in rewards]


LEARNER = LearnerConfig(
  substeps=2, lr=1e-2, row_tokens=TOKENS, rows_per_microbatch=2, mtp_weight=0.0, canary_bound=BOUND
)


def test_the_canary_reads_the_first_substep_and_lets_later_ones_move_on(fresh):
  made, batch = fresh
  tx = state.make_optimizer(CFG, learning_rate=1e-2)
  start = jax.tree.map(np.array, made.policy.params)
  begin = state.make_state(jax.tree.map(jax.numpy.asarray, start), tx, jax.random.key(0))
  groups = groups_of(batch, [(1.0, 0.0), (0.0, 1.0)])
  after, found, _ = loop.learn(begin, groups, cfg=CFG, learner=LEARNER, tx=tx, objective=RL)
  assert int(after.policy.version) == 2
  assert found["canary_max_abs_logprob_difference"] < BOUND
  # The second substep has other weights than the sampler had, and its gap is not reported.
  assert found["gap_max"] == found["canary_max_abs_logprob_difference"]
  assert abs(found["ratio_max"] - 1) > BOUND
  assert found["padding_share"] == 0


def test_rollouts_that_sampled_nothing_are_passed_over(fresh):
  made, batch = fresh
  tx = state.make_optimizer(CFG, learning_rate=1e-2)
  start = jax.tree.map(np.array, made.policy.params)
  silent = Group(
    Task("task", "search", "", {}),
    tuple(Trajectory("task", (), (), {}, "end", {"reward": reward}) for reward in (1.0, 0.0)),
  )
  for groups, steps in (([silent], 0), ([silent, *groups_of(batch, [(1.0, 0.0)])], 1)):
    begin = state.make_state(jax.tree.map(jax.numpy.asarray, start), tx, jax.random.key(0))
    after, found, _ = loop.learn(begin, groups, cfg=CFG, learner=LEARNER, tx=tx, objective=RL)
    assert int(after.policy.version) == found["optimizer_steps"] == steps
    assert found["gap_max"] < BOUND


def infinite(logprobs, batch):
  """A loss whose gradient is not finite."""
  return logprobs * np.inf


def test_a_gradient_that_is_not_finite_publishes_nothing_and_training_goes_on(fresh):
  made, batch = fresh
  tx = state.make_optimizer(CFG, learning_rate=1e-2)
  params = jax.tree.map(jax.numpy.array, made.policy.params)
  begin = state.make_state(params, tx, jax.random.key(0))
  groups = groups_of(batch, [(1.0, 0.0), (0.0, 1.0)])
  seen = {"published": [], "saved": [], "reported": []}
  plan = loop.Plan(
    collect=lambda step: groups,
    publish=lambda params, version: seen["published"].append(version),
    report=lambda step, metrics, groups: seen["reported"].append(metrics),
    save=lambda step, state, progress: seen["saved"].append(step),
  )
  learner = dataclasses.replace(LEARNER, steps=2)
  after = loop.train(
    begin,
    plan,
    cfg=CFG,
    learner=learner,
    tx=tx,
    objective=train_step.Objective("rl", loss=losses.PolicyLoss(infinite)),
  )
  assert int(after.policy.version) == 0 and seen["published"] == [] and seen["saved"] == [1, 2]
  assert [metrics["skipped"] for metrics in seen["reported"]] == [1.0, 1.0]


def infinite_for_large_advantages(logprobs, batch):
  """A loss whose gradient is not finite where advantages are above 1."""
  return logprobs * jax.numpy.where(abs(batch.advantages) > 1, np.inf, 1.0)


def test_groups_of_an_update_that_was_left_out_are_marked_and_those_of_others_are_not(fresh):
  made, batch = fresh
  tx = state.make_optimizer(CFG, learning_rate=1e-2)
  params = jax.tree.map(jax.numpy.array, made.policy.params)
  begin = state.make_state(params, tx, jax.random.key(0))
  objective = train_step.Objective("rl", loss=losses.PolicyLoss(infinite_for_large_advantages))
  groups = groups_of(batch, [(1.0, 0.0), (0.0, 3.0)])  # each is a substep of its own
  _, found, after = loop.learn(begin, groups, cfg=CFG, learner=LEARNER, tx=tx, objective=objective)
  marks = [[each.metrics.get("skipped") for each in group.trajectories] for group in after]
  assert found["skipped"] == 0.5
  assert marks == [[None, None], [1.0, 1.0]]


def test_a_step_that_the_canary_stops_leaves_the_weights_as_they_were(fresh):
  made, batch = fresh
  tx = state.make_optimizer(CFG, learning_rate=1e-2)
  params = jax.tree.map(jax.numpy.array, made.policy.params)
  begin = state.make_state(params, tx, jax.random.key(0))
  groups = groups_of(disturbed(batch, 10, 2 * BOUND), [(1.0, 0.0)])
  with pytest.raises(canary.CanaryError):
    loop.learn(begin, groups, cfg=CFG, learner=LEARNER, tx=tx, objective=RL)
  same = lambda a, b: np.testing.assert_array_equal(np.asarray(a), np.asarray(b))
  jax.tree.map(same, begin.policy.params, made.policy.params)


def of_versions(batch, versions, began):
  """The packed batch of one segment whose tokens carry `versions` (of the 200 loss tokens)."""
  mask = np.arange(TOKENS) > 0
  logprobs = np.concatenate([[0], batch.behaviour_logprobs[0, :-1]]).astype(np.float32)
  versions = np.concatenate([[-1], versions]).astype(np.int32)
  segment = Segment(batch.tokens[0], mask, logprobs, versions, began=began)
  return packing.pack([Rollout((segment,), 1.0)], row_tokens=TOKENS, rows_per_microbatch=1)


def checked_by_version(batches, weights):
  """What the canary says, where `weights` are published by version, and the versions it read."""
  read = []

  def published(version):
    read.append(version)
    return weights.get(version)

  scored = lambda params, b: np.asarray(train_step.recompute_logprobs(params, b, CFG, RL))
  return canary.of_versions(batches, published, scored, bound=BOUND), read


def test_tokens_of_an_older_version_are_scored_under_its_weights(fresh):
  made, batch = fresh
  other = jax.tree.map(lambda x: x * 1.01, made.policy.params)
  batches = of_versions(batch, [4] * 150 + [8] * 50, began=4)
  found, read = checked_by_version(batches, {4: made.policy.params, 8: other})
  assert found["canary_tokens"] == 150 and read == [4]
  assert found["canary_max_abs_logprob_difference"] < BOUND
  with pytest.raises(canary.CanaryError, match="disagree on fresh rollouts at version 4"):
    checked_by_version(batches, {4: other})


def test_tokens_that_saw_keys_of_other_weights_are_not_compared(fresh):
  made, batch = fresh
  batches = of_versions(batch, [4] * 20 + [8] * 180, began=4)
  found, _ = checked_by_version(batches, {4: made.policy.params, 8: made.policy.params})
  assert found["canary_tokens"] == 20
  mixed = of_versions(batch, [8] * 200, began=4)  # sampled after a swap during the prompt
  assert checked_by_version(mixed, {8: made.policy.params}) == ({"canary_tokens": 0.0}, [])


def test_a_version_that_is_not_kept_any_more_is_passed_over(fresh):
  made, batch = fresh
  batches = of_versions(batch, [4] * 200, 4) + of_versions(batch, [8] * 200, 8)
  found, read = checked_by_version(batches, {8: made.policy.params})
  assert found["canary_tokens"] == 200 and read == [4, 8]
  assert checked_by_version(batches[:1], {}) == ({"canary_tokens": 0.0}, [4])
