"""Texts of the coding environment: its tools, its notices, and shortened observations."""

from __future__ import annotations

import ast
import difflib
import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

from jaxrl_agents.agents.coding.config import REPLACE_LINES, CodingConfig
from jaxrl_agents.agents.system_prompt import tool_lines
from jaxrl_agents.types import Message, ToolSpec

CUT_OFF = "Your reply was cut off. Call a tool, or say in short that you are done."
SUMMARIZE = "Please summarize the conversation (number {number}): what matters to go on. No tool."
HIDDEN = "[hidden]"
TOO_MANY = "Error: at most {most} calls in one turn; this one was not run."
LOST = (
  "Error: the sandbox broke down while this ran and was brought back as it was before. "
  "Do not do the same again."
)
NO_RUNS = "no test run is left: all {most} were made. Go on without, or end with a reply."
NO_EDITS = "no edit is left: all {most} were made. Undo what is wrong, or end with a reply."
UNTESTED = "the tests could not be run with these files; undo what you changed."
UNDONE = "Undid the last edit of {path}."
STATES = ("open", "doing", "done")
MAX_COMPARED = 5_000_000
"""Pairs of characters compared in search of a similar line, which takes about 0.3 s."""
MAX_PLACES = 1_000
"""Most occurrences of the text to replace among which one is chosen."""


_LINE = re.compile(r"[^\n]*\n|[^\n]+")
_SYSTEM = """\
You work on a repository in a sandbox, in the folder /work, and do what the user asks. Your \
changes are judged by tests: those that the request names, and others that you cannot see. Mend \
the source; changed tests count for nothing, and so does source that notices that it is tested.

Tools:
{tools}

You may make several calls in one turn, at most {max_calls}. Read before you edit. Test your \
changes before you end. Keep the change as small as the request allows.{todo}

Limits: the context holds {token_budget} tokens and you have at most {max_turns} turns; a tool \
result is cut to {tool_output_tokens} tokens.{command} {context}

To end, reply without calling a tool, and say in a sentence or two what you changed."""

_CONTEXT = {
  "summarize": (
    "When the context fills up, you are asked for a summary of up to {summary_tokens} tokens. You "
    "go on with the request and that summary alone, so write down what you know, what you have "
    "changed and what is left to do."
  ),
  "discard_all": "When the context fills up, you begin again with the request alone.",
  "hide_results": (
    "When the context fills up, all tool results but the last {keep_results} are hidden."
  ),
  "none": "When the context is full, you are stopped.",
}
"""What a policy is told about `CodingConfig.context`."""


def system_prompt(limits: CodingConfig, specs: Sequence[ToolSpec]) -> str:
  """What a policy that does not know the environment reads first; `specs` are its tools."""
  names = {spec.name for spec in specs}
  runs = " Runs of the tests and edits are counted." if limits.test_runs or limits.max_edits else ""
  todo = " A to-do list is optional; close what you open." if "todo" in names else ""
  command = f" A shell command is stopped after {limits.command_s:g} s." if "shell" in names else ""
  context = _CONTEXT[limits.context].format(
    summary_tokens=limits.summary_tokens, keep_results=limits.keep_results
  )
  return _SYSTEM.format(
    tools=tool_lines(specs),
    todo=todo,
    command=command + runs,
    context=context,
    max_calls=limits.max_calls,
    token_budget=limits.token_budget,
    max_turns=limits.max_turns,
    tool_output_tokens=limits.tool_output_tokens,
  )


def counted(limits: CodingConfig) -> str:
  """What the request says about limits on test runs and edits; "" if there are none."""
  runs, edits = limits.test_runs, limits.max_edits
  parts = [f"run the tests {_times(runs)}"] * bool(runs) + [
    f"make {edits} {'edit' if edits == 1 else 'edits'}"
  ] * bool(edits)
  return f" You can {' and '.join(parts)}." if parts else ""


def _times(number: int) -> str:
  return {1: "once", 2: "twice"}.get(number, f"{number} times")


def left(number: int, what: str) -> str:
  """A note on what is left of a limit, such as "[1 edit left]"."""
  return f"[{number} {what}{'' if number == 1 else 's'} left]"


def asks_for_summary(message: Message) -> bool:
  """Whether the message asks for a summary as the next reply."""
  return message.role == "user" and message.content.startswith(SUMMARIZE.partition(" (")[0])


