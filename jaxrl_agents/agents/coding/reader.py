"""A scripted player without gold that reads the failing calls which the tests show.

It runs the tests, reads the file that the failing calls are about, and executes every single edit
of the family on these calls in mind, that is in a sandbox of its own. It makes one that gives the
expected values, runs the tests, and takes the calls that still fail into account. It tries single
edits, so that of two faults in one function it finds at most one.
"""

from __future__ import annotations

import itertools
import re

from jaxrl_agents.agents.coding import view
from jaxrl_agents.agents.coding.expert import has_passed
from jaxrl_agents.agents.coding.judge import repo as repo_lib
from jaxrl_agents.agents.coding.judge import run_tests
from jaxrl_agents.agents.coding.possible_edits import possible_edits
from jaxrl_agents.agents.coding.scripted_edits import DONE, Edit, check_call, turn
from jaxrl_agents.agents.coding.services import CodingServices
from jaxrl_agents.agents.coding.tasks import mutations, suite_repos
from jaxrl_agents.agents.random_draws import seeded
from jaxrl_agents.types import Context, Message, Task

MAX_EDITS = 200
"""Most edits that are executed in mind."""
MIND_S = 20.0
_EXAMPLE = re.compile(r"^((\w+)\(.*\)) gives (.*) not (.*)$", re.MULTILINE)
_VARIANTS = """\
TEXTS = {texts!r}


def _call(text, call):
  names = {{}}
  exec(text, names)
  return eval(call, names)


for _i, _text in enumerate(TEXTS):
  exec(f"def v{{_i}}(call): return _call(TEXTS[{{_i}}], call)")
"""
"""A module with one function for each edited file, which calls what the file defines."""


class Reader:
  """Plays one episode; called with each context. Invariant: `_examples` holds {call: value} of the
  calls that failed so far; `_left` the edits of the read file that were not made.
  """

  def __init__(self, task: Task, services: CodingServices, seed: int):
    self._services, self._repo = services, services.repos[task.facts["repo"]]
    texts = {**self._repo.files, **repo_lib.broken(self._repo, task.facts["edits"])}
    self._texts = {path: texts[path] for path in self._repo.sources}
    self._draw = seeded(seed, f"reader {task.id}")
    limits = services.limits
    self._check = check_call(limits, self._repo.check_command)
    self._edits_left = limits.max_edits or MAX_EDITS
    self._runs_left = (limits.test_runs or MAX_EDITS) - 1  # after the first one
    self._examples: dict[str, str] = {}
    self._path, self._passed = "", False
    self._left: list[tuple[Edit, str]] = []
    self._made: Edit | None = None

  async def __call__(self, context: Context) -> Message:
    """The next turn: tests, then reading, then edits with tests."""
    last = context.messages[-1]
    if view.asks_for_summary(last):
      self._passed = self._passed or has_passed(context.messages[-2])
      return Message("assistant", "\n".join(f"{c} = {v}" for c, v in self._examples.items()))
    shown = last.content if last.role == "tool" else ""
    self._examples |= {found[1]: found[4] for found in _EXAMPLE.finditer(shown)}
    if self._passed or has_passed(last):
      return Message("assistant", DONE)
    if not self._examples:
      return turn(self._check) if last.role == "user" else Message("assistant", DONE)
    if not self._path:
      self._path = self._file_of(next(iter(self._examples)).partition("(")[0])
      text = {self._path: self._texts[self._path]}
      limits = self._services.limits
      family = possible_edits(text, limits.damage, self._draw, limits.tools)
      self._left = list(itertools.islice(family, MAX_EDITS))
      return turn(("read_file", {"path": self._path}))
    edit = await self._fitting() if self._edits_left and self._runs_left >= 0 else None
    if edit is None:
      return Message("assistant", DONE)
    undo = [] if self._made is None else [self._made.undo]
    self._made = edit
    self._edits_left -= 1
    self._runs_left -= 1
    return turn(*undo, edit.call, *[self._check] * (self._runs_left >= 0))

  def _file_of(self, name: str) -> str:
    """The file that defines a function; the first one if none does."""
    for path, text in self._texts.items():
      source = suite_repos.parsed(path, text)
      if source and any(found == name for found, _ in mutations.functions(source)):
        return path
    return next(iter(self._texts))

  async def _fitting(self) -> Edit | None:
    """An edit that gives the most of the known examples their values; None if none is left."""
    if not self._left:
      return None
    texts = [changed for _, changed in self._left]
    calls = [f"v{i}({call!r})" for i in range(len(texts)) for call in self._examples]
    judge = await self._services.workshop.judge()
    module = _VARIANTS.format(texts=texts)
    async with judge.fresh(self._repo, {"variants.py": module}) as box:
      values = await run_tests.values_of(box, "variants", calls, limit_s=0.1, timeout_s=MIND_S)
    wanted = list(self._examples.values())
    right = [
      sum(a == b for a, b in zip(values[i:], wanted, strict=False))
      for i in range(0, len(values), len(wanted))
    ]
    best = max(range(len(right)), key=lambda i: right[i])
    made, _ = self._left.pop(best)
    return made
