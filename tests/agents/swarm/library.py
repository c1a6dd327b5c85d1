"""A library of definitions, tasks of every size about it, and a way to play them by name."""

import asyncio
import dataclasses
import re

from jaxrl_agents import chat, config
from jaxrl_agents.agents.search.tools import SearchServices
from jaxrl_agents.agents.swarm.agent import AGENT
from jaxrl_agents.agents.swarm.env import SwarmServices
from jaxrl_agents.agents.swarm.tasks import budgets, rows, sized_tables
from jaxrl_agents.corpus import chunks as chunks_lib
from jaxrl_agents.corpus import splits
from jaxrl_agents.corpus.documents import Document
from jaxrl_agents.corpus.index import hybrid
from jaxrl_agents.harness.rollout import Sampling, run_episode

CHAT = chat.load()
OPTIONS = config.load("configs/swarm_tables_cpu.py").agent_config
MODULES = 50


def documents():
  """Modules of a class and a function each. Every fifth class has the base Stone."""
  made = []
  for i in range(MODULES):
    word = "".join("bcdfghklmn"[int(digit)] + "aeiou"[i % 5] for digit in f"{i:02d}") + "x"
    base = "Stone" if i % 5 == 0 else f"Rock{word}"
    text = (
      f"class {word.title()}({base}):\n  size = {i}\n\n\n"
      f"def take_{word}({'grain' if i % 4 == 0 else f'arg{word}'}, second):\n  return second\n"
    )
    made.append(Document(str(i), f"m{word}", text, {"source": f"m{word}", "kind": "python"}))
  return made


def library(folder):
  """(index, tasks of the train split): one of every size from 1 to 20, three times."""
  found = documents()
  chunks = chunks_lib.cut(found, CHAT.count, max_tokens=40)
  index = hybrid.build(chunks, folder, rank=16)
  limits = budgets.Budgets(max_calls=2, max_shown=1)
  made = rows.read_rows(found, chunks, index, count_tokens=CHAT.count, budgets=limits)
  own = {
    key: [row for row in each if splits.split_of(row.group) == "train"]
    for key, each in made.items()
  }
  sized = dataclasses.replace(OPTIONS.tables, max_rows=20)
  return index, list(sized_tables.tasks(own, "train", 0, 60, sized, limits))


def services(index, **changes):
  options = dataclasses.replace(OPTIONS, **changes)
  return SwarmServices(SearchServices(CHAT, index, options.search), options)


def play(task, made, name, seed=0):
  """The trajectory of a player of this name."""
  return run(AGENT.player(name, task, made, seed, CHAT), task, made)


def run(player, task, made):
  """The trajectory of a scripted player."""
  sampling = Sampling(max_new_tokens=made.limits.max_new_tokens)
  return asyncio.run(run_episode(player, CHAT, player, task=task, sampling=sampling))


def sized(tasks, count, kind=""):
  """The first task of this number of rows and this kind."""
  return next(
    task
    for task in tasks
    if len(task.facts["rows"]) == count and re.search(kind, task.facts["kind"])
  )
