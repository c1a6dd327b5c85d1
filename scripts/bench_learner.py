"""Speed of one optimizer step on a fixed mixture-of-experts model, beside this machine's limits.

    python scripts/bench_learner.py
    python scripts/bench_learner.py --peers=FOLDER_OF_VENVS --peer_scripts=FOLDER_OF_SCRIPTS

The work: a Qwen3-like decoder (4 layers, width 256, 8 heads with 4 key-value heads of 32, 4096
tokens in the vocabulary, 8 experts of width 256, 2 per token: 9.19M parameters), one CISPO step
(forward, backward, AdamW, float32) on
  replies    32 rows of 128 prompt tokens and 128 sampled ones;
  groups     the same, of 4 groups of 8 replies that share their prompts, each computed once
             (learner.share_prefixes);
  episodes   26 segments of 704 tokens, as an update of configs/search_cpu.py has them: 2 groups of
             8 rollouts share a request, half of a group its first turn, and 5 rollouts of a group
             go on in a second segment, which repeats what is left of their context;
  episodes, shared   likewise.
Tokens per second count all trained tokens. Two steps of the recipe trained 72,634 and 65,115 tokens
(104 and 93 segments of 700 tokens, 84 of them sampled) in 35,377 and 28,285 places, 2.05 and 2.30
times as many; here it is 2.24. Peers compute shared tokens for each sequence. With --peers,
FOLDER_OF_VENVS/torch and FOLDER_OF_VENVS/tunix hold interpreters that run hf_train.py and
tunix_train.py of FOLDER_OF_SCRIPTS on the same work, in turn with ours; they print a JSON line per
figure. Their segments have all of their sampled tokens at the end.
"""

from __future__ import annotations

import math
import os
import resource
import statistics
import time

import jax
import numpy as np
from absl import app, flags
from bench import reference_work
from bench.reference_work import (
  CFG,
  GROUPS,
  PEERS,
  PROMPT_TOKENS,
  ROWS,
  SAMPLED_TOKENS,
  check_arguments,
  matmul_flops,
  peer_lines,
  report,
  restart_with,
)

from jaxrl_agents.config import MeshConfig, PolicySection, RunConfig
from jaxrl_agents.learner import packing, state, train_step
from jaxrl_agents.learner.advantage import Rollout
from jaxrl_agents.policy import params as params_lib
from jaxrl_agents.policy.config import PolicyConfig
from jaxrl_agents.runs import setup
from jaxrl_agents.types import Segment

