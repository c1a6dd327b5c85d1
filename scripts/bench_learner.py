"""Speed of one optimizer step on a fixed mixture-of-experts model, beside this machine's limits.

    python scripts/bench_learner.py
    python scripts/bench_learner.py --peers=FOLDER_OF_VENVS --peer_scripts=FOLDER_OF_SCRIPTS

The work: a Qwen3-like decoder (4 layers, width 256, 8 heads with 4 key-value heads of 32, 4096
tokens in the vocabulary, 8 experts of width 256, 2 per token: 9.19M parameters), one CISPO step
(forward, backward, AdamW, float32) on 32 rows of 128 prompt tokens and 128 sampled ones. Tokens per
second count prompt and reply. The same step is then made on 4 groups of 8 replies that share their
prompts, each of which is computed once (learner.share_prefixes); peers compute it for each reply,
which takes them as long as the first step. With --peers, FOLDER_OF_VENVS/torch and
FOLDER_OF_VENVS/tunix hold interpreters that run hf_train.py and tunix_train.py of FOLDER_OF_SCRIPTS
on the same work, in turn with ours; they print a JSON line per figure.
"""

from __future__ import annotations

import json
import math
import os
import pathlib
import resource
import statistics
import subprocess
import sys
import time

import jax
import jax.numpy as jnp
import numpy as np
from absl import app, flags

from jaxrl_agents.config import MeshConfig, PolicySection, RunConfig
from jaxrl_agents.learner import packing, state, train_step
from jaxrl_agents.learner.advantage import Rollout
from jaxrl_agents.policy import params as params_lib
from jaxrl_agents.policy.config import PolicyConfig
from jaxrl_agents.runs import setup
from jaxrl_agents.types import Segment

ROWS, PROMPT_TOKENS, SAMPLED_TOKENS = 32, 128, 128
GROUPS = 4
ROUNDS = flags.DEFINE_integer("rounds", 1, "Times that each party is measured.", lower_bound=1)
REPEATS = flags.DEFINE_integer("repeats", 5, "Timed steps a round.", lower_bound=1)
HUGE_PAGES = flags.DEFINE_bool(
  "huge_pages", True, "Let malloc use huge pages, for everyone (XLA frees its buffers every step)."
)
DEVICES = flags.DEFINE_integer(
  "devices",
  math.gcd(ROWS, os.cpu_count() or 1),
  "Devices that this machine's cores are shown as, over which the rows of ours are split "
  "(mesh.fsdp): within one, XLA leaves cores idle.",
  lower_bound=1,
)
PEERS = flags.DEFINE_string("peers", "", "Folder of the peers' virtual environments.")
PEER_NAMES = flags.DEFINE_list("peer_names", ["transformers", "tunix"], "Which of them to run.")
PEER_SCRIPTS = flags.DEFINE_string("peer_scripts", "", "Folder of the peers' scripts.")

TUNABLE = "glibc.malloc.hugetlb=1"
PEER_COMMANDS = {
  "transformers": ("torch", ["hf_train.py", "--experts", "grouped_mm"]),
  "tunix": ("tunix", ["tunix_train.py"]),
}
CFG = PolicyConfig(
  vocab_size=4096,
  embed_dim=256,
  num_layers=4,
  num_heads=8,
  num_kv_heads=4,
  head_dim=32,
  rope_theta=1e6,
  num_experts=8,
  experts_per_token=2,
  expert_ffw_dim=256,
  router="softmax",
)


def step_flops(cfg: PolicyConfig) -> float:
  """Useful work of the step: three times the forward pass, the head on sampled tokens only."""
  attention = cfg.embed_dim * 2 * (cfg.num_heads + cfg.num_kv_heads) * cfg.head_dim
  experts = cfg.experts_per_token * 3 * cfg.embed_dim * cfg.expert_ffw_dim
  router = cfg.embed_dim * cfg.num_experts
  length = PROMPT_TOKENS + SAMPLED_TOKENS
  scores = 2 * cfg.num_heads * cfg.head_dim * (length + 1) / 2
  layers = ROWS * length * cfg.num_layers * (attention + experts + router + scores)
  return 3 * 2 * (layers + ROWS * SAMPLED_TOKENS * cfg.embed_dim * cfg.vocab_size)


