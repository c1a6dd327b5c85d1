"""Damaged functions to practise repairs on by reading alone; many more of them than have tests.

    module -> a few of its functions, extracted -> one token of one is changed, or lines, or both

No code runs. Some damage changes no behaviour; the drill repairs it all the same.
"""

from __future__ import annotations

import collections
import dataclasses
import random
import re
import textwrap
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from jaxrl_agents.agents.coding.judge.repo import Repo
from jaxrl_agents.agents.coding.tasks import damager, mutations, statements, suite_repos
from jaxrl_agents.agents.coding.tasks import functions as code_functions
from jaxrl_agents.agents.coding.tasks.mutations import Mutation
from jaxrl_agents.corpus.documents import Document
from jaxrl_agents.corpus.python_source import Function, ParsedModule
from jaxrl_agents.corpus.splits import split_of
from jaxrl_agents.types import Split

MIN_LINES, MAX_LINES = 2, 14
BESIDE = 0.5
"""Probability that the file holds another function of the module."""
RENAMED = 0.5
"""Probability that the local names of a file are replaced."""
NAMED = 0.5
"""Probability that a function stands alone in a file of its name, where tasks have two files."""
MAX_TRIES = 20
"""Draws for each wanted function; after that, fewer are returned."""


PAIRED = 0.35
"""Probability that a second flip damages the same function, where lines are damaged as well."""

EACH = (2, 4)
"""Fewest and most functions of a file of which each is damaged."""


class Damaged(NamedTuple):
  """A repository of one file, and the edits that broke it, as `agents.coding.judge.repo.broken`
  takes them; `each` tells that every function of the file has one fault.
  """

  repo: Repo
  edits: tuple[Mapping[str, Any], ...]
  each: bool = False


@dataclasses.dataclass(frozen=True)
class _Function:
  """A function as it would stand alone, the kinds of damage that it allows, and its local names."""

  key: str
  text: str
  kinds: frozenset[str]
  names: tuple[str, ...]


@dataclasses.dataclass(frozen=True)
class Functions:
  """The short functions of the modules of one split.

  Attributes:
    modules: those of each module, which has at least one.
    flips: whether a damaged token is replaced by its counterpart (mutations.is_flip).
    lines: whether damage of whole lines (tasks.statements) is among the kinds of damage, and some
      functions have a flip besides.
  """

  modules: Sequence[Sequence[_Function]]
  flips: bool
  lines: bool

  @property
  def texts(self) -> list[str]:
    """The undamaged functions of each module."""
    return ["\n\n\n".join(f.text for f in module) + "\n" for module in self.modules]


def short_functions(
  documents: Iterable[Document],
  *,
  split: Split,
  flips: bool,
  lines: bool = False,
  without: Iterable[str] = (),
) -> Functions:
  """The short functions of the modules of a split. A function is left out if it also occurs in a
  module of another split or in one of the texts `without`.
  """
  own: list[list[_Function]] = []
  elsewhere = set[str]().union(*map(code_functions.keys, without))
  for source in _parsed(documents):
    if split_of(source.name) == split:
      own.append(_functions(source, flips, lines))
    else:
      elsewhere.update(code_functions.key(function) for function, _ in _short(source))
  kept = ([each for each in module if each.key not in elsewhere] for module in own)
  return Functions([module for module in kept if module], flips, lines)


def damaged(
  functions: Functions,
  *,
  count: int,
  max_characters: int,
  seed: int,
  named: bool = False,
  each: float = 0.0,
) -> Iterator[Damaged]:
  """Yields at most `count` damaged functions, in files of at most `max_characters`; if `named`,
  half of them alone in a file of their name. A share `each` are files of EACH functions, all
  damaged, and of as many times `max_characters`.

  All kinds of damage are equally frequent, and so are the modules that allow a kind. Half of the
  files have their local names replaced by those of other functions, which makes more drills than
  the modules have code.
  """
  draw, found = random.Random(f"{seed} drills"), 0
  flips, lines = functions.flips, functions.lines
  places: dict[str, list[tuple[Sequence[_Function], list[_Function]]]]
  places = collections.defaultdict(list)
  for module in functions.modules:
    for kind in (*mutations.ONE_TOKEN, *statements.KINDS):
      having = [f for f in module if kind in f.kinds and len(f.text) < max_characters]
      if having:
        places[kind].append((module, having))
  names = sorted({name for module in functions.modules for f in module for name in f.names})
  for _ in range(count * MAX_TRIES if places else 0):
    if found == count:
      return
    if draw.random() < each:
      made = _each_damaged(functions, max_characters, names, draw)
      if made:
        found += 1
        yield made
      continue
    kind = draw.choice(sorted(places))
    module, having = draw.choice(places[kind])
    picked = [draw.choice(having)]
    alone = named and draw.random() < NAMED
    if not alone and draw.random() < BESIDE:
      picked += draw.sample(module, 1)
      draw.shuffle(picked)
    text = _file(picked, names, draw)
    made = None
    if len(text) <= max_characters:
      made = _damaged(text, kind, flips, lines, draw, alone=alone)
    if made:
      found += 1
      yield made


