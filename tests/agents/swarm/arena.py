"""A swarm in the corpus of `arena`: a task of eight rows, and ways to play its two roles."""

import asyncio
import dataclasses

from jaxrl_agents.agents.search.config import SearchConfig
from jaxrl_agents.agents.swarm import env as swarm
from jaxrl_agents.agents.swarm.config import SwarmConfig
from jaxrl_agents.agents.swarm.env import SwarmServices
from jaxrl_agents.agents.swarm.subagents import Crew
from jaxrl_agents.harness.rollout import Sampling, run_episode, run_group
from jaxrl_agents.harness.scripted_player import Scripted
from jaxrl_agents.types import Message, Task, ToolCall
from tests.agents.search.arena import LIMITS, WORDS

COLUMNS = ["name", "near", "source"]
HEADER = "| name | near | source |"
SWARM = SwarmConfig(
  search=SearchConfig(can_prune=False, system_prompt=""),
  sub_max_turns=6,
  sub_token_budget=512,
  sub_max_new_tokens=64,
  sub_deadline_s=20.0,
  message_tokens=32,
  max_agents=3,
  max_assignments_per_turn=8,
  max_assignments=12,
)


def swarm_services(services, search=None, **changes):
  limits = dataclasses.replace(
    LIMITS, can_prune=False, max_calls=1, max_shown=2, max_new_tokens=400, **(search or {})
  )
  search_services = dataclasses.replace(services, limits=limits)
  return SwarmServices(search_services, dataclasses.replace(SWARM, **changes))


def swarm_task(rows=8, max_steps=4, task_id="t", **facts):
  """Which word the first part of each of `rows` documents stands near."""
  made = [
    {
      "cells": {"name": f"number{d}0", "near": WORDS[(d + 1) % 12]},
      "source": f"{100 + d}_0",
      "lookups": [f"number{d}0"],
      "chunk_ids": [f"{100 + d}_0"],
    }
    for d in range(rows)
  ]
  names = " ".join(f"{i + 1}. {row['lookups'][0]}." for i, row in enumerate(made))
  known = {
    "max_steps": max_steps,
    "columns": COLUMNS,
    "keys": ["name"],
    "header": HEADER,
    "rows": made,
    "facts": [{"fact": "", "chunk_ids": row["chunk_ids"]} for row in made],
  }
  return Task(task_id, "swarm", f"{names} Table: {HEADER}", known | facts)


def create(name="a", system_prompt=HEADER):
  return ToolCall("", "create_subagent", {"name": name, "system_prompt": system_prompt})


def assign(prompt="number00", agent="a"):
  return ToolCall("", "assign_task", {"agent": agent, "prompt": prompt})


def search(query="number00"):
  return ToolCall("", "search_corpus", {"query": query})


def turn(*calls):
  return Message("assistant", "", calls)


def answer(*rows):
  return Message("assistant", "\n".join([HEADER, *rows]))


def crew(services, turns_of):
  """Sub-agents that play `turns_of(assignment)`: messages, the last of them again and again."""

  def player(env, assignment, seed):
    script = list(turns_of(assignment))
    made = Scripted(env, services.search.chat, lambda _: script.pop(0) if script[1:] else script[0])
    return made, made

  return Crew(player)


def episode(services, turns, of=lambda assignment: [Message("assistant", "done")], task=None):
  """(environment, who plays it) of an orchestrator that says `turns`."""
  task = task or swarm_task()
  script = iter(turns)
  made = of if isinstance(of, Crew) else crew(services, of)
  env = swarm.make(task, services, made, seed=0)
  return env, Scripted(env, services.search.chat, lambda _: next(script))


def play(services, turns, of=lambda assignment: [Message("assistant", "done")], task=None):
  task = task or swarm_task()
  _, player = episode(services, turns, of, task)
  chat, sampling = services.search.chat, Sampling(max_new_tokens=400)
  return asyncio.run(run_episode(player, chat, player, task=task, sampling=sampling))


def play_group(services, turns, of, task=None):
  """As `play`, in a group: what raises becomes a failed trajectory."""
  task = task or swarm_task()

  def make_episode(task, seed, sampler):
    _, player = episode(services, turns, of, task)
    return player, player

  chat = services.search.chat
  group = run_group(make_episode, task, 1, chat=chat, sampler=None, sampling=Sampling())
  return asyncio.run(group)


def results(trajectory):
  return [m.content for m in trajectory.log if m.role == "tool"]
