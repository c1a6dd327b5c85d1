"""Composer 2's coding agent: what it brings to a run (see Recipe)."""

from __future__ import annotations

import asyncio
import dataclasses
import functools
import hashlib
import json
import pathlib
import platform
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from jaxrl_agents.agents import scores as suites
from jaxrl_agents.agents.coding import drills as coding_drills
from jaxrl_agents.agents.coding import reward as coding_rewards
from jaxrl_agents.agents.coding.expert import ExpertNoise
from jaxrl_agents.agents.coding.scripted_edits import USED_TOOLS
from jaxrl_agents.agents.coding.tasks import damaged_functions, making, task_set
from jaxrl_agents.agents.coding.tasks.task_set import CodingSet
from jaxrl_agents.config import CodingConfig, RunConfig
from jaxrl_agents.corpus import documents
from jaxrl_agents.harness.worker_process import WorkerSpec
from jaxrl_agents.runs import setup
from jaxrl_agents.runs.corpus import Tasks
from jaxrl_agents.runs.rollout_workers import Stage
from jaxrl_agents.sandbox.boxes import Sandboxes
from jaxrl_agents.types import Group, Segment, Task, Trajectory

HEADLINE = "solved"

METRICS = (
  "reward",
  "solved",
  "mended",
  "kept",
  "broken_calls",
  "summaries",
  "edits",
  "tool_calls",
  "turns",
  "completed",
  "tampered",
  "suspicious",
  "shell_only",
  "comment_thinking",
  "open_todos",
  "effort",
  "tasks",
  "failed",
)

NAMES = {"solved": "solve_rate", "broken_calls": "invalid_tool_calls"}
"""What some of METRICS are called in a summary."""

_PACKAGE = pathlib.Path(__file__).parents[2]


@dataclasses.dataclass(frozen=True)
class CodingTasks(Tasks):
  """A frozen set, the slice of it that is played, and the folder where it lies."""

  coding_set: CodingSet
  limits: CodingConfig
  folder: pathlib.Path

  @functools.cached_property
  def tasks(self) -> Mapping[str, Sequence[Task]]:
    """The tasks of each split that the slice holds."""
    splits = self.coding_set.tasks
    return {split: task_set.chosen(self.coding_set, split, self.limits) for split in splits}

  @property
  def digest(self) -> str:
    """Of repositories and tasks, and of the code that drills are made of; the slice is in the
    config.
    """
    return json.dumps(
      [self.coding_set.manifest["sha256"], _versions(self.limits.sources)], sort_keys=True
    )


def open_corpus(config: RunConfig, report: Any = print) -> CodingTasks:
  """The set of `coding.tasks`; without one, short functions of `coding.sources`, damaged once and
  kept in the cache.
  """
  coding = config.coding
  folder = pathlib.Path(coding.tasks).expanduser() if coding.tasks else _made(config, report)
  return CodingTasks(task_set.load(folder), coding, folder)


def _made(config: RunConfig, report: Any) -> pathlib.Path:
  """The folder of the set that is made where none is named."""
  corpus, coding = config.corpus, config.coding
  versions = _versions(coding.sources)
  asked = [coding.sources, versions, corpus.seed, coding.damage, coding.tasks_per_repo]
  found = hashlib.sha256(json.dumps(asked).encode())
  found.update(platform.python_version().encode())
  rooms = ("sandbox", "corpus", "agents/coding/tasks", "agents/coding/judge")
  for path in sorted(path for room in rooms for path in (_PACKAGE / room).rglob("*.py")):
    found.update(path.read_bytes())
  folder = setup.cache(config) / f"coding_{found.hexdigest()[:16]}"

  async def make() -> CodingSet:
    async with Sandboxes() as boxes:
      return await task_set.make(
        boxes,
        coding.sources,
        kinds=("calls",),
        damage=coding.damage,
        per_repo=coding.tasks_per_repo,
        seed=corpus.seed,
        report=report,
      )

  if not (folder / "manifest.json").is_file():
    task_set.save(asyncio.run(make()), folder)
  return folder


def _versions(sources: Sequence[str]) -> list[str]:
  """The version of each source, or a hash of its content."""
  return [
    documents.version(source) or documents.content_hash(documents.load(source))
    for source in sources
  ]


def policy_spec(config: RunConfig, corpus: CodingTasks) -> WorkerSpec:
  """Workers in which the policy plays."""
  arguments = (config.policy.tokenizer, _with_tasks(config.coding, corpus))
  return WorkerSpec("jaxrl_agents.agents.coding.env:policy_services", arguments)


def expert_spec(config: RunConfig, corpus: CodingTasks) -> WorkerSpec:
  """Workers in which the scripted expert plays.

  Raises:
    ValueError: a tool that it uses is not offered.
  """
  _check_tools(config.coding)
  noise = ExpertNoise(hasty=config.sft.hasty)
  arguments = (config.policy.tokenizer, _with_tasks(config.coding, corpus), noise)
  return WorkerSpec("jaxrl_agents.agents.coding.expert:expert_services", arguments)


