"""A noisy expert for small coding tasks: the demonstrations that a policy starts from.

It runs the tests, reads the file, changes a line, runs the tests again. It knows the damage, and
errs on purpose: often it tries something else that looks plausible first, in some episodes it ends
without looking at the tests again, or gives up. What reinforcement learning has to find is that
trying until the tests pass pays. Asked for a summary, it tells what it tried in vain; then it reads
the file again, and runs the tests first only where the last edit was not tested: in a small context
both together would leave no room to act.

Edits that do not mend are context alone: what is imitated is the right one, whatever was tried in
vain before. So a policy that cannot tell which it is learns not to try the same again.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping
from typing import Any

from jaxrl_agents.agents.coding import view
from jaxrl_agents.agents.coding.judge import repo as repo_lib
from jaxrl_agents.agents.coding.scripted_edits import (
  DONE,
  TO_UNDO,
  TRIED,
  UNTESTED,
  Replacement,
  missed,
  replacements,
  told,
  turn,
  wrong_edits,
)
from jaxrl_agents.agents.coding.services import CodingServices
from jaxrl_agents.agents.random_draws import Draws
from jaxrl_agents.types import Context, Message, Task

_PASSED = re.compile(r"^(0 of \d+ fail|OK\b.*)$", re.MULTILINE)
_ALL_PASS = "All tests pass."
_NOTHING = "Nothing was tried."
_SOMETHING = "Something was tried."


@dataclasses.dataclass(frozen=True)
class ExpertNoise:
  """How often the expert errs or varies; probabilities but for the last two.

  Each episode draws one of `scales`; the rates of real errors (the first three) are multiplied by
  it.
  """

  wrong_edit: float = 0.5  # a try puts another token for its counterpart, in vain
  wrong_text: float = 0.1  # an edit whose old text does not stand in the file
  give_up: float = 0.1  # after tests that still fail
  unchecked: float = 0.1  # an episode reads and edits before it ran the tests
  hasty: float = 0.3  # an episode ends after its first edit, whatever the tests would say
  together: float = 0.5  # an episode asks for what is independent in one turn
  max_tries: int = 10
  scales: tuple[float, ...] = (0.0, 1.0, 1.5, 1.8)


class CodingExpert:
  """Plays one episode; called with each context.

  Invariant: `_texts` is what the files now hold, with the last `_standing` of the edits `_made`;
  `erred`, whether the last turn was a mistake, which is not to be imitated.
  """

  def __init__(self, task: Task, services: CodingServices, noise: ExpertNoise, seed: int):
    self._draws = draws = Draws(seed, task.id, noise.scales)
    self._task, self._services, self._noise = task, services, noise
    self._repo = services.repos[task.facts["repo"]]
    self._texts = repo_lib.broken(self._repo, task.facts["edits"])
    self._path = task.facts["edits"][0]["path"]
    self._check = ("shell", {"command": self._repo.check_command})
    self._read = ("read_file", {"path": self._path})
    self._hasty = draws.happens(noise.hasty)
    self._together = draws.happens(noise.together)
    unchecked = draws.happens(noise.unchecked)
    first = [turn(self._read)] if unchecked else [turn(self._check), turn(self._read)]
    self._opening = [turn(self._check, self._read)] if self._together and not unchecked else first
    self._undo: Replacement | None = None
    self._tries, self._tried = 0, set[Replacement]()
    self.erred = False
    self._made: list[Replacement] = []
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
      return turn(self._check)
    if self._tries >= self._noise.max_tries or (
      self._tries and self._draws.errs(self._noise.give_up)
    ):
      return self._ended()
    return self._attempt(context)

  def _passed(self, context: Context) -> bool:
    """Whether the last result in sight, or the summary of it, says that all tests pass."""
    last = context.messages[-1]
    if last.role == "user":
      return _ALL_PASS in last.content
    calls = [m.tool_calls for m in context.messages if m.role == "assistant"]
    ran = calls and calls[-1] and calls[-1][-1].name == "shell"
    return bool(ran and _PASSED.search(last.content))

  def _summary(self, context: Context) -> Message:
    """What was tried, as much of the latest as fits; the file is seen again next."""
    results = dataclasses.replace(context, messages=context.messages[:-1])
    if self._made and self._passed(results):
      return Message("assistant", _ALL_PASS)
    untested = self._to_check and self._standing > 0
    self._opening = [turn(self._check)] * untested + [turn(self._read)]
    taken_back, standing = len(self._made) - self._standing, UNTESTED if untested else TO_UNDO
    said = [told(made) + standing * (i >= taken_back) for i, made in enumerate(self._made)]
    self._to_check = False
    while said:
      summary = Message("assistant", "\n".join([TRIED, *said]))
      size = len(self._services.chat.encode_reply(summary, context.messages))
      if size <= context.max_new_tokens:
        return summary
      said.pop(0)
    return Message("assistant", _SOMETHING if self._made else _NOTHING)

  def _ended(self) -> Message:
    return Message("assistant", DONE)

  def _attempt(self, context: Context) -> Message:
    """Takes the last try back, makes the next one, and looks at the tests now or a turn later."""
    self._tries += 1
    calls: list[tuple[str, Mapping[str, Any]]] = []
    if self._undo is not None:
      calls.append(self._undo.undo)
      self._texts = repo_lib.broken(self._repo, self._task.facts["edits"])
      self._undo, self._standing = None, 0
    wrong = self._wrong() if self._draws.errs(self._noise.wrong_text) else None
    if wrong:
      calls.append(missed(wrong[0], self._texts[self._path]).call)
      self.erred = True
    else:
      calls += [each.call for each in self._edits()]
    if self._together and not self._hasty:
      calls.append(self._check)
    else:
      self._to_check = wrong is None
    message = turn(*calls)
    size = len(self._services.chat.encode_reply(message, context.messages))
    if size > context.max_new_tokens:
      self.erred = False
      return self._ended()
    return message

  def _edits(self) -> list[Replacement]:
    """A wrong edit, or all the right ones."""
    wrong = self._wrong() if self._draws.errs(self._noise.wrong_edit) else None
    if wrong:
      self._undo, self._texts[self._path] = wrong
      self._made.append(self._undo)
      self._standing, self.erred = 1, True
      return [self._undo]
    right = replacements(self._repo, self._task.facts["edits"])
    self._made += right
    self._standing = len(right)
    self._texts = {path: self._repo.files[path] for path in self._texts}
    self._tries = max(self._tries, self._noise.max_tries)  # nothing better is left to try
    return right

  def _wrong(self) -> tuple[Replacement, str] | None:
    """A plausible edit of the damaged function that was not tried and does not mend, and the text
    with it.
    """
    edits = [each for each in self._task.facts["edits"] if each["path"] == self._path]
    found = wrong_edits(self._repo, self._path, self._texts[self._path], edits)
    fresh = [pair for pair in found if pair[0] not in self._tried]
    picked = self._draws.random.choice(fresh) if fresh else None
    self._tried.update([picked[0]] if picked else [])
    return picked
