"""Kimi K2.5's agent swarm, described to a run (see `agents.agent`)."""

from __future__ import annotations

import dataclasses
import functools
import pathlib
import random
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from jaxrl_agents.agents import agent as agent_lib
from jaxrl_agents.agents import scores as scores_lib
from jaxrl_agents.agents.agent import Agent, Setting
from jaxrl_agents.agents.search import tools
from jaxrl_agents.agents.search import view as search_view
from jaxrl_agents.agents.search.corpus_tasks import CorpusTasks, chunks_shown
from jaxrl_agents.agents.swarm import (
  baselines,
  comparison,
  config,
  env,
  expert,
  pace,
  parl,
  table_drills,
  table_players,
  view,
)
from jaxrl_agents.agents.swarm import drills as swarm_drills
from jaxrl_agents.agents.swarm.config import SwarmConfig
from jaxrl_agents.agents.swarm.env import SwarmServices
from jaxrl_agents.agents.swarm.story import STORY
from jaxrl_agents.agents.swarm.tasks import budgets, make_tasks
from jaxrl_agents.chat import Chat
from jaxrl_agents.harness.rollout import SelfDriven
from jaxrl_agents.harness.scripted_player import Scripted
from jaxrl_agents.types import Env, Group, Sampler, Segment, Task


