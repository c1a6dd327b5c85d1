"""What became of each clue of an episode."""

import pytest

from jaxrl_agents.agents.search import view
from jaxrl_agents.agents.search.missed_clues import (
  MISCOPIED,
  NAME_OF_HIT,
  NOT_SEARCHED,
  OTHER_NAME,
  SEARCHED,
  causes,
)
from jaxrl_agents.types import Message, Task, ToolCall, Trajectory

CLUES = [
  {"text": "opens a book of maps", "name": "open_atlas", "chunk_ids": ["a"]},
  {"text": "draws what with", "refers_to": 0, "name": "draw", "chunk_ids": ["b"]},
  {"text": "closes a large window", "name": "close", "chunk_ids": ["c"]},
]
TASK = Task("t", "search", "1. ...", {"clues": CLUES})
HITS = "\n".join(
  view.hit(i, text, 5)
  for i, text in (("1", "def open_atlas(path):"), ("2", "def open_door(key):\n  pass"))
)


def played(*queries):
  log = []
  for i, query in enumerate(queries):
    call = ToolCall(f"{i}.0", view.SEARCH.name, {"query": f" {query}"})
    log += [Message("assistant", "", (call,)), Message("tool", HITS, tool_call_id=call.id)]
  return Trajectory(task_id="t", segments=(), log=tuple(log), rewards={}, stop="answer")


@pytest.mark.parametrize(
  "second, cause",
  [
    ("draws what with; open_atlas", SEARCHED),
    ("draws what with; open_door", NAME_OF_HIT),
    ("draws what with; atlas", OTHER_NAME),
    ("draws what with;", OTHER_NAME),
    ("draws that with; open_atlas", MISCOPIED),
    ("opens a book of maps", NOT_SEARCHED),
  ],
)
def test_a_clue_with_a_name_is_searched_for_or_what_went_wrong_is_told(second, cause):
  assert causes(TASK, played("opens a book of maps", second)) == [SEARCHED, cause, NOT_SEARCHED]


def test_a_name_of_hits_that_were_not_shown_is_another_name():
  found = causes(TASK, played("opens a book", "draws what with; open_door", "closes a window"))
  assert found == [MISCOPIED, OTHER_NAME, MISCOPIED]


def test_a_task_without_clues_is_refused():
  with pytest.raises(ValueError, match="no search task with clues"):
    causes(Task("t", "swarm", "x", {}), played())
