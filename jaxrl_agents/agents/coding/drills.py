"""Short exercises in repairing a file that was just read, sometimes after failed attempts, and code
to be continued.

The conversation, or a summary of it, shows what was tried. The reply undoes the last attempt, if it
changed the file, and makes the right edits. No code runs: only the last line of the test output is
shown, and its number of failures is random. Where test runs and edits are counted, the notes on
what is left are those of the environment, and no more was tried than they allow.
"""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np

from jaxrl_agents.agents import system_prompt
from jaxrl_agents.agents.coding import view
from jaxrl_agents.agents.coding.config import REPLACE_LINES, CodingConfig
from jaxrl_agents.agents.coding.judge import repo as repo_lib
from jaxrl_agents.agents.coding.scripted_edits import (
  TO_UNDO,
  TRIED,
  Edit,
  check_call,
  repairs,
  turn,
  wrong_edits,
)
from jaxrl_agents.agents.coding.tasks.damaged_functions import Damaged, Functions
from jaxrl_agents.agents.coding.tasks.suite_repos import MAIN
from jaxrl_agents.chat import Chat
from jaxrl_agents.types import Message

MAX_REPLY_TOKENS = 128
MAX_TEXT_TOKENS = 1_024
EACH = "Each function of {path} has a fault: see `{check}`. Mend them all."
"""The request where every function of a file is damaged."""
TRIES = (0.4, 0.25, 0.2, 0.15)
"""Probabilities that zero, one, two or three edits were tried."""
MISSED = 0.3
"""Probability that an attempt names text that the file does not contain."""
SUMMARIZED = 0.3
"""Probability that a summary tells of the attempts."""
TOGETHER = 0.5
"""Probability that independent calls are made in one turn."""
_COMMAND = f"python3 {repo_lib.CHECK}"


def text_drills(functions: Functions, chat: Chat, *, count: int, seed: int) -> Iterator[np.ndarray]:
  """Yields at most `count` pieces of undamaged code, int32 [2 to MAX_TEXT_TOKENS], in random order:
  what code usually looks like, which tells where it is damaged.
  """
  pieces = []
  for text in functions.texts if count else ():
    ids = chat.encode(text)
    pieces += [ids[i : i + MAX_TEXT_TOKENS] for i in range(0, len(ids), MAX_TEXT_TOKENS)]
  pieces = [piece for piece in pieces if len(piece) > 1]  # of a single token nothing is predicted
  random.Random(f"{seed} texts").shuffle(pieces)
  yield from (np.asarray(piece, np.int32) for piece in pieces[:count])


def repair_drills(
  damaged: Iterable[Damaged],
  prompts: Sequence[str],
  limits: CodingConfig,
  chat: Chat,
  *,
  seed: int,
) -> Iterator[tuple[np.ndarray, np.ndarray]]:
  """Yields the token ids of a prompt and of the reply that repairs the file, int32 [P] and [R].

  Drills whose reply has more than MAX_REPLY_TOKENS tokens for each function to be repaired are left
  out, and those that need more edits than the limits allow.

  Args:
    damaged: files and the edits that broke them.
    prompts: requests with the fields {path} and {check}; each drill draws one, or has EACH. Half of
      those for files with a name of their own also name the last other one.
    limits: options; the tools include those of `scripted_edits.used_tools`.
    chat: template and tokenizer.
    seed: of the random draws.
  """
  draw = random.Random(f"{seed} repairs")
  offered = [name for name in limits.tools if name != "fetch_page" or limits.pages]
  specs = tuple(view.SPECS[name] for name in offered)
  head = system_prompt.messages(limits.system_prompt, view.system_prompt(limits, specs))
  elsewhere: Edit | None = None
  named = ""
  for fault in damaged:
    repo, edits, each = fault
    paths = [path := edits[0]["path"]]
    if path != MAIN:
      if named not in ("", path) and draw.random() < 0.5:
        paths = draw.sample([path, named], 2)
      named = path
    request = EACH if each else draw.choice(prompts)
    request = request.format(path=" or ".join(paths), check=_COMMAND)
    request += view.counted(limits)
    mended = repairs(repo, edits, limits.tools)
    if limits.max_edits and len(mended) > limits.max_edits:
      continue
    messages, reply = _drill(fault, mended, elsewhere, limits, draw)
    elsewhere = mended[0]
    messages[:0] = [*head, Message("user", request)]
    ids = chat.encode_reply(reply, messages)
    if len(ids) <= MAX_REPLY_TOKENS * (len(edits) if each else 1):
      yield chat.render(messages, specs), ids


