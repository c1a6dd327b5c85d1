r"""What it costs to publish weights as differences: bytes, and the pause of a sampler.

    python scripts/bench_publish.py --json=FILE
    python scripts/bench_publish.py --json=FILE --lr=1e-5

The work: a mixture of experts (by default 6 layers, width 512, 8 experts of width 512: 50.9 million
parameters) in bfloat16, with a float32 master in the optimizer, is trained by CISPO and AdamW in a
thread on the replies that an engine samples with it all the while. After each step the weights are
published with `publish.kind=delta`, fetched by a receiver as the engine goes on, and swapped in
between two of its steps, while the learner, which would have devices of its own, waits. Rewards are
a cheap function of the tokens. The first steps of Adam, which change the most, are left out
(--warmup). Figures are means over the others:

  bytes_share     stored bytes of differences over the bytes of the weights
  over_entropy    stored bytes over the entropy of the differences, of each tensor apart
  pause_share     time in which the engine waits for new weights, of all time
  pause_s         of a publication; pause_full_s: with `publish.kind=full` (set_params, at the end)
  publish_s       until a version is durable; stage_s: from there until it can be swapped in
  memcpy_s        copying the bytes of the weights in memory once, to compare with
"""

from __future__ import annotations

import json
import pathlib
import queue
import tempfile
import threading
import time
from collections.abc import Callable, Iterator

import jax
import numpy as np
import scipy.stats
from absl import app, flags

from jaxrl_agents.config import (
  LearnerConfig,
  PolicySection,
  PublishConfig,
  RunConfig,
  SamplerConfig,
)
from jaxrl_agents.harness.segments import Turn, to_segments
from jaxrl_agents.learner import loop
from jaxrl_agents.policy import params as params_lib
from jaxrl_agents.policy.config import PolicyConfig
from jaxrl_agents.runs import published_weights, rl, setup
from jaxrl_agents.sampler.engine import Engine
from jaxrl_agents.types import Generation, Group, SamplingLimits, Task, Trajectory
from jaxrl_agents.weights import boxes, delta_files, manifest, ordered_bits, store

_JSON = flags.DEFINE_string("json", None, "file to write")
_LR = flags.DEFINE_float("lr", 1e-6, "learning rate")
_STEPS = flags.DEFINE_integer("steps", 6, "publications that are measured", lower_bound=1)
_WARMUP = flags.DEFINE_integer("warmup", 4, "publications before them", lower_bound=1)
_WIDTH = flags.DEFINE_integer("width", 512, "of the policy and of its experts, a multiple of 64")
_LAYERS = flags.DEFINE_integer("layers", 6, "of the policy", lower_bound=1)

GROUPS, GROUP_SIZE = 4, 4
PROMPT_TOKENS = SAMPLED_TOKENS = 64
CONTEXT_TOKENS = PROMPT_TOKENS + SAMPLED_TOKENS
TIMEOUT_S = 600.0


