"""Speed of a whole step of reinforcement learning on a fixed mixture-of-experts model.

    python scripts/bench_step.py
    python scripts/bench_step.py --peers=FOLDER_OF_VENVS --peer_scripts=FOLDER_OF_SCRIPTS

The work: a Qwen3-like decoder (4 layers, width 256, 8 heads with 4 key-value heads of 32, 4096
tokens in the vocabulary, 8 experts of width 256, 2 per token: 9.19M parameters, float32) samples 8
replies of 128 tokens to each of 4 prompts of 128 tokens with its latest weights, is trained on them
(advantages, packing, canary, CISPO forward and backward, AdamW), and hands its weights to the
engine. The parts are those of a run: an Engine, `loop.learn` with shared prefixes and the rows
split over the cores (learner.share_prefixes, learner.split_cores), and versions of the weights that
are written, read and verified.

The last line has medians of the whole step and of its parts, in seconds:
  generate_s   prompts to replies, of which
    prefill_s    programs that compute prompts
    decode_s     programs that decode
  learn_s      replies to a new train state, of which, measured on the same replies after the step,
    score_s      advantages
    pack_s       rows of the microbatch
  hand_over_s  a new train state to an engine that has its weights, of which
    publish_s    writing them to a folder
    fetch_s      reading and verifying them
    set_params_s replacing those of the engine
and matmul_gflops, by which figures of different machines can be told apart.

With --peers, FOLDER_OF_VENVS/torch and FOLDER_OF_VENVS/tunix hold interpreters that run hf_train.py
(TRL's GRPOTrainer, with CISPO) and tunix_train.py (Tunix' GRPOLearner) of FOLDER_OF_SCRIPTS on the
same work, between two halves of our steps. Their rewards, too, are a cheap function of the tokens;
both hand over weights within their process.
"""

from __future__ import annotations

import itertools
import os
import pathlib
import statistics
import tempfile
import time
from collections.abc import Sequence

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

from jaxrl_agents.config import LearnerConfig, PolicySection, RunConfig, SamplerConfig
from jaxrl_agents.harness.segments import Turn, to_segments
from jaxrl_agents.learner import advantage, loop, packing
from jaxrl_agents.policy import params as params_lib
from jaxrl_agents.runs import rl, setup
from jaxrl_agents.runs.published_weights import PUBLISHED_KEPT, read
from jaxrl_agents.sampler.engine import Engine
from jaxrl_agents.types import Generation, Group, SamplingLimits, Task, Trajectory
from jaxrl_agents.weights import store

GROUP_SIZE = ROWS // GROUPS
CONTEXT_TOKENS = PROMPT_TOKENS + SAMPLED_TOKENS
PAGE_TOKENS = 16

flags.adopt_module_key_flags(reference_work)
REPEATS = flags.DEFINE_integer("repeats", 5, "Timed steps, of each half of ours.", lower_bound=1)
PEER_COMMANDS = {
  "trl": ("torch", ["hf_train.py", "--trl", "--loss", "cispo", "--experts", "grouped_mm"], 1),
  "tunix": ("tunix", ["tunix_train.py", "--end-to-end"], 2),
}
"""Virtual environment, command, and how many of its steps the script leaves out of its median."""

CONFIG = RunConfig(
  name="bench",
  policy=PolicySection(model=CFG),
  sampler=SamplerConfig(slots=ROWS, page_tokens=PAGE_TOKENS),
  learner=LearnerConfig(
    loss="cispo",
    groups_per_step=GROUPS,
    group_size=GROUP_SIZE,
    substeps=1,
    lr=1e-5,
    weight_decay=0.01,
    row_tokens=PROMPT_TOKENS + GROUP_SIZE * SAMPLED_TOKENS,
    rows_per_microbatch=GROUPS,
    share_prefixes=True,
    split_cores=True,
    mtp_weight=0.0,
  ),
)


