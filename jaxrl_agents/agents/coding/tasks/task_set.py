"""Frozen sets of coding tasks, in one folder:

    repos.jsonl.gz   one repository a line, with its tests and their outcomes
    tasks.jsonl      one task a line
    manifest.json    SHA-256 of both, counts, seed, sources, versions of Python and packages

Files whose hashes differ from the manifest are refused.
"""

from __future__ import annotations

import collections
import dataclasses
import functools
import json
import os
import pathlib
import platform
import random
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from typing import Any

from jaxrl_agents.agents.coding.config import CodingConfig
from jaxrl_agents.agents.coding.judge import repo as repo_lib
from jaxrl_agents.agents.coding.judge.repo import Repo
from jaxrl_agents.agents.coding.judge.verdict import Judge
from jaxrl_agents.agents.coding.tasks import call_repos, functions, make_tasks, suite_repos
from jaxrl_agents.agents.coding.tasks.functions import Cut
from jaxrl_agents.corpus import documents, frozen_sets, rows
from jaxrl_agents.corpus.documents import Document
from jaxrl_agents.corpus.splits import SPLITS, split_of
from jaxrl_agents.sandbox.host.sandboxes import Sandboxes
from jaxrl_agents.types import Task

PYTHON = "python"
TASKS = "tasks.jsonl"
DAMAGE = {
  "any": ("",),
  "token": ("token ", "flip "),
  "flip": ("flip ",),
  "mixed": ("flip ", "lines ", "pair "),
}
"""Beginnings of the kinds of damage of a slice, by `CodingConfig.damage`."""
CALLS_PLANS = ("flip", "flip", "token", "statement")
"""Kinds of damage of a repository of calls, in turn."""
MIXED_PLANS = ("lines", "pair", "flip")
"""Kinds of damage, in turn, where the slice asks for "mixed" damage."""
AT_ONCE = 2 * (os.cpu_count() or 2)
"""Repositories processed at once; tests wait for clocks and files as much as for cores."""


@dataclasses.dataclass(frozen=True)
class CodingSet:
  """Repositories by id, and tasks by split."""

  repos: Mapping[str, Repo]
  tasks: Mapping[str, Sequence[Task]]
  manifest: Mapping[str, Any]


async def make(
  boxes: Sandboxes,
  sources: Sequence[str],
  *,
  kinds: Sequence[str] = ("calls", "suite"),
  damage: str = "any",
  max_files: int = 1,
  per_repo: int = 12,
  max_repos: int = 10_000,
  seed: int = 0,
  report: Callable[[str], None] = lambda line: None,
) -> CodingSet:
  """Makes tasks of real code.

  Args:
    boxes: sandboxes in which all code runs.
    sources: "python" (this interpreter's library), "package:NAME" (an installed package; "calls"
      only), folders of a package, sdists.
    kinds: of repositories: "calls" (one-token and one-statement damage of short functions) and
      "suite" (whole modules and packages with their own tests, and every kind of damage).
    damage: of "calls": the damage that a slice asks for (a key of DAMAGE).
    max_files: of "calls": most files of the functions of one repository, 1 or 2.
    per_repo: most tasks of one repository.
    max_repos: most modules tried of each source and kind, drawn at random.
    seed: of every draw.
    report: is called with a line for each stage.

  Raises:
    ValueError: a source cannot be read, or no task could be made.
  """
  for source in sources:
    _refuse_rows(source)
  judge, tally = Judge(boxes), make_tasks.Yield()
  every = MIXED_PLANS if damage == "mixed" else CALLS_PLANS
  plans = [plan for plan in every if f"{plan} ".startswith(DAMAGE[damage])]
  jobs: list[Callable[[], AsyncIterator[tuple[Repo, Task]]]] = []
  groups_of = cuts_by_module(sources) if "calls" in kinds else [[] for _ in sources]
  suites_of = [_suites(source, report) if "suite" in kinds else [] for source in sources]
  groups_of, left_out = _apart(groups_of, [repo for suites in suites_of for repo in suites])
  if left_out:
    report(
      f"{left_out} functions are left out, as repositories with tests of another split hold them; "
      "for tasks of these functions, make tasks of calls alone"
    )
  for source, groups, suites in zip(sources, groups_of, suites_of, strict=True):
    picked = random.Random(f"{seed} {source}").sample(groups, min(max_repos, len(groups)))
    jobs += [
      functools.partial(_of_calls, boxes, judge, cuts, plans, max_files, per_repo, seed, tally)
      for cuts in picked
    ]
    picked_repos = random.Random(f"{seed} {source}").sample(suites, min(max_repos, len(suites)))
    jobs += [
      functools.partial(_of_suite, judge, repo, per_repo, seed, tally) for repo in picked_repos
    ]
  report(f"{len(jobs)} modules to try")
  made = [pair for each in await make_tasks.gathered(jobs, at_once=AT_ONCE) for pair in each]
  report(f"{tally.tried} kinds of damage tried, {len(made)} valid tasks")
  if not made:
    raise ValueError(f"no task could be made of {', '.join(sources)}; name more code, or its tests")
  by_id = {task.id: (repo, task) for repo, task in made}
  pairs = [by_id[key] for key in sorted(by_id)]
  manifest = {
    "sources": list(map(str, sources)),
    "kinds": list(kinds),
    "damage": damage,
    "max_files": max_files,
    "per_repo": per_repo,
    "max_repos": max_repos,
    "seed": seed,
    "python": platform.python_version(),
    "versions": dict(zip(sources, map(documents.version, sources), strict=True)),
    "refused": dict(tally.refused.most_common()),
    "counts": counts(task for _, task in pairs),
  }
  tasks: dict[str, Sequence[Task]] = {
    split: tuple(t for _, t in pairs if t.split == split) for split in SPLITS
  }
  return CodingSet({repo.id: repo for repo, _ in pairs}, tasks, manifest)


