"""Judges the state of a repository in a fresh sandbox: which tests pass.

The agent's own sandbox is never used to judge: only its changes of source files are carried over.
No interpreter that runs an agent's code decides about it. The values of calls are compared here, on
the host. The tests of a suite run in a process of their own, which gets nothing but plain data out
of the process with the agent's code (`inside.tester`).
"""

from __future__ import annotations

import asyncio
import codecs
import contextlib
import dataclasses
import io
import re
import tokenize
from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Any

from jaxrl_agents.agents.coding.judge import run_tests
from jaxrl_agents.agents.coding.judge.repo import CHECK, Repo, broken, is_setting, is_test
from jaxrl_agents.sandbox.errors import Refused
from jaxrl_agents.sandbox.host.sandbox import Sandbox
from jaxrl_agents.sandbox.host.sandboxes import Sandboxes
from jaxrl_agents.sandbox.records import Snapshot

MAIN_MODULE = "main"
_SUSPICIOUS = re.compile(
  r"\bos\._exit|\bsys\.modules|\bunittest\b|\bpytest\b|\batexit\b|_getframe|\bgc\.get_|\bsettrace"
  r"|/proc/|\bsignal\."
)
PLAIN = ("utf-8", "utf-8-sig", "ascii")
"""Encodings in which a source says what it looks like."""
ENV = {"PYTHONDONTWRITEBYTECODE": "1"}
"""Python recognises stale compiled files by second and size, and an edit can leave both unchanged.
"""
MAX_CHANGED_BYTES = 2_000_000
CALLS_S, SUITE_S = 20.0, 60.0
"""Time limits in seconds for all calls, or all tests, of a repository; doubled when an agent's work
is judged.
"""


@dataclasses.dataclass(frozen=True)
class Verdict:
  """The judge's findings. A share is of the tests of its list that pass, 1 for an empty list.

  Attributes:
    solved: every test of the task passes, visible and hidden.
    fail_to_pass, pass_to_pass: shares of the visible tests.
    hidden_fail_to_pass, hidden_pass_to_pass: shares of the hidden tests.
    tampered: tests and test settings that the agent changed; these changes are discarded.
    suspicious: changed sources that newly mention the test machinery, or are in an encoding that
      hides what they do.
  """

  solved: bool
  fail_to_pass: float
  pass_to_pass: float
  hidden_fail_to_pass: float
  hidden_pass_to_pass: float
  tampered: tuple[str, ...] = ()
  suspicious: tuple[str, ...] = ()


UNJUDGED = Verdict(False, 0.0, 0.0, 0.0, 0.0)
"""The verdict on an agent that made its sandbox or its repository impossible to judge."""


class Judge:
  """Judges in the sandboxes of `boxes`. Invariant: `_bases` has one base snapshot a repository."""

  def __init__(self, boxes: Sandboxes):
    self.boxes = boxes
    self._bases: dict[str, asyncio.Task[Snapshot]] = {}

  async def base(self, repo: Repo) -> Snapshot:
    """A snapshot of the repository without held-back tests, from which sandboxes start."""
    if repo.id not in self._bases:
      made = self.boxes.base(repo.files, mask=repo.mask, env=ENV)
      self._bases[repo.id] = asyncio.create_task(made)
    try:
      return await asyncio.shield(self._bases[repo.id])  # other callers wait for it, too
    except Exception:
      self._bases.pop(repo.id, None)
      raise

  async def outcomes(
    self,
    repo: Repo,
    files: Mapping[str, bytes | str | None],
    *,
    twice_as_long: bool = False,
    suite_s: float = SUITE_S,
  ) -> dict[str, str]:
    """Runs all tests in a fresh sandbox: {test id: outcome}.

    Args:
      repo: the repository whose tests are run.
      files: replaces files of the repository; None removes one.
      twice_as_long: doubles every time limit.
      suite_s: time limit for all tests of a suite; tests that did not run by then are absent.

    Raises:
      SandboxError: the tests could not be started, twice.
    """
    factor = 2.0 if twice_as_long else 1.0
    try:
      return await self._outcomes(repo, files, factor, suite_s)
    except run_tests.NotBegun:  # try again: the first sandbox may have failed by chance
      return await self._outcomes(repo, files, factor, suite_s)

  async def _outcomes(
    self, repo: Repo, files: Mapping[str, bytes | str | None], factor: float, suite_s: float
  ) -> dict[str, str]:
    async with self.fresh(repo, files) as box:
      if repo.kind == "calls":
        return await _call_outcomes(box, repo, factor)
      return await _suite_outcomes(box, repo, factor, suite_s)

  @contextlib.asynccontextmanager
  async def fresh(
    self, repo: Repo, files: Mapping[str, bytes | str | None]
  ) -> AsyncIterator[Sandbox]:
    """A new sandbox of the repository, with `files` in the place of its own; None removes one."""
    box = await self.boxes.create(await self.base(repo))
    try:
      for path, content in files.items():
        await _put(box, path, content)
      yield box
    finally:
      await box.close()

  async def grade(
    self, repo: Repo, facts: Mapping[str, Any], changes: Mapping[str, bytes | None]
  ) -> Verdict:
    """Judges an agent's changes of a task.

    Args:
      repo: the repository of the task.
      facts: of the task: "edits" and the four lists of tests.
      changes: {path below /work: content, None for removed} of every file that differs from `repo`.
    """
    files, tampered, suspicious = sorted_changes(repo, facts, changes)
    gives = await self.outcomes(repo, files, twice_as_long=True)
    expected = repo.expected()
    passes = {test: gives.get(test) == want for test, want in expected.items()}
    shares = {name: _share([passes[test] for test in facts[name]]) for name in TESTS}
    solved = all(value == 1.0 for value in shares.values())
    return Verdict(solved, **shares, tampered=tampered, suspicious=suspicious)


