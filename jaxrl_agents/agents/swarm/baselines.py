"""Scripted players that a swarm is compared with, in the same environment, steps and contexts.

    expert          knows no gold, but makes no mistakes; splits where that finds more rows, or as
                    many in fewer critical steps: the ideal swarm
    never_splits    a single agent with parallel calls, within the same steps and context
    always_splits   gives every row to sub-agents, whatever the size
    do_nothing      answers with an empty table
    guesser         lists the names with a frequent value, without a look-up

An agent with part of a table lists that part: the other names with frequent values earned the same
(tried on 80 test tasks of configs/swarm_tables_cpu.py).

Further players, for tables of what single agents need: `single_agent` is never_splits in an episode
without sub-agents; `single_agent_unhurried` also has the steps and the context that a whole table
takes.
"""

from __future__ import annotations

import dataclasses

from jaxrl_agents.agents.swarm import env, pace, table_players
from jaxrl_agents.agents.swarm.env import SwarmServices
from jaxrl_agents.agents.swarm.reading import Reading
from jaxrl_agents.agents.swarm.subagents import Crew
from jaxrl_agents.agents.swarm.table_players import Style
from jaxrl_agents.harness.scripted_player import Scripted
from jaxrl_agents.types import Context, Message, Task

BASELINES = ("expert", "never_splits", "always_splits", "do_nothing", "guesser")
"""Names of the players that are evaluated beside a policy; the first is the ceiling."""

STYLES = {
  "expert": "by size",
  "never_splits": "never",
  "always_splits": "always",
  "single_agent": "never",
  "single_agent_unhurried": "never",
}
"""{player: when it splits}."""


def player(name: str, task: Task, services: SwarmServices, seed: int) -> Scripted | None:
  """An episode of a player without mistakes; None if there is none of this name.

  Each search is for as many names as a search shows hits, which finds most rows for the same tokens
  and steps.
  """
  limits = services.limits
  if name == "single_agent":
    limits = dataclasses.replace(limits, alone=True)
  elif name == "single_agent_unhurried":
    limits = pace.unhurried(limits)
  search = dataclasses.replace(services.search, limits=limits.search)
  services = SwarmServices(search, limits)
  if name in STYLES:
    style = Style(STYLES[name], names_per_search=limits.search.max_shown)
    return table_players.make_player(task, services, style, seed)
  reading = Reading(task.prompt)
  rows = {"do_nothing": [], "guesser": [reading.guessed(key) for key in reading.names]}
  if name not in rows:
    return None
  said = "\n".join([reading.header, *reading.lines(rows[name])])
  if reading.question and rows[name]:
    said = rows[name][0][1]
  chat = services.search.chat

  def answer(context: Context) -> Message:
    return Message("assistant", said)

  return Scripted(env.make(task, services, Crew(_nobody), seed), chat, answer)


def _nobody(*_: object) -> tuple[Scripted, Scripted]:
  raise AssertionError("this player assigns nothing")
