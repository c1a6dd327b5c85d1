"""A scripted player for small coding tasks, whose episodes the warm-up imitates.

The expert runs the tests, reads the file, edits it and runs the tests again. It knows the damage
and makes mistakes on purpose: it often tries another plausible edit first, and in some episodes it
gives up or ends without running the tests again. Reinforcement learning can improve on it by trying
until the tests pass. When it is asked for a summary, it lists the edits that failed. After a
summary it reads the file again; it runs the tests first only if the last edit was not tested,
because a small context has no room for both.

Wrong edits are context and are not imitated; only the right edit is. A policy that cannot tell
which edit is right therefore still learns not to repeat a failed one.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping, Sequence
from typing import Any

from jaxrl_agents.agents.coding import view
from jaxrl_agents.agents.coding.judge import repo as repo_lib
from jaxrl_agents.agents.coding.scripted_edits import (
  DONE,
  FAILS,
  TO_UNDO,
  TRIED,
  UNTESTED,
  Edit,
  check_call,
  repairs,
  turn,
  wrong_edits,
)
from jaxrl_agents.agents.coding.services import CodingServices
from jaxrl_agents.agents.random_draws import Draws
from jaxrl_agents.types import Context, Message, Task

PASSED = re.compile(r"^(0 of \d+ fail|OK\b.*)$", re.MULTILINE)
"""What the output of passing tests shows."""
GIVES = " gives "
"""Between a failing call and its value, where test runs show them."""
_ALL_PASS = "All tests pass."
_NOTHING = "Nothing was tried."
_SOMETHING = "Something was tried."


@dataclasses.dataclass(frozen=True)
class ExpertNoise:
  """How often the expert makes a mistake or varies: probabilities, except for the last two.

  Each episode draws one of `scales`, which multiplies the probabilities of mistakes (the first
  three).
  """

  wrong_edit: float = 0.5  # per attempt: replaces another token by its counterpart
  wrong_text: float = 0.1  # per attempt: an edit whose old text is not in the file
  give_up: float = 0.1  # per failed test run: ends the episode
  unchecked: float = 0.1  # per episode: reads and edits before it has run the tests
  hasty: float = 0.3  # per episode: ends after its first edit without testing it
  together: float = 0.5  # per episode: makes independent calls in one turn
  max_tries: int = 10
  scales: tuple[float, ...] = (0.0, 1.0, 1.5, 1.8)


class CodingExpert:
  """Plays one episode; called with each context.

  Invariant: `_texts` is the present content of the files; the last `_standing` of the edits `_made`
  are in it. `erred` tells whether the last turn was a mistake, which must not be imitated.
  """

  def __init__(self, task: Task, services: CodingServices, noise: ExpertNoise, seed: int):
    self._draws = draws = Draws(seed, task.id, noise.scales)
    self._task, self._services, self._noise = task, services, noise
    self._limits = services.limits
    self._repo = services.repos[task.facts["repo"]]
    self._texts = repo_lib.broken(self._repo, task.facts["edits"])
    self._path = task.facts["edits"][0]["path"]
    self._check = check_call(self._limits, self._repo.check_command)
    self._read = ("read_file", {"path": self._path})
    self._hasty = draws.happens(noise.hasty)
    self._together = draws.happens(noise.together)
    unchecked = draws.happens(noise.unchecked)
    first = [turn(self._read)] if unchecked else [turn(self._check), turn(self._read)]
    self._opening = [turn(self._check, self._read)] if self._together and not unchecked else first
    if len(self._repo.sources) > 1:  # only the tests tell which file to read
      self._opening = [turn(self._check), turn(self._read)]
    self._runs = sum(self._check in _calls(each) for each in self._opening)
    self._undo: Edit | None = None
    self._tries, self._tried = 0, set[Edit]()
    self.erred = False
    self._made: list[Edit] = []
    self._standing = 0
    self._to_check = False

  def __call__(self, context: Context) -> Message:
    """The expert's next turn."""
    self.erred = False
    if view.asks_for_summary(context.messages[-1]):
      return self._summary(context)
    if self._tries and self._passed(context):
      return self._ended()
    if self._opening:
      return self._opening.pop(0)
    if self._tries and self._hasty:
      return self._ended()
    if self._to_check:
      self._to_check = False
      if self._spare(runs=1):
        self._runs += 1
        return turn(self._check)
      return self._ended()
    if self._tries >= self._noise.max_tries or (
      self._tries and self._draws.errs(self._noise.give_up)
    ):
      return self._ended()
    return self._attempt(context)

  def _passed(self, context: Context) -> bool:
    """Whether the last visible result, or the summary, says that all tests pass."""
    last = context.messages[-1]
    if last.role == "user":
      return _ALL_PASS in last.content
    calls = [m.tool_calls for m in context.messages if m.role == "assistant"]
    ran = calls and calls[-1] and calls[-1][-1].name == self._check[0]
    return bool(ran and PASSED.search(last.content))

  def _summary(self, context: Context) -> Message:
    """Lists the latest attempts that fit the reply; the next turn reads the file again."""
    results = dataclasses.replace(context, messages=context.messages[:-1])
    if self._made and self._passed(results):
      return Message("assistant", _ALL_PASS)
    untested = self._to_check and self._standing > 0 and self._spare(runs=1)
    self._runs += untested
    self._opening = [turn(self._check)] * untested + [turn(self._read)]
    taken_back, standing = len(self._made) - self._standing, UNTESTED if untested else TO_UNDO
    said = [made.told + standing * (i >= taken_back) for i, made in enumerate(self._made)]
    self._to_check = False
    example = [FAILS + _example(context)] if self._limits.test_runs and _example(context) else []
    while said or example:
      told_edits = [TRIED, *said] if said else []
      summary = Message("assistant", "\n".join([*example, *told_edits]))
      size = len(self._services.chat.encode_reply(summary, context.messages))
      if size <= context.max_new_tokens:
        return summary
      (said or example).pop(0)
    return Message("assistant", _SOMETHING if self._made else _NOTHING)

  def _ended(self) -> Message:
    return Message("assistant", DONE)

  def _attempt(self, context: Context) -> Message:
    """Undoes the last attempt and makes the next one; runs the tests in this turn or the next."""
    self._tries += 1
    calls: list[tuple[str, Mapping[str, Any]]] = []
    if self._undo is not None:
      calls.append(self._undo.undo)
      self._texts = repo_lib.broken(self._repo, self._task.facts["edits"])
      self._undo, self._standing = None, 0
    errs = self._draws.errs(self._noise.wrong_text) and self._spare(runs=2)
    wrong = self._wrong() if errs else None
    if wrong:
      calls.append(wrong[0].missed(self._texts[self._path]).call)
      self.erred = True
    else:
      calls += [each.call for each in self._edits()]
    if self._together and not self._hasty and self._spare(runs=1):
      calls.append(self._check)
      self._runs += 1
    else:
      self._to_check = wrong is None
    message = turn(*calls)
    size = len(self._services.chat.encode_reply(message, context.messages))
    if size > context.max_new_tokens:
      self.erred = False
      return self._ended()
    return message

  def _edits(self) -> Sequence[Edit]:
    """A wrong edit, or all the right ones, for which the limits always leave room."""
    right = repairs(self._repo, self._task.facts["edits"], self._limits.tools)
    errs = self._draws.errs(self._noise.wrong_edit)
    errs = errs and self._spare(runs=2, edits=1 + len(right))
    wrong = self._wrong() if errs else None
    if wrong:
      self._undo, self._texts[self._path] = wrong
      self._made.append(self._undo)
      self._standing, self.erred = 1, True
      return [self._undo]
    self._made += right
    self._standing = len(right)
    self._texts = {path: self._repo.files[path] for path in self._texts}
    self._tries = max(self._tries, self._noise.max_tries)  # no attempt can be better
    return right

  def _spare(self, *, runs: int, edits: int = 0) -> bool:
    """Whether the limits leave so many test runs and edits."""
    limits = self._limits
    enough = not limits.test_runs or self._runs + runs <= limits.test_runs
    return enough and (not limits.max_edits or len(self._made) + edits <= limits.max_edits)

  def _wrong(self) -> tuple[Edit, str] | None:
    """A plausible wrong edit of the damaged function that was not tried yet, and the text that it
    makes.
    """
    edits = [each for each in self._task.facts["edits"] if each["path"] == self._path]
    text = self._texts[self._path]
    found = wrong_edits(self._repo, self._path, text, edits, self._limits.tools)
    fresh = [pair for pair in found if pair[0] not in self._tried]
    picked = self._draws.random.choice(fresh) if fresh else None
    self._tried.update([picked[0]] if picked else [])
    return picked


def has_passed(message: Message) -> bool:
  """Whether a message is the result of a test run in which all tests passed."""
  return message.role == "tool" and PASSED.search(message.content) is not None


def _calls(message: Message) -> list[tuple[str, Mapping[str, Any]]]:
  return [(call.name, call.arguments) for call in message.tool_calls]


def _example(context: Context) -> str:
  """The first failing call that is visible in a context, in a test run or in a summary; or ""."""
  for message in reversed(context.messages):
    if message.role == "tool":
      line = message.content.partition("\n")[0]
      if GIVES in line:
        return line
    elif message.role == "user" and FAILS in message.content:
      return message.content.partition(FAILS)[2].partition("\n")[0]
  return ""
