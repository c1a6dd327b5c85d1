"""Makes coding tasks: damages a repository, runs its tests, and keeps what the tests detect.

  repository -> damage (a token, a statement, whole features) -> outcomes in two fresh sandboxes
             -> a task, if both agree, some tests fail, some pass, and both visible and hidden ones

Code runs in sandboxes only. What a patch that returns one value solves is no task
(`cheap_patches`). Tests whose outcome depends on the moment (order of sets, clocks,
temporary names) differ between the two runs; they are dropped, and so may be their task.
"""

from __future__ import annotations

import asyncio
import collections
import dataclasses
import hashlib
import json
import random
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from typing import Any

from jaxrl_agents.agents.coding.judge import repo as repo_lib
from jaxrl_agents.agents.coding.judge.repo import Repo
from jaxrl_agents.agents.coding.judge.run_tests import NotBegun
from jaxrl_agents.agents.coding.judge.verdict import TESTS, Judge
from jaxrl_agents.agents.coding.tasks import (
  cheap_patches,
  leaks,
  mutations,
  removals,
  suite_repos,
)
from jaxrl_agents.corpus.python_source import Function, ParsedModule
from jaxrl_agents.corpus.splits import split_of
from jaxrl_agents.types import Task

LEVELS = (1, 10, 60)
"""Most changed lines of levels 0, 1 and 2; level 3 has more."""
MAX_CHANGED_LINES = 300
MAX_SUITE_S = 1.2
"""Most seconds for all tests of a repository, beside the other work of the machine."""
MAX_DAMAGED_S = 4.0
"""Most seconds for all tests of a damaged repository; a test that never ends would delay every run.
"""
PLANS = ("flip", "token", "statement", "feature", "features")
"""Kinds of damage: one token replaced by its counterpart (mutations.is_flip), one token by another,
one statement, one function, several functions.
"""
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


def level_of(changed_lines: int) -> int:
  """The difficulty level of a number of changed lines."""
  return sum(changed_lines > most for most in LEVELS)


async def stable(judge: Judge, repo: Repo) -> Repo | None:
  """The repository with the statuses of its own tests that pass twice; None if there are few.

  Applies to suites; a repository of calls has its values already. A repository whose tests take
  long is left out.
  """
  started = time.monotonic()
  try:
    first = await judge.outcomes(repo, {}, suite_s=2 * MAX_SUITE_S)
  except NotBegun:  # Python itself needs a masked file
    return None
  if time.monotonic() - started > MAX_SUITE_S:
    return None
  second = await judge.outcomes(repo, {})
  passing = [test for test, status in first.items() if status == second.get(test) == "passed"]
  found = dataclasses.replace(repo, statuses=dict.fromkeys(passing, "passed"))
  hidden = sum(map(found.is_hidden, passing))
  return found if hidden >= 1 and len(passing) - hidden >= 2 else None


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
      feature = plan in ("feature", "features")
      damage = self._features(plan) if feature else self._mutation(plan, path, source)
      key = json.dumps(damage.edits) if damage else ""
      if damage and key not in self._seen:
        self._seen.add(key)
        return damage
    return None

  def _mutation(self, plan: str, path: str, source: ParsedModule) -> Damage | None:
    name, function = self._draw.choice(self._functions[path])
    found = mutations.candidates(source, function)
    by_kind = collections.defaultdict(list)
    for mutation in found:
      if mutation.kind in _KINDS[plan]:
        if plan == "flip" and not mutations.is_flip(source, mutation):
          continue
        by_kind[mutation.kind].append(mutation)
    if not by_kind:
      return None
    mutation = self._draw.choice(by_kind[self._draw.choice(sorted(by_kind))])
    if not mutations.changing(source, function)(mutation):
      return None
    fixed = source.text[mutation.start : mutation.end]
    edit = {"path": path, "start": mutation.start, "fixed": fixed, "broken": mutation.new}
    plan = "flip" if mutations.is_flip(source, mutation) else plan
    return Damage(f"{plan} {mutation.kind}", (edit,), (name,), max(1, fixed.count("\n") + 1))

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


