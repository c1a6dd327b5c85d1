"""The reward of a coding episode: its parts are measured once, and weighted later.

Besides solving, the parts measure unwanted behaviours; each has a monitor, a number that moves if
the behaviour spreads. Composer 2 names broken tool calls, to-dos created and left open, thinking
that moves into comments of the code, and the use of the terminal alone
(https://arxiv.org/abs/2603.24477 section 4.2). Thresholds and weights are ours.
"""

from __future__ import annotations

import collections
import math
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from jaxrl_agents.agents.coding.config import REPLACE_LINES, CodingReward
from jaxrl_agents.agents.coding.length_penalty import length_penalty, spent
from jaxrl_agents.agents.search.reward import calls
from jaxrl_agents.types import Message, ToolCall

SHELL, TODO = "shell", "todo"
EDITING = ("edit_file", REPLACE_LINES, "write_file")
MAX_BROKEN_CALLS = 5
MAX_PENALTY = 0.2
MIN_SHELL_CALLS = 8
MAX_COMMENT_SHARE = 0.5
MIN_COMMENT_CHARACTERS = 200
MAX_COMMENT_LINES = 15
MAX_LINE_CHARACTERS = 100
MAX_STYLE_WARNINGS = 5
MAX_MESSAGE_TOKENS = 400
_STYLE = re.compile(
  r"\s+$|^ *\t|^\s*except\s*:|[=!]=\s*None\b|^\s*from\s.*\bimport\s+\*|;\s*$|^\s*import\s.+,"
)
_FILE_WORK = re.compile(r"(^|[\s;&|])(cat|head|tail|less|sed|awk|tee|ed|patch)\s|>|<<|\bopen\(")


def broken_calls(
  log: Sequence[Message],
  problem: Callable[[ToolCall], str],
  *,
  most: int,
  cut_by_room: Callable[[Message], bool] = lambda message: False,
) -> int:
  """The number of calls that could not be parsed, or were refused before they ran.

  Args:
    log: every message of the episode.
    problem: why a call cannot run; "" if it can (harness.tools.problem_with).
    most: most calls of a turn that run.
    cut_by_room: whether a reply was cut off by a full context. That breaks its last call, which is
      not counted.
  """
  count = 0
  for message in log:
    if message.role == "assistant" and not cut_by_room(message):
      count += sum(i >= most or bool(problem(call)) for i, call in enumerate(message.tool_calls))
  return count


def open_todos(log: Sequence[Message]) -> tuple[int, int]:
  """(open, all) to-dos after the last to-do call that was carried out."""
  results = {m.tool_call_id: m.content for m in log if m.role == "tool"}
  left, number = 0, 0
  for call in calls(log):
    items = call.arguments.get("items")
    carried_out = not results.get(call.id, "Error").startswith("Error")
    if call.name == TODO and carried_out and isinstance(items, (list, tuple)):
      number = len(items)
      left = sum(isinstance(i, dict) and i.get("status") != "done" for i in items)
  return left, number


def comment_share(added: Sequence[str]) -> float:
  """The characters in whole-line comments relative to those in code, of added lines; 0 if few are
  comments.
  """
  comments = sum(len(line.strip()) for line in added if line.strip().startswith("#"))
  code = sum(len(line.strip()) for line in added if not line.strip().startswith("#"))
  return comments / max(code, 1) if comments >= MIN_COMMENT_CHARACTERS else 0.0


def longest_comment(added: Sequence[str]) -> int:
  """The number of lines of the longest block of consecutive comment lines."""
  longest = run = 0
  for line in added:
    run = run + 1 if line.strip().startswith("#") else 0
    longest = max(longest, run)
  return longest


def is_comment_thinking(added: Sequence[str]) -> bool:
  """Whether the comments are more than half of the code, or a block of them has over 15 lines."""
  return comment_share(added) > MAX_COMMENT_SHARE or longest_comment(added) > MAX_COMMENT_LINES


def style_warnings(added: Sequence[str]) -> float:
  """Warnings per 100 added lines, where fewer than 100 lines count as 100.

  A line has a warning if it is longer than 100 characters, ends with white space or a semicolon, is
  indented by a tab, catches every exception, compares with None by == or !=, imports *, or imports
  several modules (a subset of pycodestyle's rules that a single line shows).
  """
  count = sum(
    len(line) > MAX_LINE_CHARACTERS or bool(line.strip() and _STYLE.search(line)) for line in added
  )
  return 100.0 * count / max(len(added), 100)


def is_poor_message(last: str, changed: Sequence[str], tokens: int) -> bool:
  """Whether a last message is empty, longer than 400 tokens, or names none of the changed files.

  Args:
    last: the message without calls that ended the episode.
    changed: paths of the files that the agent changed; a name without folders is enough.
    tokens: of `last`.
  """
  names = [path.rpartition("/")[2] for path in changed]
  named = not names or any(name in last for name in names)
  return not last.strip() or tokens > MAX_MESSAGE_TOKENS or not named


