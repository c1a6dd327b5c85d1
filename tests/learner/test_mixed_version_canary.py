"""Tokens that an engine samples while its weights change are scored on the cache that it had."""

import dataclasses

import jax
import numpy as np
import pytest

from jaxrl_agents.config import LearnerConfig
from jaxrl_agents.harness.segments import Turn, to_segments
from jaxrl_agents.learner import canary, mixed_version_canary
from jaxrl_agents.learner.advantage import Rollout
from jaxrl_agents.policy import params as params_lib
from jaxrl_agents.policy.config import PolicyConfig
from jaxrl_agents.sampler.engine import Engine
from jaxrl_agents.types import Generation, SamplingLimits, Segment
from tests import forced_devices

CFG = PolicyConfig(
  vocab_size=40,
  embed_dim=16,
  num_layers=2,
  num_heads=2,
  num_kv_heads=1,
  head_dim=8,
  num_experts=4,
  experts_per_token=2,
  expert_ffw_dim=8,
)
BOUND = 1e-4
LEARNER = LearnerConfig(row_tokens=40, rows_per_microbatch=2, canary_bound=BOUND)
FIRST, SECOND, THIRD = 3, 5, 6
WEIGHTS = {v: params_lib.init(CFG, jax.random.key(v)) for v in (FIRST, SECOND, THIRD)}
PROMPTS = [np.random.default_rng(n).integers(2, 40, n).astype(np.int32) for n in (7, 11)]


def made_engine(cfg, weights):
  return Engine(
    cfg,
    weights[FIRST],
    version=FIRST,
    slots=2,
    page_tokens=4,
    num_pages=30,
    max_context_tokens=40,
    prefill_tokens=16,
    decode_steps=2,
  )


@pytest.fixture(scope="module")
def engine():
  return made_engine(CFG, WEIGHTS)


def sampled(engine, weights=WEIGHTS, *, recompute=False):
  """Rollouts of two sequences, 16 tokens each, during which the weights change twice."""
  engine.version = -1  # tests use the engine again
  engine.set_params(weights[FIRST], FIRST)
  limits = SamplingLimits(16, (), seed=1)
  ids = [engine.submit(prompt, limits) for prompt in PROMPTS]
  ended, steps = {}, 0
  while engine.num_unfinished:
    ended.update(engine.step())
    steps += 1
    if steps in (3, 6):
      version = SECOND if steps == 3 else THIRD
      engine.set_params(weights[version], version, recompute=recompute)
  generations = [ended[i] for i in ids]
  return [Rollout(to_segments([Turn(p, g)])) for p, g in zip(PROMPTS, generations, strict=True)]


@pytest.fixture(scope="module")
def rollouts(engine):
  return sampled(engine)


def compared(rollouts, weights=WEIGHTS):
  return canary.of_mixed_caches(rollouts, weights.get, cfg=CFG, learner=LEARNER, temperature=1.0)


def test_tokens_sampled_after_a_swap_agree_on_the_cache_that_older_weights_left(rollouts):
  found = compared(rollouts)
  after = sum(int((r.segments[0].versions > FIRST).sum()) for r in rollouts)
  assert found["canary_kept_tokens"] == after > 16
  assert found["canary_kept_max_abs_logprob_difference"] < BOUND / 5


@pytest.mark.parametrize("version", [FIRST, SECOND, THIRD])
def test_other_weights_than_the_sampler_held_are_found_whatever_they_computed(rollouts, version):
  wrong = WEIGHTS | {version: params_lib.init(CFG, jax.random.key(9))}
  with pytest.raises(canary.CanaryError, match="at version 3, then 5, then 6"):
    compared(rollouts, wrong)


def test_one_corrupt_weight_is_found(rollouts):
  corrupt = jax.tree.map(np.array, WEIGHTS[SECOND])
  corrupt["moe_layers"]["attention"]["qkv"].flat[5] += 1.0
  with pytest.raises(canary.CanaryError):
    compared(rollouts, WEIGHTS | {SECOND: corrupt})


def claimed(rollouts):
  """The rollouts as if nothing had been computed again."""
  segments = [r.segments[0] for r in rollouts]
  kept = [dataclasses.replace(s, kept=s.loss_mask) for s in segments]
  return [Rollout((segment,)) for segment in kept]


def test_a_cache_that_was_computed_again_is_not_compared_and_is_found_where_it_is_called_kept(
  engine,
):
  again = sampled(engine, recompute=True)
  assert compared(again) == {"canary_kept_tokens": 0.0}
  with pytest.raises(canary.CanaryError, match="its cache is stale"):
    compared(claimed(again))


def test_a_swap_that_came_at_another_token_than_was_recorded_is_found(rollouts):
  (segment,) = rollouts[0].segments
  versions = segment.versions.copy()
  moved = np.flatnonzero(versions == SECOND)[:1]
  versions[moved] = FIRST
  with pytest.raises(canary.CanaryError):
    compared([Rollout((dataclasses.replace(segment, versions=versions),))])


def test_sequences_with_a_version_that_is_not_kept_are_passed_over(rollouts):
  weights = {version: WEIGHTS[version] for version in (FIRST, SECOND)}
  assert compared(rollouts, weights) == {"canary_kept_tokens": 0.0}


@pytest.mark.slow
def test_on_a_mesh_and_on_split_cores_caches_are_built_again_as_on_one_device():
  """Log-probabilities within 1e-5, of the right weights and of wrong ones, which are found."""
  forced_devices.check_on_eight("tests.learner.eight_devices_mixed_version_canary")


def test_a_prompt_that_two_versions_computed_is_left_out():
  reply = lambda versions, began: Generation(
    np.array([3, 4], np.int32), np.zeros(2, np.float32), np.array(versions, np.int32), None, "stop",
    began=began,
  )  # fmt: skip
  mixed = lambda *versions, began: mixed_version_canary.mixed(
    *to_segments([Turn(PROMPTS[0], reply(versions, began))])
  )
  assert mixed(5, 5, began=3) is None and mixed(3, 3, began=3) is None
  found = mixed(3, 5, began=3)
  assert found.compared.tolist() == [False] * 8 + [True]
  assert found.computed.tolist() == [3] * 7 + [5]


def test_tokens_whose_loss_was_taken_are_not_compared():
  mask = np.array([False, True, False, False])
  segment = Segment(
    tokens=np.arange(4, dtype=np.int32),
    loss_mask=~mask & (np.arange(4) > 0),
    logprobs=np.zeros(4, np.float32),
    versions=np.array([-1, -1, 3, 5], np.int32),  # that of the first reply token is gone
    began=3,
    kept=np.arange(4) > 0,
  )
  assert mixed_version_canary.mixed(segment) is None