def matmul_flops() -> float:
  """FLOP/s of a 2048^3 float32 matrix product on each device: the best of 20, measured now."""
  a = jnp.ones((2048, 2048))
  product = jax.jit(lambda x: x @ x)
  product(a).block_until_ready()
  seconds = []
  for _ in range(20):
    start = time.perf_counter()
    product(a).block_until_ready()
    seconds.append(time.perf_counter() - start)
  return jax.device_count() * 2 * 2048**3 / min(seconds)


def make_batches(*, is_grouped: bool) -> list[packing.Batch]:
  """The rows as a learner gets them: packed segments of random tokens.

  If `is_grouped`, those of a group share their prompt, and a row holds a group.
  """
  rng = np.random.default_rng(0)
  length = PROMPT_TOKENS + SAMPLED_TOKENS
  sampled = np.arange(length) >= PROMPT_TOKENS
  logprobs = np.where(sampled, -np.log(CFG.vocab_size), 0).astype(np.float32)
  versions = np.where(sampled, 0, -1).astype(np.int32)
  rollouts = []
  for row in range(ROWS):
    tokens = rng.integers(3, CFG.vocab_size, length).astype(np.int32)
    if row % (ROWS // GROUPS) == 0:
      prompt = tokens[:PROMPT_TOKENS]
    if is_grouped:
      tokens[:PROMPT_TOKENS] = prompt
    segment = Segment(tokens, sampled, logprobs, versions)
    rollouts.append(Rollout((segment,), float(rng.normal())))
  if not is_grouped:
    return packing.pack(rollouts, row_tokens=length, rows_per_microbatch=ROWS)
  together = PROMPT_TOKENS + ROWS // GROUPS * SAMPLED_TOKENS
  return packing.pack(
    rollouts, row_tokens=together, rows_per_microbatch=GROUPS, share_prefixes=True
  )


class Ours:
  """One train state that steps in place, so that rounds share a compilation."""

  def __init__(self, config: RunConfig, *, is_grouped: bool):
    self.tx = state.make_optimizer(CFG, learning_rate=1e-5, weight_decay=0.01)
    params = params_lib.init(CFG, jax.random.key(0))
    self.state = setup.fresh_state(config, params, self.tx)
    self.batches = make_batches(is_grouped=is_grouped)
    self.placed_tokens = sum(int((batch.ends > 0).sum()) for batch in self.batches)
    start = time.perf_counter()
    self.step()
    self.first_call_s = time.perf_counter() - start
    self.step()

  def step(self) -> None:
    """One update, to its end."""
    objective = train_step.Objective("rl")
    self.state, metrics = train_step.update(self.state, self.batches, CFG, objective, self.tx)
    assert metrics["applied"] == 1

  def measure(self) -> tuple[list[float], list[float]]:
    """(wall seconds, CPU seconds) of each of --repeats steps."""
    wall, cpu = [], []
    for _ in range(REPEATS.value):
      begin, start = os.times(), time.perf_counter()
      self.step()
      wall.append(time.perf_counter() - start)
      end = os.times()
      cpu.append(end.user + end.system - begin.user - begin.system)
    return wall, cpu


def measure_peer(name: str) -> dict[str, float]:
  """The row that a peer's script prints: "median_s", "first_call_s", "peak_rss_mib" and more."""
  folder, command = PEER_COMMANDS[name]
  python = pathlib.Path(PEERS.value) / folder / "bin" / "python"
  done = subprocess.run(
    [str(python.absolute()), *command, "--repeats", str(REPEATS.value)],
    cwd=PEER_SCRIPTS.value,
    capture_output=True,
    text=True,
    timeout=1800,
  )
  if done.returncode:
    raise RuntimeError(f"{name}: {command[0]} ended with {done.returncode}:\n{done.stderr[-2000:]}")
  return [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")][-1]


def report(name: str, **figures: float) -> None:
  """Prints a JSON line."""
  rounded = {key: round(value, 3) for key, value in figures.items()}
  print(json.dumps({"name": name, **rounded, "load1": round(os.getloadavg()[0], 2)}), flush=True)


def main(argv: list[str]) -> None:
  """Prints a JSON line for each party and round, then one for each party."""
  if len(argv) > 1:
    raise app.UsageError(f"unknown arguments {argv[1:]}")
  if bool(PEERS.value) != bool(PEER_SCRIPTS.value):
    raise app.UsageError("--peers and --peer_scripts go together")
  if ROWS % DEVICES.value:
    raise app.UsageError(f"--devices={DEVICES.value} does not divide the {ROWS} rows")
  wanted = [("XLA_FLAGS", f"--xla_force_host_platform_device_count={DEVICES.value}", " ")]
  if HUGE_PAGES.value:
    wanted.append(("GLIBC_TUNABLES", TUNABLE, ":"))
  missing = [one for one in wanted if one[1] not in os.environ.get(one[0], "").split(one[2])]
  if missing:
    for name, value, between in missing:
      os.environ[name] = between.join(filter(None, [os.environ.get(name), value]))
    os.execv(sys.executable, [sys.executable, *sys.argv])  # both are read as a process starts
  config = RunConfig(
    name="bench", policy=PolicySection(model=CFG), mesh=MeshConfig(fsdp=DEVICES.value)
  )
  with setup.devices(config):
    measure(Ours(config, is_grouped=False), Ours(config, is_grouped=True))


def measure(ours: Ours, grouped: Ours) -> None:
  """Times ours, both ways, and the peers in turn."""
  names = PEER_NAMES.value if PEERS.value else []
  wall, cpu, shared = [], [], []
  peers: dict[str, list[dict[str, float]]] = {name: [] for name in names}
  limit = matmul_flops()
  for number in range(ROUNDS.value):
    seconds = ours.measure()
    report("jaxrl_agents", round=number, median_s=statistics.median(seconds[0]))
    wall += seconds[0]
    cpu += seconds[1]
    shared += grouped.measure()[0]
    for name in names:
      peers[name].append(measure_peer(name))
      report(name, round=number, median_s=peers[name][-1]["median_s"])
    limit = max(limit, matmul_flops())
  median = statistics.median(wall)
  report(
    "jaxrl_agents",
    median_s=median,
    min_s=min(wall),
    cpu_s=statistics.median(cpu),
    tokens_per_s=ROWS * (PROMPT_TOKENS + SAMPLED_TOKENS) / median,
    matmul_gflops=limit / 1e9,
    share_of_limit=step_flops(CFG) / median / limit,
    first_call_s=ours.first_call_s,
    peak_rss_mib=resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
  )
  tokens, sharing = ROWS * (PROMPT_TOKENS + SAMPLED_TOKENS), statistics.median(shared)
  report(
    "jaxrl_agents, groups that share their prompts",
    median_s=sharing,
    trained_tokens=tokens,
    unique_tokens=grouped.placed_tokens,
    tokens_per_s=tokens / sharing,
    unique_tokens_per_s=grouped.placed_tokens / sharing,
    faster_than_apart_times=median / sharing,
  )
  for name, rows in peers.items():
    figure = lambda key, rows=rows: statistics.median(row[key] for row in rows)
    report(
      name,
      median_s=figure("median_s"),
      min_s=min(row["min_s"] for row in rows),
      cpu_s=figure("cpu_s"),
      first_call_s=figure("first_call_s"),
      peak_rss_mib=figure("peak_rss_mib"),
      ours_is_faster_times=figure("median_s") / median,
      ours_shared_is_faster_times=figure("median_s") / sharing,
    )


if __name__ == "__main__":
  app.run(main)