class SwarmAgent(Agent):
  """An orchestrator solves wide, deep and narrow tasks by look-ups of its own or by sub-agents."""

  name = "swarm"
  config = SwarmConfig
  reward_sections = ("parl",)
  headline = success = "performance"
  metrics = (
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
  story = STORY

  def check(self, options: SwarmConfig, steps: int, stall_s: float) -> None:
    """Raises ValueError where options contradict each other or those of the run."""
    config.check(options)
    config.check_run(options, steps)

  def own_tools(self, options: SwarmConfig) -> Sequence[str]:
    """The tools of the swarm, and those that look into the corpus."""
    corpus = (search_view.SEARCH, search_view.GREP, search_view.READ)
    return [spec.name for spec in (view.CREATE, view.ASSIGN, *corpus)]

  def max_turn_s(self, options: SwarmConfig, stall_s: float) -> float:
    """A turn of the orchestrator may last as long as its sub-agents."""
    return stall_s + options.sub_deadline_s

  def tasks(self, setting: Setting, report: Any = print) -> CorpusTasks:
    """The wide, deep and narrow tasks, and the index that they are searched in."""
    options, corpus = setting.options, setting.corpus
    search = options.search
    task_set, index = make_tasks.prepared(
      corpus.source,
      count_tokens=setting.chat.count,
      chunk_tokens=corpus.chunk_tokens,
      cache_dir=setting.cache,
      budgets=budgets.Budgets(
        share=options.budget_share,
        max_calls=search.max_calls,
        grep_limit=search.grep_limit,
        max_assignments=options.max_assignments_per_turn,
        token_budget=search.token_budget,
        lookup_tokens=search.tool_output_tokens,
        max_shown=search.max_shown,
        fusion=tools.fusion_of(search),
      ),
      dense=corpus.dense,
      seed=corpus.seed,
      sized=options.tables,
    )
    shown = chunks_shown(search, corpus.chunk_tokens)
    return CorpusTasks(task_set, index, tools.fusion_of(search), search.short_ids, shown)

  def services(self, chat: Chat, options: SwarmConfig, shared: str) -> SwarmServices:
    """Loads the index of the folder `shared`."""
    return SwarmServices(tools.load_services(chat, shared, options.search), options)

  def episode(self, task: Task, services: SwarmServices, seed: int, sampler: Sampler) -> Env:
    """An episode in which the policy is the orchestrator; `swarm.sub_policy` plays sub-agents."""
    return env.make(task, services, env.sampled_crew(sampler, services.limits.sub_policy), seed)

  def player(
    self, name: str, task: Task, services: SwarmServices, seed: int, chat: Chat
  ) -> Scripted | SelfDriven:
    """An episode of the scripted orchestrator with scripted sub-agents.

    The demonstrator is, with probability `swarm.single`, a single agent with all the steps and
    context it needs. The expert makes no mistakes: it looks up short tables itself and assigns the
    rows of all other tasks at once. Others are those of `baselines`.
    """
    options = services.limits
    if name == agent_lib.DEMONSTRATOR:
      noise = expert.SwarmNoise(serial=options.serial, alone=options.single)
      if options.tables.max_rows:
        return table_players.demonstration(task, services, noise, seed)
      unhurried = pace.unhurried(options)
      search = dataclasses.replace(services.search, limits=unhurried.search)
      roomy = SwarmServices(search, unhurried)
      return expert.make_player(task, services, noise, seed, roomy)
    if name == "expert" and not options.tables.max_rows:
      alone = options.alone or task.facts["kind"].startswith("narrow")
      noise = dataclasses.replace(expert.FAULTLESS, serial=float(alone))
      return expert.make_player(task, services, noise, seed)
    played = baselines.player(name, task, services, seed)
    return played or super().player(name, task, services, seed, chat)

  def has_player(self, name: str, options: SwarmConfig) -> bool:
    """The demonstrator, and those of `swarm.baselines`."""
    return name in (agent_lib.DEMONSTRATOR, *baselines.BASELINES, *baselines.STYLES)

  def baselines(self, options: SwarmConfig) -> Sequence[str]:
    """The expert without mistakes; for tables of every size, all scripted players."""
    return baselines.BASELINES if options.tables.max_rows else ("expert",)

  def reward(
    self, options: SwarmConfig, parts: Mapping[str, float], progress: float | None = None
  ) -> float:
    """PARL's reward with the weights of the step; at evaluation r_perf alone."""
    return parl.parl_total(parts, u=1.0 if progress is None else progress, weights=options.parl)

  def imitated(
    self, setting: Setting, groups: Sequence[Group]
  ) -> tuple[Iterator[Segment], Mapping[str, int]]:
    """The segments of both roles of every finished episode."""
    rollouts = [t for group in groups for t in group.trajectories]
    counts = {
      "played": len(rollouts),
      "failed": sum(bool(t.error) for t in rollouts),
      "serial": sum(t.rewards.get("serial_rate", 0.0) == 1.0 for t in rollouts),
    }
    children = setting.options.max_children
    return both_roles(groups, max_children=children, seed=setting.seed), counts

  def texts(self, setting: Setting, tasks: CorpusTasks) -> Sequence[str]:
    """The text of the chunks."""
    return tasks.sampled_texts()

  def drills(self, setting: Setting, tasks: CorpusTasks) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Drills of what each role copies, with new random names."""
    count, options = setting.sft.drills, setting.options
    train = tasks.sample("train", count, setting.seed + 1)
    text = lambda chunk_id: tasks.index.chunk(chunk_id).text
    if options.tables.max_rows:
      drills = table_drills.role_drills(
        train, text, setting.chat, count=count, limits=options, seed=setting.seed
      )
    else:
      drills = swarm_drills.role_drills(
        train,
        text,
        setting.chat,
        count=count,
        max_rows=options.max_assignments_per_turn,
        seed=setting.seed,
      )
    return (agent_lib.reply_alone(prompt, reply) for prompt, reply in drills)

  def variants(self, options: SwarmConfig) -> Mapping[str, SwarmConfig]:
    """The same policy without the two tools of the swarm: once within the same critical steps, and
    once with the steps and the context that one agent needs for a whole table.
    """
    alone = dataclasses.replace(options, alone=True)
    return {"single_agent": alone, "single_agent_unhurried": pace.unhurried(options)}

  def frozen(
    self, options: SwarmConfig, start: pathlib.Path
  ) -> Mapping[str, Sequence[tuple[str | pathlib.Path, float]]]:
    """The policies of the sub-agents: the warm start, or those in `swarm.sub_init`."""
    if not options.sub_policy or options.alone:
      return {}
    folders = options.sub_init or ("",)
    ends = (*options.sub_until, 1.0)
    weights = tuple((folder or start, end) for folder, end in zip(folders, ends, strict=True))
    return {options.sub_policy: weights}

  def entry(self, setting: Setting, groups: Sequence[Group]) -> dict[str, float]:
    """As in `Agent.entry`. Over episodes: "wall_s", and "item_f1_parallel" over those tables that
    were filled in while assignments ran at the same time.
    """
    found = super().entry(setting, groups)
    played = [t for group in groups for t in group.trajectories if not t.error]
    parallel = [t.rewards for t in played if t.rewards.get("serial_rate") == 0.0]
    filled = [rewards["item_f1"] for rewards in parallel if "item_f1" in rewards]
    if filled:
      found["item_f1_parallel"] = sum(filled) / len(filled)
    return found | {"wall_s": sum(t.metrics["wall_s"] for t in played) / max(len(played), 1)}

  def scores(
    self, setting: Setting, tasks: CorpusTasks, groups: Sequence[Group]
  ) -> dict[str, dict[str, Any]]:
    """The policy's scores, over all tasks, by kind of task and by size of table."""
    return {"policy": self.entry(setting, groups), **self._parts(setting, groups)}

  def compare(
    self, setting: Setting, tasks: CorpusTasks, evaluations: Mapping[str, Sequence[Group]]
  ) -> dict[str, Any]:
    """Gains over the warm start, and the swarm beside a single agent if that was evaluated.

    "critical_steps_ratio" divides the mean steps of the single agent without limits by those of the
    swarm, over the wide and deep tasks that both finished. It is also given by kind, and over the
    "no_worse" tasks on which the swarm did no worse.
    """
    after = evaluations["trained"]
    gains = functools.partial(scores_lib.gains, resamples=setting.resamples, seed=setting.seed)
    before = evaluations["warm_start"]
    bootstrap = gains(after, before, metrics=("reward", "critical_steps"))
    found: dict[str, Any] = {
      "eval": {
        name: self.entry(setting, groups) | self._parts(setting, groups)
        for name, groups in evaluations.items()
      },
    }
    if "single_agent" in evaluations:
      for name in ("single_agent", "single_agent_unhurried"):
        over = gains(after, evaluations[name], metrics=("performance", "critical_steps"))
        ours, theirs = (
          comparison.of_forms(groups, ("wide",)) for groups in (after, evaluations[name])
        )
        if ours and theirs:
          wide = gains(ours, theirs, metrics=("item_f1",))
          over |= {f"wide_{key}": value for key, value in wide.items()}
        bootstrap |= {f"{name}_{key}": value for key, value in over.items()}
      found |= comparison.ratios(after, evaluations["single_agent_unhurried"])
    bootstrap |= scores_lib.minus_each(evaluations, resamples=setting.resamples, seed=setting.seed)
    return found | {"paired_bootstrap": bootstrap}

  def _parts(self, setting: Setting, groups: Sequence[Group]) -> dict[str, Any]:
    """The scores by kind, and of tables of every size by size."""
    entry = functools.partial(self.entry, setting)
    found = {"by_kind": comparison.by_kind(groups, entry)}
    if setting.options.tables.max_rows:
      found["by_size"] = comparison.by_size(groups, entry)
    return found


AGENT = SwarmAgent()


def both_roles(groups: Iterable[Group], *, max_children: int, seed: int) -> Iterator[Segment]:
  """Yields the segments of finished episodes of a swarm, and of some of their sub-agents.

  At most `max_children` finished sub-agents of each episode are drawn at random: an orchestrator
  has many, and their segments are short.
  """
  for group in groups:
    for number, trajectory in enumerate(group.trajectories):
      if trajectory.error:
        continue
      yield from trajectory.segments
      finished = [child for child in trajectory.children if child.stop == "finished"]
      draw = random.Random(f"{seed}/{group.task.id}/{number}")
      for child in draw.sample(finished, min(max_children, len(finished))):
        yield from child.segments
