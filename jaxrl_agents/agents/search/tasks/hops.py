"""Tasks with hops: a later clue can be looked up only with the answer to an earlier one.

  1. Routine: <clue>. 2. Method: <cut clue>; using 1. 3. Class: <clue>. Question: which method is 2?

The first clue is found by its own words. A clue that refers to another one is cut until a search
for it alone fails: none of its chunks is among the best `MISSES` hits. With the name of what it
refers to, which a hit of that clue defines, one is among the best `SHOWN`, before all other
entities of its kind. Each hop starts from the entity of the one before it. The clues of the chain
come first, then as many further ones as it has hops, which are found by their own words. A task of
level L has L + 1 hops and 2 L + 3 clues, all from modules of one split.
"""

from __future__ import annotations

import collections
import dataclasses
import functools
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from jaxrl_agents.agents.search.tasks import code_names
from jaxrl_agents.agents.search.tasks.entity_graph import Graph, Tie
from jaxrl_agents.corpus.entities import PHRASES
from jaxrl_agents.corpus.splits import split_of
from jaxrl_agents.types import Split, Task

Search = Callable[[str, int], Sequence[str]]
"""(query, limit) -> ids of the best chunks, best first."""

MAX_HOPS = 3
MISSES = 12
"""A search for a cut clue alone has none of its chunks among so many hits."""

SHOWN = 2
"""Hits of a search that count as seen."""

MIN_CUT_WORDS = 2
MAX_USERS = 20
"""A name that more entities have leads nowhere."""

MODULE_SHARE = 0.12
"""Most tasks that start in the same module, of the limit."""

ATTEMPTS = 12
"""Draws of the next entity of a chain before it ends."""


@dataclasses.dataclass(frozen=True)
class Step:
  """An entity of a chain.

  Attributes:
    key: of the entity.
    chunk_ids: that support the clue: description, naming line, and the line that ties it to what it
      refers to.
    text: what its clue says, and its search with it.
    phrase: how the clue refers to another one, with "{}" for its number; "" if it does not.
    refers_to: place in the chain of what it refers to, whose name finds this entity together with
      `text`; -1 if it does not.
    seen: its chunks that the search shows.
  """

  key: str
  text: str
  chunk_ids: tuple[str, ...]
  phrase: str = ""
  refers_to: int = -1
  seen: tuple[str, ...] = ()


