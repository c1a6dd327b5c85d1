"""The edits that scripted players without gold try: those that undo a family of damage."""

from __future__ import annotations

import collections
import random
from collections.abc import Iterator, Mapping, Sequence

from jaxrl_agents.agents.coding import scripted_edits
from jaxrl_agents.agents.coding.scripted_edits import Edit
from jaxrl_agents.agents.coding.tasks import mutations, statements, suite_repos


def possible_edits(
  sources: Mapping[str, str], damage: str, draw: random.Random, tools: Sequence[str]
) -> Iterator[tuple[Edit, str]]:
  """Yields the edits of a family in the functions of {path: text}, each once, in a random order, as
  calls of these tools with the texts that they make.

  The family is that of `CodingConfig.damage`: "flip" replaces one token by its counterpart, "token"
  one token by another, and "any" is every mutation of `agents.coding.tasks.mutations`. "mixed" are
  flips and the repairs of `agents.coding.tasks.statements`; each edit is of a kind that is drawn
  first, so that no kind is tried seldom because another one has many places.
  """
  found = _mixed(sources, draw) if damage == "mixed" else _mutations(sources, damage, draw)
  seen = set(sources.items())
  for path, text, mutation in found:
    change = mutation.start, mutation.end, mutation.new
    made, changed = scripted_edits.edit(path, text, *change, tools)
    if (path, changed) not in seen:
      seen.add((path, changed))
      yield made, changed


_Place = tuple[str, str, mutations.Mutation]
"""Path, text and mutation."""


def _mutations(sources: Mapping[str, str], damage: str, draw: random.Random) -> Iterator[_Place]:
  found = []
  for path, text in sources.items():
    source = suite_repos.parsed(path, text)
    if source is None:
      continue
    for _, function in mutations.functions(source):
      found += [(path, source, function, each) for each in mutations.candidates(source, function)]
  draw.shuffle(found)
  for path, source, function, mutation in found:
    if damage != "any" and mutation.kind not in mutations.ONE_TOKEN:
      continue
    if damage == "flip" and not mutations.is_flip(source, mutation):
      continue
    if mutations.changing(source, function)(mutation):
      yield path, source.text, mutation


def _mixed(sources: Mapping[str, str], draw: random.Random) -> Iterator[_Place]:
  by_kind: dict[str, list[_Place]] = collections.defaultdict(list)
  for path, text in sources.items():
    source = suite_repos.parsed(path, text)
    for _, function in mutations.functions(source) if source else ():
      assert source is not None
      changes = mutations.changing(source, function)
      for mutation in mutations.candidates(source, function):
        if mutations.is_flip(source, mutation) and changes(mutation):
          by_kind["flip"].append((path, text, mutation))
      for mutation in statements.repairs(source, function):
        if changes(mutation):
          by_kind[mutation.kind].append((path, text, mutation))
  while by_kind:
    kind = draw.choice(sorted(by_kind))
    yield by_kind[kind].pop(draw.randrange(len(by_kind[kind])))
    if not by_kind[kind]:
      del by_kind[kind]
