"""Runs the visible tests for an agent that may run them a limited number of times.

A run happens in a fresh sandbox, with the agent's changes of sources and with the tests as they
were. Neither changed tests nor what an earlier run left behind can make one run do the work of
several. Of short functions it shows the values of at most MAX_SHOWN failing calls, compared outside
of the sandbox; of a suite, what its tests print.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from jaxrl_agents.agents.coding.judge import run_tests
from jaxrl_agents.agents.coding.judge.repo import Repo
from jaxrl_agents.agents.coding.judge.verdict import CALLS_S, MAIN_MODULE, Judge, sorted_changes

MAX_SHOWN = 3
"""Failing calls that a test run shows."""
CALL_S = 0.3
OUTPUT_BYTES = 100_000


async def shown(
  judge: Judge,
  repo: Repo,
  facts: Mapping[str, Any],
  changes: Mapping[str, bytes | None],
  *,
  command_s: float,
) -> str:
  """What a run of the visible tests shows.

  Args:
    judge: in whose sandboxes the tests run.
    repo: the repository of the task.
    facts: of the task.
    changes: {path below /work: content, None for removed} of every file that differs from `repo`.
    command_s: time limit of the tests of a suite, in seconds.

  Raises:
    SandboxError: the tests could not be started.
  """
  files, _, _ = sorted_changes(repo, facts, changes)
  async with judge.fresh(repo, files) as box:
    if repo.kind == "calls":
      calls = list(repo.values)
      gives = await run_tests.values_of(
        box, MAIN_MODULE, calls, limit_s=CALL_S, timeout_s=2 * CALLS_S
      )
      return report(repo.values, dict(zip(calls, gives, strict=True)))
    command = f"{repo.check_command} 2>&1"
    result = await box.exec(command, timeout_s=command_s, output_bytes=OUTPUT_BYTES)
    return f"{result.output.rstrip()}\n[stopped: {result.why}]" if result.why else result.output


def report(expected: Mapping[str, str], gives: Mapping[str, str]) -> str:
  """At most MAX_SHOWN calls that give another value than expected, and how many there are, in the
  form of check.py.
  """
  failing = [call for call, want in expected.items() if gives.get(call) != want]
  lines = [f"{call} gives {gives.get(call)} not {expected[call]}" for call in failing[:MAX_SHOWN]]
  return "\n".join([*lines, f"{len(failing)} of {len(expected)} fail"])
