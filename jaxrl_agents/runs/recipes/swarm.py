"""Kimi K2.5's agent swarm: what it brings to a run (see Recipe)."""

from __future__ import annotations

import collections
import dataclasses
import functools
import math
import pathlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from jaxrl_agents.agents import scores as suites
from jaxrl_agents.agents.swarm import drills as swarm_drills
from jaxrl_agents.agents.swarm import parl
from jaxrl_agents.agents.swarm.expert import SwarmNoise
from jaxrl_agents.agents.swarm.tasks import budgets, making
from jaxrl_agents.config import RunConfig
from jaxrl_agents.harness.worker_process import WorkerSpec
from jaxrl_agents.learner import segment_files
from jaxrl_agents.runs import setup
from jaxrl_agents.runs.corpus import Corpus
from jaxrl_agents.runs.rollout_workers import Stage
from jaxrl_agents.types import Group, Segment, Task, Trajectory

HEADLINE = "performance"

UNHURRIED = 1.25
"""Steps and context of a single agent that has enough, in those that a whole table takes."""

METRICS = (
  "reward",
  "performance",
  "item_f1",
  "row_f1",
  "success",
  "critical_steps",
  "total_steps",
  "parallelism",
  "serial_rate",
  "used_agents",
  "finish_rate",
  "width",
  "assigned",
  "completed",
  "turns",
  "tasks",
  "faults",
  "failed",
)


def open_corpus(config: RunConfig, report: Any = print) -> Corpus:
  """Wide, deep and narrow tasks, and the index that they are searched in."""
  corpus, search, swarm = config.corpus, config.search, config.swarm
  task_set, index = making.prepared(
    corpus.source,
    count_tokens=setup.load_chat(config).count,
    chunk_tokens=corpus.chunk_tokens,
    cache_dir=setup.cache(config),
    budgets=budgets.Budgets(
      share=swarm.budget_share,
      max_calls=search.max_calls,
      grep_limit=search.grep_limit,
      max_assignments=swarm.max_assignments_per_turn,
      token_budget=search.token_budget,
      lookup_tokens=search.tool_output_tokens,
      max_shown=search.max_shown,
      dense_weight=search.dense_weight,
    ),
    dense=corpus.dense,
    seed=corpus.seed,
  )
  return Corpus(task_set, index, search.short_ids)


def policy_spec(config: RunConfig, corpus: Corpus) -> WorkerSpec:
  """Workers in which the policy is the orchestrator."""
  arguments = (config.policy.tokenizer, str(corpus.index.folder), config.search, config.swarm)
  return WorkerSpec("jaxrl_agents.agents.swarm.env:policy_services", arguments)


def expert_spec(config: RunConfig, corpus: Corpus) -> WorkerSpec:
  """Workers in which the scripted orchestrator and its sub-agents play."""
  noise = SwarmNoise(serial=config.sft.serial, alone=config.sft.alone)
  roomy = _unhurried(config)
  arguments = (
    config.policy.tokenizer,
    str(corpus.index.folder),
    config.search,
    config.swarm,
    noise,
    (roomy.search, roomy.swarm),
  )
  return WorkerSpec("jaxrl_agents.agents.swarm.expert:expert_services", arguments)


def imitated(
  config: RunConfig, groups: Sequence[Group]
) -> tuple[Iterator[Segment], Mapping[str, int]]:
  """Both roles of every finished episode."""
  rollouts = [t for group in groups for t in group.trajectories]
  counts = {
    "played": len(rollouts),
    "failed": sum(bool(t.error) for t in rollouts),
    "serial": sum(t.rewards.get("serial_rate", 0.0) == 1.0 for t in rollouts),
  }
  segments = segment_files.both_roles(
    groups, max_children=config.sft.max_children, seed=config.seed
  )
  return segments, counts


def practice(config: RunConfig, corpus: Corpus) -> list[Task]:
  """None."""
  raise ValueError("there is no practice for env=swarm; set its rate in sft.rates to 0")


def texts(config: RunConfig, corpus: Corpus) -> Sequence[str]:
  """Chunks."""
  return corpus.sampled_texts()


def drills(config: RunConfig, corpus: Corpus) -> Iterator[tuple[np.ndarray, np.ndarray]]:
  """What each role copies, with names drawn anew."""
  return swarm_drills.role_drills(
    corpus.sample("train", config.sft.reading_drills, config.seed + 1),
    lambda chunk_id: corpus.index.chunk(chunk_id).text,
    setup.load_chat(config),
    count=config.sft.reading_drills,
    max_rows=config.swarm.max_assignments_per_turn,
    seed=config.seed,
  )


def total(config: RunConfig, trajectory: Trajectory, step: int | None = None) -> float:
  """PARL's reward with the weights of the step; at evaluation r_perf alone."""
  u = 1.0 if step is None else step / max(config.learner.steps, 1)
  return parl.parl_total(trajectory.rewards, u=u, weights=config.parl)


def variants(config: RunConfig) -> Mapping[str, RunConfig]:
  """The same policy without the two tools: within the same critical steps, and unhurried, with the
  steps and the context that an agent needs for a whole table.
  """
  alone = dataclasses.replace(config.swarm, alone=True)
  return {
    "single_agent": dataclasses.replace(config, swarm=alone),
    "single_agent_unhurried": _unhurried(config),
  }


