"""A policy trained and sampled on eight host devices and on one; run by test_sharding.

Prints "equal" where, on every mesh: loss and largest attention scores within 1e-5 and 1e-6,
gradients within 1e-4 and 2e-5 (relative, absolute), parameters after one optimizer step within
2e-5, sampled ids and experts equal, log-probabilities within 1e-5; and where parameters and both
moments lie as the table says, and the cache is split as rows are.
"""

import dataclasses
import functools
import sys
import time

import jax
import jax.numpy as jnp
import numpy as np

from jaxrl_agents.learner import packing, state, train_step
from jaxrl_agents.learner.advantage import Rollout
from jaxrl_agents.policy import sharding
from jaxrl_agents.policy.experts import all_to_all, local
from jaxrl_agents.sampler.engine import Engine
from jaxrl_agents.types import SamplingLimits, Segment
from tests.learner import states
from tests.policy import tiny

ROW_TOKENS = 32
# Mixture layers alone, and no drafts, are half as much to compile.
MIXTURE = {
  "vocab_size": 56,
  "num_layers": 2,
  "num_dense_layers": 0,
  "dense_ffw_dim": 0,
  "mtp_depth": 0,
}
PLAIN = dataclasses.replace(tiny.GQA, **MIXTURE)
GQA = dataclasses.replace(tiny.GQA, vocab_size=56, num_layers=2)
MLA = dataclasses.replace(tiny.MLA, **MIXTURE)
BIASED = dataclasses.replace(tiny.BIASED, num_kv_heads=4, **MIXTURE)
ALONE = {
  "data": (PLAIN, {"data": 8}),
  "fsdp": (PLAIN, {"fsdp": 8}),
  "expert": (PLAIN, {"expert": 8}),
  "context, of more parts than heads": (PLAIN, {"context": 8}),
  "tensor": (PLAIN, {"tensor": 2}),
}
TOGETHER = {
  "fsdp, expert and tensor, with drafts": (GQA, {"fsdp": 2, "expert": 2, "tensor": 2}),
  "data, expert and context, with latents": (MLA, {"data": 2, "expert": 2, "context": 2}),
  "expert, context and tensor, with sinks": (BIASED, {"expert": 2, "context": 2, "tensor": 2}),
}


def batch_of(cfg):
  """Eight rows of two sequences and padding; most experts were recorded.

  The two share their first 17 tokens, which stand once, except in those of PLAIN.
  """
  rng = np.random.default_rng(0)
  rollouts = []

  def drawn(n):
    tokens = rng.integers(1, cfg.vocab_size, n).astype(np.int32)
    shape = (n, cfg.num_moe_layers, cfg.experts_per_token)
    routing = rng.permuted(np.broadcast_to(np.arange(8), (*shape[:2], 8)), axis=-1)[..., : shape[2]]
    return tokens, np.where(rng.random((n, 1, 1)) < 0.8, routing, 65535).astype(np.uint16)

  for n in rng.integers(4, 8, 16):
    shared = cfg is not PLAIN
    if len(rollouts) % 2 == 0:
      prompt = drawn(17 if shared else 6)
    tokens, routing = (np.concatenate(parts) for parts in zip(prompt, drawn(n), strict=True))
    mask = np.arange(len(tokens)) >= len(prompt[0])
    logprobs = np.where(mask, -4.0, 0).astype(np.float32)
    segment = Segment(tokens, mask, logprobs, np.where(mask, 0, -1).astype(np.int32), routing)
    rollouts.append(Rollout((segment,), float(rng.normal())))
  (batch,) = packing.pack(
    rollouts, row_tokens=ROW_TOKENS, rows_per_microbatch=8, share_prefixes=shared
  )
  return batch


def objective(cfg):
  # Scanned: half as much to compile.
  return train_step.Objective(
    "rl",
    mtp_weight=0.3 * cfg.mtp_depth,
    attention_peaks=cfg is not PLAIN,
    max_unrolled_layers=0,
  )


def train(cfg, params, tx):
  """((loss, largest attention scores), gradients, the state after one step) under the ambient mesh,
  if there is one.
  """
  grads = train_step.gradients(params, train_step.placed(batch_of(cfg)), cfg, objective(cfg))
  make = lambda params: state.make_state(jax.tree.map(jnp.copy, params), tx, jax.random.key(0))
  mesh = jax.sharding.get_mesh()
  places = None if mesh.empty else states.shardings(cfg, tx, mesh)
  after, _ = train_step.apply(jax.jit(make, out_shardings=places)(params), grads.grads, tx)
  return (grads.sums["loss"], grads.maxima.get("attention_score_max")), grads.grads, after