def cuts_by_module(sources: Sequence[str]) -> list[list[list[Cut]]]:
  """The functions of each source that can be extracted, grouped by module.

  A function is left out if it, or one that it needs, occurs in an earlier module (`functions.key`):
  packages copy code from each other, and a copy could be in another split.
  """
  seen = set[str]()
  found = []
  for source in sources:
    groups = []
    for document in documents.load(source) if not _is_archive(source) else ():
      keys = {cut: functions.keys(cut.text) for cut in _cuts(document)}
      cuts = [cut for cut in keys if not keys[cut] & seen]
      seen.update(*(keys[cut] for cut in cuts))
      if cuts:
        groups.append(cuts)
    found.append(groups)
  return found


def _suites(source: str, report: Callable[[str], None]) -> list[Repo]:
  """The repositories of a source that have tests of their own."""
  if source.startswith(documents.PACKAGE):
    report(f"{source}: functions alone; for tasks of its tests, name its folder or an sdist")
    return []
  found = list(suite_repos.library()) if source == PYTHON else [suite_repos.folder(source)]
  if not found:
    report(
      f"{source}: this interpreter came without the tests of its library (Debian and Ubuntu: "
      "apt install libpython3-testsuite); name a folder or an sdist for tasks of tests"
    )
  return found


def _apart(
  groups_of: Sequence[Sequence[Sequence[Cut]]], suites: Sequence[Repo]
) -> tuple[list[list[list[Cut]]], int]:
  """(the functions of each source without those that a repository of another split holds, their
  number): whoever trains on tasks of such a repository could read there how a function should be.
  """
  keys = {cut: functions.keys(cut.text) for groups in groups_of for cuts in groups for cut in cuts}
  wanted = set[str]().union(*keys.values())
  held: dict[str, set[str]] = collections.defaultdict(set)  # {key: splits of repositories}
  for repo in suites:
    parsed = (suite_repos.parsed(path, text) for path, text in repo.files.items())
    for source in filter(None, parsed):
      for key in functions.keys(source.text) & wanted:
        held[key].add(split_of(repo.group))
  fits = {
    cut for cut, own in keys.items() if all(held[key] <= {split_of(cut.module)} for key in own)
  }
  kept = [[[cut for cut in cuts if cut in fits] for cuts in groups] for groups in groups_of]
  return [[cuts for cuts in groups if cuts] for groups in kept], len(keys) - len(fits)


def _refuse_rows(source: str) -> None:
  """Raises ValueError if a source is a file of rows, such as those of SWE-bench, and no code."""
  path = pathlib.Path(source)
  if path.is_file() and rows.suffix(path) in rows.SUFFIXES:
    next(rows.read(path), None)  # says why a row about a repository cannot be used
    raise ValueError(f"{source}: rows, and no source code; name a folder or an sdist of a package")


