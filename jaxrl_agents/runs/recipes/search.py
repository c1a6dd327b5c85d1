"""Context-1's search agent: what it brings to a run (see Recipe)."""

from __future__ import annotations

import functools
import pathlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from jaxrl_agents.agents import scores as suites
from jaxrl_agents.agents.search import drills as search_drills
from jaxrl_agents.agents.search import imitation_filter, tools
from jaxrl_agents.agents.search import reward as rules
from jaxrl_agents.agents.search.expert import ExpertNoise
from jaxrl_agents.agents.search.tasks import making
from jaxrl_agents.config import RunConfig
from jaxrl_agents.corpus.chunks import Chunk
from jaxrl_agents.corpus.index import hybrid as index_lib
from jaxrl_agents.harness.worker_process import WorkerSpec
from jaxrl_agents.learner.curriculum import phase_value
from jaxrl_agents.runs import setup
from jaxrl_agents.runs.corpus import Corpus
from jaxrl_agents.runs.rollout_workers import Stage
from jaxrl_agents.types import Group, Segment, Task, Trajectory

HEADLINE = "output_recall"

METRICS = (
  "reward",
  "output_recall",
  "trajectory_recall",
  "f1",
  "answer_found",
  "turns",
  "tasks",
  "precision",
  "num_output",
  "tool_calls",
  "prune_accuracy",
  "completed",
  "failed",
)

DRILL_HITS = 4

ONE_SEARCH = "one_shot_hybrid"


def open_corpus(config: RunConfig, report: Any = print) -> Corpus:
  """Tasks of chained clues, and the index that they are searched in."""
  corpus, folder = config.corpus, setup.cache(config)
  task_set = making.prepared(
    corpus.source,
    count_tokens=setup.load_chat(config).count,
    chunk_tokens=corpus.chunk_tokens,
    cache_dir=folder,
    seed=corpus.seed,
    report=report,
  )
  index = index_lib.build(task_set.chunks, folder, dense_leg=corpus.dense)
  return Corpus(task_set, index, config.search.short_ids)


def policy_spec(config: RunConfig, corpus: Corpus) -> WorkerSpec:
  """Workers in which the policy plays."""
  arguments = (config.policy.tokenizer, str(corpus.index.folder), config.search)
  return WorkerSpec("jaxrl_agents.agents.search.env:policy_services", arguments)


def expert_spec(config: RunConfig, corpus: Corpus) -> WorkerSpec:
  """Workers in which the scripted expert plays."""
  noise = ExpertNoise(hasty=config.sft.hasty)
  arguments = (config.policy.tokenizer, str(corpus.index.folder), config.search, noise)
  return WorkerSpec("jaxrl_agents.agents.search.expert:expert_services", arguments)


def imitated(
  config: RunConfig, groups: Sequence[Group]
) -> tuple[Iterator[Segment], Mapping[str, int]]:
  """What Context-1's filter lets through."""
  kept = imitation_filter.keep_for_sft(groups, seed=config.seed)
  return (segment for each in kept.kept for segment in each.segments), kept.counts


def practice(config: RunConfig, corpus: Corpus) -> list[Task]:
  """Tasks of unrelated clues."""
  return corpus.practice(config.sft.practice_tasks, config.seed)


def texts(config: RunConfig, corpus: Corpus) -> Sequence[str]:
  """Chunks."""
  return corpus.sampled_texts()


def drills(config: RunConfig, corpus: Corpus) -> Iterator[tuple[np.ndarray, np.ndarray]]:
  """Quoting the right ids of a result."""
  return search_drills.reading_drills(
    corpus.practice(config.sft.reading_drills, config.seed + 1, search_drills.MAX_CLUES),
    lambda chunk_id: corpus.index.chunk(chunk_id).text,
    functools.partial(_best_chunks, config, corpus),
    setup.load_chat(config),
    seed=config.seed,
  )


def _best_chunks(config: RunConfig, corpus: Corpus, query: str) -> list[Chunk]:
  settings = tools.fusion_of(config.search)
  return [hit.chunk for hit in corpus.index.search(query, limit=DRILL_HITS, settings=settings)]


def total(config: RunConfig, trajectory: Trajectory, step: int | None = None) -> float:
  """Context-1's reward, with the beta of the step; at evaluation with the last one."""
  reward, steps = config.reward, config.learner.steps
  beta = reward.betas[-1] if step is None else phase_value(reward.betas, step, steps)
  return rules.search_total(trajectory.rewards, beta=beta, weights=reward)


def variants(config: RunConfig) -> Mapping[str, RunConfig]:
  """None."""
  return {}


def frozen(config: RunConfig, warm_start: pathlib.Path) -> Mapping[str, Sequence[Stage]]:
  """None."""
  return {}


def scores(config: RunConfig, corpus: Corpus, groups: Sequence[Group]) -> dict[str, dict[str, Any]]:
  """The policy's scores, overall and by level, beside one hybrid search."""
  entry = functools.partial(suites.entry, total=functools.partial(total, config), metrics=METRICS)
  levels = sorted({group.task.facts["level"] for group in groups})
  at_level = lambda level: [g for g in groups if g.task.facts["level"] == level]
  return {
    "policy": entry(groups),
    ONE_SEARCH: entry(one_search(config, corpus, groups)),
    "by_level": {str(level): entry(at_level(level)) for level in levels},
  }


def compare(
  config: RunConfig, corpus: Corpus, evaluations: Mapping[str, Sequence[Group]]
) -> dict[str, Any]:
  """Gains over the warm start, and in output recall over one hybrid search."""
  score = functools.partial(total, config)
  after = evaluations["trained"]
  rival = one_search(config, corpus, after)
  gains = functools.partial(
    suites.gains, after, total=score, resamples=config.eval.bootstrap_resamples, seed=config.seed
  )
  over = gains(rival, metrics=("output_recall",))
  return {
    "eval": {
      name: suites.entry(groups, score, METRICS)
      for name, groups in {**evaluations, ONE_SEARCH: rival}.items()
    },
    "paired_bootstrap": gains(evaluations["warm_start"], metrics=("reward", "output_recall"))
    | {f"one_shot_{name}": value for name, value in over.items()},
  }


def one_search(config: RunConfig, corpus: Corpus, groups: Sequence[Group]) -> list[Group]:
  """What one hybrid search with the whole question finds, at the same number of chunks."""
  return suites.one_shot_hybrid(
    groups,
    corpus.index,
    count_tokens=setup.load_chat(config).count,
    max_documents=config.search.max_documents,
    settings=tools.fusion_of(config.search),
  )
