"""Why a policy misses chunks: what became of each clue in its own episodes.

A chunk is missed where the search for its clue was not made, or not as the clue and the hits say
(`scripts/missed_clues.py`).
"""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Sequence
from typing import Any

from jaxrl_agents.agents.search import view
from jaxrl_agents.agents.search.tasks import code_names, hops
from jaxrl_agents.types import Message, Task, Trajectory

SEARCHED, MISCOPIED, NOT_SEARCHED = "searched", "not copied word for word", "not searched for"
OTHER_NAME, NAME_OF_HIT = "another name", "another name, which a hit defines"

ALIKE = 0.6
"""Share of a query and a clue that is alike, above which the one is a copy of the other."""


def causes(task: Task, trajectory: Trajectory) -> list[str]:
  """What became of each clue, in the order of the question.

  Raises:
    ValueError: the task has no clues.
  """
  if "clues" not in task.facts:
    raise ValueError(f"task {task.id} is no search task with clues, but of {task.env}")
  clues, made = task.facts["clues"], list(_searches(trajectory.log))
  return [_cause(clues, place, made) for place in range(len(clues))]


def _searches(log: Sequence[Message]) -> Iterator[tuple[str, str]]:
  """(query, result) of each search that was made."""
  results = {message.tool_call_id: message.content for message in log if message.role == "tool"}
  for message in log:
    for call in message.tool_calls:
      query = call.arguments.get("query")
      if call.name == view.SEARCH.name and isinstance(query, str):
        yield " ".join(query.split()), results.get(call.id, "")


def _cause(clues: Sequence[Any], place: int, made: Sequence[tuple[str, str]]) -> str:
  queries = [query for query, _ in made]
  plain = lambda text: " ".join(text.split())
  wanted = plain(hops.query_of(clues, place))
  if wanted in queries:
    return SEARCHED
  before = plain(hops.query(clues[place]["text"], ""))
  named = [query for query in queries if query.startswith(before)]
  if "refers_to" in clues[place] and named:
    source = plain(hops.query_of(clues, clues[place]["refers_to"]))
    shown = [result for query, result in made if query == source]
    defined = {name for each in shown for name in code_names.defined(each)}
    return NAME_OF_HIT if named[0].rpartition("; ")[2] in defined else OTHER_NAME
  alike = max((difflib.SequenceMatcher(None, q, wanted).ratio() for q in queries), default=0.0)
  return MISCOPIED if alike > ALIKE else NOT_SEARCHED
