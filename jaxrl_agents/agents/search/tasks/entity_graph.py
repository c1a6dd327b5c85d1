"""What can be asked of a domain: its described entities, their chunks, and how they are tied.

An entity is described when its sentence makes a telling clue that no other entity shares, and that
sentence lies whole in one chunk. A tie is a relation whose line of evidence does.
"""

from __future__ import annotations

import collections
import dataclasses
import re
from collections.abc import Mapping

from jaxrl_agents.agents.search.tasks import clue_wording
from jaxrl_agents.corpus.entities import SYMMETRIC, ChunkMap, Domain, Entity, Span
from jaxrl_agents.types import Split

PLAIN_SENTENCES = 3
"""A word that this many sentences use in lower case is plain language, though it is a name."""


@dataclasses.dataclass(frozen=True)
class Described:
  """An entity with its clue.

  Attributes:
    entity: the entity.
    clue: its description, in the words of one split's table.
    quote: the words of the document that the clue was made of.
    truth_quote: the line that names the entity; "" where that cannot be shown.
    chunk_ids: the chunk of the quote, then that of the line that names the entity, if another.
  """

  entity: Entity
  clue: str
  quote: str
  truth_quote: str
  chunk_ids: tuple[str, ...]


@dataclasses.dataclass(frozen=True)
class Tie:
  """An entity stands in relation `kind` to `other`, as its source if `forward`.

  `evidence` is the line in chunk `chunk_id` that says so; it belongs to the entity `owner`.
  """

  kind: str
  forward: bool
  other: str
  evidence: str
  chunk_id: str
  owner: str


@dataclasses.dataclass(frozen=True)
class Graph:
  """Attributes:
  entities: all entities, described or not.
  described: key -> description, for the words of one table.
  ties: key -> ties between described entities, in a fixed order.
  fits: (key, kind, forward) -> all entities so tied to it, described or not: what makes an answer
    unique is counted here.
  chunk_texts: chunk id -> text.
  """

  entities: Mapping[str, Entity]
  described: Mapping[str, Described]
  ties: Mapping[str, tuple[Tie, ...]]
  fits: Mapping[tuple[str, str, bool], frozenset[str]]
  chunk_texts: Mapping[str, str]


def build(domain: Domain, chunk_map: ChunkMap, table: Split) -> Graph:
  """Grounds a domain in chunks, with clues in the words of a split's table."""
  described = _described(domain, chunk_map, table)
  ties: dict[str, dict[tuple[str, str], Tie]] = {}
  fits: dict[tuple[str, str, bool], set[str]] = collections.defaultdict(set)
  for relation in domain.relations:
    symmetric = relation.kind in SYMMETRIC
    fits[relation.target, relation.kind, True].add(relation.source)
    fits[relation.source, relation.kind, symmetric].add(relation.target)
    chunk = chunk_map.find(relation.evidence)
    if chunk is None or relation.source not in described or relation.target not in described:
      continue
    quote = chunk_map.quote(relation.evidence)
    for key, forward, other in (
      (relation.source, True, relation.target),
      (relation.target, symmetric, relation.source),
    ):
      owner = relation.target if relation.kind == "holds" else relation.source
      tie = Tie(relation.kind, forward, other, quote, chunk.id, owner)
      ties.setdefault(key, {}).setdefault((relation.kind, other), tie)
  return Graph(
    entities=domain.entities,
    described=described,
    ties={key: tuple(value.values()) for key, value in ties.items()},
    fits={key: frozenset(value) for key, value in fits.items()},
    chunk_texts=chunk_map.chunk_texts,
  )


def _described(domain: Domain, chunk_map: ChunkMap, table: Split) -> dict[str, Described]:
  rare = _rare_names(domain, chunk_map)
  found: dict[str, Described] = {}
  for entity in domain.entities.values():
    if entity.summary is None:
      continue
    sentence = chunk_map.quote(entity.summary)
    made = clue_wording.rewrite(sentence, table, own_name=entity.name, rare_names=rare)
    if made is None:
      continue
    clue, length = made
    start = entity.summary.start
    chunk = chunk_map.find(Span(entity.summary.doc_id, start, start + length))
    if chunk is None:
      continue
    naming = chunk_map.find(entity.truth)
    chunk_ids = dict.fromkeys([chunk.id, *([naming.id] if naming else [])])
    truth_quote = chunk_map.quote(entity.truth) if entity.truth and naming else ""
    quote = sentence[:length].strip()
    found[entity.key] = Described(entity, clue, quote, truth_quote, tuple(chunk_ids))
  shared = collections.Counter(each.clue for each in found.values())
  return {key: each for key, each in found.items() if shared[each.clue] == 1}


def _rare_names(domain: Domain, chunk_map: ChunkMap) -> frozenset[str]:
  """Names that are no plain words: few of the sentences use them in lower case."""
  uses: collections.Counter[str] = collections.Counter()
  for entity in domain.entities.values():
    if entity.summary is not None:
      uses.update(set(re.findall(r"\b[a-z]+\b", chunk_map.quote(entity.summary))))
  lowered = {entity.name.lower() for entity in domain.entities.values()}
  return frozenset(name for name in lowered if uses[name] < PLAIN_SENTENCES)
