"""Composer 2's coding agent: what it brings to a run (see `agents.agent`)."""

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

from jaxrl_agents.agents import agent as agent_lib
from jaxrl_agents.agents import scores as scores_lib
from jaxrl_agents.agents.agent import Agent, Setting, Tasks
from jaxrl_agents.agents.coding import config, env, expert, scripted_edits
from jaxrl_agents.agents.coding import drills as coding_drills
from jaxrl_agents.agents.coding import reward as reward_lib
from jaxrl_agents.agents.coding import services as services_lib
from jaxrl_agents.agents.coding.config import CodingConfig
from jaxrl_agents.agents.coding.judge import runner
from jaxrl_agents.agents.coding.services import CodingServices
from jaxrl_agents.agents.coding.story import STORY
from jaxrl_agents.agents.coding.tasks import damaged_functions, making, task_set
from jaxrl_agents.agents.coding.tasks.task_set import CodingSet
from jaxrl_agents.chat import Chat
from jaxrl_agents.corpus import code_digest, documents
from jaxrl_agents.harness.scripted_player import Scripted
from jaxrl_agents.sandbox.host.sandboxes import Sandboxes
from jaxrl_agents.types import Env, Group, Sampler, Segment, Task

NAMES = {"solved": "solve_rate", "broken_calls": "invalid_tool_calls"}
"""What some of the metrics are called in a summary."""


@dataclasses.dataclass(frozen=True)
class CodingTasks(Tasks):
  """A frozen set, the slice of it that is played, and the folder where it lies."""

  coding_set: CodingSet
  options: CodingConfig
  folder: pathlib.Path

  @functools.cached_property
  def tasks(self) -> Mapping[str, Sequence[Task]]:
    """The tasks of each split that the slice holds."""
    splits = self.coding_set.tasks
    return {split: task_set.chosen(self.coding_set, split, self.options) for split in splits}

  @property
  def digest(self) -> str:
    """Of repositories and tasks, and of the code that drills are made of; the slice is in the
    config.
    """
    versions = _versions(self.options.sources)
    return json.dumps([self.coding_set.manifest["sha256"], versions], sort_keys=True)

  @property
  def shared(self) -> str:
    """The folder of the frozen set."""
    return str(self.folder)


