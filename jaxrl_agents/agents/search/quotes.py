"""What the queries of an episode quote: words of the clues, and names from hits.

A policy copies both, and a search fails where a copy is wrong. Tokens are told apart by what makes
them hard: the tokens before a word of a clue may stand elsewhere in the question too, and hits may
define several names (`scripts/quote_accuracy.py`).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from jaxrl_agents.agents.search import view
from jaxrl_agents.agents.search.tasks import code_names, hops
from jaxrl_agents.chat import Chat
from jaxrl_agents.types import Task, Trajectory

QUERY = '{"query": " '
"""What stands before a query in a call of the shipped chat format."""

MOST_BEFORE = 3
"""Most tokens before one that are looked up in the question."""


class Quote(NamedTuple):
  """A token that is quoted.

  Attributes:
    at: its index in the segment.
    kind: what makes it hard.
    is_first: of a name, whether the first hit's first definition is the right one; else None.
  """

  at: int
  kind: str
  is_first: bool | None = None


def quotes(task: Task, trajectory: Trajectory, chat: Chat) -> Iterator[tuple[int, Quote]]:
  """Yields (index of a segment, what a query in it quotes). A query counts in its first segment: a
  later one lacks hits that the policy saw.

  Raises:
    ValueError: the task has no clues, or the chat format is not the shipped one.
  """
  if "clues" not in task.facts:
    raise ValueError(f"task {task.id} is no search task with clues, but of {task.env}")
  if chat.name != "own":
    raise ValueError(f"quotes are looked up in the shipped chat format, not in {chat.name!r}")
  done: set[int] = set()
  for index, segment in enumerate(trajectory.segments):
    for place, found in _of_segment(task, np.asarray(segment.tokens), chat, frozenset(done)):
      done.add(place)
      yield index, found


def _of_segment(
  task: Task, tokens: np.ndarray, chat: Chat, done: Collection[int]
) -> Iterator[tuple[int, Quote]]:
  """(Place of a clue, what the query for it quotes), but for the clues at the places `done`."""
  clues = task.facts["clues"]
  pieces = [chat.decode([token]) for token in tokens.tolist()]
  starts, text = np.cumsum([0, *map(len, pieces)]), "".join(pieces)
  token_at = lambda place: int(np.searchsorted(starts, place, side="right")) - 1
  question = tokens[: token_at(text.index(task.prompt) + len(task.prompt))].tolist()
  for place, clue in enumerate(clues):
    query = hops.query_of(clues, place)
    at = text.find(f'{QUERY}{query}"') + len(QUERY)
    if at < len(QUERY) or place in done:
      continue
    first, last = token_at(at - 1), token_at(at + len(clue["text"]) - 1)
    yield place, Quote(first, "clue: its first token")
    for i in range(first + 1, last + 1):
      yield place, Quote(i, f"clue: {ambiguity(question, tokens[first:i].tolist())}")
    if "refers_to" in clue:
      name = _name(text, at + len(query), clues, clue["refers_to"], token_at)
      if name is not None:
        yield place, name


def ambiguity(question: Sequence[int], before: Sequence[int]) -> str:
  """How many of the last tokens of `before`, up to MOST_BEFORE, stand together in the question more
  than once, with different tokens after them.
  """

  def continuations(count: int) -> int:
    last = list(before[-count:])
    ends = range(count, len(question))
    return len({question[i] for i in ends if list(question[i - count : i]) == last})

  most = 0
  while most < MOST_BEFORE and most < len(before) and continuations(most + 1) > 1:
    most += 1
  return f"after {most} ambiguous tokens"


def _name(
  text: str, end: int, clues: Sequence[Any], source: int, token_at: Callable[[int], int]
) -> Quote | None:
  """The name at the end of a query, which a hit of the search for clue `source` defines; None if
  the hits are not in the text.
  """
  name = clues[source]["name"]
  before = text[: end - len(name)]
  asked = before.rfind(f"{QUERY}{hops.query_of(clues, source)}")
  results = re.findall(r"<\|tool\|>(.*?)<\|end\|>", before[asked:], re.DOTALL) if asked >= 0 else []
  shown = next((hits for hits in map(view.hits, results) if hits), None)
  if shown is None:
    return None
  defined = [each for _, hit in shown for each in code_names.defined(hit)]
  several = "several names" if len({*defined, name}) > 1 else "one name"
  return Quote(token_at(end - len(name)), f"name: hits define {several}", defined[:1] == [name])