async def validated(
  judge: Judge, repo: Repo, damage: Damage, *, seed: int
) -> tuple[Task | None, str]:
  """(the task of a damaged repository or None, "" or the reason why there is none)."""
  files = dict(repo_lib.broken(repo, damage.edits))
  expected = repo.expected()
  started = time.monotonic()
  gives = await judge.outcomes(repo, files, suite_s=MAX_DAMAGED_S)
  if repo.kind == "suite" and time.monotonic() - started > MAX_DAMAGED_S:
    return None, "the tests do not end"
  failing = [test for test, want in expected.items() if gives.get(test) != want]
  if not failing:
    return None, "no test fails"
  seen = [test for test in expected if not repo.is_hidden(test)]
  if not any(test in seen for test in failing):
    return None, "only hidden tests fail"
  if not any(repo.is_hidden(test) for test in failing):
    return None, "no hidden test fails"
  if set(seen) <= set(failing) and not damage.kind.startswith("feature"):
    return None, "all tests fail"
  if repo.kind == "calls" and cheap_patches.constant_values_suffice(repo, failing):
    return None, "one value solves it"
  again = await judge.outcomes(repo, files, suite_s=MAX_DAMAGED_S)
  if any(gives.get(t) != again.get(t) for t in expected):
    return None, "two runs differ"
  for patch in cheap_patches.patches(files, damage.names) if repo.kind == "suite" else ():
    gives = await judge.outcomes(repo, patch, suite_s=MAX_DAMAGED_S)
    if all(gives.get(test) == want for test, want in expected.items()):
      return None, "one value solves it"
  failed = set(failing)
  lists = {
    "fail_to_pass": [t for t in seen if t in failed],
    "pass_to_pass": [t for t in seen if t not in failed],
    "hidden_fail_to_pass": [t for t in expected if repo.is_hidden(t) and t in failed],
    "hidden_pass_to_pass": [t for t in expected if repo.is_hidden(t) and t not in failed],
  }
  facts = {
    "repo": repo.id,
    "repo_name": repo.name,
    "repo_kind": repo.kind,
    "kind": damage.kind,
    "level": level_of(damage.changed_lines),
    "changed_lines": damage.changed_lines,
    "names": list(damage.names),
    "edits": [dict(edit) for edit in damage.edits],
    **{name: lists[name] for name in TESTS},
  }
  digest = hashlib.sha256(json.dumps([repo.id, facts["edits"]]).encode()).hexdigest()[:16]
  prompt = prompt_of(repo, damage, random.Random(f"{seed} prompt {digest}"))
  return Task(f"code-{digest}", "coding", prompt, facts, split_of(repo.group), seed), ""


FAULTS = (
  "`{check}` fails. Mend {path}.",
  "`{check}` fails since the last change of {path}. Find the fault and mend it.",
  "There is a fault in {path}: see `{check}`. Mend it.",
)
_FEATURES = (
  "{names} in {path} only raise NotImplementedError. Write them; `{check}` says what is wanted.",
  "{path} lost {names} in a merge. Bring them back so that `{check}` passes.",
  "Please implement {names} ({path}). `{check}` should pass, and what else the callers expect.",
)


def prompt_of(repo: Repo, damage: Damage, draw: random.Random) -> str:
  """A short request that does not tell where the fault is or how a feature works."""
  paths = list(dict.fromkeys(edit["path"] for edit in damage.edits))
  check = repo.check_command
  names = [f"`{name}`" for name in damage.names[:12]]
  listed = " and ".join(filter(None, [", ".join(names[:-1]), names[-1]]))
  if len(damage.names) > 12:
    listed = f"{len(damage.names)} functions"
  forms = _FEATURES if damage.kind.startswith("feature") else FAULTS
  return draw.choice(forms).format(check=check, path=" and ".join(paths), names=listed)


@dataclasses.dataclass
class Yield:
  """Counts of what was tried; `refused` counts by reason."""

  repos: int = 0
  tried: int = 0
  tasks: int = 0
  refused: collections.Counter[str] = dataclasses.field(default_factory=collections.Counter)


async def tasks_of(
  judge: Judge,
  repo: Repo,
  *,
  plans: Sequence[str],
  count: int,
  seed: int,
  tally: Yield,
) -> AsyncIterator[Task]:
  """Yields at most `count` valid tasks of a repository; the kinds of `plans` take turns."""
  damager = Damager(repo, seed)
  made, misses, drawn_out = 0, 0, set[str]()
  while made < count and misses < 2 * count + 4 and not drawn_out.issuperset(plans):
    plan = plans[(made + misses) % len(plans)]
    damage = damager.next(plan) if plan not in drawn_out else None
    if damage is None:
      drawn_out.add(plan)
      misses += 1
      continue
    tally.tried += 1
    task, why = await validated(judge, repo, damage, seed=seed)
    if task is None:
      tally.refused[why] += 1
      misses += 1
      continue
    made += 1
    tally.tasks += 1
    yield task


async def gathered(
  jobs: Sequence[Callable[[], AsyncIterator[Any]]], *, at_once: int
) -> list[list[Any]]:
  """What each job yields, in the order of the jobs; a limited number of jobs runs at once."""
  turn = asyncio.Semaphore(at_once)

  async def one(job: Callable[[], AsyncIterator[Any]]) -> list[Any]:
    async with turn:
      return [item async for item in job()]

  return list(await asyncio.gather(*map(one, jobs)))
