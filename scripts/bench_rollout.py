"""Generation speed of the engine on a fixed mixture-of-experts model, beside this machine's limits.

    python scripts/bench_rollout.py
    python scripts/bench_rollout.py --engines=1      # one engine on all cores
    python scripts/bench_rollout.py --peers=FOLDER_OF_VENVS --peer_scripts=FOLDER_OF_SCRIPTS

The work: a Qwen3-like decoder (4 layers, width 256, 8 heads with 4 key-value heads of 32,
vocabulary 4096, 8 experts of width 256, 2 per token: 9.19M parameters), random weights, prompts of
128 tokens without a common prefix, 128 sampled tokens each. Tokens per second count the whole call,
prefill included. With --peers, FOLDER_OF_VENVS/torch and FOLDER_OF_VENVS/tunix hold interpreters
that run hf_generate.py and tunix_sampler.py of FOLDER_OF_SCRIPTS, which print a JSON line per
figure.
"""

from __future__ import annotations

import os
import statistics
import time
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from absl import app, flags
from bench import reference_work
from bench.reference_work import (
  CFG,
  PEERS,
  PROMPT_TOKENS,
  SAMPLED_TOKENS,
  best_seconds,
  check_arguments,
  matmul_flops,
  peer_lines,
  report,
  restart_with,
)

from jaxrl_agents.policy import params as params_lib
from jaxrl_agents.policy.config import PolicyConfig
from jaxrl_agents.sampler.core_engines import AnyEngine, CoreEngines
from jaxrl_agents.sampler.engine import Engine
from jaxrl_agents.types import SamplingLimits

flags.adopt_module_key_flags(reference_work)
BATCHES = flags.DEFINE_list("batches", ["8", "32"], "Sequences at once.")
ENGINES = flags.DEFINE_integer(
  "engines", 2, "Engines that share the sequences, each on a core (sampler.engines).", lower_bound=1
)
REPEATS = flags.DEFINE_integer("repeats", 5, "Timed calls; the median counts.", lower_bound=1)
PEER_COMMANDS = {
  "transformers": ("torch", ["hf_generate.py", "--experts", "grouped_mm", "--modes", "sample"]),
  "tunix": ("tunix", ["tunix_sampler.py", "--modes", "sample"]),
}


def machine_limits() -> tuple[float, float]:
  """(FLOP/s of a float32 matrix product, bytes/s of reading memory), measured now."""
  big = jnp.ones(32 * 2**20)
  total = jax.jit(jnp.sum)
  return matmul_flops(), big.nbytes / best_seconds(lambda: total(big).block_until_ready())


def step_seconds_at_limit(cfg: PolicyConfig, batch: int, flops: float, bandwidth: float) -> float:
  """Least time of a decode step: each weight and cached number read once, each product computed."""
  attention = cfg.embed_dim * 2 * (cfg.num_heads + cfg.num_kv_heads) * cfg.head_dim
  expert = 3 * cfg.embed_dim * cfg.expert_ffw_dim
  head = cfg.vocab_size * cfg.embed_dim
  touched = min(cfg.num_experts, batch * cfg.experts_per_token)
  context = PROMPT_TOKENS + SAMPLED_TOKENS / 2
  read = cfg.num_layers * (attention + touched * expert + batch * context * cfg.cache_width) + head
  scores = 2 * cfg.num_heads * cfg.head_dim * context
  used = cfg.num_layers * (attention + cfg.experts_per_token * expert + scores) + head
  return max(4 * read / bandwidth, 2 * batch * used / flops)


def generate(engine: AnyEngine, batch: int, seed: int) -> None:
  """One call of the benchmark: `batch` fresh prompts to the end."""
  rng = np.random.default_rng(seed)
  for i in range(batch):
    prompt = rng.integers(3, CFG.vocab_size, PROMPT_TOKENS).astype(np.int32)
    engine.submit(prompt, SamplingLimits(SAMPLED_TOKENS, (), seed=i))
  while engine.num_unfinished:
    engine.step()


def make_engine(batch: int) -> AnyEngine:
  """`batch` slots in one engine or several."""
  devices = jax.devices()[: ENGINES.value]
  context, slots = PROMPT_TOKENS + SAMPLED_TOKENS, -(-batch // len(devices))

  def make(params: dict[str, Any]) -> Engine:
    return Engine(
      CFG,
      params,
      version=0,
      slots=slots,
      page_tokens=16,
      num_pages=2 + slots * (context // 16 + 1),
      max_context_tokens=context,
      prefill_tokens=PROMPT_TOKENS,
      prefill_rows=min(8, slots),
    )

  params = params_lib.init(CFG, jax.random.key(0))
  return make(params) if len(devices) == 1 else CoreEngines(make, params, devices, slots=slots)


def measure_ours(batch: int) -> dict[str, float]:
  """Tokens per second of the engine with `batch` slots."""
  engine = make_engine(batch)
  start = time.perf_counter()
  engine.warm_up()
  warm_up_s = time.perf_counter() - start
  generate(engine, batch, 0)
  compiles, seconds, cpu = engine.stats.compiles, [], []
  for repeat in range(REPEATS.value):
    begin, start = os.times(), time.perf_counter()
    generate(engine, batch, repeat + 1)
    seconds.append(time.perf_counter() - start)
    end = os.times()
    cpu.append(end.user + end.system - begin.user - begin.system)
  assert engine.stats.compiles == compiles, "something compiled after warm-up"
  return {
    "median_s": statistics.median(seconds),
    "tokens_per_s": batch * SAMPLED_TOKENS / statistics.median(seconds),
    "best_tokens_per_s": batch * SAMPLED_TOKENS / min(seconds),
    "cores_used": statistics.median(c / s for c, s in zip(cpu, seconds, strict=True)),
    "warm_up_s": warm_up_s,
  }


def measure_peer(name: str) -> dict[int, float]:
  """Tokens per second of a peer for each batch, from its script's JSON lines."""
  folder, command = PEER_COMMANDS[name]
  options = {"batches": ",".join(BATCHES.value), "repeats": REPEATS.value}
  rows = peer_lines(name, folder, command, options)
  return {
    batch: row["tokens_per_s"]
    for batch in map(int, BATCHES.value)
    for row in rows
    if f"b={batch} " in row["what"]
  }


def main(argv: list[str]) -> None:
  """Prints one JSON line per batch, and the ratio to each peer."""
  check_arguments(argv)
  restart_with(XLA_FLAGS=f"--xla_force_host_platform_device_count={ENGINES.value}")
  flops, bandwidth = machine_limits()
  flops *= jax.device_count()  # they were measured on one of them
  report(gflops=flops / 1e9, read_gb_per_s=bandwidth / 1e9)
  peers = {name: measure_peer(name) for name in PEER_COMMANDS} if PEERS.value else {}
  for batch in map(int, BATCHES.value):
    row = measure_ours(batch)
    limit = batch / step_seconds_at_limit(CFG, batch, flops, bandwidth)
    row["share_of_limit"] = row["tokens_per_s"] / limit
    for name, figures in peers.items():
      row[f"{name}_tokens_per_s"] = figures[batch]
      row[f"times_{name}"] = row["tokens_per_s"] / figures[batch]
    report(batch=batch, **row)


if __name__ == "__main__":
  app.run(main)
