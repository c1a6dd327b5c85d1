"""Scripted players that a coding policy is compared with, in the same environment and limits.

The expert knows the damage. Blind enumeration does not: it tries the edits of the kind that damaged
the code one after another, in a random order, until the visible tests pass.
"""

from __future__ import annotations

import dataclasses
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from jaxrl_agents.agents.coding import view
from jaxrl_agents.agents.coding.config import CodingConfig
from jaxrl_agents.agents.coding.expert import PASSED, CodingExpert, ExpertNoise
from jaxrl_agents.agents.coding.judge import repo as repo_lib
from jaxrl_agents.agents.coding.scripted_edits import (
  DONE,
  Replacement,
  make_player,
  replacement,
  turn,
)
from jaxrl_agents.agents.coding.services import CodingServices
from jaxrl_agents.agents.coding.tasks import mutations, suite_repos
from jaxrl_agents.agents.random_draws import seeded
from jaxrl_agents.harness.scripted_player import Scripted
from jaxrl_agents.types import Context, Group, Message, Task

UNLIMITED = "enumeration_unlimited"
"""Blind enumeration until the episode's own limits end it."""

BASELINES = ("expert", UNLIMITED, "do_nothing")

FAULTLESS = ExpertNoise(scales=(0.0,), unchecked=0.0, hasty=0.0)
"""The expert makes no mistakes."""

_ENUMERATION = re.compile(r"enumeration_(\d+|unlimited)")
_TRIED = "Some edits were tried."


def player(name: str, task: Task, services: CodingServices, seed: int) -> Scripted | None:
  """An episode of a baseline; None if there is no player of this name.

  Names are those of `BASELINES`, and "enumeration_K" for at most K edits.
  """
  if name == "expert":
    return make_player(task, services, CodingExpert(task, services, FAULTLESS, seed))
  if name == "do_nothing":
    return make_player(task, services, lambda context: Message("assistant", DONE))
  found = _ENUMERATION.fullmatch(name)
  if found is None:
    return None
  most = None if name == UNLIMITED else int(found[1])
  return make_player(task, services, Enumerator(task, services, most, seed))


class Enumerator:
  """Plays one episode: edits, runs the tests, undoes the edit, makes the next; at most `most`.

  It needs no context: it remembers what it tried, whatever was summarised.
  """

  def __init__(self, task: Task, services: CodingServices, most: int | None, seed: int):
    repo = services.repos[task.facts["repo"]]
    path = task.facts["edits"][0]["path"]
    text = repo_lib.broken(repo, task.facts["edits"])[path]
    edits = list(possible_edits(path, text, services.limits))
    seeded(seed, f"enumeration {task.id}").shuffle(edits)
    self._edits = edits[:most]
    self._check = ("shell", {"command": f"{repo.check_command} 2>&1 | tail -n 1"})
    self._services = services
    self._undo: tuple[str, Mapping[str, Any]] | None = None

  def __call__(self, context: Context) -> Message:
    """The next turn: undo, edit, test."""
    last = context.messages[-1]
    if view.asks_for_summary(last):
      return Message("assistant", _TRIED)
    passed = last.role == "tool" and PASSED.search(last.content)
    if passed or not self._edits:
      return Message("assistant", DONE)
    edit = self._edits.pop(0)
    calls = [edit.call, self._check]
    if self._undo is not None:
      calls.insert(0, self._undo)
    self._undo = edit.undo
    return turn(*calls)


def possible_edits(path: str, text: str, limits: CodingConfig) -> Iterator[Replacement]:
  """Every edit of the family `limits.damage` in the functions of a file: the replacement of one
  token by its counterpart ("flip"), of one token by any other that a mutation makes ("token"), or
  every mutation ("any").
  """
  source = suite_repos.parsed(path, text)
  if source is None:
    return
  seen = {text}
  for _, function in mutations.functions(source):
    changes = mutations.changing(source, function)
    for mutation in mutations.candidates(source, function):
      if limits.damage != "any" and mutation.kind not in mutations.ONE_TOKEN:
        continue
      if limits.damage == "flip" and not mutations.is_flip(source, mutation):
        continue
      if not changes(mutation):
        continue
      made, changed = replacement(path, text, mutation.start, mutation.end, mutation.new)
      if changed not in seen:
        seen.add(changed)
        yield made


def at_equal_edits(unlimited: Sequence[Group], policy: Sequence[Group]) -> list[Group]:
  """What enumeration reaches with at most as many edits as the policy makes on average, rounded up.

  An episode that needed more edits counts as one that ended without a repair.
  """
  made = [t.rewards["edits"] for group in policy for t in group.trajectories if not t.error]
  most = math.ceil(float(np.mean(made))) if made else 0
  cut = []
  for group in unlimited:
    rollouts = [
      t
      if t.error or t.rewards["edits"] <= most
      else dataclasses.replace(t, rewards={**t.rewards, **_UNREPAIRED, "edits": float(most)})
      for t in group.trajectories
    ]
    cut.append(dataclasses.replace(group, trajectories=tuple(rollouts)))
  return cut


_UNREPAIRED = {"solved": 0.0, "mended": 0.0, "mended_hidden": 0.0}