class HopMaker:
  """Makes the tasks of one split. Invariant: what a search said of an entity is asked once."""

  def __init__(self, graph: Graph, split: Split, search: Search):
    self._graph, self._search = graph, search
    self._names_in = functools.cache(lambda i: code_names.names(graph.chunk_texts[i]))
    self._described = {
      key: each
      for key, each in sorted(graph.described.items())
      if split_of(each.entity.group) == split and each.truth_quote
    }
    users: dict[str, list[str]] = collections.defaultdict(list)
    self._kinds: dict[str, set[str]] = collections.defaultdict(set)  # {chunk: kinds described}
    for each in graph.described.values():
      for chunk_id in each.chunk_ids:
        self._kinds[chunk_id].add(each.entity.kind)
    for key, each in self._described.items():
      for name in self._names_of(each.chunk_ids):
        users[name].append(key)
    self._users = users
    self.findable = functools.cache(self._findable)
    self.cut = functools.cache(self._cut)

  @property
  def keys(self) -> list[str]:
    """The described entities of the split, in a fixed order."""
    return list(self._described)

  def first(self, key: str) -> Step | None:
    """An entity that its own clue finds; None for others."""
    seen = self.findable(key)
    each = self._described[key]
    return Step(key, each.clue, each.chunk_ids, seen=seen) if seen else None

  def after(self, steps: Sequence[Step], last: int, draw: random.Random) -> Step | None:
    """A clue that only the name of the entity of step `last` finds; None if none was drawn.

    Entities that the graph ties to it come first: of these the clue says how.
    """
    source, used = steps[last], {step.key for step in steps}
    name = self._described[source.key].entity.name
    known = " ".join(step.text for step in steps)
    if not self.answers(source) or code_names.stands_in(name, known):
      return None
    tied = {tie.other for tie in self._graph.ties.get(source.key, ())} & self._described.keys()
    users = set(self._users[name]) if len(self._users[name]) <= MAX_USERS else set()
    drawn = sorted((tied | users) - used)
    draw.shuffle(drawn)
    drawn.sort(key=lambda key: key not in tied)
    for key in drawn[:ATTEMPTS]:
      if step := self._hop(source, last, key, name):
        return step
    return None

  def beside(self, steps: Sequence[Step], draw: random.Random) -> Step | None:
    """A clue that its own words find: of an entity tied to one of the chain, if there is one."""
    used = {step.key for step in steps}
    tied = [tie.other for step in steps for tie in self._graph.ties.get(step.key, ())]
    tied = [key for key in dict.fromkeys(tied) if key in self._described]
    draw.shuffle(tied)
    anyone = draw.sample(self.keys, min(ATTEMPTS, len(self._described)))
    chunks = {chunk for step in steps for chunk in step.chunk_ids}
    for key in [*tied[:ATTEMPTS], *anyone]:
      step = self.first(key) if key not in used else None
      if step and not chunks & set(step.chunk_ids):
        return step
    return None

  def _hop(self, source: Step, place: int, key: str, name: str) -> Step | None:
    each, text = self._described[key], self.cut(key)
    tie = self._tie(key, source.key)
    evidence = (tie.chunk_id,) if tie and tie.owner == key else ()
    chunk_ids = tuple(dict.fromkeys([*each.chunk_ids, *evidence]))
    if not text or set(chunk_ids) & set(source.chunk_ids):
      return None
    if not any(code_names.stands_in(name, self._graph.chunk_texts[i]) for i in chunk_ids):
      return None
    hits = self._search(query(text, name), MISSES)[:SHOWN]
    first = next((i for i in hits if i in chunk_ids or each.entity.kind in self._kinds[i]), "")
    if first not in chunk_ids or not self._alone(key, text, name):
      return None
    seen = tuple(i for i in hits if i in chunk_ids)
    phrase = PHRASES[tie.kind][0 if tie.forward else 1] if tie else PHRASES["mentions"][0]
    return Step(key, text, chunk_ids, phrase, place, seen)

  def _alone(self, key: str, text: str, name: str) -> bool:
    """Whether no other entity of the kind has the name in its passages and `text` in its clue."""
    kind = self._described[key].entity.kind
    return not any(
      self._described[other].entity.kind == kind and text in self._described[other].clue
      for other in self._users[name]
      if other != key
    )

  def _tie(self, key: str, other: str) -> Tie | None:
    """How the graph ties an entity to another."""
    return next((tie for tie in self._graph.ties.get(key, ()) if tie.other == other), None)

  def answers(self, step: Step) -> bool:
    """Whether what a search for a step shows has the line that names its entity."""
    quote, texts = self._described[step.key].truth_quote, self._graph.chunk_texts
    return any(quote in texts[i] for i in step.seen)

  def tells(self, steps: Sequence[Step]) -> bool:
    """Whether the clues hold a name that is to be found."""
    told = " ".join(step.text for step in steps)
    wanted = {steps[step.refers_to].key for step in steps if step.refers_to >= 0}
    wanted.update(step.key for step in steps if step.refers_to >= 0)
    names = {self._described[key].entity.name for key in wanted}
    return any(code_names.stands_in(name, told) for name in names)

  def _findable(self, key: str) -> tuple[str, ...]:
    each = self._described[key]
    hits = self._search(each.clue, MISSES)[:SHOWN]
    return tuple(i for i in hits if i in each.chunk_ids)

  def _cut(self, key: str) -> str:
    """A long beginning of the clue that does not find its entity, by bisection; "" if none is."""
    words, gold = self._described[key].clue.split(), set(self._described[key].chunk_ids)
    gold |= {tie.chunk_id for tie in self._graph.ties.get(key, ()) if tie.owner == key}
    missed, low, high = "", MIN_CUT_WORDS, len(words)
    while low <= high:
      length = low if not missed else (low + high) // 2
      text = " ".join(words[:length]).rstrip(",;:")
      if gold & set(self._search(text, MISSES)):
        high = length - 1 if missed else 0
      else:
        missed, low = text, length + 1
    return missed

  def _names_of(self, chunk_ids: Sequence[str]) -> list[str]:
    """The names in these chunks, in order."""
    return list(dict.fromkeys(name for i in chunk_ids for name in self._names_in(i)))


