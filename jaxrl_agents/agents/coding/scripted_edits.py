"""The edits that a scripted player makes: right ones, plausible wrong ones, and their summaries."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from typing import Any, ClassVar

from jaxrl_agents.agents.coding import view
from jaxrl_agents.agents.coding.config import REPLACE_LINES, RUN_TESTS, CodingConfig
from jaxrl_agents.agents.coding.env import make
from jaxrl_agents.agents.coding.judge import repo as repo_lib
from jaxrl_agents.agents.coding.judge.repo import Repo
from jaxrl_agents.agents.coding.services import CodingServices
from jaxrl_agents.harness.scripted_player import Scripted
from jaxrl_agents.types import Context, Message, Task, ToolCall

DONE = "Done."
TRIED = "Tried:"
FAILS = "Fails: "
"""Before the failing call that a summary keeps, where test runs are counted."""
TO_UNDO = " (to undo)"
UNTESTED = " (untested)"
_PAIRS = (
  (" <", " <="), (" >", " >="), (" ==", " !="), (" in", " not in"), (" is", " is not"),
  (" and", " or"), (" +", " -"), (" *", " //"), (" <<", " >>"), (" &", " |"), (" +=", " -="),
  (" True", " False"),
)  # fmt: skip
"""Pairs of tokens that are replaced by each other: most of `agents.coding.tasks.mutations.is_flip`,
besides digits.
"""
_DIGIT = re.compile(r"(?<![\w.])\d(?![\w.])")
_WORD = re.compile(r" ?(?:\w+|[^\w ]+)")
_PART = re.compile(r"\s*(?:\w+|[^\w\s]+)")
_SPACED = re.compile(r" *[^ ]+| +$")


def turn(*calls: tuple[str, Mapping[str, Any]], content: str = "") -> Message:
  """An assistant turn with calls."""
  made = tuple(ToolCall("", name, dict(arguments)) for name, arguments in calls)
  return Message("assistant", content, made)


def used_tools(limits: CodingConfig) -> tuple[str, ...]:
  """The tools that demonstrations and drills use. Where edit_file is not offered, replace_lines
  makes all edits.
  """
  editing = REPLACE_LINES if _by_lines(limits.tools) else Replacement.tool
  return "read_file", editing, "undo_edit", check_call(limits, "")[0]


def _by_lines(tools: Sequence[str]) -> bool:
  return REPLACE_LINES in tools and Replacement.tool not in tools


def check_call(limits: CodingConfig, command: str) -> tuple[str, Mapping[str, Any]]:
  """The call that runs the visible tests, with the shell command `command` if it may be used."""
  return (RUN_TESTS, {}) if limits.test_runs else ("shell", {"command": command})


@dataclasses.dataclass(frozen=True)
class Edit:
  """A call that edits a file: a Replacement or a LineReplacement.

  Attributes:
    path: of the file.
  """

  path: str
  tool: ClassVar[str]

  @property
  def call(self) -> tuple[str, Mapping[str, Any]]:
    """Tool and arguments of the edit."""
    return self.tool, dataclasses.asdict(self)

  def applied(self, text: str) -> tuple[str, int, str]:
    """(the text with the edit, its line, "") or ("", 0, the reason why the tool refuses it)."""
    raise NotImplementedError

  def missed(self, text: str) -> Edit:
    """A similar edit, which the tool refuses on `text`."""
    raise NotImplementedError

  @property
  def undo(self) -> tuple[str, Mapping[str, Any]]:
    """Tool and arguments that undo the edit, while it is the last one of its file."""
    return "undo_edit", {"path": self.path}

  @property
  def told(self) -> str:
    """The edit on one line of a summary."""
    raise NotImplementedError


@dataclasses.dataclass(frozen=True)
class Replacement(Edit):
  """Replaces `old`, which occurs once in the file, by `new`.

  If the line has enough text after the change, `old` begins with the changed words and continues
  until it is unique. A policy that writes from left to right then decides with the first token and
  copies the rest.
  """

  tool = "edit_file"
  old: str
  new: str

  def applied(self, text: str) -> tuple[str, int, str]:
    """See Edit."""
    return view.edited(self.path, text, self.old, self.new)

  def missed(self, text: str) -> Replacement:
    """An edit whose old text does not occur in `text`."""
    if self.new in text:
      return dataclasses.replace(self, old=2 * self.old)  # `old` occurs once
    return dataclasses.replace(self, old=self.new, new=self.old)

  @property
  def told(self) -> str:
    """The old and the new text, without their common end."""
    old, new = (_SPACED.findall(text) for text in (self.old, self.new))
    while old and new and old[-1] == new[-1]:
      old.pop()
      new.pop()
    return f"{self.old} ->{''.join(new) or self.new}".replace("\n", "\\n")


@dataclasses.dataclass(frozen=True)
class LineReplacement(Edit):
  """Replaces the lines `first` to `last` by those of `new`; inserts `new` if last = first - 1."""

  tool = REPLACE_LINES
  first: int
  last: int
  new: str

  @property
  def call(self) -> tuple[str, Mapping[str, Any]]:
    """Tool and arguments of the edit; `last` is left out where it is `first`."""
    arguments = dataclasses.asdict(self)
    if self.last == self.first:
      del arguments["last"]
    return self.tool, arguments

  def applied(self, text: str) -> tuple[str, int, str]:
    """See Edit."""
    changed, problem = view.with_lines(text, self.first, self.last, self.new)
    return changed, 0 if problem else self.first, problem

  def missed(self, text: str) -> LineReplacement:
    """An edit of lines after the end of `text`."""
    beyond = text.count("\n") + 3
    return dataclasses.replace(self, first=beyond, last=beyond + self.last - self.first)

  @property
  def told(self) -> str:
    """The numbers of the lines, and the new ones."""
    return f"lines {self.first}-{self.last} -> {self.new}".replace("\n", "\\n")


def edit(
  path: str, text: str, start: int, end: int, new: str, tools: Sequence[str]
) -> tuple[Edit, str]:
  """The call of these tools that replaces [start, end) of a text by `new`, and the resulting text.

  Where replace_lines is offered, it makes what is not within a line, and without edit_file all.
  """
  of_lines = REPLACE_LINES in tools and "\n" in text[start:end] + new
  made = line_replacement if of_lines or _by_lines(tools) else replacement
  return made(path, text, start, end, new)


def repairs(repo: Repo, edits: Sequence[Mapping[str, Any]], tools: Sequence[str]) -> list[Edit]:
  """Calls of these tools that, one after another, repair what `edits` broke.

  The last edit of a file comes first, so that the numbers of lines that read_file showed hold for
  all.
  """
  found: list[Edit] = []
  for path, text in repo_lib.broken(repo, edits).items():
    of_path = sorted((e for e in edits if e["path"] == path), key=lambda e: e["start"])
    shift = sum(len(each["broken"]) - len(each["fixed"]) for each in of_path)
    for each in reversed(of_path):  # its offset is one into the undamaged text
      shift -= len(each["broken"]) - len(each["fixed"])
      start, new = each["start"] + shift, each["fixed"]
      made, text = edit(path, text, start, start + len(each["broken"]), new, tools)
      found.append(made)
    assert text.removesuffix("\n") == repo.files[path].removesuffix("\n")  # see line_replacement
  return found


def line_replacement(
  path: str, text: str, start: int, end: int, new: str
) -> tuple[LineReplacement, str]:
  """The call that replaces [start, end) of a text, with the rest of its lines, by `new`, and the
  resulting text, whose last line then has an end.
  """
  low = text.rfind("\n", 0, start) + 1
  high = end if end == low or text[end - 1] == "\n" else _line_end(text, end) + 1
  put = text[low:start] + new + text[end:high]
  first, part = text.count("\n", 0, low) + 1, text[low:high]
  last = first + part.count("\n") - 1 + bool(part and not part.endswith("\n"))
  blank = put == "\n" or put.endswith("\n\n")
  made = LineReplacement(path, first, last, put if blank else put.removesuffix("\n"))
  return made, made.applied(text)[0] or text[:low] + put + text[high:]


def replacement(path: str, text: str, start: int, end: int, new: str) -> tuple[Replacement, str]:
  """The call that replaces [start, end) of a text by `new`, and the resulting text.

  Within a line, `old` is the replaced part with the space before it, and as many of the words after
  it as make it unique in the text, at least one. If the line has too few, words before it are
  added. A change of one line's indentation alone is one within that line. Whole lines are replaced
  by themselves if they are unique, or with as many words of the lines after them as make them
  unique. Otherwise `old` is as many whole lines as necessary.

  Raises:
    ValueError: the text before the change is blank, so that no `old` can locate it.
  """
  shift = _shift(text[start:end], new)
  if shift is not None:  # blanks are put in before the line, or the first ones taken away
    end, new = start + max(-shift, 0), " " * max(shift, 0)
  elif text[start:end].endswith("\n") and new.endswith("\n"):
    end, new = end - 1, new[:-1]
  for low, high in _spans(text, start, end, new):
    old, put = text[low:high], text[low:start] + new + text[end:high]
    if old.strip() and _once(text, old):
      return Replacement(path, old, put), text[:low] + put + text[high:]
  raise ValueError(f"{path} is blank before the change; write the whole file instead")


def wrong_edits(
  repo: Repo,
  path: str,
  text: str,
  edits: Sequence[Mapping[str, Any]],
  tools: Sequence[str],
) -> list[tuple[Edit, str]]:
  """Plausible edits of the damaged function that do not repair it, and the texts that they make.

  Args:
    repo: the repository.
    path: of the damaged file.
    text: of the damaged file.
    edits: of this file, as `agents.coding.judge.repo.broken` takes them.
    tools: that the policy is offered.
  """
  at = min(each["start"] for each in edits)
  found = [edit(path, text, *change, tools) for change in _flips(text, at)]
  mended = repo.files[path]
  return [
    (made, changed)
    for made, changed in found
    if changed != mended and not view.parse_problem(path, changed)
  ]


def _flips(text: str, at: int) -> list[tuple[int, int, str]]:
  """(start, end, new) of the tokens with a counterpart, in the body of the function at `at`."""
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


def _spans(text: str, start: int, end: int, new: str) -> Iterator[tuple[int, int]]:
  """The spans that may stand for [start, end) in a replacement, shortest first and the whole text
  last.
  """
  first = text.rfind("\n", 0, start) + 1
  last = _line_end(text, end)
  if "\n" not in text[start:end] + new:
    words = [found.span() for found in _WORD.finditer(text, first, last)]
    low = start - text[first:start].endswith(" ")
    after = [high for _, high in words if high > end]
    yield from ((low, high) for high in after or [end])
    yield from ((before, last) for before, _ in reversed(words) if before < low)
  else:
    yield start, end
    stop = _line_end(text, _line_end(text, end) + 1)
    yield from ((start, found.end()) for found in _PART.finditer(text, end, stop))
  while (first, last) != (0, len(text)):
    yield first, last
    last = _line_end(text, last + 1)
    yield first, last
    first = text.rfind("\n", 0, max(first - 1, 0)) + 1
  yield first, last


def _shift(old: str, new: str) -> int | None:
  """By how many blanks the new text of a line is indented more, if that is all; else None."""
  if old.count("\n") != 1 or not old.endswith("\n") or old.lstrip(" ") != new.lstrip(" "):
    return None
  return len(new) - len(old)


def _line_end(text: str, at: int) -> int:
  found = text.find("\n", at)
  return len(text) if found < 0 else found


def _once(text: str, part: str) -> bool:
  """Whether a part occurs once in a text; overlapping occurrences are counted."""
  at = text.find(part)
  return at >= 0 and text.find(part, at + 1) < 0


def make_player(
  task: Task, services: CodingServices, play: Callable[[Context], Message | Awaitable[Message]]
) -> Scripted:
  """An episode that `play` plays: environment and sampler in one."""
  return Scripted(make(task, services), services.chat, play)
