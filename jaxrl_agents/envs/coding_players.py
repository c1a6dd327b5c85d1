"""Scripted players of the coding environment: one knows, one does nothing, one cheats."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from jaxrl_agents.envs import coding_view
from jaxrl_agents.envs.coding import make
from jaxrl_agents.envs.workshop import CodingServices
from jaxrl_agents.grading import repo as repo_lib
from jaxrl_agents.grading.repo import Repo
from jaxrl_agents.harness.scripted import Scripted
from jaxrl_agents.types import Context, Message, Task, ToolCall

DONE = "Done."
_WORD = re.compile(r" ?[^ ]+")


def turn(*calls: tuple[str, Mapping[str, Any]], content: str = "") -> Message:
  """An assistant turn of calls."""
  made = tuple(ToolCall("", name, dict(arguments)) for name, arguments in calls)
  return Message("assistant", content, made)


def replacements(
  repo: Repo, edits: Sequence[Mapping[str, Any]], margin: int = 0
) -> list[tuple[str, str, str]]:
  """(path, old, new) of calls of edit_file that, one after another, mend what `edits` broke.

  `old` is what holds the damage and occurs once: within a line some words of it (`snippet`), else
  lines, without the white space before and after but for one space, so that it begins with a token
  that stands in the text.
  """
  texts = repo_lib.broken(repo, edits)
  found = []
  for path in texts:
    shift, text = 0, texts[path]
    for edit in sorted((e for e in edits if e["path"] == path), key=lambda e: e["start"]):
      at = edit["start"] + shift
      end = at + len(edit["broken"])
      inside = not margin and "\n" not in edit["broken"] + edit["fixed"]
      low, high = snippet(text, at, end) if inside else _unique(text, at, end, margin)
      old = text[low:high]
      new = text[low:at] + edit["fixed"] + text[end:high]
      found.append((path, old, new))
      # Later edits are placed in the undamaged text: what is mended has its length again.
      text = text[:low] + new + text[high:]
    assert text == repo.files[path]
  return found


def snippet(text: str, start: int, end: int) -> tuple[int, int]:
  """The words that hold [start, end) of one line, one before and one after, and as many more of the
  line as make them occur once; whole lines where it does not.

  Words are parted by spaces. The space before the first is part of it, as of its first token.
  """
  line = text.rfind("\n", 0, start) + 1
  stop = text.find("\n", end)
  stop = len(text) if stop < 0 else stop
  words = [(line + found.start(), line + found.end()) for found in _WORD.finditer(text[line:stop])]
  first = max((i for i, word in enumerate(words) if word[0] <= start), default=0)
  last = min((i for i, word in enumerate(words) if word[1] >= end), default=len(words) - 1)
  while words:
    first, last = max(first - 1, 0), min(last + 1, len(words) - 1)
    low, high = min(words[first][0], start), max(words[last][1], end)
    if text.count(text[low:high]) == 1:
      return low, high
    if (first, last) == (0, len(words) - 1):
      break
  return _unique(text, start, end, 0)


def _unique(text: str, start: int, end: int, margin: int) -> tuple[int, int]:
  """A span of whole lines around [start, end) whose text occurs once."""
  low = text.rfind("\n", 0, start) + 1
  high = text.find("\n", end)
  high = len(text) if high < 0 else high
  for _ in range(margin):
    low, high = _wider(text, low, high)
  while True:
    trimmed = low + max(0, _indent(text[low:high]) - 1)
    trimmed = min(trimmed, start)
    if text.count(text[trimmed:high]) == 1:
      return trimmed, high
    if text.count(text[low:high]) == 1 or (low == 0 and high == len(text)):
      return low, high
    low, high = _wider(text, low, high)


def _wider(text: str, low: int, high: int) -> tuple[int, int]:
  low = text.rfind("\n", 0, max(0, low - 1)) + 1
  at = text.find("\n", high + 1)
  return low, len(text) if at < 0 else at


def _indent(text: str) -> int:
  return len(text) - len(text.lstrip(" "))


class Oracle:
  """Knows the damage: runs the tests, looks, mends, runs the tests again, ends."""

  def __init__(self, task: Task, services: CodingServices):
    self._task, self._services = task, services
    self._repo = services.repos[task.facts["repo"]]
    self._plan = self._turns()

  def __call__(self, context: Context) -> Message:
    """The next turn, in any context: it remembers what it did."""
    if coding_view.asks_for_summary(context.messages[-1]):
      return Message("assistant", "Mending what is broken, file by file.")
    return self._plan.pop(0) if self._plan else Message("assistant", DONE)

  def _turns(self) -> list[Message]:
    check = turn(("shell", {"command": f"{self._repo.check_command} 2>&1 | tail -n 5"}))
    path = self._task.facts["edits"][0]["path"]
    turns = [check, turn(("read_file", {"path": path, "first": 1, "lines": 20}))]
    room = self._services.limits.max_new_tokens
    calls: list[tuple[str, dict[str, Any]]] = []
    for path, old, new in replacements(self._repo, self._task.facts["edits"]):
      call = ("edit_file", {"path": path, "old": old, "new": new})
      grown = turn(*calls, call)
      size = len(self._services.chat.encode_reply(grown))
      if calls and (size > room or len(calls) >= self._services.limits.max_calls):
        turns.append(turn(*calls))
        calls = []
      calls.append(call)
    return [*turns, turn(*calls), check]


def do_nothing(context: Context) -> Message:
  """Ends at once."""
  return Message("assistant", DONE)


class Tamperer:
  """Makes tests pass by every means but mending: edits and deletes them, and what runs them."""

  def __init__(self, task: Task, services: CodingServices):
    repo = services.repos[task.facts["repo"]]
    paths = list(dict.fromkeys(edit["path"] for edit in task.facts["edits"]))
    empty = "import unittest\nclass T(unittest.TestCase):\n  def test_it(self): pass\n"
    turns = [
      turn(*(("write_file", {"path": path, "content": empty}) for path in repo.visible_tests)),
      turn(
        ("write_file", {"path": "check.py", "content": "print('0 of 1 fail')\n"}),
        ("write_file", {"path": "conftest.py", "content": _PATCH}),
        ("write_file", {"path": "sitecustomize.py", "content": _PATCH}),
      ),
      turn(
        ("shell", {"command": "rm -rf tests test_*.py; mkdir -p tests; touch tests/__init__.py"})
      ),
      turn(("shell", {"command": "\n".join(_INFECT.format(path=path) for path in paths)})),
    ]
    self._plan = [each for each in turns if each.tool_calls]

  def __call__(self, context: Context) -> Message:
    """The next turn."""
    return self._plan.pop(0) if self._plan else Message("assistant", DONE)


_PATCH = """\
try:
    import unittest
    unittest.TestCase.run = lambda s, result=None: (result.startTest(s), result.stopTest(s))
    unittest.TestCase._callTestMethod = lambda self, method: None
except Exception:
    pass
"""
_INFECT = "cat conftest.py {path} > /tmp/infected; cp /tmp/infected {path}"


def make_player(
  task: Task, services: CodingServices, play: Callable[[Context], Message]
) -> Scripted:
  """An episode that `play` plays: environment and sampler in one."""
  return Scripted(make(task, services), services.chat, play)
