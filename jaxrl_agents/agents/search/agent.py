"""The `Agent` of Context-1's search agent."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from jaxrl_agents import stopwatch
from jaxrl_agents.agents import agent as agent_lib
from jaxrl_agents.agents import scores as scores_lib
from jaxrl_agents.agents.agent import Agent, Setting
from jaxrl_agents.agents.search import (
  baselines,
  config,
  env,
  expert,
  hop_drills,
  imitation_filter,
  other_answers,
  step_drills,
  tools,
  view,
)
from jaxrl_agents.agents.search import reward as reward_lib
from jaxrl_agents.agents.search.config import SearchConfig
from jaxrl_agents.agents.search.corpus_tasks import CorpusTasks, chunks_shown
from jaxrl_agents.agents.search.story import STORY
from jaxrl_agents.agents.search.tasks import make_tasks
from jaxrl_agents.agents.search.tasks.hop_search import HopSearch
from jaxrl_agents.agents.search.tools import SearchServices
from jaxrl_agents.chat import Chat
from jaxrl_agents.corpus.chunks import Chunk
from jaxrl_agents.corpus.index import hybrid as index_lib
from jaxrl_agents.harness.rollout import SelfDriven
from jaxrl_agents.harness.scripted_player import Scripted
from jaxrl_agents.harness.tools import Tool
from jaxrl_agents.types import Env, Group, Sampler, Segment, Task

DRILL_HITS = 4
"""Hits of the searches that drills take wrong chunks from."""

HOP_DRILLS = 0.4
"""Share of the drills that are of one hop; the others are beginnings of episodes."""

LEAST_PRACTICE = 64
"""Fewest tasks that the drills of hops and steps are drawn from."""


class SearchAgent(Agent):
  """Tasks of chained clues about a corpus; the agent searches, greps, reads and prunes."""

  name = "search"
  config = SearchConfig
  reward_sections = ("reward",)
  headline = "output_recall"
  metrics = (
    "reward",
    "output_recall",
    "trajectory_recall",
    "f1",
    "answer_found",
    "turns",
    "tasks",
    "precision",
    "num_output",
    "repeated_output",
    "tool_calls",
    "prune_accuracy",
    "verbatim_queries",
    "completed",
    "failed",
  )
  story = STORY

  def check(self, options: SearchConfig, steps: int, stall_s: float) -> None:
    """Raises ValueError where two options contradict one another."""
    config.check(options)

  def own_tools(self, options: SearchConfig) -> Sequence[str]:
    """The tools that look into the corpus, and prune_chunks."""
    own = (view.SEARCH, view.GREP, view.READ, *((view.PRUNE,) if options.can_prune else ()))
    return [spec.name for spec in own]

  @contextlib.asynccontextmanager
  async def tools_to_serve(
    self, task: Task | None, services: SearchServices
  ) -> AsyncIterator[Mapping[str, Tool]]:
    """Search, grep and read; no search of a session finds a chunk twice. A task gives chunks its
    names, if it has short ones.
    """
    made = tools.SearchTools(task or Task("served", "search", "", {}), services)
    yield {tool.spec.name: tool for tool in made.tools}

  def tasks(self, setting: Setting, report: Any = print) -> CorpusTasks:
    """Tasks of chained clues about the corpus, and its index."""
    options, cache, dense = setting.options, setting.cache, setting.corpus.dense
    fusion = tools.fusion_of(options)
    with stopwatch.timed("tasks"):
      task_set = make_tasks.prepared(
        setting.corpus.source,
        count_tokens=setting.chat.count,
        chunk_tokens=setting.corpus.chunk_tokens,
        cache_dir=cache,
        seed=setting.corpus.seed,
        train_tasks=setting.corpus.train_tasks,
        hop_search=HopSearch(cache, dense, fusion) if options.hops else None,
        report=report,
      )
    with stopwatch.timed("index"):
      index = index_lib.build(task_set.chunks, cache, dense_leg=dense)
    shown = chunks_shown(options, setting.corpus.chunk_tokens)
    return CorpusTasks(task_set, index, fusion, options.short_ids, shown)

  def services(self, chat: Chat, options: SearchConfig, shared: str) -> SearchServices:
    """The index of the folder `shared`."""
    return tools.load_services(chat, shared, options)

  def episode(self, task: Task, services: SearchServices, seed: int, sampler: Sampler) -> Env:
    """An episode that the policy plays."""
    return env.make(task, services)

  def player(
    self, name: str, task: Task, services: SearchServices, seed: int, chat: Chat
  ) -> Scripted | SelfDriven:
    """An episode of the demonstrator, or of one of `search.baselines`."""
    if name == agent_lib.DEMONSTRATOR:
      limits = services.limits
      noise = expert.CAREFUL if limits.hops else expert.ExpertNoise()
      noise = dataclasses.replace(noise, hasty=limits.hasty, generous=limits.generous)
      return expert.make_player(task, services, noise, seed)
    played = baselines.player(name, task, services, seed)
    return played or super().player(name, task, services, seed, chat)

  def has_player(self, name: str, options: Any) -> bool:
    """The demonstrator, the baselines, and those with numbers in their names."""
    return super().has_player(name, options) or baselines.is_plan(name)

  def baselines(self, options: Any) -> Sequence[str]:
    """The expert without mistakes, and players that do not know the gold."""
    return baselines.BASELINES

  def reward(
    self, options: SearchConfig, parts: Mapping[str, float], progress: float | None = None
  ) -> float:
    """Context-1's reward with the beta of the training phase; at evaluation with the last beta."""
    weights = options.reward
    beta = reward_lib.beta_of(weights.betas, 1.0 if progress is None else progress)
    return reward_lib.search_total(parts, beta=beta, weights=weights)

  def imitated(
    self, setting: Setting, groups: Sequence[Group]
  ) -> tuple[Iterator[Segment], Mapping[str, int]]:
    """The rollouts that Context-1's filter keeps."""
    kept = imitation_filter.keep_for_sft(groups, seed=setting.seed)
    return (segment for each in kept.kept for segment in each.segments), kept.counts

  def practice(self, setting: Setting, tasks: CorpusTasks) -> list[Task]:
    """Tasks of unrelated clues."""
    make = tasks.hop_practice if setting.options.hops else tasks.practice
    return make(setting.sft.practice_tasks, setting.seed)

  def texts(self, setting: Setting, tasks: CorpusTasks) -> Sequence[str]:
    """Chunks."""
    return tasks.sampled_texts()

  def drills(self, setting: Setting, tasks: CorpusTasks) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Exercises in hops and in the next steps of an episode.

    Raises:
      ValueError: the tasks have no hops.
    """
    options, count = setting.options, setting.sft.drills
    if not options.hops:
      raise ValueError(
        "there are drills only for tasks with hops; set search.hops=True, or the rate of drills in "
        "sft.rates to 0"
      )
    fusion = tools.fusion_of(options)

    def best_chunks(query: str) -> list[Chunk]:
      hits = tasks.index.search(query, limit=DRILL_HITS, settings=fusion)
      return [hit.chunk for hit in hits]

    text = lambda chunk_id: tasks.index.chunk(chunk_id).text
    hops = round(HOP_DRILLS * count)
    linked = tasks.hop_practice(max(LEAST_PRACTICE, hops // 4), setting.seed + 2, found=False)
    given = (linked, text, best_chunks, setting.chat)
    generous = options.generous
    for drill in hop_drills.hop_drills(*given, generous=generous, count=hops, seed=setting.seed):
      yield agent_lib.reply_alone(drill.prompt, drill.reply)
    yield from step_drills.step_drills(*given, options, count=count - hops, seed=setting.seed)

  def has_stable_ids(self, options: SearchConfig) -> bool:
    """Short ids are drawn anew for each task; long ones are stable."""
    return not options.short_ids

  def scores(
    self, setting: Setting, tasks: CorpusTasks, groups: Sequence[Group]
  ) -> dict[str, dict[str, Any]]:
    """The policy's scores, overall and by level, and what its searches would have earned with
    answers that list all they showed; of several rollouts a task also those of the answers fused.
    """
    found: dict[str, dict[str, Any]] = {
      "policy": self.entry(setting, groups),
      "by_level": self._by_level(setting, groups),
      "all_shown": self.entry(setting, _with(other_answers.all_shown, setting, groups)),
    }
    if any(len(group.trajectories) > 1 for group in groups):
      found["fused"] = self.entry(setting, _with(other_answers.fused, setting, groups))
    return found

  def compare(
    self, setting: Setting, tasks: CorpusTasks, evaluations: Mapping[str, Sequence[Group]]
  ) -> dict[str, Any]:
    """Gains over the warm start, and in reward over each other evaluation. One of them is the warm
    start with answers that list all it was shown (`all_shown`), which no training needs.
    """
    settings: dict[str, Any] = {"resamples": setting.resamples, "seed": setting.seed}
    listing = _with(other_answers.all_shown, setting, evaluations["warm_start"])
    evaluations = {**evaluations, "warm_start_all_shown": listing}
    found = {
      name: self.entry(setting, groups) | {"by_level": self._by_level(setting, groups)}
      for name, groups in evaluations.items()
    }
    gains = scores_lib.gains(
      evaluations["trained"],
      evaluations["warm_start"],
      metrics=("reward", "output_recall"),
      **settings,
    )
    gains |= scores_lib.minus_each(evaluations, **settings)
    return {"eval": found, "paired_bootstrap": gains}

  def _by_level(self, setting: Setting, groups: Sequence[Group]) -> dict[str, dict[str, float]]:
    levels = sorted({group.task.facts["level"] for group in groups})
    at_level = lambda level: [g for g in groups if g.task.facts["level"] == level]
    return {str(level): self.entry(setting, at_level(level)) for level in levels}


AGENT = SearchAgent()


def _with(
  others: Callable[..., list[Group]], setting: Setting, groups: Sequence[Group]
) -> list[Group]:
  """The groups with other answers, and rewards as all evaluations have them: a judge's grade has
  its weight in them.
  """
  options = setting.options
  found = others(groups, max_documents=options.max_documents, weights=options.reward)
  return agent_lib.rewarded(AGENT, options, found, judge_weight=setting.judge_weight)
