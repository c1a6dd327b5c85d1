"""Scripted players that a coding policy is compared with, in the same environment and limits.

The expert knows the damage. Blind enumeration does not: it tries the edits of the kind that damaged
the code, anywhere in the sources, one after another and in a random order, until the visible tests
pass. `agents.coding.reader` reads what the tests show. Limits on edits and test runs hold for all
players as for a policy: the environment counts.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
import re
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from jaxrl_agents.agents.coding import view
from jaxrl_agents.agents.coding.expert import CodingExpert, ExpertNoise, has_passed
from jaxrl_agents.agents.coding.judge import repo as repo_lib
from jaxrl_agents.agents.coding.possible_edits import possible_edits
from jaxrl_agents.agents.coding.reader import Reader
from jaxrl_agents.agents.coding.scripted_edits import DONE, check_call, make_player, turn
from jaxrl_agents.agents.coding.services import CodingServices
from jaxrl_agents.agents.random_draws import seeded
from jaxrl_agents.harness.scripted_player import Scripted
from jaxrl_agents.types import Context, Group, Message, Task, Trajectory

ENUMERATION = "enumeration_16"
"""Blind enumeration of at most 16 edits: that bounds its time where an episode has many turns."""

DO_NOTHING = "do_nothing"

BASELINES = ("expert", ENUMERATION, DO_NOTHING)

READ_DAMAGE = ("flip", "mixed")
"""Damage whose repairs are few enough for the reader to try each one in mind."""

READER = "reader"
"""Reads the failing calls that the tests show (`agents.coding.reader`)."""

FAULTLESS = ExpertNoise(scales=(0.0,), unchecked=0.0, hasty=0.0)
"""The expert makes no mistakes."""

_ENUMERATION = re.compile(r"enumeration_(\d+)")
_TRIED = "Some edits were tried."
_UNREPAIRED = {"solved": 0.0, "mended": 0.0, "mended_hidden": 0.0}
_SPENT = ("effort", "turns", "tool_calls", "test_runs")
"""Parts that grow with each try."""


def player(name: str, task: Task, services: CodingServices, seed: int) -> Scripted | None:
  """An episode of a baseline; None if there is no player of this name.

  Names are those of `BASELINES`, `READER`, and "enumeration_K" for at most K edits. Where edits are
  limited, "enumeration" makes as many as that.
  """
  if name == "expert":
    return make_player(task, services, CodingExpert(task, services, FAULTLESS, seed))
  if name == DO_NOTHING:
    return make_player(task, services, lambda context: Message("assistant", DONE))
  if name == READER:
    return make_player(task, services, Reader(task, services, seed))
  most = services.limits.max_edits
  if name != "enumeration" or not most:
    found = _ENUMERATION.fullmatch(name)
    if found is None:
      return None
    most = int(found[1])
  return make_player(task, services, Enumerator(task, services, most, seed))


def is_player(name: str, max_edits: int) -> bool:
  """Whether `player` takes this name where an episode may make `max_edits` edits, 0 for any."""
  fixed = (*BASELINES, READER, *["enumeration"] * bool(max_edits))
  return name in fixed or _ENUMERATION.fullmatch(name) is not None


class Enumerator:
  """Plays one episode: edits, runs the tests, undoes the edit, makes the next; at most `most`.

  It needs no context: it remembers what it tried, whatever was summarised. Where test runs and
  edits are limited, it makes its last edit without a test, if one is left when all runs are made.
  """

  def __init__(self, task: Task, services: CodingServices, most: int, seed: int):
    repo = services.repos[task.facts["repo"]]
    texts = {**repo.files, **repo_lib.broken(repo, task.facts["edits"])}
    sources = {path: texts[path] for path in repo.sources}
    draw = seeded(seed, f"enumeration {task.id}")
    most = min(most, services.limits.max_edits or most)
    family, tools = services.limits.damage, services.limits.tools
    self._edits = itertools.islice(possible_edits(sources, family, draw, tools), most)
    self._check = check_call(services.limits, f"{repo.check_command} 2>&1 | tail -n 1")
    self._undo: tuple[str, Mapping[str, Any]] | None = None
    self._passed = False
    self._runs_left = services.limits.test_runs or math.inf

  def __call__(self, context: Context) -> Message:
    """The next turn: undo, edit, test."""
    last = context.messages[-1]
    if view.asks_for_summary(last):
      last = context.messages[-2]  # what it says is gone after the summary
      self._passed = self._passed or has_passed(last)
      return Message("assistant", _TRIED)
    self._passed = self._passed or has_passed(last)
    edit = None if self._passed or self._runs_left < 0 else next(self._edits, None)
    if edit is None:
      return Message("assistant", DONE)
    made, _ = edit
    calls = [made.call]
    self._runs_left -= 1
    if self._runs_left >= 0:
      calls.append(self._check)
    if self._undo is not None:
      calls.insert(0, self._undo)
    self._undo = made.undo
    return turn(*calls)


def at_equal_edits(enumeration: Sequence[Group], policy: Sequence[Group]) -> list[Group]:
  """What an enumeration reaches with as many edits as the policy makes on average, rounded up.

  An episode that needed more edits counts as one that ended without a repair, after a share of its
  effort: all tries cost about the same, and it pays for those alone that it may make.
  """
  made = [t.rewards["edits"] for group in policy for t in group.trajectories if not t.error]
  most = math.ceil(float(np.mean(made))) if made else 0
  cut = []
  for group in enumeration:
    rollouts = [
      t if t.error or t.rewards["edits"] <= most else _cut(t, most) for t in group.trajectories
    ]
    cut.append(dataclasses.replace(group, trajectories=tuple(rollouts)))
  return cut


def _cut(rollout: Trajectory, most: int) -> Trajectory:
  """A rollout of more than `most` edits as one that ended after so many, without a repair."""
  parts = rollout.rewards
  share = most / parts["edits"]
  spent = {name: share * parts[name] for name in _SPENT if name in parts}
  cut = {**parts, **spent, **_UNREPAIRED, "edits": float(most)}
  return dataclasses.replace(rollout, rewards=cut)
