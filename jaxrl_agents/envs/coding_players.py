"""Scripted players of the coding environment: one knows, one does nothing, one cheats."""

from __future__ import annotations

import dataclasses
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
TRIED = "Tried:"
TO_UNDO = " (to undo)"
UNTESTED = " (untested)"
_PAIRS = (
  (" <", " <="), (" >", " >="), (" ==", " !="), (" in", " not in"), (" is", " is not"),
  (" and", " or"), (" +", " -"), (" *", " //"), (" <<", " >>"), (" &", " |"), (" +=", " -="),
  (" True", " False"),
)  # fmt: skip
"""Tokens that stand for one another: most of `data.code_mutations.is_flip`, beside digits."""
_DIGIT = re.compile(r"(?<![\w.])\d(?![\w.])")
_WORD = re.compile(r" ?[^ ]+")


def turn(*calls: tuple[str, Mapping[str, Any]], content: str = "") -> Message:
  """An assistant turn of calls."""
  made = tuple(ToolCall("", name, dict(arguments)) for name, arguments in calls)
  return Message("assistant", content, made)


@dataclasses.dataclass(frozen=True)
class Replacement:
  """A call of edit_file: `old`, once among what begins in `line` of `path`, becomes `new`.

  The line comes last: a policy that writes from left to right looks it up of what it chose.
  """

  path: str
  old: str
  new: str
  line: int

  @property
  def call(self) -> tuple[str, Mapping[str, Any]]:
    """Tool and arguments."""
    return "edit_file", dataclasses.asdict(self)

  @property
  def undone(self) -> Replacement:
    """What takes it back; for those within a line."""
    return dataclasses.replace(self, old=self.new, new=self.old)


def replacements(repo: Repo, edits: Sequence[Mapping[str, Any]]) -> list[Replacement]:
  """Calls that, one after another, mend what `edits` broke."""
  texts = repo_lib.broken(repo, edits)
  found = []
  for path in texts:
    shift, text = 0, texts[path]
    for edit in sorted((e for e in edits if e["path"] == path), key=lambda e: e["start"]):
      at = edit["start"] + shift
      made, text = replacement(path, text, at, at + len(edit["broken"]), edit["fixed"])
      found.append(made)
      # Later edits are placed in the undamaged text: what is mended has its length again.
    assert text == repo.files[path]
  return found


def replacement(path: str, text: str, start: int, end: int, new: str) -> tuple[Replacement, str]:
  """The call that puts `new` for [start, end) of a text, and the text that it makes.

  Within a line, `old` is what is replaced, with the space before it, or as many words more, parted
  by spaces, as make it occur once in the line, before and after; else it is whole lines.
  """
  low, high = _span(text, start, end, new)
  new = text[low:start] + new + text[end:high]
  made = Replacement(path, text[low:high], new, text.count("\n", 0, low) + 1)
  return made, text[:low] + new + text[high:]


def wrong_edits(
  repo: Repo, path: str, text: str, edits: Sequence[Mapping[str, Any]]
) -> list[tuple[Replacement, str]]:
  """Plausible edits of the damaged function that do not mend it, and the texts that they make.

  Args:
    repo: the repository.
    path: of the damaged file.
    text: of it, damaged.
    edits: of this file, as `grading.repo.broken` takes them.
  """
  at = min(edit["start"] for edit in edits)
  found = [replacement(path, text, *change) for change in _flips(text, at)]
  mended = repo.files[path]
  return [
    (made, changed)
    for made, changed in found
    if changed != mended and not coding_view.parse_problem(path, changed)
  ]


def told(made: Replacement) -> str:
  """An edit in a summary of what was tried."""
  return f"{made.line}:{made.old} ->{made.new}"


def _flips(text: str, at: int) -> list[tuple[int, int, str]]:
  """(start, end, new) of the tokens with a counterpart in the function at `at`, below its head."""
  first = text.find("\n", max(text.rfind("\ndef ", 0, at + 1), 0) + 1)
  last = text.find("\ndef ", at)
  last = last if last > 0 else len(text)
  found = []
  for pair in _PAIRS:
    for old, new in (pair, pair[::-1]):
      places = re.finditer(rf"{re.escape(old)}(?=[ :(\n])", text[:last])
      found += [(each.start(), each.end(), new) for each in places if each.start() > first]
  digits = [each for each in _DIGIT.finditer(text[:last]) if each.start() > first]
  return found + [(*each.span(), str(int(each[0]) ^ 1)) for each in digits]


def _span(text: str, start: int, end: int, new: str) -> tuple[int, int]:
  first, last = _lines(text, start, end)
  if "\n" in text[first:last] + new:
    return first, last
  line = text[first:last]
  words = [(first + found.start(), first + found.end()) for found in _WORD.finditer(line)]
  low, high = start - text[first:start].endswith(" "), end
  while True:
    old, put = text[low:high], text[low:start] + new + text[end:high]
    changed = text[first:low] + put + text[high:last]
    if old.strip() and put.strip() and line.count(old) == 1 and changed.count(put) == 1:
      return low, high
    for margin in (0, 1):  # all of the words that it is in; then one before and one after
      near = [each for each in words if each[1] + margin > low and each[0] < high + margin]
      wider = min([low, *(each[0] for each in near)]), max([high, *(each[1] for each in near)])
      if wider != (low, high):
        break
    else:
      return first, last
    low, high = wider


def _lines(text: str, start: int, end: int) -> tuple[int, int]:
  """The whole lines around [start, end), and as many after them as it takes to hold some text."""
  first, last = text.rfind("\n", 0, start) + 1, end
  while True:
    last = text.find("\n", last)
    last = len(text) if last < 0 else last
    if text[first:last].strip() or last == len(text):
      return first, last
    last += 1


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
    calls: list[tuple[str, Mapping[str, Any]]] = []
    for each in replacements(self._repo, self._task.facts["edits"]):
      grown = turn(*calls, each.call)
      size = len(self._services.chat.encode_reply(grown))
      if calls and (size > room or len(calls) >= self._services.limits.max_calls):
        turns.append(turn(*calls))
        calls = []
      calls.append(each.call)
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