def configured() -> RunConfig:
  """The config of the work."""
  width = _WIDTH.value
  model = PolicyConfig(
    vocab_size=8_192,
    embed_dim=width,
    num_layers=_LAYERS.value,
    num_heads=width // 64,
    num_kv_heads=max(width // 128, 1),
    head_dim=64,
    num_experts=8,
    experts_per_token=2,
    expert_ffw_dim=width,
  )
  return RunConfig(
    name="bench",
    policy=PolicySection(model=model, dtype="bfloat16"),
    sampler=SamplerConfig(slots=GROUPS * GROUP_SIZE, page_tokens=16),
    publish=PublishConfig(kind="delta", anchor_every=_STEPS.value + _WARMUP.value + 1),
    learner=LearnerConfig(
      loss="cispo",
      groups_per_step=GROUPS,
      group_size=GROUP_SIZE,
      substeps=1,
      lr=_LR.value,
      row_tokens=CONTEXT_TOKENS,
      rows_per_microbatch=GROUPS * GROUP_SIZE,
    ),
  )


class Sampling:
  """An engine that samples batch after batch, and swaps weights between two of its steps.

  Args:
    config: of the work.
    engine: its requests are of this object alone.
  """

  def __init__(self, config: RunConfig, engine: Engine):
    self._vocab, self._engine = config.policy.model.vocab_size, engine
    self._rng = np.random.default_rng(0)
    self.batches: queue.Queue[list[Group]] = queue.Queue(1)
    self.swaps: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
    self.swapped: queue.SimpleQueue[bool] = queue.SimpleQueue()
    self.pauses: list[float] = []
    self.swapped_at: list[float] = []

  def go_on(self, publications: int, failed: Callable[[], None]) -> None:
    """Samples until so many versions were swapped in; `failed` raises what went wrong elsewhere."""
    deadline = time.monotonic() + TIMEOUT_S
    for batch in self._batches():
      while True:
        failed()
        self._swap()
        if len(self.pauses) == publications:
          return
        if time.monotonic() > deadline:
          raise TimeoutError(f"{len(self.pauses)} publications in {TIMEOUT_S:g} s; raise TIMEOUT_S")
        try:
          self.batches.put(batch, timeout=0.01)
          break
        except queue.Full:
          pass

  def _batches(self) -> Iterator[list[Group]]:
    while True:
      prompts = self._rng.integers(3, self._vocab, (GROUPS, PROMPT_TOKENS)).astype(np.int32)
      requests = {}
      for i in range(GROUPS * GROUP_SIZE):
        limits = SamplingLimits(SAMPLED_TOKENS, (), seed=int(self._rng.integers(2**32)))
        requests[self._engine.submit(prompts[i // GROUP_SIZE], limits)] = i // GROUP_SIZE
      replies: list[list[Generation]] = [[] for _ in range(GROUPS)]
      while self._engine.num_unfinished:
        self._swap()
        for request, reply in self._engine.step():
          assert isinstance(reply, Generation), reply
          replies[requests[request]].append(reply)
      yield [self._group(*each) for each in zip(prompts, replies, strict=True)]

  def _group(self, prompt: np.ndarray, replies: list[Generation]) -> Group:
    """The reward of a reply is its mean token, so that none is constant."""
    task, trajectories = Task(id="prompt", env="bench", prompt="", facts={}), []
    for reply in replies:
      rewards = {"reward": float(reply.tokens.mean()) / self._vocab}
      segments = to_segments([Turn(prompt, reply)])
      trajectories.append(Trajectory(task.id, segments, (), rewards, reply.stop, metrics=rewards))
    return Group(task, tuple(trajectories))

  def _swap(self) -> None:
    while not self.swaps.empty():
      start = time.perf_counter()
      self.swaps.get()()
      jax.block_until_ready(self._engine.params)
      self.pauses.append(time.perf_counter() - start)
      self.swapped_at.append(time.perf_counter())
      self.swapped.put(True)


def measured(config: RunConfig, folder: pathlib.Path) -> dict[str, float]:
  """The figures of the work."""
  cfg, tx, objective = config.policy.model, rl.optimizer(config), rl.objective(config)
  params = params_lib.init(cfg, jax.random.key(0), config.policy.dtype)
  state = setup.fresh_state(config, params, tx)
  engine = Engine(
    cfg,
    state.policy.params,
    version=0,
    slots=config.sampler.slots,
    page_tokens=config.sampler.page_tokens,
    num_pages=2 + GROUPS * GROUP_SIZE * (CONTEXT_TOKENS // config.sampler.page_tokens + 1),
    max_context_tokens=CONTEXT_TOKENS,
    prefill_tokens=PROMPT_TOKENS,
    dtype=config.policy.dtype,
  )
  engine.warm_up()
  sampling = Sampling(config, engine)
  loader = published_weights.Loader(config, folder, engine)
  loader.warm_up()
  publications = _STEPS.value + _WARMUP.value
  seconds: dict[str, list[float]] = {"publish_s": [], "stage_s": []}
  errors: list[BaseException] = []

  def learn() -> None:
    nonlocal state
    try:
      with published_weights.publishing(config, folder) as publishing:
        publishing.restart(state.policy.params, 0)
        for _ in range(publications):
          groups = sampling.batches.get(timeout=TIMEOUT_S)
          state, _, _ = loop.learn(
            state,
            groups,
            cfg=cfg,
            learner=config.learner,
            tx=tx,
            objective=objective,
            published=lambda version: None,  # replies of older versions are not compared
          )
          jax.block_until_ready(state.policy.params)
          start, version = time.perf_counter(), int(state.policy.version)
          publishing.publish(state.policy.params, version)
          durable = time.perf_counter()
          swap = loader.prepare(version)
          seconds["publish_s"].append(durable - start)
          seconds["stage_s"].append(time.perf_counter() - durable)
          sampling.swaps.put(swap)
          sampling.swapped.get(timeout=TIMEOUT_S)
    except BaseException as error:
      errors.append(error)

  def failed() -> None:
    if errors:
      raise errors[0]

  learner = threading.Thread(target=learn, name="learner", daemon=True)
  learner.start()
  sampling.go_on(publications, failed)
  learner.join(TIMEOUT_S)
  failed()
  # From the swap before the first that counts to the last.
  wall_s = sampling.swapped_at[-1] - sampling.swapped_at[_WARMUP.value - 1]
  means = {name: float(np.mean(each[_WARMUP.value :])) for name, each in seconds.items()}
  paused = sampling.pauses[_WARMUP.value :]
  start = time.perf_counter()
  engine.set_params(state.policy.params, int(state.policy.version))
  jax.block_until_ready(engine.params)
  return {
    "pause_share": sum(paused) / wall_s,
    "pause_s": float(np.mean(paused)),
    "pause_full_s": time.perf_counter() - start,
    "step_s": wall_s / len(paused),
    **means,
    **sizes(state.policy.params, folder),
  }


def sizes(params: dict, folder: pathlib.Path) -> dict[str, float]:
  """Bytes of the differences in a folder, against those of the parameters and the entropy."""
  place = manifest.differences(folder)
  stored = bound = changed = 0.0
  versions = manifest.versions(place)[_WARMUP.value :]
  for version in versions:
    read = delta_files.Differences(place, manifest.read(place, version))
    for name, leaf in store.flatten(params):
      plane = np.zeros(leaf.shape, ordered_bits.bits_of(leaf.dtype))
      read.add(name, boxes.of([0] * leaf.ndim, leaf.shape), plane)
      bound += entropy_bits(plane.reshape(-1)) / 8
      changed += np.count_nonzero(plane)
    stored += manifest.stored_bytes(folder, version) + manifest.path(place, version).stat().st_size
  weights = [np.asarray(leaf) for leaf in jax.tree.leaves(params)]
  copies = [np.empty_like(each) for each in weights]
  start = time.perf_counter()
  for each, copy in zip(weights, copies, strict=True):
    np.copyto(copy, each)
  memcpy_s = time.perf_counter() - start
  total = sum(each.nbytes for each in weights)
  return {
    "parameters": sum(each.size for each in weights),
    "changed_share": changed / len(versions) / sum(each.size for each in weights),
    "bytes_share": stored / len(versions) / total,
    "over_entropy": stored / bound,
    "memcpy_s": memcpy_s,
  }


def entropy_bits(differences: np.ndarray) -> float:
  """N times the entropy of the values of uint [N]: the least that independent values take."""
  counts = np.unique(differences, return_counts=True)[1]
  return float(differences.size * scipy.stats.entropy(counts, base=2))


def main(argv: list[str]) -> None:
  """Prints the figures."""
  if len(argv) > 1:
    raise app.UsageError(f"unknown arguments {argv[1:]}")
  with tempfile.TemporaryDirectory() as folder:
    figures = {"lr": _LR.value} | measured(configured(), pathlib.Path(folder))
  for name, value in figures.items():
    print(f"{name:14} {value:.6g}")
  if _JSON.value:
    pathlib.Path(_JSON.value).write_text(json.dumps(figures, indent=2) + "\n")


if __name__ == "__main__":
  app.run(main)