def _unhurried(config: RunConfig) -> RunConfig:
  more = UNHURRIED / config.swarm.budget_share
  turns = math.ceil(more * config.swarm.max_turns)
  context = math.ceil(more * config.search.token_budget)
  return dataclasses.replace(
    config,
    swarm=dataclasses.replace(config.swarm, alone=True, stretch=more, max_turns=turns),
    search=dataclasses.replace(config.search, token_budget=context),
  )


def frozen(config: RunConfig, warm_start: pathlib.Path) -> Mapping[str, Sequence[Stage]]:
  """The policies of the sub-agents: that of the warm-up, or those of `swarm.sub_init`."""
  swarm = config.swarm
  if not swarm.sub_policy or swarm.alone:
    return {}
  folders = swarm.sub_init or ("",)
  ends = (*swarm.sub_until, 1.0)
  stages = (Stage(folder or warm_start, end) for folder, end in zip(folders, ends, strict=True))
  return {swarm.sub_policy: tuple(stages)}


def scores(config: RunConfig, corpus: Corpus, groups: Sequence[Group]) -> dict[str, dict[str, Any]]:
  """The policy's scores, overall and by the kind of task."""
  return {"policy": entry(config, groups), "by_kind": _by_kind(config, groups)}


def compare(
  config: RunConfig, corpus: Corpus, evaluations: Mapping[str, Sequence[Group]]
) -> dict[str, Any]:
  """Gains over the warm start; the swarm beside a single agent, where there is one.

  "critical_steps_ratio": of the single agent that has enough steps to those of the swarm, each the
  mean over the wide and deep tasks that both have; by kind too, and over the tasks on which
  the swarm did no worse, "no_worse" of them.
  """
  after = evaluations["trained"]
  gains = functools.partial(
    suites.gains,
    total=functools.partial(total, config),
    resamples=config.eval.bootstrap_resamples,
    seed=config.seed,
  )
  named = {**evaluations, "swarm": after}
  before = evaluations["warm_start"]
  bootstrap = gains(after, before, metrics=("reward", "critical_steps"))
  found: dict[str, Any] = {
    "eval": {
      name: entry(config, groups) | {"by_kind": _by_kind(config, groups)}
      for name, groups in named.items()
    },
  }
  if "single_agent" in evaluations:
    for name in ("single_agent", "single_agent_unhurried"):
      over = gains(after, evaluations[name], metrics=("performance", "critical_steps"))
      wide = [_of(groups, ("wide",)) for groups in (after, evaluations[name])]
      if all(wide):
        over |= {f"wide_{key}": v for key, v in gains(*wide, metrics=("item_f1",)).items()}
      bootstrap |= {f"{name}_{key}": value for key, value in over.items()}
    found |= _ratios(after, evaluations["single_agent_unhurried"])
  return found | {"paired_bootstrap": bootstrap}


def _of(groups: Sequence[Group], forms: Sequence[str]) -> list[Group]:
  return [group for group in groups if form(group) in forms]


def _ratios(swarm: Sequence[Group], single: Sequence[Group]) -> dict[str, Any]:
  """The ratios of critical steps, as `compare` has them."""
  found: dict[str, Any] = {}
  by_kind = {}
  for forms in (("wide",), ("deep",), ("wide", "deep")):
    ours, theirs = (
      suites.scores(_of(groups, forms), lambda trajectory: 0.0) for groups in (swarm, single)
    )
    steps, others = ours.get("critical_steps", {}), theirs.get("critical_steps", {})
    tasks = sorted(set(steps) & set(others))
    if not tasks:
      continue
    ratio = lambda of, a=others, b=steps: sum(a[t] for t in of) / sum(b[t] for t in of)
    if len(forms) == 1:
      by_kind[forms[0]] = ratio(tasks)
      continue
    well = [t for t in tasks if ours["performance"][t] >= theirs["performance"][t]]
    found |= {"critical_steps_ratio": ratio(tasks), "no_worse": len(well) / len(tasks)}
    if well:
      found["critical_steps_ratio_where_no_worse"] = ratio(well)
  return found | {"critical_steps_ratio_by_kind": by_kind}


def entry(config: RunConfig, groups: Sequence[Group]) -> dict[str, float]:
  """Means over tasks."""
  found = suites.entry(groups, functools.partial(total, config), METRICS)
  walls = [t.metrics["wall_s"] for group in groups for t in group.trajectories if not t.error]
  return found | {"wall_s": sum(walls) / max(len(walls), 1)}


def _by_kind(config: RunConfig, groups: Sequence[Group]) -> dict[str, dict[str, float]]:
  by_kind: dict[str, list[Group]] = collections.defaultdict(list)
  for group in groups:
    by_kind[form(group)].append(group)
  return {kind: entry(config, each) for kind, each in sorted(by_kind.items())}


def form(group: Group) -> str:
  """ "wide", "deep" or "narrow"."""
  return group.task.facts["kind"].partition(" ")[0]