class CodingAgent(Agent):
  """A damaged repository in a sandbox, tools to mend it, tests that judge."""

  name = "coding"
  config = CodingConfig
  reward_sections = ("reward",)
  headline = success = "solved"
  metrics = (
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
  story = STORY

  def check(self, options: CodingConfig, steps: int, stall_s: float) -> None:
    """Raises ValueError where two options contradict one another."""
    config.check(options)

  def tasks(self, setting: Setting, report: Any = print) -> CodingTasks:
    """The set of `coding.tasks`; without one, short functions of `coding.sources`, damaged once and
    kept in the cache.
    """
    options = setting.options
    if options.tasks:
      folder = pathlib.Path(options.tasks).expanduser()
    else:
      folder = _made(setting, report)
    return CodingTasks(task_set.load(folder), options, folder)

  def services(self, chat: Chat, options: CodingConfig, shared: str) -> CodingServices:
    """The repositories of the folder `shared`, sandboxes, judge and indexes."""
    return services_lib.load_services(chat, dataclasses.replace(options, tasks=shared))

  def episode(self, task: Task, services: CodingServices, seed: int, sampler: Sampler) -> Env:
    """An episode that the policy plays."""
    return env.make(task, services)

  def check_player(self, name: str, options: CodingConfig) -> None:
    """Raises ValueError where a tool that the expert uses is not offered."""
    missing = [tool for tool in scripted_edits.USED_TOOLS if tool not in options.tools]
    if missing:
      raise ValueError(
        f"coding.tools lacks {', '.join(missing)}, which demonstrations and drills use; add what "
        "is missing, or set their rates in sft.rates to 0"
      )

  def player(
    self, name: str, task: Task, services: CodingServices, seed: int, chat: Chat
  ) -> Scripted:
    """An episode of the expert, which is hasty as often as the options say."""
    if name != agent_lib.EXPERT:
      return super().player(name, task, services, seed, chat)
    noise = expert.ExpertNoise(hasty=services.limits.hasty)
    return scripted_edits.make_player(
      task, services, expert.CodingExpert(task, services, noise, seed)
    )

  def reward(
    self, options: CodingConfig, parts: Mapping[str, float], progress: float | None = None
  ) -> float:
    """Solved, less what unwanted behaviour and length cost."""
    return reward_lib.coding_total(parts, weights=options.reward)

  def imitated(
    self, setting: Setting, groups: Sequence[Group]
  ) -> tuple[Iterator[Segment], Mapping[str, int]]:
    """All finished episodes: what fails is left for reinforcement learning to unlearn."""
    segments, counts = super().imitated(setting, groups)
    rollouts = [t for group in groups for t in group.trajectories if not t.error]
    return segments, {**counts, "solved": sum(t.rewards["solved"] == 1.0 for t in rollouts)}

  def texts(self, setting: Setting, tasks: CodingTasks) -> Sequence[str]:
    """The files of the repositories."""
    return [text for repo in tasks.coding_set.repos.values() for text in repo.files.values()]

  def drills(self, setting: Setting, tasks: CodingTasks) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Functions of the train split to mend by reading alone, and none that the set holds back.

    Raises:
      ValueError: a tool that they use is not offered.
    """
    options = setting.options
    self.check_player(agent_lib.EXPERT, options)
    held = (task for split in ("dev", "test") for task in tasks.coding_set.tasks[split])
    held_back = [tasks.coding_set.repos[repo] for repo in {task.facts["repo"] for task in held}]
    damaged = damaged_functions.damaged(
      (each for source in options.sources for each in documents.load(source)),
      split="train",
      flips=options.damage == "flip",
      count=setting.sft.reading_drills,
      max_characters=options.max_file_characters,
      seed=setting.seed,
      without=[repo.files[path] for repo in held_back for path in repo.sources],
    )
    return coding_drills.repair_drills(
      damaged, making.FAULTS, options.tools, setting.chat, seed=setting.seed
    )

  def variants(self, options: CodingConfig) -> Mapping[str, CodingConfig]:
    """The same policy in the same context without a strategy for when it is full."""
    if options.context == "none":
      return {}
    return {"no_summary": dataclasses.replace(options, context="none")}

  def entry(self, setting: Setting, groups: Sequence[Group]) -> dict[str, float]:
    """Means over tasks."""
    return {NAMES.get(k, k): value for k, value in super().entry(setting, groups).items()}

  def scores(
    self, setting: Setting, tasks: CodingTasks, groups: Sequence[Group]
  ) -> dict[str, dict[str, Any]]:
    """The policy's scores, overall and by level."""
    levels = sorted({group.task.facts["level"] for group in groups})
    at_level = lambda level: [g for g in groups if g.task.facts["level"] == level]
    return {
      "policy": self.entry(setting, groups),
      "by_level": {str(level): self.entry(setting, at_level(level)) for level in levels},
    }

  def compare(
    self, setting: Setting, tasks: CodingTasks, evaluations: Mapping[str, Sequence[Group]]
  ) -> dict[str, Any]:
    """Gains over the warm start, and over the same policy without summaries.

    Tasks of one repository are damage of the same few functions: their bounds are drawn by
    repository, "repositories" of them.
    """
    gains = functools.partial(
      scores_lib.gains,
      evaluations["trained"],
      metrics=("reward", "solved"),
      cluster=lambda task: task.facts["repo"],
      resamples=setting.resamples,
      seed=setting.seed,
    )
    bootstrap = gains(evaluations["warm_start"])
    for name in self.variants(setting.options):
      bootstrap |= {f"{name}_{key}": value for key, value in gains(evaluations[name]).items()}
    return {
      "eval": {name: self.entry(setting, groups) for name, groups in evaluations.items()},
      "paired_bootstrap": bootstrap,
      "repositories": len({group.task.facts["repo"] for group in evaluations["trained"]}),
    }


AGENT = CodingAgent()


def _made(setting: Setting, report: Any) -> pathlib.Path:
  """The folder of the set that is made where none is named."""
  seed, options = setting.corpus.seed, setting.options
  versions = _versions(options.sources)
  asked = [options.sources, versions, seed, options.damage, options.tasks_per_repo]
  found = hashlib.sha256(json.dumps(asked).encode())
  found.update(platform.python_version().encode())
  found.update(code_digest.of(task_set.__name__, runner.__name__).encode())
  folder = setting.cache / f"coding_{found.hexdigest()[:16]}"

  async def make() -> CodingSet:
    async with Sandboxes() as boxes:
      return await task_set.make(
        boxes,
        options.sources,
        kinds=("calls",),
        damage=options.damage,
        per_repo=options.tasks_per_repo,
        seed=seed,
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