def sample(cfg, params):
  """Generations of eight prompts, prefilled in one pass that is large enough to be exchanged."""
  engine = Engine(
    cfg,
    params,
    version=0,
    slots=8,
    page_tokens=8,
    num_pages=64,
    max_context_tokens=32,
    prefill_tokens=12,
    draft_tokens=cfg.mtp_depth,
    prefill_rows=8,
  )
  pages, parts = engine._state.cache.pages, sharding.ambient_ways("batch")
  assert pages.sharding.shard_shape(pages.shape)[1] == 64 // parts, "the cache is not split"
  rng = np.random.default_rng(1)
  prompts = [rng.integers(1, cfg.vocab_size, n) for n in (12, 9, 11, 12, 10, 12, 8, 12)]
  ids = [engine.submit(p, SamplingLimits(6, (), seed=i)) for i, p in enumerate(prompts)]
  done = {}
  while engine.num_unfinished:
    done |= dict(engine.step())
  return [done[i] for i in ids]


@functools.cache
def initial(cfg):
  return jax.tree.map(np.asarray, tiny.init(cfg))


@functools.cache
def optimizer(cfg):
  return state.make_optimizer(cfg, learning_rate=1e-2, weight_decay=0.1, eps=1e-3)


@functools.cache
def alone(cfg):
  """What one device gives: loss, gradients, parameters after a step, generations."""
  params = jax.tree.map(jnp.asarray, initial(cfg))
  loss, grads, after = train(cfg, params, optimizer(cfg))
  return (*jax.tree.map(np.asarray, (loss, grads, after.policy.params)), sample(cfg, params))


def close(found, expected, **tolerance):
  jax.tree_util.tree_map_with_path(
    lambda path, a, b: np.testing.assert_allclose(
      a, b, err_msg=jax.tree_util.keystr(path), **tolerance
    ),
    jax.tree.map(np.asarray, found),
    expected,
  )


def compare(cfg, sizes):
  """Raises where a mesh of `sizes` does not give what one device gives."""
  loss, grads, after, generations = alone(cfg)
  tx = optimizer(cfg)
  mesh = sharding.make_mesh(**sizes, devices=jax.devices()[: np.prod(list(sizes.values()))])
  with jax.set_mesh(mesh):
    params = sharding.place(initial(cfg), sharding.shardings(cfg, mesh))
    found_loss, found_grads, found_after = train(cfg, params, tx)
    places = states.shardings(cfg, tx, mesh)
    found_generations = sample(cfg, params)
  close(found_loss, loss, rtol=1e-5, atol=1e-6)
  close(found_grads, grads, rtol=1e-4, atol=2e-5)
  close(found_after.policy.params, after, atol=2e-5)
  at_home = jax.tree.map(lambda x, s: x.sharding.is_equivalent_to(s, x.ndim), found_after, places)
  assert all(jax.tree.leaves(at_home)), at_home
  for found, expected in zip(found_generations, generations, strict=True):
    np.testing.assert_array_equal(found.tokens, expected.tokens)
    np.testing.assert_array_equal(found.routing, expected.routing)
    close(found.logprobs, expected.logprobs, atol=1e-5)


def send_everything_to_one_device(width):
  """As many rounds as there can be: raises where they do not give what dense products give."""
  rng = np.random.default_rng(0)
  make = lambda *shape, scale=1.0: jnp.asarray(rng.normal(size=shape) * scale, jnp.float32)
  experts = {"gate_up": make(8, width, 2, 4, scale=width**-0.5)}
  experts |= {"down": make(8, 4, width, scale=0.5)}
  experts |= {"gate_up_bias": make(8, 2, 4), "down_bias": make(8, width)}
  x, weight = make(8, 16, width), make(8, 16, 2)
  choice = jnp.broadcast_to(jnp.asarray([3, 2]), weight.shape).at[:2, :4].set(8)
  weight = jnp.where(choice < 8, weight, 0.0)
  cotangent = width**-0.5 * jnp.cos(jnp.arange(x.size, dtype=jnp.float32)).reshape(x.shape)

  def dense(experts, x, weight, choice):
    flat = (a.reshape(-1, a.shape[-1]) for a in (x, weight, choice))
    return local.dense(experts, *flat).reshape(x.shape)

  def grads(function):
    loss = lambda *args: jnp.sum(function(*args, choice) * cotangent)
    *found, d_weight = jax.jit(jax.grad(loss, argnums=(0, 1, 2)))(experts, x, weight)
    return jax.tree.map(np.asarray, (*found, jnp.where(choice < 8, d_weight, 0.0)))

  with jax.set_mesh(sharding.make_mesh(data=2, expert=4)):
    found = grads(all_to_all.apply)
  close(found, grads(dense), atol=5e-5)


if __name__ == "__main__":
  meshes = ALONE | TOGETHER
  for name in sys.argv[1:] or meshes:
    began = time.monotonic()
    compare(*meshes[name])
    print(f"{name}: {time.monotonic() - began:.1f} s", file=sys.stderr, flush=True)
  if "expert" in (sys.argv[1:] or meshes):
    send_everything_to_one_device(6)
    all_to_all.platform = lambda: "tpu"
    send_everything_to_one_device(136)  # more than its lanes, and not a multiple
  print("equal")
