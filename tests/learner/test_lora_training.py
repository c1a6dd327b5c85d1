"""Training of adapters: gradients, moments, the sampler's weights, checkpoints."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl_agents.learner import checkpoint, losses, packing, state, train_step
from jaxrl_agents.learner.advantage import Rollout
from jaxrl_agents.policy import lora
from jaxrl_agents.policy import params as params_lib
from jaxrl_agents.policy.config import PolicyConfig
from jaxrl_agents.runs import weight_files
from jaxrl_agents.sampler.engine import Engine
from jaxrl_agents.types import SamplingLimits, Segment
from jaxrl_agents.weights import store

CFG = PolicyConfig(
  vocab_size=29,
  embed_dim=8,
  num_layers=2,
  num_heads=2,
  num_kv_heads=1,
  head_dim=4,
  num_experts=4,
  experts_per_token=2,
  expert_ffw_dim=8,
)
TARGETS = ("qkv", "out", "experts.gate_up", "down")
OBJECTIVE = train_step.Objective("rl", losses.named("cispo").set({"high": 2.0}))
TX = state.make_optimizer(CFG, learning_rate=1e-2, weight_decay=0.01, trained="adapters")


def adapted(seed=0):
  params = params_lib.init(CFG, jax.random.key(seed))
  params = lora.adapt(params, CFG, jax.random.key(9), rank=2, alpha=4.0, targets=TARGETS)
  stir = lambda node: node.replace(b=0.3 * jnp.cos(jnp.arange(node.b.size).reshape(node.b.shape)))
  return jax.tree.map(
    lambda node: stir(node) if lora.is_adapted(node) else node, params, is_leaf=lora.is_adapted
  )


def sampled(params):
  """Rollouts of an engine that holds the merged weights."""
  engine = Engine(
    CFG,
    lora.merged(params),
    version=0,
    slots=4,
    page_tokens=4,
    num_pages=60,
    max_context_tokens=40,
    prefill_tokens=16,
    draft_tokens=0,
  )
  prompts = {}
  for i in range(4):
    prompt = np.random.default_rng(i).integers(2, CFG.vocab_size, 6 + i).astype(np.int32)
    limits = SamplingLimits(
      max_new_tokens=20, temperature=1.0, seed=i, stop_tokens=(0,), deadline_s=300
    )
    prompts[engine.submit(prompt, limits)] = prompt
  rollouts = []
  while engine.num_unfinished:
    for number, reply in engine.step():
      prompt = prompts[number]
      tokens = np.concatenate([prompt, reply.tokens])
      mask = np.arange(len(tokens)) >= len(prompt)
      logprobs = np.zeros(len(tokens), np.float32)
      logprobs[mask] = reply.logprobs
      segment = Segment(tokens, mask, logprobs, np.where(mask, 0, -1), reply.routing)
      rollouts.append(Rollout((segment,), 1.0 if number % 2 else -1.0))
  return rollouts


@functools.cache
def batches():
  return packing.pack(sampled(adapted()), row_tokens=40, rows_per_microbatch=4)


@pytest.mark.slow
def test_the_learner_with_adapters_reproduces_what_merged_weights_sampled():
  """Within 1e-4, in float32, experts replayed: the bound of the canary."""
  assert batches()[0].routing is not None
  found = [train_step.recompute_logprobs(adapted(), b, CFG, OBJECTIVE) for b in batches()]
  assert train_step.logprob_gap(found, batches())["gap_max"] < 1e-4
  frozen = lora.merged(params_lib.init(CFG, jax.random.key(0)))
  other = [train_step.recompute_logprobs(frozen, b, CFG, OBJECTIVE) for b in batches()]
  assert train_step.logprob_gap(other, batches())["gap_max"] > 1e-2


@pytest.mark.slow
@pytest.mark.parametrize("unrolled", [8, 0], ids=["unrolled", "scanned"])
def test_gradients_of_adapters_are_those_of_the_merged_matrix_through_the_other_factor(unrolled):
  """d A = gain dW B^T and d B = gain A^T dW, with dW of full-parameter training; within 1e-5."""
  objective = dataclasses.replace(OBJECTIVE, max_unrolled_layers=unrolled)
  params = adapted()
  found = train_step.gradients(params, batches()[0], CFG, objective).grads
  whole = train_step.gradients(lora.merged(params), batches()[0], CFG, objective).grads
  node = params["moe_layers"]["attention"]["qkv"]
  d_w = np.asarray(whole["moe_layers"]["attention"]["qkv"]).reshape(2, 8, -1)
  d_a = 2.0 * d_w @ np.asarray(node.b).reshape(2, 2, -1).swapaxes(1, 2)
  d_b = 2.0 * np.asarray(node.a).swapaxes(1, 2) @ d_w
  parts = found["moe_layers"]["attention"]["qkv"]
  np.testing.assert_allclose(parts["a"], d_a, atol=1e-5)
  np.testing.assert_allclose(np.asarray(parts["b"]).reshape(2, 2, -1), d_b, atol=1e-5)
  down = params["moe_layers"]["moe"]["experts"]["down"]
  d_w = np.asarray(whole["moe_layers"]["moe"]["experts"]["down"])
  d_a = 2.0 * np.einsum("lefd,lerd->lefr", d_w, down.b)
  np.testing.assert_allclose(found["moe_layers"]["moe"]["experts"]["down"]["a"], d_a, atol=1e-5)
  assert found["embed"] is None and np.abs(d_a).max() > 1e-3


@pytest.mark.slow
def test_only_adapters_have_moments_and_move():
  current = state.make_state(adapted(), TX, jax.random.key(0))
  adapters = sum(x.size for x in jax.tree.leaves(lora.trained(current.policy.params)))
  moments = sum(x.size for x in jax.tree.leaves(current.opt_state) if x.ndim)
  assert moments == 2 * adapters
  before = jax.tree.map(np.array, current.policy.params)
  current, metrics = train_step.update(current, batches(), CFG, OBJECTIVE, TX)
  assert metrics["applied"] == 1 and int(current.policy.version) == 1
  moved = jax.tree_util.tree_map_with_path(
    lambda path, x, y: (jax.tree_util.keystr(path[-1:]), bool((x != y).all())),
    before,
    current.policy.params,
  )
  names = jax.tree.leaves(moved, is_leaf=lambda node: isinstance(node, tuple))
  assert {name for name, all_moved in names if all_moved} == {".a", ".b"}
  assert all(all_moved for name, all_moved in names if name in (".a", ".b"))


@pytest.mark.slow
def test_a_run_of_adapters_resumes_bitwise_and_publishes_merged_weights(tmp_path):
  def after(current, steps):
    for _ in range(steps):
      current, _ = train_step.update(current, batches(), CFG, OBJECTIVE, TX)
    return current

  whole = after(state.make_state(adapted(), TX, jax.random.key(0)), 4)
  half = after(state.make_state(adapted(), TX, jax.random.key(0)), 2)
  with checkpoint.open_manager(tmp_path / "checkpoints") as manager:
    checkpoint.save(manager, 1, half, {}, keep=2)
    target = state.make_state(adapted(seed=3), TX, jax.random.key(5))
    resumed, _, _ = checkpoint.restore(manager, target)
  resumed = after(resumed, 2)
  pairs = zip(*(jax.tree.leaves((s.policy, s.opt_state)) for s in (whole, resumed)), strict=True)
  assert all(np.asarray(x).tobytes() == np.asarray(y).tobytes() for x, y in pairs)
  merged = lora.merged(resumed.policy.params)
  store.publish(merged, 4, tmp_path / "weights")
  fetched = store.fetch(tmp_path / "weights", 4)
  assert jax.tree.structure(fetched) == jax.tree.structure(params_lib.abstract(CFG))
  for x, y in zip(jax.tree.leaves(fetched), jax.tree.leaves(merged), strict=True):
    assert x.tobytes() == np.asarray(y).tobytes()
  weight_files.save(merged, CFG, tmp_path / "out")
  loaded = weight_files.load(str(tmp_path / "out"), CFG)
  for x, y in zip(jax.tree.leaves(loaded), jax.tree.leaves(merged), strict=True):
    np.testing.assert_array_equal(x, y)


def test_adapters_are_trained_by_adamw_alone():
  for wrong in ({"kind": "muon"}, {"qk_clip": 100.0}):
    with pytest.raises(ValueError, match="adapters are trained by adamw without QK-clip"):
      state.make_optimizer(CFG, learning_rate=1e-2, trained="adapters", **wrong)