def _parsed(documents: Iterable[Document]) -> Iterator[ParsedModule]:
  for document in documents:
    if document.metadata.get("kind") == "python":
      source = suite_repos.parsed(str(document.metadata["source"]), document.text)
      if source is not None:
        yield source


def _short(source: ParsedModule) -> Iterator[tuple[Function, str]]:
  """The short functions of a module, and the methods of its classes, with their text."""
  for _, function in mutations.functions(source):
    text = textwrap.dedent(code_functions.without_docstring(source, function))
    if MIN_LINES <= len(text.splitlines()) <= MAX_LINES:
      yield function, text


def _functions(source: ParsedModule, flips: bool, lines: bool) -> list[_Function]:
  """The short functions of a module."""
  return [
    _Function(
      code_functions.key(function),
      text,
      frozenset(mutation.kind for mutation in _mutations(source, function, flips, lines)),
      tuple(mutations.local_names(function)),
    )
    for function, text in _short(source)
  ]


def _mutations(
  source: ParsedModule, function: Function, flips: bool, lines: bool
) -> list[Mutation]:
  tokens = [
    mutation
    for mutation in mutations.candidates(source, function)
    if mutation.kind in mutations.ONE_TOKEN
    and not (flips and not mutations.is_flip(source, mutation))
  ]
  return [*tokens, *statements.damages(source, function)] if lines else tokens


def _file(picked: Sequence[_Function], names: Sequence[str], draw: random.Random) -> str:
  """A file of functions, half of the time with other local names."""
  text = "\n\n\n".join(dict.fromkeys(f.text for f in picked)) + "\n"
  if draw.random() < RENAMED:
    text = _renamed(text, {name for f in picked for name in f.names}, names, draw)
  return text


def _renamed(text: str, own: Collection[str], names: Sequence[str], draw: random.Random) -> str:
  """A text with its local names replaced by names that do not occur in it."""
  others = [n for n in draw.sample(names, min(4 * len(own), len(names))) if n not in text]
  new = dict(zip(sorted(own), others, strict=False))
  if not new:
    return text
  return re.sub(rf"\b(?:{'|'.join(map(re.escape, new))})\b", lambda found: new[found[0]], text)


def _damaged(
  text: str, kind: str, flips: bool, lines: bool, draw: random.Random, *, alone: bool
) -> Damaged | None:
  source = suite_repos.parsed(suite_repos.MAIN, text)
  if source is None:
    return None
  found = [
    (function, mutation)
    for _, function in mutations.functions(source)
    for mutation in _mutations(source, function, flips, lines)
    if mutation.kind == kind
  ]
  if not found:
    return None
  function, mutation = draw.choice(found)
  changes = mutations.changing(source, function)
  if not changes(mutation):
    return None
  made = [mutation]
  if lines and draw.random() < PAIRED:
    others = [each for each in _mutations(source, function, True, False) if changes(each)]
    pairs = [sorted((mutation, each), key=lambda m: (m.start, m.end)) for each in others]
    apart = [pair for pair in pairs if damager.are_apart(text, *pair)]
    made = draw.choice(apart) if apart else made
  path = f"{function.name}.py" if alone else suite_repos.MAIN
  return _broken(path, source, made)


def _each_damaged(
  functions: Functions, max_characters: int, names: Sequence[str], draw: random.Random
) -> Damaged | None:
  """A file of several functions of a module, with one fault in each; the kinds that a function
  allows are equally likely.
  """
  module = [f for f in draw.choice(functions.modules) if f.kinds and len(f.text) < max_characters]
  count = draw.randint(*EACH)
  if len(module) < count:
    return None
  source = suite_repos.parsed(suite_repos.MAIN, _file(draw.sample(module, count), names, draw))
  made = []
  for _, function in mutations.functions(source) if source else ():
    assert source is not None
    by_kind = collections.defaultdict(list)
    for mutation in _mutations(source, function, functions.flips, functions.lines):
      by_kind[mutation.kind].append(mutation)
    if not by_kind:
      return None
    made.append(draw.choice(by_kind[draw.choice(sorted(by_kind))]))
    if not mutations.changing(source, function)(made[-1]):
      return None
  if source is None or len(made) != count:
    return None
  return _broken(suite_repos.MAIN, source, made)._replace(each=True)


def _broken(path: str, source: ParsedModule, made: Sequence[Mutation]) -> Damaged:
  repo = Repo("drill", "drill", "calls", {path: source.text}, (path,))
  return Damaged(repo, tuple(damager.edit_of(path, source, each) for each in made))