def _cuts(document: Document) -> list[Cut]:
  name = str(document.metadata["source"])
  if document.metadata.get("kind") != "python" or repo_lib.is_test(name):
    return []
  parsed = suite_repos.parsed(name, document.text)
  return list(functions.cuts(parsed)) if parsed else []


def _is_archive(source: str) -> bool:
  return source != PYTHON and pathlib.Path(source).is_file()


async def _of_calls(
  boxes: Sandboxes,
  judge: Judge,
  cuts: Sequence[Cut],
  plans: Sequence[str],
  max_files: int,
  per_repo: int,
  seed: int,
  tally: make_tasks.Yield,
) -> AsyncIterator[tuple[Repo, Task]]:
  async for repo in call_repos.repos(boxes, cuts, seed=seed, max_files=max_files):
    tally.repos += 1
    async for task in make_tasks.tasks_of(
      judge, repo, plans=plans, count=per_repo, seed=seed, tally=tally
    ):
      yield repo, task


async def _of_suite(
  judge: Judge, repo: Repo, per_repo: int, seed: int, tally: make_tasks.Yield
) -> AsyncIterator[tuple[Repo, Task]]:
  found = await make_tasks.stable(judge, repo)
  if found is None:
    return
  tally.repos += 1
  plans = ("token", "feature", "features", "statement", "features")
  async for task in make_tasks.tasks_of(
    judge, found, plans=plans, count=per_repo, seed=seed, tally=tally
  ):
    yield found, task


def counts(tasks: Iterable[Task]) -> dict[str, dict[str, int]]:
  """Numbers of tasks by split, by level and by kind of repository."""
  found: dict[str, collections.Counter[str]] = collections.defaultdict(collections.Counter)
  for task in tasks:
    found["split"][task.split] += 1
    found["level"][str(task.facts["level"])] += 1
    found["repo_kind"][task.facts["repo_kind"]] += 1
    found["kind"][task.facts["kind"]] += 1
  return {name: dict(sorted(counter.items())) for name, counter in found.items()}


def save(coding_set: CodingSet, folder: str | os.PathLike[str]) -> None:
  """Writes a set; the folder appears complete or not at all.

  Raises:
    ValueError: the folder exists and has other content.
  """
  repos = [coding_set.repos[key] for key in sorted(coding_set.repos)]
  tasks = [task for split in SPLITS for task in coding_set.tasks[split]]
  contents = {
    repo_lib.FILE: frozen_sets.json_lines(map(dataclasses.asdict, repos)),
    TASKS: frozen_sets.json_lines(map(dataclasses.asdict, tasks)),
  }
  frozen_sets.write(folder, contents, coding_set.manifest)


def load(folder: str | os.PathLike[str]) -> CodingSet:
  """Reads a set.

  Raises:
    ValueError: a file is missing or was changed, or a task's repository is missing.
  """
  repos = repo_lib.load(folder)
  manifest = frozen_sets.read_manifest(folder, maker=repo_lib.MAKER)
  lines = frozen_sets.read(folder, TASKS, manifest, maker=repo_lib.MAKER).decode().splitlines()
  tasks = [Task(**json.loads(line)) for line in lines]
  for task in tasks:
    if task.facts["repo"] not in repos:
      raise ValueError(f"{folder}: task {task.id} is of repository {task.facts['repo']}, not there")
  return CodingSet(repos, {s: tuple(t for t in tasks if t.split == s) for s in SPLITS}, manifest)


def chosen(coding_set: CodingSet, split: str, limits: CodingConfig) -> list[Task]:
  """The tasks of a split that the slice of `limits` contains, sorted by id."""
  found = []
  for task in coding_set.tasks[split]:
    repo = coding_set.repos[task.facts["repo"]]
    longest = max(len(repo.files[edit["path"]]) for edit in task.facts["edits"])
    fits = (
      limits.repo_kind in ("any", repo.kind)
      and task.facts["kind"].startswith(DAMAGE[limits.damage])
      and limits.min_level <= task.facts["level"] <= limits.max_level
      and longest <= limits.max_file_characters
      and (repo.kind != "calls" or len(repo.sources) <= limits.max_files)
    )
    if fits:
      found.append(task)
  return sorted(found, key=lambda task: task.id)
