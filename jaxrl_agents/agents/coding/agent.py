"""The coding agent of Composer 2, described to a run (see `agents.agent`)."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import functools
import hashlib
import itertools
import json
import pathlib
import platform
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from jaxrl_agents.agents import agent as agent_lib
from jaxrl_agents.agents import scores as scores_lib
from jaxrl_agents.agents.agent import Agent, Setting, Tasks
from jaxrl_agents.agents.coding import baselines, config, env, expert, scripted_edits, tools
from jaxrl_agents.agents.coding import drills as coding_drills
from jaxrl_agents.agents.coding import reward as reward_lib
from jaxrl_agents.agents.coding import rubrics as coding_rubrics
from jaxrl_agents.agents.coding import services as services_lib
from jaxrl_agents.agents.coding.config import CodingConfig
from jaxrl_agents.agents.coding.judge.inside import calls, tested
from jaxrl_agents.agents.coding.services import CodingServices
from jaxrl_agents.agents.coding.story import STORY
from jaxrl_agents.agents.coding.tasks import damaged_functions, make_tasks, task_set
from jaxrl_agents.agents.coding.tasks.task_set import CodingSet
from jaxrl_agents.agents.rubric import Rubric
from jaxrl_agents.chat import Chat
from jaxrl_agents.corpus import code_digest, documents
from jaxrl_agents.harness.rollout import SelfDriven
from jaxrl_agents.harness.scripted_player import Scripted
from jaxrl_agents.harness.tools import Tool
from jaxrl_agents.sandbox.errors import NoSandbox
from jaxrl_agents.sandbox.host import packages as packages_lib
from jaxrl_agents.sandbox.host.runtime import Runtime
from jaxrl_agents.sandbox.host.sandboxes import Sandboxes
from jaxrl_agents.types import Env, Group, Sampler, Segment, Task

NAMES = {"solved": "solve_rate", "broken_calls": "invalid_tool_calls"}
"""Metrics that a summary shows under another name."""


@dataclasses.dataclass(frozen=True)
class CodingTasks(Tasks):
  """A frozen set of tasks, the options that choose a slice of it, and its folder."""

  coding_set: CodingSet
  options: CodingConfig
  folder: pathlib.Path

  @functools.cached_property
  def tasks(self) -> Mapping[str, Sequence[Task]]:
    """The tasks of each split that the options choose."""
    splits = self.coding_set.tasks
    return {split: task_set.chosen(self.coding_set, split, self.options) for split in splits}

  @property
  def digest(self) -> str:
    """A digest of the repositories, the tasks and the code that makes drills of them. The options
    that choose the slice are not in it; they are in the config.
    """
    versions = _versions((*self.options.sources, *self.options.drill_sources))
    return json.dumps([self.coding_set.manifest["sha256"], versions], sort_keys=True)

  @property
  def shared(self) -> str:
    """The folder of the frozen set."""
    return str(self.folder)


class CodingAgent(Agent):
  """The agent repairs a damaged repository with tools in a sandbox; hidden tests judge it."""

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
    "test_runs",
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

  def rubrics(self, options: CodingConfig) -> Sequence[Rubric]:
    """Code review, instructions, intent; whether one would merge it is held out."""
    return coding_rubrics.RUBRICS

  def check(self, options: CodingConfig, steps: int, stall_s: float) -> None:
    """Raises ValueError where two options contradict each other."""
    config.check(options)

  def max_turn_s(self, options: CodingConfig, stall_s: float) -> float:
    """A turn may last as long as its calls, and the last one as long as judging and its control."""
    calls_s = options.max_calls * (options.command_s + tools.MARGIN_S)
    return stall_s + max(calls_s, 2 * options.grade_s)

  def own_tools(self, options: CodingConfig) -> Sequence[str]:
    """The tools of the option `tools`."""
    return options.tools

  def sandboxes(self, options: CodingConfig, packages: Sequence[str]) -> Sandboxes:
    """Sandboxes as those of its episodes.

    Raises:
      ValueError: they have no walls, a package is not installed, or tasks were made of it.
    """
    if options.backend == "unsafe-local":
      raise ValueError("coding.backend=unsafe-local has no sandbox; choose another one")
    try:
      shown = packages_lib.required(packages)
    except NoSandbox as error:
      raise ValueError(str(error)) from error
    for source in (*options.sources, *options.drill_sources):
      if packages_lib.plain(source.removeprefix("package:")) in shown:
        raise ValueError(
          f"the sandboxes would show the package of {source}, of which tasks are made; name other "
          "packages, or another source"
        )
    return Sandboxes(options.backend, runtime=Runtime(packages=tuple(packages)))

  @contextlib.asynccontextmanager
  async def tools_to_serve(
    self, task: Task | None, services: CodingServices
  ) -> AsyncIterator[Mapping[str, Tool]]:
    """The tools of an episode of a task, which work on its damaged repository in a sandbox."""
    if task is None:
      raise ValueError("the coding tools work on the repository of a task; name one by --task")
    episode = env.make(task, services)
    try:
      await episode.start()
      yield episode.tools
    finally:
      await episode.close()
      await services.workshop.close()

  def tasks(self, setting: Setting, report: Any = print) -> CodingTasks:
    """Loads the set in `coding.tasks`. If none is named, makes one of the short functions of
    `coding.sources` and keeps it in the cache.
    """
    options = setting.options
    if options.tasks:
      folder = pathlib.Path(options.tasks).expanduser()
    else:
      folder = _made(setting, report)
    return CodingTasks(task_set.load(folder), options, folder)

  def services(self, chat: Chat, options: CodingConfig, shared: str) -> CodingServices:
    """Loads the repositories of the folder `shared`, and prepares sandboxes, judge and indexes."""
    return services_lib.load_services(chat, dataclasses.replace(options, tasks=shared))

  def episode(self, task: Task, services: CodingServices, seed: int, sampler: Sampler) -> Env:
    """An episode for the policy."""
    return env.make(task, services)

  def has_player(self, name: str, options: CodingConfig) -> bool:
    """The demonstrator, and those of `coding.baselines`."""
    return name == agent_lib.DEMONSTRATOR or baselines.is_player(name, options.max_edits)

  def check_player(self, name: str, options: CodingConfig) -> None:
    """Also raises ValueError where the options do not offer a tool that the player uses."""
    super().check_player(name, options)
    used = () if name == baselines.DO_NOTHING else scripted_edits.used_tools(options)
    missing = [tool for tool in used if tool not in options.tools]
    if missing:
      other = ", or set the rates of demonstrations and drills in sft.rates to 0"
      raise ValueError(
        f"coding.tools lacks {', '.join(missing)}, which the scripted player {name!r} uses; add "
        f"what is missing{other if name == agent_lib.DEMONSTRATOR else ''}"
      )

  def player(
    self, name: str, task: Task, services: CodingServices, seed: int, chat: Chat
  ) -> Scripted | SelfDriven:
    """An episode of the demonstrator, which is hasty with probability `coding.hasty`, or of one of
    `coding.baselines`.
    """
    if name == agent_lib.DEMONSTRATOR:
      noise = expert.ExpertNoise(hasty=services.limits.hasty)
      played = expert.CodingExpert(task, services, noise, seed)
      return scripted_edits.make_player(task, services, played)
    found = baselines.player(name, task, services, seed)
    return found or super().player(name, task, services, seed, chat)

  def baselines(self, options: Any) -> Sequence[str]:
    """The expert without mistakes, blind enumeration, and a player that does nothing; where test
    runs are counted, also one that reads the failing example.
    """
    reads = bool(options.test_runs) and options.damage in baselines.READ_DAMAGE
    return (*baselines.BASELINES, *[baselines.READER] * reads)

  def reward(
    self, options: CodingConfig, parts: Mapping[str, float], progress: float | None = None
  ) -> float:
    """The reward for solving, minus the costs of unwanted behaviour and of length."""
    return reward_lib.coding_total(parts, weights=options.reward)

  def imitated(
    self, setting: Setting, groups: Sequence[Group]
  ) -> tuple[Iterator[Segment], Mapping[str, int]]:
    """Yields the segments of all finished episodes. Failed ones are included; reinforcement
    learning has to unlearn what made them fail.
    """
    segments, counts = super().imitated(setting, groups)
    rollouts = [t for group in groups for t in group.trajectories if not t.error]
    return segments, {**counts, "solved": sum(t.rewards["solved"] == 1.0 for t in rollouts)}

  def texts(self, setting: Setting, tasks: CodingTasks) -> Sequence[str]:
    """The text of all files of the repositories."""
    return [text for repo in tasks.coding_set.repos.values() for text in repo.files.values()]

  def drills(self, setting: Setting, tasks: CodingTasks) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Code to be continued, and repairs, of functions of the train split of their sources, without
    those that the set holds back.

    Raises:
      ValueError: the options do not offer a tool that the drills use.
    """
    options, seed = setting.options, setting.seed
    self.check_player(agent_lib.DEMONSTRATOR, options)
    unseen = tuple(tasks.coding_set.tasks) if options.drill_sources else ("dev", "test")
    held = (task for split in unseen for task in tasks.coding_set.tasks[split])
    held_back = [tasks.coding_set.repos[repo] for repo in {task.facts["repo"] for task in held}]
    functions = damaged_functions.short_functions(
      (each for s in options.drill_sources or options.sources for each in documents.load(s)),
      split="train",
      flips=options.damage in ("flip", "mixed"),
      lines=options.damage == "mixed",
      without=[repo.files[path] for repo in held_back for path in repo.sources],
    )
    texts = round(options.drill_texts * setting.sft.drills)
    pieces = coding_drills.text_drills(functions, setting.chat, count=texts, seed=seed)
    damaged = damaged_functions.damaged(
      functions,
      count=setting.sft.drills - texts,
      max_characters=options.max_file_characters,
      named=options.max_files > 1,
      each=options.drill_each,
      seed=seed,
    )
    repairs = coding_drills.repair_drills(
      damaged, make_tasks.FAULTS, options, setting.chat, seed=seed
    )
    return itertools.chain(
      ((tokens, np.arange(len(tokens)) > 0) for tokens in pieces),
      (agent_lib.reply_alone(prompt, reply) for prompt, reply in repairs),
    )

  def variants(self, options: CodingConfig) -> Mapping[str, CodingConfig]:
    """The same policy in the same context, without a strategy for a full context."""
    if options.context == "none":
      return {}
    return {"no_summary": dataclasses.replace(options, context="none")}

  def cluster(self, task: Task) -> str:
    """Its repository: tasks of one repository damage the same few functions."""
    return task.facts["repo"]

  def entry(self, setting: Setting, groups: Sequence[Group]) -> dict[str, float]:
    """As in `Agent.entry`, under this agent's names."""
    return {NAMES.get(k, k): value for k, value in super().entry(setting, groups).items()}

  def scores(
    self, setting: Setting, tasks: CodingTasks, groups: Sequence[Group]
  ) -> dict[str, dict[str, Any]]:
    """The policy's scores, over all tasks, by level, and by damage: the first word of its kind."""
    damages = sorted({_damage(group.task) for group in groups})
    of_damage = lambda damage: [g for g in groups if _damage(g.task) == damage]
    levels = sorted({group.task.facts["level"] for group in groups})
    at_level = lambda level: [g for g in groups if g.task.facts["level"] == level]
    return {
      "policy": self.entry(setting, groups),
      "by_level": {str(level): self.entry(setting, at_level(level)) for level in levels},
      "by_damage": {damage: self.entry(setting, of_damage(damage)) for damage in damages},
    }

  def compare(
    self, setting: Setting, tasks: CodingTasks, evaluations: Mapping[str, Sequence[Group]]
  ) -> dict[str, Any]:
    """Gains over the warm start, over the same policy without summaries, and in reward over each
    other evaluation. "enumeration" is cut at the number of edits that the policy makes on average,
    rounded up.

    The bootstrap resamples whole repositories; "repositories" is their number.
    """
    cut = baselines.at_equal_edits(evaluations[baselines.ENUMERATION], evaluations["trained"])
    weight = setting.judge_weight
    enumeration = agent_lib.rewarded(self, setting.options, cut, judge_weight=weight)
    evaluations = {**evaluations, "enumeration": enumeration}
    settings: dict[str, Any] = {
      "cluster": self.cluster,
      "resamples": setting.resamples,
      "seed": setting.seed,
    }

    def gains(over: Sequence[Group]) -> dict[str, float]:
      trained = evaluations["trained"]
      return scores_lib.gains(trained, over, metrics=("reward", "solved"), **settings)

    bootstrap = gains(evaluations["warm_start"])
    for name in self.variants(setting.options):
      bootstrap |= {f"{name}_{key}": value for key, value in gains(evaluations[name]).items()}
    bootstrap |= {f"enumeration_{key}": value for key, value in gains(enumeration).items()}
    bootstrap |= scores_lib.minus_each(evaluations, **settings)
    return {
      "eval": {name: self.entry(setting, groups) for name, groups in evaluations.items()},
      "paired_bootstrap": bootstrap,
      "repositories": len({group.task.facts["repo"] for group in evaluations["trained"]}),
    }


def _damage(task: Task) -> str:
  return str(task.facts["kind"]).partition(" ")[0]


AGENT = CodingAgent()


def _made(setting: Setting, report: Any) -> pathlib.Path:
  """The folder of the set that is made when no set is named."""
  seed, options = setting.corpus.seed, setting.options
  versions = _versions(options.sources)
  asked = [options.sources, versions, seed, options.damage, options.tasks_per_repo]
  asked += [options.max_files] * (options.max_files > 1)
  found = hashlib.sha256(json.dumps(asked).encode())
  found.update(platform.python_version().encode())
  found.update(code_digest.of(task_set.__name__, calls.__name__, tested.__name__).encode())
  folder = setting.cache / f"coding_{found.hexdigest()[:16]}"

  async def make() -> CodingSet:
    async with Sandboxes() as boxes:
      return await task_set.make(
        boxes,
        options.sources,
        kinds=("calls",),
        damage=options.damage,
        max_files=options.max_files,
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
