"""Supervised warm-up: the scripted expert plays, its good episodes are imitated.

tasks -> demonstrations (workers) -> filter -> segments on disk -> seqio mixture -> rows -> updates
"""

from __future__ import annotations

import dataclasses
import functools
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import jax
import numpy as np

from jaxrl_agents.chat import numbers as numbers_lib
from jaxrl_agents.chat.numbers import DocumentNumbers
from jaxrl_agents.config import SFT_SOURCES, RunConfig
from jaxrl_agents.data import demonstrations, filters
from jaxrl_agents.envs import search_drills, search_tools
from jaxrl_agents.harness.process import Job
from jaxrl_agents.harness.workers import WorkerPool
from jaxrl_agents.learner import checkpoint, packing, state, train_step
from jaxrl_agents.policy import lora
from jaxrl_agents.retrieval.chunks import Chunk
from jaxrl_agents.runs import base, processes, setup
from jaxrl_agents.runs.progress import Progress
from jaxrl_agents.runs.workdir import Workdir
from jaxrl_agents.types import Group, Segment, Task

DRILL_TOKENS = 128
DRILL_PERIOD = 48
DRILL_TEXTS = 4_000
DRILL_HITS = 4


def make_sources(config: RunConfig, corpus: setup.Corpus, workdir: Workdir) -> dict[str, float]:
  """Writes the demonstrations that the mixture draws from; returns {source: rate}.

  What an earlier run of the same config wrote is kept.
  """
  sft, chat = config.sft, setup.load_chat(config)
  numbers = numbers_lib.of(chat)
  rates = dict(zip(SFT_SOURCES, sft.rates, strict=True))
  rng = np.random.default_rng(config.seed)
  for name in [name for name, rate in rates.items() if rate > 0]:
    folder = workdir.demonstrations / name
    if (folder / demonstrations.MANIFEST).exists():
      continue
    if name == "demonstrations":
      tasks = corpus.sample("train", sft.demonstration_tasks, config.seed)
      groups = play(config, corpus, tasks, sft.rollouts_per_task, label="demonstrations")
      kept = filters.keep_for_sft(groups, seed=config.seed)
      workdir.merge_summary({"demonstrations": dict(kept.counts)})
      segments: Iterable[Segment] = (s for t in kept.kept for s in t.segments)
    elif name == "practice":
      tasks = corpus.practice(sft.practice_tasks, config.seed)
      groups = play(config, corpus, tasks, 1, label="practice")
      segments = (s for g in groups for t in g.trajectories if not t.error for s in t.segments)
    elif name == "copies":
      segments = demonstrations.copy_segments(
        sft.copy_segments,
        DRILL_TOKENS,
        ids=np.concatenate([chat.encode(text) for text in corpus.sampled_texts(DRILL_TEXTS)]),
        max_period=DRILL_PERIOD,
        seed=config.seed,
      )
    else:
      pairs = search_drills.reading_drills(
        corpus.practice(sft.reading_drills, config.seed + 1, search_drills.MAX_CLUES),
        lambda chunk_id: corpus.index.chunk(chunk_id).text,
        functools.partial(_best_chunks, config, corpus),
        chat,
        seed=config.seed,
      )
      segments = (_imitated(prompt, reply) for prompt, reply in pairs)
    if not config.search.short_ids:  # those are drawn anew for each task
      segments = (renumbered(s, numbers, rng) for s in segments)
    demonstrations.write_segments(folder, segments)
  return {name: rate for name, rate in rates.items() if rate > 0}


