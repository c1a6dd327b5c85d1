"""Makes repositories of extracted functions, and finds the values of their calls in sandboxes."""

from __future__ import annotations

import ast
import random
import sys
from collections.abc import AsyncIterator, Sequence

from jaxrl_agents.agents.coding.judge import run_tests
from jaxrl_agents.agents.coding.judge.repo import Repo
from jaxrl_agents.agents.coding.tasks import call_inputs, functions, suite_repos
from jaxrl_agents.agents.coding.tasks import leaks as code_leaks
from jaxrl_agents.agents.coding.tasks.functions import Cut
from jaxrl_agents.corpus.python_source import FUNCTIONS
from jaxrl_agents.sandbox.host.sandboxes import Sandboxes

MIN_CALLS, MAX_CALLS = 6, 12
MIN_VALUES = 2
MAX_FUNCTIONS = 2
LEAK_CHARACTERS = 30


async def repos(
  boxes: Sandboxes, cuts: Sequence[Cut], *, seed: int, max_files: int = 1
) -> AsyncIterator[Repo]:
  """Yields repositories of one or two functions, both from one module.

  With `max_files=2`, two functions stand in a file each, unless one has the name of a module of
  the standard library or contains the other one.

  A function is kept if at least six calls give the same plain values in two fresh sandboxes and at
  least two of the values are distinct (most of them, unless the function returns a truth value).
  """
  fit: list[tuple[Cut, list[tuple[str, str]]]] = []
  for cut in cuts:
    kept = await behaviour(boxes, cut, seed=seed)
    if kept and not await is_offered(boxes, cut.name, kept):
      fit.append((cut, kept))
  mask = await leaks(boxes, [cut for cut, _ in fit])
  draw = random.Random(f"{seed} repos {cuts[0].module if cuts else ''}")
  draw.shuffle(fit)
  while fit:
    size = draw.randint(1, MAX_FUNCTIONS)
    taken, fit = fit[:size], fit[size:]
    kept = [pair for _, pairs in taken for pair in pairs]
    texts = {f"{cut.name}.py": functions.merged([cut]) for cut, _ in taken}
    if not 1 < len(taken) <= max_files or not _are_separable([cut for cut, _ in taken]):
      texts = {suite_repos.MAIN: functions.merged(cut for cut, _ in taken)}
    name = f"{taken[0][0].module}:{'+'.join(cut.name for cut, _ in taken)}"
    repo = suite_repos.of_files(name, taken[0][0].module, texts, kept, mask)
    if await _stands(boxes, repo):
      yield repo


def _are_separable(cuts: Sequence[Cut]) -> bool:
  """Whether each function can stand in a file of its own name, without the others."""
  names = {cut.name for cut in cuts}
  for cut in cuts:
    nodes = ast.walk(ast.parse(cut.text))
    if {n.name for n in nodes if isinstance(n, FUNCTIONS)} & names != {cut.name}:
      return False
  return not names & {*sys.stdlib_module_names, "main", "check"}


async def behaviour(boxes: Sandboxes, cut: Cut, *, seed: int) -> list[tuple[str, str]]:
  """Pairs (call, value) of a function, an even number; empty if they are too few to test it."""
  start = await boxes.base({suite_repos.MAIN: cut.text})
  tried = call_inputs.probes(cut, seed)
  first = await boxes.create(start)
  try:
    values = await run_tests.values_of(first, "main", [call for _, call in tried], limit_s=0.1)
    accepted = call_inputs.accepted(tried, values)
    calls = call_inputs.calls(cut, accepted, seed)
    values = await run_tests.values_of(first, "main", calls, limit_s=0.1) if calls else []
  finally:
    await first.close()
  found = list(zip(calls, values, strict=True))
  kept = call_inputs.informative(found, MAX_CALLS, shared=2)
  if len(kept) < MIN_CALLS:
    kept = call_inputs.informative(found, MAX_CALLS, shared=4)
  kept = kept[: len(kept) // 2 * 2]
  if len(kept) < MIN_CALLS or len({value for _, value in kept}) < MIN_VALUES:
    return []
  second = await boxes.create(start)
  try:
    again = await run_tests.values_of(second, "main", [call for call, _ in kept], limit_s=0.1)
  finally:
    await second.close()
  return kept if again == [value for _, value in kept] else []


async def is_offered(boxes: Sandboxes, name: str, kept: Sequence[tuple[str, str]]) -> bool:
  """Whether a module that cannot be masked has a function of this name that does the same."""
  modules = code_leaks.offered().get(name, ())
  if not modules:
    return False
  box = await boxes.create(await boxes.base({}))
  calls, values = [call for call, _ in kept], [value for _, value in kept]
  try:
    for module in modules:
      if await run_tests.values_of(box, module, calls) == values:
        return True
    return False
  finally:
    await box.close()


async def leaks(boxes: Sandboxes, cuts: Sequence[Cut]) -> tuple[str, ...]:
  """Paths in the runtime that contain lines of these functions, with their compiled files."""
  needles = []
  for cut in cuts:
    lines = [line for line in cut.text.split("\n") if line.startswith(" ")]
    pairs = ["\n".join(pair) for pair in zip(lines, lines[1:], strict=False) if all(pair)]
    best = max(pairs or lines, key=len, default="")
    if len(best) >= LEAK_CHARACTERS:
      needles.append(best.encode())
  if not needles:
    return ()
  box = await boxes.create(await boxes.base({}))
  try:
    found = await box.find(needles)
  finally:
    await box.close()
  paths = sorted(path for path in found if path.startswith("/usr/"))
  return tuple(dict.fromkeys(each for path in paths for each in code_leaks.masks(path)))


async def _stands(boxes: Sandboxes, repo: Repo) -> bool:
  """Whether all values are as recorded with the functions in one file and the runtime masked."""
  box = await boxes.create(await boxes.base(repo.files, mask=repo.mask))
  try:
    expected = repo.expected()
    try:
      values = await run_tests.values_of(box, "main", list(expected))
    except run_tests.NotBegun:  # Python itself needs a masked file
      return False
    shown = await box.exec(repo.check_command, timeout_s=10)
  finally:
    await box.close()
  return values == list(expected.values()) and shown.output.startswith("0 of ")
