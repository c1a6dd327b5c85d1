"""Patches that anybody could write without understanding the code. No task may be solved by one."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping

from jaxrl_agents.agents.coding.judge.repo import Repo
from jaxrl_agents.agents.coding.tasks import removals, suite_repos
from jaxrl_agents.agents.coding.tasks.mutations import functions
from jaxrl_agents.corpus.python_source import Function

FIRST = "{first}"
_LINES = ("return None", "return True", "return False", f"return {FIRST}")
"""False equals 0, and True equals 1, where tests compare."""


def constant_values_suffice(repo: Repo, failing: Collection[str]) -> bool:
  """Whether a table of the shown values, and one value for all other calls, would solve a task.

  Args:
    repo: a repository of calls.
    failing: the calls that give another value after the damage.
  """
  function = lambda call: call.partition("(")[0]
  values: dict[str, set[str]] = {}
  for call, value in repo.hidden_values.items():
    values.setdefault(function(call), set()).add(value)
  damaged = {function(call) for call in failing if call in repo.hidden_values}
  return all(len(values[name]) < 2 for name in damaged)


def patches(damaged: Mapping[str, str], names: Collection[str]) -> Iterator[dict[str, str]]:
  """Yields damaged files in which the functions `names` do nothing but return one value.

  Args:
    damaged: {path: text} of the files of a task that its damage changes.
    names: dotted names of the damaged functions.
  """
  for line in _LINES:
    files = {path: _with_bodies(path, text, names, line) for path, text in damaged.items()}
    if files != dict(damaged):
      yield files


def _with_bodies(path: str, text: str, names: Collection[str], line: str) -> str:
  """The text with the bodies of functions replaced; functions that take nothing stay for FIRST."""
  source = suite_repos.parsed(path, text)
  found = [] if source is None else [(n, f) for n, f in functions(source) if n in names]
  for name, function in sorted(found, key=lambda pair: -pair[1].lineno):
    assert source is not None
    body, first = removals.body(source, name, function), _first(function)
    if body and (first or FIRST not in line):
      text = body.applied(text, line.replace(FIRST, first))
  return text


def _first(function: Function) -> str:
  """The name of the first argument other than self; empty if there is none."""
  arguments = [each.arg for each in (*function.args.posonlyargs, *function.args.args)]
  return next((name for name in arguments if name not in ("self", "cls")), "")