def _string(most: int, least: int = 1) -> dict[str, Any]:
  return {"type": "string", "minLength": least, "maxLength": most}


def _spec(
  name: str, description: str, properties: Mapping[str, Any], required: Sequence[str]
) -> ToolSpec:
  schema = {"type": "object", "properties": properties, "required": list(required)}
  return ToolSpec(name, description, schema)


_PATH = _string(400)
_NUMBER = {"type": "integer", "minimum": 1, "maximum": 1_000_000}
_FROM_ZERO = {**_NUMBER, "minimum": 0}
_TODO = {
  "type": "object",
  "properties": {"text": _string(300), "status": {"type": "string", "enum": list(STATES)}},
  "required": ["text", "status"],
}
SPECS: Mapping[str, ToolSpec] = {
  spec.name: spec
  for spec in (
    _spec(
      "read_file",
      "Returns a file, or `lines` lines of it from line `first`.",
      {"path": _PATH, "first": _NUMBER, "lines": _NUMBER},
      ["path"],
    ),
    _spec(
      "edit_file",
      "Replaces `old`, which must occur once in the file exactly as given, by `new`; with `line`, "
      "what begins in the line nearest to it, once there.",
      {"path": _PATH, "old": _string(60_000), "new": _string(60_000, 0), "line": _NUMBER},
      ["path", "old", "new"],
    ),
    _spec(
      REPLACE_LINES,
      "Replaces the lines `first` to `last` of a file, or `first` alone, by those of `new`; an "
      "empty `new` removes them, and `last` = `first` - 1 inserts `new` before `first`.",
      {"path": _PATH, "first": _NUMBER, "last": _FROM_ZERO, "new": _string(60_000, 0)},
      ["path", "first", "new"],
    ),
    _spec(
      "undo_edit",
      "Makes a file what it was before its last edit.",
      {"path": _PATH},
      ["path"],
    ),
    _spec(
      "write_file",
      "Writes a whole file, in place of what was there.",
      {"path": _PATH, "content": _string(200_000, 0)},
      ["path", "content"],
    ),
    _spec(
      "shell",
      "Runs a bash command; directory and variables stay from one to the next. No network.",
      {"command": _string(20_000)},
      ["command"],
    ),
    _spec(
      "grep",
      "Lines that match a regular expression (grep -E), of all files or of those below `path`.",
      {"pattern": _string(500), "path": _PATH},
      ["pattern"],
    ),
    _spec(
      "search_code",
      "Searches the code by meaning and words, as it was at the beginning.",
      {"query": _string(1_000)},
      ["query"],
    ),
    _spec("run_tests", "Runs the tests of the request on the files as they are.", {}, []),
    _spec("fetch_page", "Returns a web page.", {"url": _string(2_000)}, ["url"]),
    _spec(
      "todo",
      "Writes the whole to-do list anew.",
      {"items": {"type": "array", "items": _TODO, "maxItems": 50}},
      ["items"],
    ),
  )
}


def edited(
  path: str, text: str, old: str, new: str, line: int | None = None
) -> tuple[str, int, str]:
  """(the text with `old` replaced, its line, "") or ("", 0, the reason for refusal and a remedy).

  Without `line`, `old` must occur once in the text. With it, the nearest line where `old` occurs is
  used, since policies miscount and lines move; `old` must begin once in that line.
  """
  if old == new:
    return "", 0, "old and new are the same; nothing was changed."
  places = _places(text, old)
  if len(places) > MAX_PLACES:
    return "", 0, f"old occurs more than {MAX_PLACES} times in {path}; add more around it."
  if places and line is not None:
    least = min(abs(of - line) for _, of in places)
    places = [(at, of) for at, of in places if abs(of - line) == least]
  if len(places) == 1:
    ((at, of),) = places
    return text[:at] + new + text[at + len(old) :], of, ""
  if places:
    listed = list(dict.fromkeys(of for _, of in places))
    where = ", ".join(map(str, listed[:6]))
    help_ = (
      "say in which `line`, or add lines around it" if len(listed) > 1 else "add more around it"
    )
    return "", 0, f"old occurs {len(places)} times in {path}, in line {where}; {help_}."
  near = nearest(text, old)
  hint = f" Nearest, from line {near[0]}:\n{near[1]}" if near else ""
  return "", 0, f"old does not occur in {path}.{hint}"


