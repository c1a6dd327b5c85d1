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
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Any

from jaxrl_agents.agents.coding.judge import repo as repo_lib
from jaxrl_agents.agents.coding.judge.repo import Repo
from jaxrl_agents.agents.coding.judge.run_tests import NotBegun
from jaxrl_agents.agents.coding.judge.verdict import TESTS, Judge
from jaxrl_agents.agents.coding.tasks import cheap_patches
from jaxrl_agents.agents.coding.tasks.damager import Damage, Damager
from jaxrl_agents.corpus.splits import split_of
from jaxrl_agents.types import Task

LEVELS = (1, 10, 60)
"""Most changed lines of levels 0, 1 and 2; level 3 has more."""
MAX_SUITE_S = 1.2
"""Most seconds for all tests of a repository, beside the other work of the machine."""
MAX_DAMAGED_S = 4.0
"""Most seconds for all tests of a damaged repository; a test that never ends would delay every run.
"""


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
  if damage.kind.startswith("pair") and not await _needs_both(judge, repo, damage):
    return None, "half of it is no damage"
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


async def _needs_both(judge: Judge, repo: Repo, damage: Damage) -> bool:
  """Whether a test still fails where only one of several edits is undone."""
  expected = repo.expected()
  for edit in damage.edits:
    gives = await judge.outcomes(repo, dict(repo_lib.broken(repo, [edit])), suite_s=MAX_DAMAGED_S)
    if all(gives.get(test) == want for test, want in expected.items()):
      return False
  return True


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
  """A short request that does not tell where the fault is or how a feature works.

  Of short functions it names every file; of whole modules and packages, the damaged ones.
  """
  damaged = dict.fromkeys(edit["path"] for edit in damage.edits)
  paths = repo.sources if repo.kind == "calls" else tuple(damaged)
  check = repo.check_command
  names = [f"`{name}`" for name in damage.names[:12]]
  listed = " and ".join(filter(None, [", ".join(names[:-1]), names[-1]]))
  if len(damage.names) > 12:
    listed = f"{len(damage.names)} functions"
  forms = _FEATURES if damage.kind.startswith("feature") else FAULTS
  path = (" or " if repo.kind == "calls" else " and ").join(paths)
  return draw.choice(forms).format(check=check, path=path, names=listed)


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