TESTS = ("fail_to_pass", "pass_to_pass", "hidden_fail_to_pass", "hidden_pass_to_pass")
"""The four lists of tests in the facts of a task."""


def sorted_changes(
  repo: Repo, facts: Mapping[str, Any], changes: Mapping[str, bytes | None]
) -> tuple[dict[str, bytes | str | None], tuple[str, ...], tuple[str, ...]]:
  """(the agent's changes that count, paths of tests that it changed, suspicious paths).

  A damaged file that the agent did not change stays damaged. Files of the repository come first;
  files beyond the size limit are removed, so that no file keeps its old content by being left out.
  """
  counted: dict[str, bytes | str | None] = {}
  tampered, suspicious, size = [], [], 0
  damaged = {edit["path"] for edit in facts["edits"]}
  for path, content in sorted(changes.items(), key=lambda item: (item[0] not in repo.files, item)):
    if path not in damaged and (is_test(path) or is_setting(path)):
      if path in repo.files or path.endswith(("conftest.py", "customize.py")):
        tampered.append(path)
      continue
    size += len(content or b"")
    if size > MAX_CHANGED_BYTES:
      if path in repo.files:
        counted[path] = None
      continue
    counted[path] = content
    was = encoding_of(repo.files.get(path, "").encode("utf-8", "replace"))
    if path.endswith(".py") and content and encoding_of(content) not in (*PLAIN, was or "utf-8"):
      suspicious.append(path)  # in another one a comment may be code
      continue
    text = (content or b"").decode("utf-8", "replace")
    new = set(_SUSPICIOUS.findall(text)) - set(_SUSPICIOUS.findall(repo.files.get(path, "")))
    if new:
      suspicious.append(path)
  return counted, tuple(sorted(tampered)), tuple(sorted(suspicious))


def encoding_of(content: bytes) -> str:
  """The encoding in which Python reads a source; "" if it cannot."""
  lines = content.replace(b"\r\n", b"\n").replace(b"\r", b"\n")  # as Python does first
  try:
    return codecs.lookup(tokenize.detect_encoding(io.BytesIO(lines).readline)[0]).name
  except (SyntaxError, LookupError):
    return ""


async def _put(box: Sandbox, path: str, content: bytes | str | None) -> None:
  try:
    if content is None:
      await box.exec(f"rm -rf -- {_quoted(path)}", timeout_s=5.0)
    else:
      await box.write(path, content)
  except Refused:  # for example a name that only the agent's sandbox could hold: it does not count
    pass


def _quoted(path: str) -> str:
  return "'" + path.replace("'", "'\\''") + "'"


async def _call_outcomes(box: Sandbox, repo: Repo, factor: float) -> dict[str, str]:
  calls = [*repo.values, *repo.hidden_values]
  values = await run_tests.values_of(
    box, MAIN_MODULE, calls, limit_s=0.15 * factor, timeout_s=CALLS_S * factor
  )
  return dict(zip(calls, values, strict=True))


async def _suite_outcomes(
  box: Sandbox, repo: Repo, factor: float, suite_s: float
) -> dict[str, str]:
  python = [path for path in repo.files if path.endswith(".py")]
  tests = {path: repo.files[path] for path in python if is_test(path)} | dict(repo.held_back)
  return await run_tests.statuses_of(
    box,
    tests,
    [*repo.visible_tests, *repo.held_back],
    [path for path in python if not is_test(path) and path != CHECK],
    limit_s=5.0 * factor,
    timeout_s=suite_s * factor,
  )


def _share(passed: Sequence[bool]) -> float:
  return sum(passed) / len(passed) if passed else 1.0


def damage(repo: Repo, facts: Mapping[str, Any]) -> dict[str, str]:
  """{path: text} of the files that a task damages."""
  return broken(repo, facts["edits"])