def play(
  config: RunConfig, corpus: setup.Corpus, tasks: list[Task], rollouts: int, *, label: str
) -> list[Group]:
  """The scripted expert's episodes of `tasks`, played by workers, in the order of tasks."""
  groups: dict[str, Group] = {}
  sampling = setup.sampling(config, config.seed)
  with (
    WorkerPool(
      setup.expert_spec(config, corpus),
      config.workers.processes,
      stall_s=config.workers.stall_s,
    ) as pool,
    Progress(label, len(tasks)) as progress,
  ):
    for i, task in enumerate(tasks):
      pool.submit(Job(f"{label} {i}", task, rollouts, sampling))
    while len(groups) < len(tasks):
      for _, message in pool.poll(timeout_s=config.workers.stall_s):
        if message[0] == "group":
          groups[message[1].trajectories[0].group_id] = message[1]
          progress.advance(recall=_recall(groups.values()))
        elif message[0] == "died":
          for job in message[2]:
            pool.submit(job)
        elif message[0] == "error":
          raise RuntimeError(f"a worker failed: {message[1]}")
  return [groups[f"{label} {i}"] for i in range(len(tasks))]


def renumbered(segment: Segment, numbers: DocumentNumbers, rng: np.random.Generator) -> Segment:
  """The segment with the numbers of its documents and chunks drawn anew, consistently.

  They mean nothing; a policy must quote the ones it was shown, not remember them.
  """
  tokens = segment.tokens.copy()
  for places, ids in (
    (numbers.document_places(tokens), numbers.number_ids),
    (numbers.chunk_places(tokens), numbers.chunk_ids),
  ):
    fresh = ids[rng.permutation(len(ids))]
    tokens[places] = fresh[np.searchsorted(ids, tokens[places])]
  return dataclasses.replace(segment, tokens=tokens)


def train(config: RunConfig, corpus: setup.Corpus, workdir: Workdir) -> dict[str, Any]:
  """Trains on the mixture, leaves the policy in `warm_start`; resumes where an earlier run
  stopped, whatever its mesh was. To be called within `setup.devices`, by every process.
  """
  cfg, sft = config.policy.model, config.sft
  # Importing seqio takes ten seconds; meanwhile the expert plays.
  threading.Thread(target=_seqio_tasks, daemon=True).start()
  with processes.first_alone("demonstrations"):
    rates = make_sources(config, corpus, workdir)
  tx = setup.make_optimizer(
    config,
    sft,
    schedule=sft.schedule,
    total_steps=sft.steps if sft.schedule == "cosine" else 0,
    final_fraction=0.1 if sft.schedule == "cosine" else 0.0,
  )
  objective = train_step.Objective(
    "sft",
    mtp_weight=sft.mtp_weight if cfg.mtp_depth else 0.0,
    balance_rate=sft.balance_rate,
    remat=config.learner.remat,
    attention_peaks=sft.qk_clip > 0,
  )
  params = setup.with_adapters(config, setup.initial_params(config))
  current = setup.fresh_state(config, params, tx)
  manager = checkpoint.open_manager(workdir.checkpoints / "sft", keep=1)
  first, current, _ = setup.restored(manager, current)
  log = logger(workdir, "sft", first)
  rows = batches(config, workdir, rates, first)
  with Progress("warm-up", sft.steps, first) as progress:
    for step in range(first, sft.steps):
      began = time.monotonic()
      current, metrics = train_step.update(current, next(rows), cfg, objective, tx)
      tokens = sft.rows_per_step * config.learner.row_tokens
      metrics["learner_tokens_per_s"] = tokens / (time.monotonic() - began)
      log(step, metrics)
      progress.advance(loss=metrics["loss"], tokens_per_s=metrics["learner_tokens_per_s"])
      if (step + 1) % sft.save_every == 0 or step + 1 == sft.steps:
        checkpoint.save(manager, step + 1, current, {"step": step + 1})
  manager.close()
  params = distilled(config, workdir, lora.merged(current.policy.params), rows)
  params = processes.gathered(params)
  if processes.is_first():
    base.save(params, cfg, workdir.warm_start, tokenizer=config.policy.tokenizer)
  return params


def logger(workdir: Workdir, phase: str, first: int) -> Callable[[int, dict[str, float]], None]:
  """(step, metrics) -> None: appends to the metrics of the run, from step `first` on."""
  if not processes.is_first():
    return lambda step, metrics: None
  workdir.drop_metrics_from(phase, first)
  return lambda step, metrics: workdir.log(phase, step, metrics)


