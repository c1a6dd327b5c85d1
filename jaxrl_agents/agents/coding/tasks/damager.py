"""Draws damage of a repository: of tokens, of statements, of pairs of them, of whole features."""

from __future__ import annotations

import collections
import dataclasses
import json
import random
from collections.abc import Mapping
from typing import Any

from jaxrl_agents.agents.coding.judge.repo import Repo
from jaxrl_agents.agents.coding.tasks import leaks, mutations, removals, statements, suite_repos
from jaxrl_agents.agents.coding.tasks.mutations import Mutation
from jaxrl_agents.corpus.python_source import Function, ParsedModule

MAX_CHANGED_LINES = 300
PLANS = ("flip", "token", "statement", "lines", "pair", "feature", "features")
"""Kinds of damage: one token replaced by its counterpart (mutations.is_flip), one token by another,
one statement, whole lines (tasks.statements), two of flips and lines in one function, one function,
several functions.
"""
PAIR_OF_FLIPS = 0.3
"""Probability that both parts of a pair are flips; else one of them is damage of lines."""
_KINDS = {
  "flip": mutations.ONE_TOKEN,
  "token": mutations.ONE_TOKEN,
  "statement": mutations.STATEMENT,
}


@dataclasses.dataclass(frozen=True)
class Damage:
  """Edits of a repository, as `agents.coding.judge.repo.broken` takes them, and descriptions."""

  kind: str
  edits: tuple[Mapping[str, Any], ...]
  names: tuple[str, ...]
  changed_lines: int


class Damager:
  """Draws damage of a repository. Invariant: no damage is drawn twice.

  Functions that occur unmasked in the sandbox's library are not damaged.
  """

  def __init__(self, repo: Repo, seed: int):
    self._repo = repo
    self._draw = random.Random(f"{seed} damage {repo.id}")
    self._sources: list[tuple[str, ParsedModule]] = []
    self._functions: dict[str, list[tuple[str, Function]]] = {}
    for path in repo.sources:
      source = suite_repos.parsed(path, repo.files[path])
      if source is None:
        continue
      functions = [
        (name, function)
        for name, function in mutations.functions(source)
        if not leaks.is_elsewhere(leaks.telling(source, function), repo.mask)
      ]
      if functions:
        self._sources.append((path, source))
        self._functions[path] = functions
    self._seen: set[str] = set()
    self._removals: dict[str, list[removals.Removal]] = {}

  def next(self, plan: str, tries: int = 20) -> Damage | None:
    """New damage of a kind of PLANS; None if none was found."""
    for _ in range(tries if self._sources else 0):
      path, source = self._draw.choice(self._sources)
      if plan in ("feature", "features"):
        damage = self._features(plan)
      elif plan == "pair":
        damage = self._pair(path, source)
      else:
        damage = self._mutation(plan, path, source)
      key = json.dumps(damage.edits) if damage else ""
      if damage and key not in self._seen:
        self._seen.add(key)
        return damage
    return None

  def _mutation(self, plan: str, path: str, source: ParsedModule) -> Damage | None:
    name, function = self._draw.choice(self._functions[path])
    mutation = self._drawn(plan, source, function)
    if mutation is None or not mutations.changing(source, function)(mutation):
      return None
    if plan != "lines":
      plan = "flip" if mutations.is_flip(source, mutation) else plan
    lines = _changed_lines(source, mutation)
    return Damage(f"{plan} {mutation.kind}", (edit_of(path, source, mutation),), (name,), lines)

  def _drawn(self, plan: str, source: ParsedModule, function: Function) -> Mutation | None:
    """A mutation of a function, all kinds of a plan alike likely; None if it has none."""
    if plan == "lines":
      found = statements.damages(source, function)
    else:
      found = [m for m in mutations.candidates(source, function) if m.kind in _KINDS[plan]]
    by_kind = collections.defaultdict(list)
    for mutation in found:
      if plan != "flip" or mutations.is_flip(source, mutation):
        by_kind[mutation.kind].append(mutation)
    return self._draw.choice(by_kind[self._draw.choice(sorted(by_kind))]) if by_kind else None

  def _pair(self, path: str, source: ParsedModule) -> Damage | None:
    """Two mutations of one function in different lines."""
    name, function = self._draw.choice(self._functions[path])
    plans = ("flip", "flip" if self._draw.random() < PAIR_OF_FLIPS else "lines")
    drawn = [self._drawn(plan, source, function) for plan in plans]
    found = sorted((m for m in drawn if m is not None), key=lambda m: (m.start, m.end))
    if len(found) < 2 or not all(map(mutations.changing(source, function), found)):
      return None
    if not are_apart(source.text, *found):
      return None
    kind = "pair " + " ".join(mutation.kind for mutation in found)
    edits = tuple(edit_of(path, source, mutation) for mutation in found)
    return Damage(kind, edits, (name,), sum(_changed_lines(source, m) for m in found))

  def _features(self, plan: str) -> Damage | None:
    picked: list[tuple[str, removals.Removal]] = []
    if plan == "feature":
      path, source = self._draw.choice(self._sources)
      found = self._found(path, source)
      picked = [(path, self._draw.choice(found))] if found else []
    else:
      left = round(2 ** self._draw.uniform(3, 8.2))
      for path, source in self._draw.sample(self._sources, min(len(self._sources), 3)):
        more = removals.pick(self._found(path, source), left, self._draw)
        picked += [(path, removal) for removal in more]
        left -= sum(removal.lines for removal in more)
    lines = sum(removal.lines for _, removal in picked)
    if not picked or lines > MAX_CHANGED_LINES:
      return None
    edits = tuple(
      {
        "path": path,
        "start": removal.start,
        "fixed": self._repo.files[path][removal.start : removal.end],
        "broken": removals.MISSING,
      }
      for path, removal in picked
    )
    return Damage(plan, edits, tuple(removal.name for _, removal in picked), lines)

  def _found(self, path: str, source: ParsedModule) -> list[removals.Removal]:
    if path not in self._removals:
      known = {name for name, _ in self._functions[path]}
      found = [r for r in removals.removals(source) if r.name in known]
      inner = [
        r for r in found if not any(o.start < r.start and r.end <= o.end for o in found if o != r)
      ]
      self._removals[path] = [r for r in inner if r.lines <= MAX_CHANGED_LINES]
    return self._removals[path]


def are_apart(text: str, first: Mutation, second: Mutation) -> bool:
  """Whether the second mutation begins in a later line than the first one, and both together still
  parse.
  """
  if first.end > second.start or "\n" not in text[first.start : second.start]:
    return False
  return suite_repos.parsed("main.py", first.applied(second.applied(text))) is not None


def edit_of(path: str, source: ParsedModule, mutation: Mutation) -> Mapping[str, Any]:
  """The edit that makes a mutation, as `agents.coding.judge.repo.broken` takes it."""
  fixed = source.text[mutation.start : mutation.end]
  return {"path": path, "start": mutation.start, "fixed": fixed, "broken": mutation.new}


def _changed_lines(source: ParsedModule, mutation: Mutation) -> int:
  """The number of lines that a mutation changes, removes or adds."""
  fixed = source.text[mutation.start : mutation.end].rstrip("\n")
  return max(1, fixed.count("\n") + 1, mutation.new.rstrip("\n").count("\n") + 1)
