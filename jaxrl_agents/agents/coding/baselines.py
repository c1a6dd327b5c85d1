"""Scripted players that a coding policy is compared with, in the same environment and limits.

The expert knows the damage. Blind enumeration does not: it tries the edits of the kind that damaged
the code, anywhere in the sources, one after another and in a random order, until the visible tests
pass.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
import random
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from jaxrl_agents.agents.coding import view
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

ENUMERATION = "enumeration_16"
"""Blind enumeration of at most 16 edits: that bounds its time where an episode has many turns."""

BASELINES = ("expert", ENUMERATION, "do_nothing")

FAULTLESS = ExpertNoise(scales=(0.0,), unchecked=0.0, hasty=0.0)
"""The expert makes no mistakes."""

_ENUMERATION = re.compile(r"enumeration_(\d+)")
_TRIED = "Some edits were tried."
_UNREPAIRED = {"solved": 0.0, "mended": 0.0, "mended_hidden": 0.0}


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
  return make_player(task, services, Enumerator(task, services, int(found[1]), seed))


class Enumerator:
  """Plays one episode: edits, runs the tests, undoes the edit, makes the next; at most `most`.

  It needs no context: it remembers what it tried, whatever was summarised.
  """

  def __init__(self, task: Task, services: CodingServices, most: int, seed: int):
    repo = services.repos[task.facts["repo"]]
    texts = {**repo.files, **repo_lib.broken(repo, task.facts["edits"])}
    sources = {path: texts[path] for path in repo.sources}
    draw = seeded(seed, f"enumeration {task.id}")
    self._edits = itertools.islice(possible_edits(sources, services.limits.damage, draw), most)
    self._check = ("shell", {"command": f"{repo.check_command} 2>&1 | tail -n 1"})
    self._undo: tuple[str, Mapping[str, Any]] | None = None

  def __call__(self, context: Context) -> Message:
    """The next turn: undo, edit, test."""
    last = context.messages[-1]
    if view.asks_for_summary(last):
      return Message("assistant", _TRIED)
    passed = last.role == "tool" and PASSED.search(last.content)
    edit = None if passed else next(self._edits, None)
    if edit is None:
      return Message("assistant", DONE)
    calls = [edit.call, self._check]
    if self._undo is not None:
      calls.insert(0, self._undo)
    self._undo = edit.undo
    return turn(*calls)


def possible_edits(
  sources: Mapping[str, str], damage: str, draw: random.Random
) -> Iterator[Replacement]:
  """Yields the edits of a family in the functions of {path: text}, each once, in a random order.

  The family is that of `CodingConfig.damage`: "flip" replaces one token by its counterpart, "token"
  one token by another, and "any" is every mutation of `agents.coding.tasks.mutations`.
  """
  found = []
  for path, text in sources.items():
    source = suite_repos.parsed(path, text)
    if source is None:
      continue
    for _, function in mutations.functions(source):
      found += [(path, source, function, each) for each in mutations.candidates(source, function)]
  draw.shuffle(found)
  seen = set(sources.items())
  for path, source, function, mutation in found:
    if damage != "any" and mutation.kind not in mutations.ONE_TOKEN:
      continue
    if damage == "flip" and not mutations.is_flip(source, mutation):
      continue
    if not mutations.changing(source, function)(mutation):
      continue
    made, changed = replacement(path, source.text, mutation.start, mutation.end, mutation.new)
    if (path, changed) not in seen:
      seen.add((path, changed))
      yield made


def at_equal_edits(enumeration: Sequence[Group], policy: Sequence[Group]) -> list[Group]:
  """What an enumeration reaches with as many edits as the policy makes on average, rounded up.

  An episode that needed more edits counts as one that ended without a repair.
  """
  made = [t.rewards["edits"] for group in policy for t in group.trajectories if not t.error]
  most = math.ceil(float(np.mean(made))) if made else 0
  cut = []
  for group in enumeration:
    rollouts = [
      t
      if t.error or t.rewards["edits"] <= most
      else dataclasses.replace(t, rewards={**t.rewards, **_UNREPAIRED, "edits": float(most)})
      for t in group.trajectories
    ]
    cut.append(dataclasses.replace(group, trajectories=tuple(rollouts)))
  return cut