def distilled(
  config: RunConfig, workdir: Workdir, params: dict[str, Any], rows: Iterator[list[packing.Batch]]
) -> dict[str, Any]:
  """`params` after `sft.mtp_steps` of distilling the draft module from the policy's own head."""
  cfg, sft = config.policy.model, config.sft
  if not sft.mtp_steps:
    return params
  dtype = config.policy.dtype
  tx = state.make_optimizer(cfg, learning_rate=sft.lr, warmup_steps=5, trained="mtp", dtype=dtype)
  current = setup.fresh_state(config, params, tx)
  log = logger(workdir, "mtp", 0)
  with Progress("draft module", sft.mtp_steps) as progress:
    for step in range(sft.mtp_steps):
      objective = train_step.Objective("mtp", remat=config.learner.remat)
      current, metrics = train_step.update(current, next(rows), cfg, objective, tx)
      log(step, metrics)
      progress.advance(acceptance=metrics["mtp_acceptance"])
  return current.policy.params


def batches(
  config: RunConfig, workdir: Workdir, rates: dict[str, float], first: int
) -> Iterator[list[packing.Batch]]:
  """Microbatches of each step from `first` on: drills leave the mixture after `copy_phase`."""
  seqio_tasks = _seqio_tasks()
  sft, learner = config.sft, config.learner
  switch = int(sft.copy_phase * sft.steps) if "copies" in rates else 0
  later = {name: rate for name, rate in rates.items() if name != "copies"} or rates
  phases = [(rates, 0, switch), (later, switch, sft.steps + sft.mtp_steps)]
  for number, (mixture, start, stop) in enumerate(phases):
    if first >= stop or start == stop:
      continue
    sources = {
      name: seqio_tasks.Source(str(workdir.demonstrations / name), rate)
      for name, rate in mixture.items()
    }
    packed = seqio_tasks.packed_batches(
      sources,
      rows=sft.rows_per_step,
      row_tokens=learner.row_tokens,
      seed=config.seed + number,
      skip_batches=max(first - start, 0),
    )
    for _ in range(max(first, start), stop):
      yield microbatches(next(packed), learner.rows_per_microbatch)


def microbatches(rows: dict[str, np.ndarray], rows_per_microbatch: int) -> list[packing.Batch]:
  """One packed batch as microbatches whose token weights add up to 1."""
  mask = rows["loss_mask"]
  zeros = np.zeros(mask.shape, np.float32)
  whole = packing.Batch(
    tokens=rows["tokens"],
    targets=rows["targets"],
    positions=rows["positions"],
    segment_ids=rows["segment_ids"],
    loss_mask=mask,
    behaviour_logprobs=zeros,
    advantages=mask.astype(np.float32),
    weights=(mask / max(mask.sum(), 1)).astype(np.float32),
    rollout_ids=np.zeros(mask.shape, np.int32),
  )
  cut = lambda start: jax.tree.map(lambda x: x[start : start + rows_per_microbatch], whole)
  return [cut(start) for start in range(0, len(mask), rows_per_microbatch)]


def _seqio_tasks():
  from jaxrl_agents.data import seqio_tasks  # ten seconds and a gigabyte: only here

  return seqio_tasks


def _best_chunks(config: RunConfig, corpus: setup.Corpus, query: str) -> list[Chunk]:
  settings = search_tools.fusion_of(config.search)
  return [hit.chunk for hit in corpus.index.search(query, limit=DRILL_HITS, settings=settings)]


def _imitated(prompt: np.ndarray, reply: np.ndarray) -> Segment:
  tokens = np.concatenate([prompt, reply])
  return demonstrations.to_imitate(tokens, np.arange(len(tokens)) >= len(prompt))


def _recall(groups: Iterable[Group]) -> float:
  values = [t.rewards["output_recall"] for g in groups for t in g.trajectories if not t.error]
  return float(np.mean(values)) if values else 0.0