def _drill(
  fault: Damaged,
  mended: Sequence[Edit],
  elsewhere: Edit | None,
  limits: CodingConfig,
  draw: random.Random,
) -> tuple[list[Message], Message]:
  """Returns the messages after the request, and the reply that repairs. `elsewhere` is an edit of
  another file.
  """
  repo, edits, each = fault
  path = mended[0].path
  text = repo_lib.broken(repo, edits)[path]
  count = min(draw.choices(range(len(TRIES)), TRIES)[0], _most_tries(limits, len(mended)))
  count = 0 if each else count
  others = wrong_edits(repo, path, text, edits, limits.tools) if count else []
  tried = draw.sample(others, min(count, len(others)))
  together = draw.random() < TOGETHER
  check, results_of = check_call(limits, _COMMAND), _Results(limits, draw)
  read = ("read_file", {"path": path})

  def shown(content: str) -> Message:
    numbered = REPLACE_LINES in limits.tools
    return _tool(view.lines_of(path, content, 1, len(content), numbered=numbered))

  def edited(made: Edit) -> Message:
    return results_of.edited(path, made.applied(text)[1])

  def asked(*pairs: tuple[Any, Message]) -> list[Message]:
    """Turns with calls, and their results."""
    if together:
      return [turn(*(call for call, _ in pairs)), *(result for _, result in pairs)]
    return [message for call, result in pairs for message in (turn(call), result)]

  if tried and draw.random() < SUMMARIZED:
    last, changed = tried[-1]
    standing = draw.random() < 0.5
    lines = [made.told for made, _ in tried]
    lines[-1] += TO_UNDO * standing
    state = {"todos": [], "cwd": "/work", "edited": [path] * standing, "summaries": 1}
    messages = [view.summary_message(1, "\n".join([TRIED, *lines]), state)]
    messages += asked((read, shown(changed if standing else text)))
    undo = [last.undo] if standing else []
  else:
    messages, undo = asked((check, results_of.failing()), (read, shown(text))), []
    for made, _ in tried:
      results = [_tool(view.UNDONE.format(path=path)) for _ in undo]
      if draw.random() < MISSED:
        wrong = made.missed(text)
        if elsewhere and draw.random() < 0.5:
          other = dataclasses.replace(elsewhere, path=path).missed(text)
          wrong = other if other.applied(text)[2] else wrong
        _, _, problem = wrong.applied(text)
        calls, results, undo = [*undo, wrong.call], [*results, _tool(f"Error: {problem}")], []
      else:
        calls, results, undo = [*undo, made.call], [*results, edited(made)], [made.undo]
      if together:
        messages += [turn(*calls, check), *results, results_of.failing()]
      else:
        messages += [turn(*calls), *results]
        messages += [turn(check), results_of.failing()] if undo else []
  calls = [each.call for each in mended]
  return messages, turn(*undo, *calls, *([check] * together))


def _tool(content: str) -> Message:
  """A result without a call's id."""
  return Message("tool", content)


def _most_tries(limits: CodingConfig, repairs: int) -> int:
  """How many edits may have been tried so that the limits leave room for `repairs` right ones. One
  test run has shown the damage, and one is left.
  """
  most = max(limits.test_runs - 2, 0) if limits.test_runs else len(TRIES)
  return min(most, max(limits.max_edits - repairs, 0)) if limits.max_edits else most


class _Results:
  """Results of test runs and edits, with the notes on what is left of their limits."""

  def __init__(self, limits: CodingConfig, draw: random.Random):
    self._limits, self._draw, self._tests = limits, draw, draw.randint(3, 8)
    self._runs = self._edits = 0

  def failing(self) -> Message:
    self._runs += 1
    most = self._limits.test_runs
    note = f"\n{view.left(most - self._runs, 'test run')}" if most else ""
    return _tool(f"{self._draw.randint(1, self._tests)} of {self._tests} fail{note}")

  def edited(self, path: str, line: int) -> Message:
    self._edits += 1
    most = self._limits.max_edits
    note = f" {view.left(most - self._edits, 'edit')}" if most else ""
    return _tool(f"Edited {path}, line {line}.{note}")
