"""Writes one level of a chain down: its sentences, the passages behind them, its distractors."""

from __future__ import annotations

import collections
import dataclasses
import random
from collections.abc import Iterator, Mapping, Sequence

from jaxrl_agents.agents.search.tasks import quote_verification
from jaxrl_agents.agents.search.tasks.chains import Distractor, Item, Level
from jaxrl_agents.agents.search.tasks.entity_graph import Graph, Tie
from jaxrl_agents.corpus.entities import PHRASES

MAX_DISTRACTORS = 8


@dataclasses.dataclass(frozen=True)
class Part:
  """An entity of a level: the ties that its clue tells; if `blind`, that is all it tells."""

  key: str
  ties: tuple[Tie, ...] = ()
  blind: bool = False


def write(
  graph: Graph,
  parts: Sequence[Part],
  numbers: Mapping[str, int],
  level: int,
  earlier: Sequence[Level],
  draw: random.Random,
) -> tuple[Level, dict[str, int]]:
  """Writes a level down; returns it with the numbers of all entities named so far."""
  order = list(parts)
  if not level and not parts[-1].blind:  # a blind truth is told last, by its ties to the others
    draw.shuffle(order)
  numbered = dict(numbers)
  for part in order:
    numbered[part.key] = len(numbered) + 1
  told = _told(order, numbered)
  truth = graph.entities[parts[-1].key]
  ties = [tie for part in order for tie in part.ties]
  items = {}
  for part in order:
    own = [tie for tie in ties if tie.owner == part.key]
    own += [
      tie for tie in part.ties if tie.owner in numbers
    ]  # said by a passage of an earlier level
    sentence = _sentence(graph, part, told, numbered)
    items[part.key] = _item(graph, part, sentence, own, part.key == truth.key)
  bridge = None
  if level:
    first = parts[0]
    previous = next(
      item
      for each in earlier
      for item in each.items
      if item.extra.get("entity") == first.ties[0].other
    )
    bridge = dataclasses.replace(
      items.pop(first.key), previous_id=previous.id, previous_quotes=previous.item_quotes[:1]
    )
  sentences = [_sentence(graph, part, told, numbered) for part in order]
  truths = [*(each.truth for each in earlier), truth.name]
  return (
    Level(
      level=level,
      clues=" ".join(sentences),
      question=f"Question: which {truth.kind} is {numbered[truth.key]}?",
      truth=truth.name,
      truth_type=truth.kind,
      supporting_items=tuple(items.values()),
      bridging_item=bridge,
      distractors=tuple(_distractors(graph, parts, earlier, truths, draw)),
      kind=_kind(parts, level),
    ),
    numbered,
  )


def _kind(parts: Sequence[Part], level: int) -> str:
  """The shape of a level and the relations that its truth is told by, as "star calls+raises"."""
  truth = parts[-1]
  shape = "bridge" if level else "star" if len(truth.ties) > 1 else "line"
  relations = "+".join(sorted(tie.kind for tie in truth.ties))
  return f"{'blind ' if truth.blind else ''}{shape} {relations}"


def _told(order: Sequence[Part], numbers: Mapping[str, int]) -> dict[str, list[tuple[str, int]]]:
  """Entity key -> (phrase, number it refers to): whichever comes later tells of a tie."""
  told: dict[str, list[tuple[str, int]]] = collections.defaultdict(list)
  for part in order:
    for tie in part.ties:
      phrases = PHRASES[tie.kind]
      later_is_part = numbers[part.key] > numbers[tie.other]
      teller, referred = (part.key, tie.other) if later_is_part else (tie.other, part.key)
      phrase = phrases[0 if tie.forward == later_is_part else 1]
      told[teller].append((phrase, numbers[referred]))
  return told


def _sentence(graph: Graph, part: Part, told: Mapping, numbers: Mapping[str, int]) -> str:
  """One clue: number, kind, ties, and the description unless the part is blind."""
  ties: dict[str, list[int]] = {}
  for phrase, number in told.get(part.key, ()):
    ties.setdefault(phrase, []).append(number)
  phrases = [
    phrase.format(" and ".join(map(str, sorted(referred)))) for phrase, referred in ties.items()
  ]
  head = " ".join([graph.entities[part.key].kind.capitalize(), " and ".join(phrases)]).strip()
  tail = "" if part.blind else f": {graph.described[part.key].clue}"
  return f"{numbers[part.key]}. {head}{tail}."


def _item(graph: Graph, part: Part, sentence: str, own: Sequence[Tie], is_answer: bool) -> Item:
  """The passages behind one clue: description, naming line, and the evidence that is part of it."""
  each = graph.described[part.key]
  chunk_ids = tuple(dict.fromkeys([*each.chunk_ids, *(tie.chunk_id for tie in own)]))
  holds_name = lambda chunk_id: quote_verification.names(
    graph.chunk_texts[chunk_id], each.entity.name
  )
  return Item(
    id=chunk_ids[0],
    text="\n".join(graph.chunk_texts[chunk_id] for chunk_id in chunk_ids),
    clue_quotes=(sentence,),
    item_quotes=tuple(dict.fromkeys([each.quote, *(tie.evidence for tie in own[:1])])),
    truth_quotes=(each.truth_quote,) if is_answer else (),
    contains_truth=is_answer,
    is_answer=is_answer,
    chunk_ids=chunk_ids,
    answer_chunk_ids=tuple(filter(holds_name, chunk_ids)) if is_answer else (),
    name=each.entity.name,
    clue="" if part.blind else each.clue,
    reasoning=f"describes {part.key}",
    extra={"entity": part.key},
  )


def _distractors(
  graph: Graph,
  parts: Sequence[Part],
  earlier: Sequence[Level],
  truths: Sequence[str],
  draw: random.Random,
) -> Iterator[Distractor]:
  """Passages of entities that fit one tie of the truth, and not all; none holds a truth."""
  taken = {chunk for each in earlier for item in each.items for chunk in item.chunk_ids}
  taken |= {chunk for part in parts for chunk in graph.described[part.key].chunk_ids}
  taken |= {tie.chunk_id for part in parts for tie in part.ties}
  candidates = {}
  for part in parts:
    for tie in part.ties:
      for key in sorted(graph.fits[tie.other, tie.kind, tie.forward]):
        if key != part.key and key in graph.described:
          candidates[graph.described[key].chunk_ids[0]] = (key, tie)
  chosen = sorted(candidates)
  draw.shuffle(chosen)
  count = 0
  for chunk_id in chosen:
    text = graph.chunk_texts[chunk_id]
    if chunk_id in taken or any(quote_verification.names(text, truth) for truth in truths):
      continue
    key, tie = candidates[chunk_id]
    phrase = PHRASES[tie.kind][0 if tie.forward else 1].format(graph.entities[tie.other].name)
    yield Distractor(chunk_id, text, f"{key} is {phrase} too, but fits no other clue")
    count += 1
    if count == MAX_DISTRACTORS:
      return