def _places(text: str, part: str) -> list[tuple[int, int]]:
  """(offset, line) of the occurrences, overlapping ones included, at most MAX_PLACES + 1."""
  places: list[tuple[int, int]] = []
  at, line, counted = text.find(part), 1, 0
  while at >= 0 and len(places) <= MAX_PLACES:
    line, counted = line + text.count("\n", counted, at), at
    places.append((at, line))
    at = text.find(part, at + 1)
  return places


def nearest(text: str, old: str, max_lines: int = 2_000) -> tuple[int, str] | None:
  """(first line, lines) of the part of the text most similar to `old`, with as many lines; None if
  there is none.
  """
  lines, wanted = text.split("\n")[:max_lines], old.strip("\n").split("\n")
  key = wanted[0].strip() or old.strip()
  stripped = [line.strip() for line in lines]
  at = _most_similar(key, stripped) if len(key) < 500 else None
  if at is None:
    return None
  shown = lines[at : at + min(len(wanted), 8)]
  return at + 1, "\n".join(shown)


def _most_similar(key: str, lines: Sequence[str]) -> int | None:
  """The index of the line most similar to `key`; None if none has half of its characters.

  At most MAX_COMPARED pairs of characters are compared, so that no file takes long.
  """
  matcher = difflib.SequenceMatcher(None, "", key)
  best, found, left = 0.5, None, MAX_COMPARED
  for at, line in enumerate(lines):
    matcher.set_seq1(line)
    if matcher.real_quick_ratio() > best and matcher.quick_ratio() > best:
      left -= len(key) * len(line)
      if left < 0:
        break
      ratio = matcher.ratio()
      if ratio > best:
        best, found = ratio, at
  return found


def parse_problem(path: str, text: str) -> str:
  """Where a Python file does not parse; "" for other files and for files that parse."""
  if not path.endswith(".py"):
    return ""
  try:
    ast.parse(text)
  except SyntaxError as error:
    return f" It does not parse now: line {error.lineno}: {error.msg}."
  except (ValueError, RecursionError, MemoryError) as error:
    return f" It does not parse now: {type(error).__name__}."
  return ""


def with_lines(text: str, first: int, last: int, new: str) -> tuple[str, str]:
  """(the text with the lines `first` to `last` replaced by those of `new`, "") or ("", the reason
  for refusal and a remedy). `new` need not end with a line's end.

  With last = first - 1 the new lines are put before line `first`, or after the last one.
  """
  lines = _LINE.findall(text)
  if first > len(lines) + 1 or not first - 1 <= last <= len(lines):
    return "", f"there are no lines {first} to {last}: the file has {len(lines)} lines."
  put = new + "\n" if new and not new.endswith("\n") else new
  before = "".join(lines[: first - 1])
  if put and before and not before.endswith("\n"):
    before += "\n"
  changed = before + put + "".join(lines[last:])
  if changed == text:
    return "", "these lines are as they were; nothing was changed."
  return changed, ""


def lines_of(path: str, text: str, first: int, lines: int, *, numbered: bool = False) -> str:
  """A part of a file, under a header line that names it unless it is the whole file; if `numbered`,
  each line after its number.
  """
  every = text.split("\n")
  if every[-1] == "":
    every.pop()
  part = every[first - 1 : first - 1 + lines]
  whole = len(part) == len(every)
  if numbered:
    part = [f"{number}\t{line}" for number, line in enumerate(part, first)]
  elif whole:
    return text
  if whole:
    return "\n".join(part) + "\n" * bool(part)
  last = first + len(part) - 1
  return f"[{path}, lines {first}-{last} of {len(every)}]\n" + "\n".join(part)


def summary_message(number: int, text: str, state: Mapping[str, Any]) -> Message:
  """The message that replaces the conversation: the policy's summary and the harness's state."""
  return Message(
    "user", f'<summary n="{number}">\n{text.strip()}\n</summary>\n{json.dumps(dict(state))}'
  )


def with_hidden_results(messages: Sequence[Message], keep: int) -> list[Message]:
  """The messages with the content of all tool results hidden, except for the last `keep`."""
  places = [i for i, message in enumerate(messages) if message.role == "tool"]
  hidden = set(places[: max(0, len(places) - keep)])
  return [
    Message("tool", HIDDEN, tool_call_id=m.tool_call_id) if i in hidden else m
    for i, m in enumerate(messages)
  ]