REQUEST_TOKENS, CALL_TOKENS, RESULT_TOKENS, ANSWER_TOKENS = 320, 24, 88, 48
EPISODE_GROUPS, EPISODES, PRUNED = 2, 8, 5
"""Groups of an update, rollouts of a group, and how many of them have a second segment."""
flags.adopt_module_key_flags(reference_work)
ROUNDS = flags.DEFINE_integer("rounds", 1, "Times that each party is measured.", lower_bound=1)
REPEATS = flags.DEFINE_integer("repeats", 5, "Timed steps a round.", lower_bound=1)
DEVICES = flags.DEFINE_integer(
  "devices",
  math.gcd(ROWS, os.cpu_count() or 1),
  "Devices that this machine's cores are shown as, over which the rows of ours are split "
  "(mesh.fsdp): within one, XLA leaves cores idle.",
  lower_bound=1,
)
PEER_NAMES = flags.DEFINE_list("peer_names", ["transformers", "tunix"], "Which of them to run.")
PEER_COMMANDS = {
  "transformers": ("torch", ["hf_train.py", "--experts", "grouped_mm"]),
  "tunix": ("tunix", ["tunix_train.py"]),
}
PEER_SHAPES = {
  "replies": (GROUPS, ROWS // GROUPS, PROMPT_TOKENS, SAMPLED_TOKENS),
  "episodes": (EPISODE_GROUPS, EPISODES + PRUNED, 604, 100),
}
"""Groups, sequences of a group, and the tokens of each that are given and sampled."""


def step_flops(cfg: PolicyConfig) -> float:
  """Useful work of the step: three times the forward pass, the head on sampled tokens only."""
  attention = cfg.embed_dim * 2 * (cfg.num_heads + cfg.num_kv_heads) * cfg.head_dim
  experts = cfg.experts_per_token * 3 * cfg.embed_dim * cfg.expert_ffw_dim
  router = cfg.embed_dim * cfg.num_experts
  length = PROMPT_TOKENS + SAMPLED_TOKENS
  scores = 2 * cfg.num_heads * cfg.head_dim * (length + 1) / 2
  layers = ROWS * length * cfg.num_layers * (attention + experts + router + scores)
  return 3 * 2 * (layers + ROWS * SAMPLED_TOKENS * cfg.embed_dim * cfg.vocab_size)


def replies(*, is_grouped: bool) -> list[Rollout]:
  """A prompt and a reply of random tokens each; if `is_grouped`, a group has one prompt."""
  rng = np.random.default_rng(0)
  rollouts = []
  for row in range(ROWS):
    if not is_grouped or row % (ROWS // GROUPS) == 0:
      prompt = _drawn(rng, PROMPT_TOKENS)
    parts = [(prompt, False), (_drawn(rng, SAMPLED_TOKENS), True)]
    rollouts.append(Rollout((_segment(parts),), float(rng.normal())))
  return rollouts


def episodes() -> list[Rollout]:
  """Rollouts of several turns, as in the head of this file."""
  rng = np.random.default_rng(0)
  turn = lambda: [(_drawn(rng, CALL_TOKENS), True), (_drawn(rng, RESULT_TOKENS), False)]
  rollouts = []
  for _ in range(EPISODE_GROUPS):
    request = [(_drawn(rng, REQUEST_TOKENS), False)]
    first_turns = turn(), turn()
    for number in range(EPISODES):
      first, second, third, fourth = first_turns[number % 2], turn(), turn(), turn()
      answers = [(_drawn(rng, ANSWER_TOKENS), True) for _ in range(2)]
      segments = [_segment([*request, *first, *second, *third, answers[0]])]
      if number < PRUNED:  # of the three results, the second is pruned
        kept = [(tokens, False) for tokens, _ in (*first, *third)]
        segments.append(_segment([*request, *kept, *fourth, answers[1]]))
      rollouts.append(Rollout(tuple(segments), float(rng.normal())))
  return rollouts


def _drawn(rng: np.random.Generator, count: int) -> np.ndarray:
  return rng.integers(3, CFG.vocab_size, count).astype(np.int32)


def _segment(parts: list[tuple[np.ndarray, bool]]) -> Segment:
  """A segment of (tokens, whether they were sampled), by the uniform policy at version 0."""
  tokens = np.concatenate([tokens for tokens, _ in parts])
  sampled = np.concatenate([np.full(len(tokens), flag) for tokens, flag in parts])
  logprobs = np.where(sampled, -np.log(CFG.vocab_size), 0).astype(np.float32)
  return Segment(tokens, sampled, logprobs, np.where(sampled, 0, -1).astype(np.int32))


def make_batches(case: str) -> list[packing.Batch]:
  """The rows of a case as a learner gets them; shared rows hold a group each."""
  if case == "replies":
    length = PROMPT_TOKENS + SAMPLED_TOKENS
    return packing.pack(replies(is_grouped=False), row_tokens=length, rows_per_microbatch=ROWS)
  if case == "groups":
    length, made, rows = 1_152, replies(is_grouped=True), GROUPS
  elif case == "episodes":
    made = episodes()
    rows = sum(len(rollout.segments) for rollout in made)
    return packing.pack(made, row_tokens=704, rows_per_microbatch=rows)
  else:
    length, made, rows = 4_096, episodes(), EPISODE_GROUPS
  return packing.pack(made, row_tokens=length, rows_per_microbatch=rows, share_prefixes=True)


class Ours:
  """One train state that steps in place, so that rounds share a compilation."""

  def __init__(self, config: RunConfig, case: str):
    self.tx = state.make_optimizer(CFG, learning_rate=1e-5, weight_decay=0.01)
    params = params_lib.init(CFG, jax.random.key(0))
    self.state = setup.fresh_state(config, params, self.tx)
    self.batches = make_batches(case)
    self.unique_tokens = sum(int((batch.ends > 0).sum()) for batch in self.batches)
    self.times: list[float] = []
    self.cpu_times: list[float] = []
    start = time.perf_counter()
    self.step()
    self.first_call_s = time.perf_counter() - start
    self.step()
    self.peak_rss_mib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024

  def step(self) -> None:
    """One update, to its end."""
    objective = train_step.Objective("rl")
    self.state, metrics = train_step.update(self.state, self.batches, CFG, objective, self.tx)
    assert metrics["applied"] == 1

  def measure(self) -> float:
    """The median seconds of --repeats steps, whose times are kept."""
    for _ in range(REPEATS.value):
      begin, start = os.times(), time.perf_counter()
      self.step()
      self.times.append(time.perf_counter() - start)
      end = os.times()
      self.cpu_times.append(end.user + end.system - begin.user - begin.system)
    return statistics.median(self.times[-REPEATS.value :])


def measure_peer(name: str, case: str) -> dict[str, float]:
  """The row that a peer's script prints: "median_s", "first_call_s", "peak_rss_mib" and more."""
  folder, command = PEER_COMMANDS[name]
  options = zip(("groups", "group-size", "prompt", "completion"), PEER_SHAPES[case], strict=True)
  return peer_lines(name, folder, command, {**dict(options), "repeats": REPEATS.value})[-1]


def main(argv: list[str]) -> None:
  """Prints a JSON line for each party and round, then one for each party."""
  check_arguments(argv)
  if ROWS % DEVICES.value:
    raise app.UsageError(f"--devices={DEVICES.value} does not divide the {ROWS} rows")
  restart_with(XLA_FLAGS=f"--xla_force_host_platform_device_count={DEVICES.value}")
  config = RunConfig(
    name="bench", policy=PolicySection(model=CFG), mesh=MeshConfig(fsdp=DEVICES.value)
  )
  with setup.devices(config):
    measure({case: Ours(config, case) for case in CASES})


CASES = {
  "replies": "replies",
  "groups": "replies",
  "episodes": "episodes",
  "episodes, shared": "episodes",
}
"""Each case, with the one that peers are given for it."""


def measure(ours: dict[str, Ours]) -> None:
  """Times ours and the peers in turn, and prints what came out."""
  names = PEER_NAMES.value if PEERS.value else []
  peers: dict[tuple[str, str], list[dict[str, float]]] = {}
  limit = jax.device_count() * matmul_flops()
  for number in range(ROUNDS.value):
    for case, one in ours.items():
      report(name=f"jaxrl_agents, {case}", round=number, median_s=one.measure())
    for name in names:
      for case in PEER_SHAPES:
        peers.setdefault((name, case), []).append(measure_peer(name, case))
        report(name=f"{name}, {case}", round=number, median_s=peers[name, case][-1]["median_s"])
    limit = max(limit, jax.device_count() * matmul_flops())
  for case, one in ours.items():
    median, apart = statistics.median(one.times), ours[CASES[case]]
    trained = apart.unique_tokens
    figures = {
      "median_s": median,
      "min_s": min(one.times),
      "cpu_s": statistics.median(one.cpu_times),
      "first_call_s": one.first_call_s,
      "trained_tokens": trained,
      "unique_tokens": one.unique_tokens,
      "tokens_per_s": trained / median,
      "unique_tokens_per_s": one.unique_tokens / median,
      "faster_than_apart_times": statistics.median(apart.times) / median,
    }
    if case == "replies":
      figures |= {"matmul_gflops": limit / 1e9, "share_of_limit": step_flops(CFG) / median / limit}
      figures["peak_rss_mib"] = one.peak_rss_mib
    for name in names:
      figures[f"faster_than_{name}_times"] = _median(peers[name, CASES[case]], "median_s") / median
    report(name=f"jaxrl_agents, {case}", **figures)
  for (name, case), rows in peers.items():
    columns = ("median_s", "min_s", "cpu_s", "first_call_s", "peak_rss_mib")
    report(name=f"{name}, {case}", **{column: _median(rows, column) for column in columns})


def _median(rows: list[dict[str, float]], column: str) -> float:
  return statistics.median(row[column] for row in rows)


if __name__ == "__main__":
  app.run(main)