def is_shell_only(made: Sequence[ToolCall], offered: Sequence[str]) -> bool:
  """Whether there are at least eight calls and all of them use the shell, which reads or edits
  files although tools for that are offered.
  """
  if len(made) < MIN_SHELL_CALLS or any(call.name != SHELL for call in made):
    return False
  commands = [str(call.arguments.get("command", "")) for call in made]
  return bool(set(EDITING) & set(offered)) and any(map(_FILE_WORK.search, commands))


def entropy(made: Sequence[ToolCall]) -> float:
  """The entropy of the histogram of tools, in bits: 0 for one tool, log2(n) for n equally used
  ones.
  """
  counts = collections.Counter(call.name for call in made)
  total = sum(counts.values())
  return sum(c / total * math.log2(total / c) for c in counts.values()) if total else 0.0


def coding_parts(
  log: Sequence[Message],
  stop: str,
  verdict: Mapping[str, Any],
  *,
  added: Sequence[str],
  changed: Sequence[str] = (),
  offered: Sequence[str],
  broken: int,
  summaries: int,
  test_runs: int = 0,
  edits: int = 0,
  count: Callable[[str], int],
) -> dict[str, float]:
  """The measured parts of one coding episode.

  Args:
    log: every message of the episode.
    stop: why the episode ended.
    verdict: the fields of `agents.coding.judge.verdict.Verdict`.
    added: lines that the agent added to source files.
    changed: paths of the files that it changed.
    offered: names of the tools.
    broken: number of calls that could not run, see `broken_calls`.
    summaries: how often the context was replaced by a summary.
    test_runs: counted runs of the tests (`CodingConfig.test_runs`).
    edits: those that were carried out (`CodingConfig.max_edits`).
    count: counts the tokens of a text.

  Returns:
    solved, and shares of passing tests; behaviours as rates or flags; effort; monitors.
  """
  made = calls(log)
  left, todos = open_todos(log)
  took = spent(log, stop, count)
  last = log[-1].content if stop == "answer" and log else ""
  return {
    "solved": float(verdict["solved"] and not verdict["suspicious"]),
    "mended": float(verdict["fail_to_pass"]),
    "mended_hidden": float(verdict["hidden_fail_to_pass"]),
    "kept": min(float(verdict["pass_to_pass"]), float(verdict["hidden_pass_to_pass"])),
    "tampered": float(len(verdict["tampered"])),
    "suspicious": float(len(verdict["suspicious"])),
    "completed": float(stop == "answer"),
    "broken_calls": float(broken),
    "open_todos": left / todos if todos else 0.0,
    "comment_thinking": float(is_comment_thinking(added)),
    "shell_only": float(is_shell_only(made, offered)),
    "style_warnings": style_warnings(added),
    "poor_message": float(stop == "answer" and is_poor_message(last, changed, count(last))),
    "effort": took.effort,
    "turns": float(took.turns),
    "tool_calls": float(took.calls),
    "thinking_tokens": float(took.thinking_tokens),
    "final_tokens": float(took.final_tokens),
    "tool_entropy": entropy(made),
    "comment_share": comment_share(added),
    "todos": float(todos),
    "edits": float(edits),
    "summaries": float(summaries),
    "test_runs": float(test_runs),
  }


def behaviour_penalty(parts: Mapping[str, float], w: CodingReward) -> float:
  """The total cost of unwanted behaviour, at most MAX_PENALTY."""
  return min(
    MAX_PENALTY,
    w.broken_calls * min(parts["broken_calls"], MAX_BROKEN_CALLS)
    + w.open_todos * parts["open_todos"]
    + w.comment_thinking * parts["comment_thinking"]
    + w.shell_only * parts["shell_only"]
    + w.style * min(parts.get("style_warnings", 0.0), MAX_STYLE_WARNINGS)
    + w.last_message * parts.get("poor_message", 0.0),
  )


def coding_total(parts: Mapping[str, float], *, weights: CodingReward = CodingReward()) -> float:
  """R = solved + progress * min(mended, mended_hidden) - behaviour - length * C_{k,q}(effort).

  A table of the values that the agent was shown would mend all visible tests, but no hidden one.
  Progress counts only if no other test broke. Solving and progress count only if no changed source
  newly mentions the machinery of tests (`Verdict.suspicious`).
  """
  w = weights
  earned = parts["solved"]
  if parts["kept"] == 1.0:
    earned += w.progress * min(parts["mended"], parts["mended_hidden"])
  if parts["suspicious"]:
    earned = 0.0
  pays = parts["solved"] or not w.length_of_solved_only
  length = length_penalty(parts["effort"], k=w.length_k, q=w.length_q) if pays else 0.0
  return earned - behaviour_penalty(parts, w) - w.length * length
