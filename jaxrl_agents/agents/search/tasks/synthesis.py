"""Chains of search tasks from a graph of described entities: by rule, deterministic, verified.

A level names three entities by number: "1. Routine: <clue>. 2. Class made by 1: <clue>. …".
Shapes of level 0: "star" (the truth is tied to both others), "line" (the second is tied to the
first, the truth to the second), and either of them "blind": the truth is told by its ties alone,
which then must leave one entity of all that the corpus states. A further level ties a bridging item
to the truth before it and asks for a new truth tied to the bridge.
"""

from __future__ import annotations

import collections
import dataclasses
import random
from collections.abc import Mapping

from jaxrl_agents.agents.search.tasks import quote_verification
from jaxrl_agents.agents.search.tasks.chain_writer import Part, write
from jaxrl_agents.agents.search.tasks.chains import Chain, Level
from jaxrl_agents.agents.search.tasks.entity_graph import Described, Graph, Tie
from jaxrl_agents.corpus.splits import split_of
from jaxrl_agents.types import Split

MIN_NAME = 4
"""Characters of the shortest name that may be asked for: shorter ones stand everywhere."""

SHAPES = {"star": 0.55, "line": 0.25, "blind_star": 0.1, "blind_line": 0.1}
"""Shape of a level -> how often it is tried."""

DEPTHS = (0.4, 0.25, 0.2, 0.15)
"""How often a chain is meant to end at level 0, 1, 2, 3."""

ATTEMPTS = 8
"""Draws of partners for one truth before it is given up."""


@dataclasses.dataclass(frozen=True)
class Yield:
  """Chains, and how many levels were refused, by reason."""

  chains: tuple[Chain, ...]
  refused: Mapping[str, int]


def chains(graph: Graph, split: Split, *, seed: int, per_truth: int, limit: int) -> Yield:
  """Makes chains whose truths all lie in the groups of one split.

  Args:
    graph: built with the words of the split's table.
    split: which truths.
    seed: of every draw; the same seed and graph give the same chains.
    per_truth: how many chains may start with the same truth.
    limit: levels wanted in all, about; chains of it are drawn evenly over truths.
  """
  refused: collections.Counter[str] = collections.Counter()
  truths = [key for key, each in sorted(graph.described.items()) if _askable(graph, each, split)]
  made: list[Chain] = []
  levels, seen = 0, set()
  for round_number in range(per_truth):
    random.Random(f"{seed}/{split}/{round_number}").shuffle(truths)
    for key in truths:
      draw = random.Random(f"{seed}/{key}/{round_number}")
      chain = _chain(graph, key, split, draw, refused, f"{split}-{len(made)}")
      if chain is None or (clues := chain.levels[0].clues) in seen:
        continue
      seen.add(clues)
      made.append(chain)
      levels += len(chain.levels)
      if levels >= limit:
        return Yield(tuple(made), dict(refused))
  return Yield(tuple(made), dict(refused))


def _askable(graph: Graph, each: Described, split: Split) -> bool:
  """Whether an entity of the split has a line that names it, and a name that can be looked for."""
  entity = each.entity
  return (
    each.truth_quote != ""
    and len(entity.name) >= MIN_NAME
    and split_of(entity.group) == split
    and entity.key in graph.ties
  )


def _chain(
  graph: Graph,
  truth: str,
  split: Split,
  draw: random.Random,
  refused: collections.Counter,
  name: str,
) -> Chain | None:
  depth = draw.choices(range(len(DEPTHS)), DEPTHS)[0]
  levels: list[Level] = []
  numbers: dict[str, int] = {}
  for level in range(depth + 1):
    for _ in range(ATTEMPTS):
      parts = _first(graph, truth, draw) if not level else _next(graph, truth, split, numbers, draw)
      if parts is None or not _unique(graph, parts[-1]):
        refused["no partners that leave one answer"] += 1
        continue
      made, numbered = write(graph, parts, numbers, level, levels, draw)
      reasons = quote_verification.failures(Chain(name, (*levels, made), split), level)
      for earlier in range(level):  # a new truth must not stand in an earlier clue, or distractor
        reasons += quote_verification.failures(Chain(name, (*levels, made), split), earlier)
      if not reasons:
        break
      refused[reasons[0].partition(":")[0]] += 1
    else:
      break
    levels.append(made)
    numbers, truth = numbered, parts[-1].key
  return Chain(name, tuple(levels), split) if levels else None


def _first(graph: Graph, truth: str, draw: random.Random) -> list[Part] | None:
  """Two partners and the truth, the truth last."""
  shape = draw.choices(list(SHAPES), list(SHAPES.values()))[0]
  blind = shape.startswith("blind")
  first = _pick(graph, truth, {truth}, draw)
  if first is None:
    return None
  if shape.endswith("star"):
    second = _pick(graph, truth, {truth, first.other}, draw)
    if second is None:
      return None
    return [Part(first.other), Part(second.other), Part(truth, (first, second), blind)]
  second = _pick(graph, first.other, {truth, first.other}, draw)
  if second is None:
    return None
  return [Part(second.other), Part(first.other, (second,)), Part(truth, (first,), blind)]


def _next(
  graph: Graph, truth: str, split: Split, numbers: Mapping[str, int], draw: random.Random
) -> list[Part] | None:
  """A bridge tied to the truth before, a companion, and the new truth tied to both, last."""
  used = set(numbers)
  bridging = _pick(graph, truth, used, draw)
  if bridging is None:
    return None
  bridge = bridging.other
  onward = [
    tie
    for tie in graph.ties[bridge]
    if tie.other not in used and _askable(graph, graph.described[tie.other], split)
  ]
  if not onward:
    return None
  tie = draw.choice(onward)
  companion = _pick(graph, tie.other, used | {bridge, tie.other}, draw)
  if companion is None:
    return None
  to_bridge = _tie(graph, tie.other, tie.kind, bridge)
  to_truth = _tie(graph, bridge, bridging.kind, truth)
  part = Part(bridge, (to_truth,))
  blind = _unique(graph, dataclasses.replace(part, blind=True)) and draw.random() < 0.5
  return [
    dataclasses.replace(part, blind=blind),
    Part(companion.other),
    Part(tie.other, (to_bridge, companion)),
  ]


def _pick(graph: Graph, key: str, used: set[str], draw: random.Random) -> Tie | None:
  """A tie to an unused entity; those that leave the document or are rare in kind come up more."""
  group = graph.entities[key].group
  ties = [tie for tie in graph.ties[key] if tie.other not in used]
  if not ties:
    return None
  kinds = collections.Counter(tie.kind for tie in ties)
  weights = [
    (1 if graph.entities[tie.other].group == group else 4)
    * (0.4 if tie.kind == "holds" else 1)
    / kinds[tie.kind]
    for tie in ties
  ]
  return draw.choices(ties, weights)[0]


def _tie(graph: Graph, key: str, kind: str, other: str) -> Tie:
  return next(tie for tie in graph.ties[key] if tie.kind == kind and tie.other == other)


def _unique(graph: Graph, part: Part) -> bool:
  """Whether no other entity fits the clue of a part: its kind, its ties and its description."""
  kind = graph.entities[part.key].kind
  fitting = None
  for tie in part.ties:
    so_tied = graph.fits[tie.other, tie.kind, tie.forward]
    fitting = so_tied if fitting is None else fitting & so_tied
  rivals = {key for key in fitting or () if graph.entities[key].kind == kind} - {part.key}
  if part.blind:
    return fitting is not None and not rivals
  clue = graph.described[part.key].clue
  return not any(key in graph.described and graph.described[key].clue == clue for key in rivals)
