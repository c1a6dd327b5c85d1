"""Runs calls and tests in a sandbox, from the host."""

from __future__ import annotations

import functools
import hmac
import json
import pathlib
import secrets
from collections.abc import Mapping, Sequence
from typing import Any

from jaxrl_agents.agents.coding.judge.inside.tester import boot
from jaxrl_agents.agents.coding.judge.repo import module_of
from jaxrl_agents.sandbox.errors import Refused, SandboxError
from jaxrl_agents.sandbox.host.sandbox import Sandbox

_INSIDE = pathlib.Path(__file__).with_name("inside")
_PACKAGE = "jaxrl_agents/agents/coding/judge/inside"
WORK = "/work"
MAX_RESULT_BYTES = 4 << 20
NOTHING, CONFLICT = "?nothing", "?conflict"


class NotBegun(SandboxError):
  """No code of an agent was started, so nothing is known about it."""


async def values_of(
  box: Sandbox, module: str, calls: Sequence[str], *, limit_s: float = 0.3, timeout_s: float = 20.0
) -> list[str]:
  """The value of each call with the names of `module`, as `inside.calls` writes it.

  "?conflict" where two rows disagree, "?nothing" where there is none.

  Raises:
    NotBegun: Python did not start.
  """
  place = f"/tmp/{secrets.token_hex(8)}"
  await box.write(f"{place}/calls.py", (_INSIDE / "calls.py").read_bytes())
  job = {"folder": WORK, "module": module, "calls": list(calls), "limit_s": limit_s}
  command = ["/usr/bin/python3", "-I", "-S", "-B", f"{place}/calls.py"]
  told: dict[int, str] = {}
  for line in await _lines(box, place, command, job, timeout_s=timeout_s):
    row = _parsed(line)
    if isinstance(row, list) and [*map(type, row)] == [int, str]:
      told[row[0]] = row[1] if told.get(row[0], row[1]) == row[1] else CONFLICT
  return [told.get(i, NOTHING) for i in range(len(calls))]


async def statuses_of(
  box: Sandbox,
  tests: Mapping[str, str],
  run: Sequence[str],
  sources: Sequence[str],
  *,
  limit_s: float = 5.0,
  timeout_s: float = 60.0,
) -> dict[str, str]:
  """{test id: status} of the tests of the modules in the files `run`; others are absent.

  "?conflict" is the status of a test that several modules have, with different outcomes.

  Args:
    box: a sandbox with the tested code, in which nothing was run before.
    tests: {path below /work: text} of the test modules; those in the sandbox are not used.
    run: the paths of `tests` whose tests are run.
    sources: paths of the modules of the tested code.
    limit_s: time limit of a test.
    timeout_s: time limit of all tests; those that did not run by then are absent.

  Raises:
    NotBegun: the process that runs the tests did not start.
  """
  place, key = f"/tmp/{secrets.token_hex(8)}", secrets.token_bytes(32)
  for name, content in _programs().items():
    await box.write(f"{place}/{name}", content)
  job = {
    "folder": WORK,
    "tests": dict(tests),
    "sources": [module_of(path) for path in sources],
    "modules": [module_of(path) for path in run],
    "limit_s": limit_s,
    "key": key.hex(),
  }
  statuses: dict[str, str] = {}
  command = boot("tester", place=place)[:-1]
  for line in await _lines(box, place, command, job, place, timeout_s=timeout_s):
    text, _, signature = line.rpartition(" ")
    expected = hmac.new(key, text.encode(), "sha256").hexdigest()
    if hmac.compare_digest(expected.encode(), signature.encode()):
      test, status = json.loads(text)
      statuses[test] = status if statuses.get(test, status) == status else CONFLICT
  return statuses


@functools.cache
def _programs() -> dict[str, bytes]:
  """{path: content} of the programs of `inside`, as a package."""
  parts = _PACKAGE.split("/")
  packages = ["/".join([*parts[:end], "__init__.py"]) for end in range(1, len(parts))]
  programs = {f"{_PACKAGE}/{path.name}": path.read_bytes() for path in _INSIDE.glob("*.py")}
  return {**dict.fromkeys(packages, b""), **programs}


async def _lines(
  box: Sandbox,
  place: str,
  command: Sequence[str],
  job: Mapping[str, Any],
  *more: str,
  timeout_s: float,
) -> list[str]:
  """The lines that a program wrote. They come from a sandbox and cannot be trusted."""
  begun, rows = secrets.token_hex(8), f"{place}/rows"
  await box.write(f"{place}/job.json", json.dumps({**job, "begun": begun}))
  words = [*command, f"{place}/job.json", rows, *more]
  quoted = " ".join("'" + word.replace("'", "'\\''") + "'" for word in words)
  result = await box.exec(quoted, timeout_s=timeout_s, output_bytes=2_000)
  if begun not in result.output:
    raise NotBegun(f"no test could be run: {result.why or result.code}, {result.output[-200:]!r}")
  try:
    return (await box.read(rows, limit=MAX_RESULT_BYTES)).decode("utf-8", "replace").splitlines()
  except Refused:
    return []


def _parsed(line: str) -> Any:
  try:
    return json.loads(line)
  except (ValueError, RecursionError):
    return None