def query(text: str, name: str) -> str:
  """The search for a clue that refers to another one, with the name of that one's entity."""
  return f"{text}; {name}"


def query_of(clues: Sequence[Mapping[str, Any]], place: int) -> str:
  """The search for a clue of a task (`Task.facts["clues"]`), which may refer to another one."""
  clue = clues[place]
  if "refers_to" not in clue:
    return clue["text"]
  return query(clue["text"], clues[clue["refers_to"]]["name"])


def tasks(
  graph: Graph, split: Split, search: Search, *, seed: int, per_truth: int, limit: int
) -> Iterator[Task]:
  """Makes about `limit` tasks of a split; a chain of L hops gives tasks of levels 0 to L - 1.

  Args:
    graph: built with the words of the split's table.
    split: of all entities.
    search: what the tool of the environment finds.
    seed: of every draw; the same seed, graph and search give the same tasks.
    per_truth: how many chains may start with the same entity.
    limit: tasks wanted, about.
  """
  maker, made = HopMaker(graph, split, search), 0
  of_module: collections.Counter[str] = collections.Counter()
  seen: set[tuple[str, ...]] = set()
  for round_number in range(per_truth):
    keys = maker.keys
    random.Random(f"{seed}/{split}/{round_number}").shuffle(keys)
    for key in keys:
      draw = random.Random(f"{seed}/{key}/{round_number}")
      first = maker.first(key)
      for steps in _grown(maker, first, draw) if first else ():
        marks = tuple(step.key for step in steps if step.refers_to >= 0 or step is first)
        module = graph.entities[key].group
        full = of_module[module] >= max(1, MODULE_SHARE * limit)
        if full or marks in seen or not maker.answers(steps[-1]):
          continue
        of_module[module] += 1
        seen.add(marks)
        yield _task(graph, steps, f"{split}-hops-{made}", split, seed)
        made += 1
      if made >= limit:
        return


def _grown(maker: HopMaker, first: Step, draw: random.Random) -> Iterator[list[Step]]:
  """The steps of a chain after each of its hops."""
  steps, last = [first], 0
  for _ in range(MAX_HOPS):
    hop = maker.after(steps, last, draw)
    beside = hop and maker.beside([*steps, hop], draw)
    if hop is None or beside is None:
      return
    steps = [*steps, beside, hop]
    if maker.tells(steps):
      return
    last = len(steps) - 1
    yield steps


def _task(graph: Graph, steps: Sequence[Step], name: str, split: Split, seed: int) -> Task:
  """The task that asks for the last step; see `chains.task` for the facts.

  A clue that refers to another one also has "refers_to", the place of that one among the clues.
  """
  sentences, facts, clues = [], [], []
  chain = [step for step in steps if step is steps[0] or step.refers_to >= 0]
  for place, step in enumerate([*chain, *(step for step in steps if step not in chain)]):
    each = graph.described[step.key]
    tie = f"; {step.phrase.format(place)}" if step.phrase else ""
    sentences.append(f"{place + 1}. {each.entity.kind.capitalize()}: {step.text}{tie}.")
    fact = {
      "fact": sentences[-1],
      "chunk_ids": list(step.chunk_ids),
      "is_final_answer": step is steps[-1],
    }
    if fact["is_final_answer"]:
      texts = {i: graph.chunk_texts[i] for i in step.chunk_ids}
      fact["answer_chunk_ids"] = [
        i for i, text in texts.items() if code_names.stands_in(each.entity.name, text)
      ]
    facts.append(fact)
    clue: dict[str, Any] = {
      "text": step.text,
      "chunk_ids": list(step.chunk_ids),
      "name": each.entity.name,
    }
    if step.refers_to >= 0:
      clue["refers_to"] = place - 1  # each of a chain refers to the one before it
    clues.append(clue)
  asked, hops = graph.described[steps[-1].key].entity, len(chain) - 1
  return Task(
    id=name,
    env="search",
    prompt=" ".join([*sentences, f"Question: which {asked.kind} is {len(chain)}?"]),
    facts={
      "level": hops - 1,
      "kind": f"hops {hops}",
      "truth": asked.name,
      "facts": facts,
      "clues": clues,
      "distractors": [],
    },
    split=split,
    seed=seed,
  )
