"""What a plan takes the learner to hold, counted by hand for each optimizer and for adapters."""

import importlib.util
import os

import jax
import jax.numpy as jnp
import pytest

from jaxrl_agents import config as config_lib
from jaxrl_agents.learner import distill, packing
from jaxrl_agents.planning import programs
from jaxrl_agents.policy import sharding
from jaxrl_agents.runs import pod_plan, rl

SMALL = (
  "policy.model.embed_dim=128",
  "policy.model.num_kv_heads=2",
  "policy.model.head_dim=32",
  "policy.model.num_layers=2",
  "policy.model.mtp_depth=0",
  "sft.mtp_steps=0",
  "policy.model.vocab_size=5120",
  "sampler.draft_tokens=0",
)
NARROW = ("policy.dtype=bfloat16", "learner.canary_bound=0.3")
LAYERS, WIDTH, VOCAB, EXPERTS = 2, 128, 5120, 8
QKV, OUT = (WIDTH, 8 * 32), (4 * 32, WIDTH)  # two key heads of two queries each, heads of 32
SHARED, ROUTED = 3 * WIDTH * 128, EXPERTS * 3 * WIDTH * 128
MATRICES = LAYERS * (QKV[0] * QKV[1] + OUT[0] * OUT[1] + SHARED + ROUTED) + VOCAB * WIDTH
ROUTERS, BIASES, NORMS = LAYERS * WIDTH * EXPERTS, LAYERS * EXPERTS, (2 * LAYERS + 1) * WIDTH
COUNTERS = 64
"""Bytes of version, key and counts of steps, at most."""


def held(*overrides):
  """(parameters, optimizer, gradients) of the learner on one device, bytes."""
  config = config_lib.load("configs/search_cpu.py", (*SMALL, *overrides))
  parts = programs.learner(
    pod_plan.abstract_params(config),
    config.policy.model,
    config.learner,
    tx=rl.optimizer(config),
    objective=rl.objective(config),
    mesh=sharding.make_mesh(devices=jax.devices()[:1]),
  )
  trees = parts.state.policy, parts.state.opt_state, parts.programs[-1].arguments[1]
  return [programs.bytes_per_device(tree) for tree in trees]


def test_bfloat16_parameters_have_a_float32_master_and_float32_gradients():
  wide, narrow = ROUTERS + BIASES, MATRICES + NORMS
  moved = MATRICES + NORMS + ROUTERS
  assert held(*NARROW) == [
    pytest.approx(4 * wide + 2 * narrow, abs=COUNTERS),
    pytest.approx(4 * narrow + 8 * moved, abs=COUNTERS),
    4 * (moved + BIASES),
  ]


def test_moments_of_matrices_in_eight_bits_take_two_bytes_a_number_and_their_scales():
  params, optimizer, _ = held("learner.optimizer=adamw8bit")
  assert params == pytest.approx(4 * (MATRICES + ROUTERS + BIASES + NORMS), abs=COUNTERS)
  plain, coded = 8 * (NORMS + ROUTERS), 2 * MATRICES
  assert plain + coded < optimizer < plain + coded * (1 + 4 / 16)


def test_adapters_alone_have_gradients_and_moments():
  rank = 4
  trained = LAYERS * rank * (QKV[0] + QKV[1] + OUT[0] + OUT[1])
  params, optimizer, grads = held(f"lora.rank={rank}")
  whole = MATRICES + ROUTERS + BIASES + NORMS
  assert params == pytest.approx(4 * (whole + trained), abs=COUNTERS)
  assert optimizer == pytest.approx(8 * trained, abs=COUNTERS)
  assert grads == 4 * trained


@pytest.mark.parametrize("shared", [False, True])
def test_a_planned_microbatch_has_the_arrays_of_a_packed_one(shared):
  config = config_lib.load("configs/search_cpu.py", (*SMALL, f"learner.share_prefixes={shared}"))
  cfg, learner = config.policy.model, config.learner
  mesh = sharding.make_mesh(devices=jax.devices()[:1])
  planned = programs.abstract_batch(cfg, learner, mesh, rl.objective(config))
  shape = learner.rows_per_microbatch, learner.row_lengths[-1]
  packed = packing.empty(shape, (cfg.num_moe_layers, cfg.experts_per_token), shared)
  described = lambda batch: jax.tree.map(lambda x: (x.shape, x.dtype), batch._asdict())
  assert described(planned) == described(packed)
  assert distill.rows_of(planned).has_forks == shared


@pytest.mark.skipif(importlib.util.find_spec("libtpu") is None, reason="needs the extra libtpu")
def test_a_program_that_drafts_holds_one_cache_on_a_tpu():
  os.environ |= {"TPU_SKIP_MDS_QUERY": "1", "TPU_MIN_LOG_LEVEL": "3"}
  from jax.experimental import topologies

  devices = topologies.get_topology_desc(platform="tpu", topology_name="v5e:2x2").devices
  mesh = sharding.make_mesh(devices=devices[:1])
  drafting = "sampler.draft_tokens=1", "sampler.lookup_tokens=3", "policy.model.mtp_depth=1"
  config = config_lib.load(
    "configs/search_cpu.py", (*SMALL, *NARROW, *drafting, "sampler.num_pages=8192")
  )
  parts = programs.sampler(
    config.policy.model, config.sampler, mesh, context_tokens=1_024, dtype=jnp.bfloat16
  )
  with jax.set_mesh(mesh):
    compiled = parts.program.function.lower(*parts.program.arguments).compile()
  cache, memory = programs.bytes_per_device(parts.state), compiled.memory_analysis()
  assert memory.alias_size_in_bytes > 0.99 * cache
  assert memory.temp_size_in_bytes < 0.2 * cache
