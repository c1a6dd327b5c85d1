"""Damaged functions to practise mending on, by reading alone: many more than have tests that tell.

    module -> a few of its functions, cut out -> one token of one changed

Nothing runs. Some damage changes nothing that could be told, and is mended all the same.
"""

from __future__ import annotations

import collections
import random
import textwrap
from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Any

from jaxrl_agents.data import code_functions, code_mutations, code_repos, coding_tasks
from jaxrl_agents.data.graph import split_of
from jaxrl_agents.data.python_source import Source
from jaxrl_agents.grading.repo import Repo
from jaxrl_agents.retrieval.documents import Document
from jaxrl_agents.types import Split

MIN_LINES, MAX_LINES = 2, 14
MAX_FUNCTIONS = 2
MAX_TRIES = 20
"""Draws for each that is wanted, after which there are fewer."""


Damaged = tuple[Repo, Mapping[str, Any]]
"""A repository of one file, and the edit that broke it, as `grading.repo.broken` takes it."""


def damaged(
  documents: Iterable[Document],
  *,
  split: Split,
  kinds: Collection[str],
  count: int,
  max_characters: int,
  plain_lines: bool,
  seed: int,
) -> Iterator[Damaged]:
  """Yields at most `count`, of the modules of a split; damage is of `kinds` (of
  code_mutations.ONE_TOKEN), files have at most `max_characters`, and damage is in plain lines where
  that is asked for (see coding_tasks.in_plain_lines).

  Modules that have many functions come up as often as others.
  """
  modules = [functions for functions in map(_functions, _of_split(documents, split)) if functions]
  draw, found = random.Random(f"{seed} drills {split}"), 0
  for _ in range(count * MAX_TRIES if modules else 0):
    if found == count:
      return
    made = _damaged(draw.choice(modules), kinds, max_characters, draw)
    if made and (not plain_lines or coding_tasks.in_plain_lines(made[0], [made[1]])):
      found += 1
      yield made


def _of_split(documents: Iterable[Document], split: Split) -> Iterator[Source]:
  for document in documents:
    if document.metadata.get("kind") == "python":
      source = code_repos.parsed(str(document.metadata["source"]), document.text)
      if source is not None and split_of(source.name) == split:
        yield source


def _functions(source: Source) -> list[str]:
  """The short functions of a module, and methods of its classes, as they would stand alone."""
  texts = []
  for _, function in code_mutations.functions(source):
    text = textwrap.dedent(code_functions.without_docstring(source, function))
    if MIN_LINES <= len(text.splitlines()) <= MAX_LINES:
      texts.append(text)
  return texts


def _damaged(
  functions: list[str], kinds: Collection[str], max_characters: int, draw: random.Random
) -> Damaged | None:
  picked = draw.sample(functions, min(draw.randint(1, MAX_FUNCTIONS), len(functions)))
  text = "\n\n\n".join(picked) + "\n"
  source = code_repos.parsed(code_repos.MAIN, text) if len(text) <= max_characters else None
  if source is None:
    return None
  by_kind = collections.defaultdict(list)
  for _, function in code_mutations.functions(source):
    for mutation in code_mutations.candidates(source, function):
      if mutation.kind in kinds:
        by_kind[mutation.kind].append((function, mutation))
  if not by_kind:
    return None
  function, mutation = draw.choice(by_kind[draw.choice(sorted(by_kind))])
  if not code_mutations.changing(source, function)(mutation):
    return None
  fixed = text[mutation.start : mutation.end]
  repo = Repo("drill", "drill", "calls", {code_repos.MAIN: text}, (code_repos.MAIN,))
  edit = {
    "path": code_repos.MAIN,
    "start": mutation.start,
    "fixed": fixed,
    "broken": mutation.new,
  }
  return repo, edit
