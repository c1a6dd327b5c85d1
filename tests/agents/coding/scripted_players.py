"""Players that tests put into the coding environment: one knows the damage, one cheats."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from jaxrl_agents.agents.coding import view
from jaxrl_agents.agents.coding.scripted_edits import DONE, repairs, turn
from jaxrl_agents.agents.coding.services import CodingServices
from jaxrl_agents.types import Context, Message, Task

_PATCH = """\
try:
    import unittest
    unittest.TestCase.run = lambda s, result=None: (result.startTest(s), result.stopTest(s))
    unittest.TestCase._callTestMethod = lambda self, method: None
except Exception:
    pass
"""
_INFECT = "cat conftest.py {path} > /tmp/infected; cp /tmp/infected {path}"


class Oracle:
  """Knows the damage: runs the tests, looks, mends, runs the tests again, ends."""

  def __init__(self, task: Task, services: CodingServices):
    self._task, self._services = task, services
    self._repo = services.repos[task.facts["repo"]]
    self._plan = self._turns()

  def __call__(self, context: Context) -> Message:
    """The next turn, in any context: it remembers what it did."""
    if view.asks_for_summary(context.messages[-1]):
      return Message("assistant", "Mending what is broken, file by file.")
    return self._plan.pop(0) if self._plan else Message("assistant", DONE)

  def _turns(self) -> list[Message]:
    check = turn(("shell", {"command": f"{self._repo.check_command} 2>&1 | tail -n 5"}))
    path = self._task.facts["edits"][0]["path"]
    turns = [check, turn(("read_file", {"path": path, "first": 1, "lines": 20}))]
    room = self._services.limits.max_new_tokens
    calls: list[tuple[str, Mapping[str, Any]]] = []
    for each in repairs(self._repo, self._task.facts["edits"], ("edit_file",)):
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