class Run:
  """A train state and the engine that samples with its weights.

  Invariant: between two steps both have the same version.

  Args:
    folder: for the published versions of the weights.
  """

  def __init__(self, folder: pathlib.Path):
    self.groups: list[Group] = []  # of the last step
    self._folder = folder
    self._rng = np.random.default_rng(0)
    self._tx, self._objective = rl.optimizer(CONFIG), rl.objective(CONFIG)
    with setup.learner_devices(CONFIG):
      params = params_lib.init(CFG, jax.random.key(0))
      self._state = setup.fresh_state(CONFIG, params, self._tx)
    self._engine = Engine(
      CFG,
      setup.for_sampler(self._state.policy.params),
      version=0,
      slots=ROWS,
      page_tokens=PAGE_TOKENS,
      num_pages=2 + ROWS * (CONTEXT_TOKENS // PAGE_TOKENS + 1),
      max_context_tokens=CONTEXT_TOKENS,
      prefill_tokens=PROMPT_TOKENS,
      prefill_rows=GROUP_SIZE,
    )
    self._engine.warm_up()
    self._compiles = self._engine.stats.compiles

  def step(self) -> dict[str, float]:
    """One step, to its end; returns the seconds of the whole ("step_s") and of its parts."""
    stamps = [time.perf_counter()]
    self.groups, found = generate(self._engine, self._rng)
    stamps.append(time.perf_counter())
    self._learn()
    stamps.append(time.perf_counter())
    found |= self._hand_over()
    stamps.append(time.perf_counter())
    parts = (b - a for a, b in itertools.pairwise(stamps))
    found |= dict(zip(("generate_s", "learn_s", "hand_over_s"), parts, strict=True))
    assert self._engine.stats.compiles == self._compiles, "something compiled after warm-up"
    return {"step_s": stamps[-1] - stamps[0], **found}

  def _learn(self) -> None:
    """Trains on the groups as a run does."""
    with setup.learner_devices(CONFIG):
      self._state, metrics, _ = loop.learn(
        self._state,
        self.groups,
        cfg=CFG,
        learner=CONFIG.learner,
        tx=self._tx,
        objective=self._objective,
      )
    trained = ROWS * CONTEXT_TOKENS
    assert metrics["applied"] == 1 and metrics["trained_tokens"] == trained, metrics

  def _hand_over(self) -> dict[str, float]:
    """Gives the engine the new weights as a run does (`RolloutWorkers.publish`)."""
    policy, start = self._state.policy, time.perf_counter()
    version = int(policy.version)
    store.publish(policy.params, version, self._folder, keep=PUBLISHED_KEPT)
    published = time.perf_counter()
    params = read(CONFIG, self._folder, version)[1]()
    fetched = time.perf_counter()
    self._engine.set_params(params, version)
    return {
      "publish_s": published - start,
      "fetch_s": fetched - published,
      "set_params_s": time.perf_counter() - fetched,
    }


def generate(engine: Engine, rng: np.random.Generator) -> tuple[list[Group], dict[str, float]]:
  """Groups of replies to fresh prompts, and the seconds of both kinds of programs."""
  prompts = rng.integers(3, CFG.vocab_size, (GROUPS, PROMPT_TOKENS)).astype(np.int32)
  group_of = {}
  for number in range(ROWS):
    limits = SamplingLimits(SAMPLED_TOKENS, (), seed=int(rng.integers(2**32)))
    group = number // GROUP_SIZE
    group_of[engine.submit(prompts[group], limits)] = group
  replies: list[list[Generation]] = [[] for _ in range(GROUPS)]
  seconds = {"prefill_s": 0.0, "decode_s": 0.0}
  while engine.num_unfinished:
    rows, start = engine.stats.decoded_rows, time.perf_counter()
    ended = engine.step()
    part = "prefill_s" if engine.stats.decoded_rows == rows else "decode_s"
    seconds[part] += time.perf_counter() - start
    for number, reply in ended:
      assert isinstance(reply, Generation) and len(reply.tokens) == SAMPLED_TOKENS, reply
      replies[group_of[number]].append(reply)
  return [group_of_replies(*each) for each in zip(prompts, replies, strict=True)], seconds


def group_of_replies(prompt: np.ndarray, replies: Sequence[Generation]) -> Group:
  """The group of one prompt; the reward of a reply is its mean token, so that none is constant."""
  task = Task(id="prompt", env="bench", prompt="", facts={})
  trajectories = []
  for reply in replies:
    rewards = {"reward": float(reply.tokens.mean()) / CFG.vocab_size}
    segments = to_segments([Turn(prompt, reply)])
    trajectories.append(Trajectory(task.id, segments, (), rewards, reply.stop, metrics=rewards))
  return Group(task, tuple(trajectories))


def host_seconds(groups: Sequence[Group]) -> dict[str, float]:
  """Seconds of what `loop.learn` does on the host, measured apart: the median of five calls."""
  learner, seconds = CONFIG.learner, []
  for _ in range(5):
    start = time.perf_counter()
    rollouts, _ = advantage.score(groups)
    scored = time.perf_counter()
    packing.pack(
      rollouts,
      row_tokens=learner.row_tokens,
      rows_per_microbatch=learner.rows_per_microbatch,
      share_prefixes=learner.share_prefixes,
    )
    seconds.append((scored - start, time.perf_counter() - scored))
  score_s, pack_s = (statistics.median(column) for column in zip(*seconds, strict=True))
  return {"score_s": score_s, "pack_s": pack_s}


def measure_peer(name: str) -> dict[str, float]:
  """The row that a peer's script prints: "median_s", "first_step_s", "peak_rss_mib" and more."""
  folder, command, untimed = PEER_COMMANDS[name]
  shape = {
    "groups": GROUPS,
    "group-size": GROUP_SIZE,
    "prompt": PROMPT_TOKENS,
    "completion": SAMPLED_TOKENS,
    "steps": REPEATS.value + untimed,
  }
  return peer_lines(name, folder, command, shape)[-1]


def measure(run: Run) -> None:
  """Times half of our steps, the peers, and the other half; prints a line for each."""
  start = time.perf_counter()
  run.step()
  first_step_s = time.perf_counter() - start
  run.step()
  steps, cpu_s, peers = [], [], {}
  for half in range(2):
    for _ in range(REPEATS.value):
      begin = os.times()
      steps.append(run.step())
      end = os.times()
      cpu_s.append(end.user + end.system - begin.user - begin.system)
    median_s = statistics.median(step["step_s"] for step in steps[-REPEATS.value :])
    report(name="jaxrl_agents", half=half, median_s=median_s)
    for name in PEER_COMMANDS if PEERS.value and not half else ():
      peers[name] = measure_peer(name)
      columns = ("median_s", "first_step_s", "peak_rss_mib")
      report(name=name, **{column: peers[name][column] for column in columns})
  medians = {part: statistics.median(step[part] for step in steps) for part in steps[0]}
  median_s = medians.pop("step_s")
  figures = {
    "median_s": median_s,
    "min_s": min(step["step_s"] for step in steps),
    "cpu_s": statistics.median(cpu_s),
    "first_step_s": first_step_s,
    "sampled_tokens_per_s": ROWS * SAMPLED_TOKENS / median_s,
    **medians,
    **host_seconds(run.groups),
    "matmul_gflops": matmul_flops() / 1e9,
  }
  figures |= {f"times_{name}": row["median_s"] / median_s for name, row in peers.items()}
  report(name="jaxrl_agents", **figures)


def main(argv: list[str]) -> None:
  """Prints a JSON line for each half of our steps and each peer, then one with all of ours."""
  check_arguments(argv)
  restart_with()
  setup.cores_as_devices(CONFIG)
  with tempfile.TemporaryDirectory() as folder:
    measure(Run(pathlib.Path(folder)))


if __name__ == "__main__":
  app.run(main)
