"""Runs calls and tests in a sandbox, from the host."""

from __future__ import annotations

import json
import pathlib
import secrets
from collections.abc import Sequence
from typing import Any

from jaxrl_agents.sandbox.errors import Refused, SandboxError
from jaxrl_agents.sandbox.host.sandbox import Sandbox

RUNNER = pathlib.Path(__file__).with_name("runner.py").read_bytes()
WORK = "/work"
MAX_RESULT_BYTES = 4 << 20
NOTHING, CONFLICT = "?nothing", "?conflict"


class NotBegun(SandboxError):
  """The runner did not start, so nothing is known about the code that it was to run."""


async def values_of(
  box: Sandbox, module: str, calls: Sequence[str], *, limit_s: float = 0.3, timeout_s: float = 20.0
) -> list[str]:
  """The value of each call with the names of `module`, as `runner` writes it."""
  job = {"folder": WORK, "module": module, "calls": list(calls), "limit_s": limit_s}
  told = _told(await _rows(box, job, timeout_s), int)
  return [told.get(i, NOTHING) for i in range(len(calls))]


async def statuses_of(
  box: Sandbox, modules: Sequence[str], *, limit_s: float = 5.0, timeout_s: float = 60.0
) -> dict[str, str]:
  """{test id: status} of the tests of modules below /work; tests without a status are absent."""
  job = {"folder": WORK, "modules": list(modules), "limit_s": limit_s}
  return _told(await _rows(box, job, timeout_s), str)


def _told(rows: Sequence[tuple[Any, Any]], kind: type) -> dict[Any, str]:
  """The value reported for each key of a type; "?conflict" where two rows disagree."""
  told: dict[Any, str] = {}
  for key, value in rows:
    if type(key) is kind and type(value) is str:
      told[key] = value if told.get(key, value) == value else CONFLICT
  return told


async def _rows(box: Sandbox, job: dict[str, Any], timeout_s: float) -> list[tuple[Any, Any]]:
  """The pairs that the runner wrote. They come from a sandbox and cannot be trusted.

  Raises:
    NotBegun: the runner did not report its start, which it does before it loads any code of an
      agent.
  """
  place, begun = f"/tmp/{secrets.token_hex(8)}", secrets.token_hex(8)
  job = {**job, "begun": begun}
  await box.write(f"{place}/runner.py", RUNNER)
  await box.write(f"{place}/job.json", json.dumps(job))
  command = f"/usr/bin/python3 -I -S -B {place}/runner.py {place}/job.json {place}/rows"
  result = await box.exec(command, timeout_s=timeout_s, output_bytes=2_000)
  if begun not in result.output:
    raise NotBegun(f"no test could be run: {result.why or result.code}, {result.output[-200:]!r}")
  try:
    text = (await box.read(f"{place}/rows", limit=MAX_RESULT_BYTES)).decode("utf-8", "replace")
  except Refused:
    return []
  rows = []
  for line in text.splitlines():
    try:
      row = json.loads(line)
    except (ValueError, RecursionError):
      continue
    if isinstance(row, list) and len(row) == 2:
      rows.append((row[0], row[1]))
  return rows