def _check_tools(limits: CodingConfig) -> None:
  missing = [name for name in USED_TOOLS if name not in limits.tools]
  if missing:
    raise ValueError(
      f"coding.tools lacks {', '.join(missing)}, which demonstrations and drills use; add what is "
      "missing, or set their rates in sft.rates to 0"
    )


def _with_tasks(limits: CodingConfig, corpus: CodingTasks) -> CodingConfig:
  return dataclasses.replace(limits, tasks=str(corpus.folder))


def imitated(
  config: RunConfig, groups: Sequence[Group]
) -> tuple[Iterator[Segment], Mapping[str, int]]:
  """All finished episodes: what fails is left for reinforcement learning to unlearn."""
  rollouts = [t for group in groups for t in group.trajectories]
  finished = [t for t in rollouts if not t.error]
  counts = {
    "played": len(rollouts),
    "failed": len(rollouts) - len(finished),
    "solved": sum(t.rewards["solved"] == 1.0 for t in finished),
  }
  return (segment for each in finished for segment in each.segments), counts


def practice(config: RunConfig, corpus: CodingTasks) -> list[Task]:
  """None."""
  raise ValueError("there is no practice for env=coding; set its rate in sft.rates to 0")


def texts(config: RunConfig, corpus: CodingTasks) -> Sequence[str]:
  """The files of the repositories."""
  return [text for repo in corpus.coding_set.repos.values() for text in repo.files.values()]


def drills(config: RunConfig, corpus: CodingTasks) -> Iterator[tuple[np.ndarray, np.ndarray]]:
  """Functions of the train split to mend by reading alone, and none that the set holds back.

  Raises:
    ValueError: a tool that they use is not offered.
  """
  _check_tools(config.coding)
  tasks = (task for split in ("dev", "test") for task in corpus.coding_set.tasks[split])
  held_back = [corpus.coding_set.repos[repo] for repo in {task.facts["repo"] for task in tasks}]
  damaged = damaged_functions.damaged(
    (each for source in config.coding.sources for each in documents.load(source)),
    split="train",
    flips=config.coding.damage == "flip",
    count=config.sft.reading_drills,
    max_characters=config.coding.max_file_characters,
    seed=config.seed,
    without=[repo.files[path] for repo in held_back for path in repo.sources],
  )
  return coding_drills.repair_drills(
    damaged,
    making.FAULTS,
    config.coding.tools,
    setup.load_chat(config),
    seed=config.seed,
  )


def total(config: RunConfig, trajectory: Trajectory, step: int | None = None) -> float:
  """Solved, less what unwanted behaviour and length cost."""
  return coding_rewards.coding_total(trajectory.rewards, weights=config.coding_reward)


def variants(config: RunConfig) -> Mapping[str, RunConfig]:
  """The same policy in the same context without a strategy for when it is full."""
  if config.coding.context == "none":
    return {}
  return {
    "no_summary": dataclasses.replace(
      config, coding=dataclasses.replace(config.coding, context="none")
    )
  }


def frozen(config: RunConfig, warm_start: pathlib.Path) -> Mapping[str, Sequence[Stage]]:
  """None."""
  return {}


def scores(
  config: RunConfig, corpus: CodingTasks, groups: Sequence[Group]
) -> dict[str, dict[str, Any]]:
  """The policy's scores, overall and by level."""
  levels = sorted({group.task.facts["level"] for group in groups})
  at_level = lambda level: [g for g in groups if g.task.facts["level"] == level]
  return {
    "policy": entry(config, groups),
    "by_level": {str(level): entry(config, at_level(level)) for level in levels},
  }


def compare(
  config: RunConfig, corpus: CodingTasks, evaluations: Mapping[str, Sequence[Group]]
) -> dict[str, Any]:
  """Gains over the warm start, and over the same policy without summaries.

  Tasks of one repository are damage of the same few functions: their bounds are drawn by
  repository, "repositories" of them.
  """
  gains = functools.partial(
    suites.gains,
    evaluations["trained"],
    total=functools.partial(total, config),
    metrics=("reward", "solved"),
    cluster=lambda task: task.facts["repo"],
    resamples=config.eval.bootstrap_resamples,
    seed=config.seed,
  )
  bootstrap = gains(evaluations["warm_start"])
  for name in variants(config):
    bootstrap |= {f"{name}_{key}": value for key, value in gains(evaluations[name]).items()}
  return {
    "eval": {name: entry(config, groups) for name, groups in evaluations.items()},
    "paired_bootstrap": bootstrap,
    "repositories": len({group.task.facts["repo"] for group in evaluations["trained"]}),
  }


def entry(config: RunConfig, groups: Sequence[Group]) -> dict[str, float]:
  """Means over tasks."""
  found = suites.entry(groups, functools.partial(total, config), METRICS)
  return {NAMES.get(name, name): value for name, value in found.items()}
