"""The tools of the coding environment, which work on one sandbox at a time."""

from __future__ import annotations

import asyncio
import dataclasses
import posixpath
import shlex
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any

from jaxrl_agents.agents import added_tools
from jaxrl_agents.agents.coding import view
from jaxrl_agents.agents.coding.config import REPLACE_LINES, RUN_TESTS, CodingConfig
from jaxrl_agents.agents.coding.services import CodeIndexes, Pages
from jaxrl_agents.corpus.index.hybrid import Index
from jaxrl_agents.harness.tools import Tool, ToolError
from jaxrl_agents.sandbox.errors import Refused, SandboxError
from jaxrl_agents.sandbox.host.sandbox import Sandbox

MAX_FILE_BYTES = 1_000_000
MARGIN_S = 70.0
"""Seconds beyond a command's time limit within which the sandbox answers or is given up."""
MAX_ARGUMENT_CHARACTERS = 300_000

SEARCH_HITS = 5
"""Number of chunks that search_code shows."""


@dataclasses.dataclass(frozen=True)
class Change:
  """An edit that is in effect: `before` became `after`; None if the file did not exist."""

  path: str
  name: str  # the path, as it was shown
  before: str | None
  after: str


class Workspace:
  """What the tools of one episode work on.

  Invariant: `lost` tells that the sandbox is gone; every call fails until `box` is replaced.
  `test_runs` and `edits` count what was carried out, whatever was undone or restored since.

  Args:
    limits: options.
    count: counts the tokens of a text.
    files: {path: text} at the beginning.
    name: of the task.
    indexes, pages: what search_code and fetch_page read.
    tested: runs the visible tests on the present files and returns what they show.
  """

  def __init__(
    self,
    limits: CodingConfig,
    count: Callable[[str], int],
    files: Mapping[str, str],
    *,
    name: str,
    indexes: CodeIndexes,
    pages: Pages | None,
    tested: Callable[[], Awaitable[str]],
  ):
    self._limits, self._count, self._files, self._name = limits, count, files, name
    self._indexes, self._pages, self._tested = indexes, pages, tested
    self.box: Sandbox | None = None
    self.lost = False
    self.max_tokens = limits.tool_output_tokens  # of the next observation
    self.cwd = "/work"
    self.todos: list[dict[str, str]] = []
    self.changes: list[Change] = []
    self.test_runs = self.edits = 0
    runs: dict[str, Callable[..., Any]] = {
      "read_file": self._read_file,
      "edit_file": self._edit_file,
      REPLACE_LINES: self._replace_lines,
      "undo_edit": self._undo_edit,
      "write_file": self._write_file,
      "shell": self._shell,
      RUN_TESTS: self._run_tests,
      "grep": self._grep,
      "search_code": self._search_code,
      "fetch_page": self._fetch_page,
      "todo": self._todo,
    }
    deadline_s = limits.command_s + MARGIN_S
    self.tools: dict[str, Tool] = {
      name: Tool(view.SPECS[name], self._guarded(runs[name]), deadline_s, MAX_ARGUMENT_CHARACTERS)
      for name in limits.tools
      if name != "fetch_page" or pages is not None
    }

  def state(self) -> dict[str, Any]:
    """The state that the harness knows: to-dos, directory, files with edits in effect."""
    edited = list(dict.fromkeys(change.name for change in self.changes))
    return {"todos": self.todos, "cwd": self.cwd, "edited": edited}

  def _guarded(self, run: Callable[..., Any]) -> Callable[..., Any]:
    """Wraps `run`: a refusal by the sandbox becomes an error of the tool, a loss is recorded, and
    the output is shortened.
    """

    async def guarded(**arguments: Any) -> str:
      try:
        text = await run(**arguments)
      except Refused as error:
        raise ToolError(str(error)) from error
      except SandboxError as error:
        self.lost = True
        raise ToolError(view.LOST) from error
      except UnicodeEncodeError as error:
        raise ToolError(f"the text holds what is no character: {error.reason}.") from error
      except ValueError as error:
        raise ToolError(str(error)) from error
      return added_tools.clipped(text, self.max_tokens, self._count)

    return guarded

  def noting_loss(self, tool: Tool) -> Tool:
    """`tool`, which works on the sandbox by itself; a loss is recorded."""

    async def run(**arguments: Any) -> str:
      try:
        return str(await tool.run(**arguments))
      finally:
        self.lost |= self._box().is_lost

    return dataclasses.replace(tool, run=run)

  def _box(self) -> Sandbox:
    assert self.box is not None  # `start` comes before any call
    return self.box

  def _path(self, path: str) -> str:
    return posixpath.normpath(posixpath.join(self.cwd, path))

  def _shown(self, path: str) -> str:
    return posixpath.relpath(self._path(path), self.cwd)

  async def _text(self, path: str) -> str:
    content = await self._box().read(self._path(path), limit=MAX_FILE_BYTES + 1)
    if len(content) > MAX_FILE_BYTES:
      raise ToolError(
        f"{path} is longer than {MAX_FILE_BYTES} bytes; use the shell for parts of it"
      )
    try:
      return content.decode()
    except UnicodeDecodeError as error:
      raise ToolError(f"{path} is not text (UTF-8): byte {error.start}") from error

  async def _read_file(self, path: str, first: int = 1, lines: int = 1_000_000) -> str:
    text = await self._text(path)
    numbered = REPLACE_LINES in self._limits.tools
    shown = view.lines_of(self._shown(path), text, first, lines, numbered=numbered)
    return shown or "[empty file]"

  async def _edit_file(self, path: str, old: str, new: str, line: int | None = None) -> str:
    text = await self._text(path)
    changed, at, problem = view.edited(path, text, old, new, line)
    if problem:
      raise ToolError(problem)
    left = await self._write(path, text, changed)
    return f"Edited {self._shown(path)}, line {at}.{view.parse_problem(path, changed)}{left}"

  async def _replace_lines(self, path: str, first: int, new: str, last: int | None = None) -> str:
    text = await self._text(path)
    changed, problem = view.with_lines(text, first, first if last is None else last, new)
    if problem:
      raise ToolError(problem)
    left = await self._write(path, text, changed)
    return f"Edited {self._shown(path)}, line {first}.{view.parse_problem(path, changed)}{left}"

  async def _undo_edit(self, path: str) -> str:
    places = [i for i, change in enumerate(self.changes) if change.path == self._path(path)]
    if not places:
      raise ToolError(f"there is no edit of {path} to undo.")
    last = self.changes[places[-1]]
    if last.before is None:
      raise ToolError(f"{path} held no text before it was written; write it anew or remove it.")
    if await self._text(path) != last.after:
      raise ToolError(f"{path} has changed by other means since its last edit; edit it instead.")
    await self._box().write(last.path, last.before)
    del self.changes[places[-1]]
    undone = view.UNDONE.format(path=self._shown(path))
    return undone + view.parse_problem(path, last.before)

  async def _write_file(self, path: str, content: str) -> str:
    try:
      before = await self._text(path)
    except (Refused, ToolError):
      before = None
    left = await self._write(path, before, content)
    return f"Wrote {self._shown(path)}.{view.parse_problem(path, content)}{left}"

  async def _write(self, path: str, before: str | None, text: str) -> str:
    """Writes a file, counts the edit, and says how many are left where they are limited."""
    most = self._limits.max_edits
    if most and self.edits >= most:
      raise ToolError(view.NO_EDITS.format(most=most))
    self.edits += 1
    try:
      await self._box().write(self._path(path), text)
    except Refused:
      self.edits -= 1  # nothing was written
      raise
    self.changes.append(Change(self._path(path), self._shown(path), before, text))
    return f" {view.left(most - self.edits, 'edit')}" if most else ""

  async def _run_tests(self) -> str:
    most = self._limits.test_runs
    if self.test_runs >= most:
      raise ToolError(view.NO_RUNS.format(most=most))
    self.test_runs += 1
    shown = await self._tested()
    return f"{shown}\n{view.left(most - self.test_runs, 'test run')}"

  async def _shell(self, command: str) -> str:
    # A token is at least one byte: more bytes than this could never be shown.
    kept = min(16 * self._limits.tool_output_tokens + 1_000, 1 << 20)
    result = await self._box().exec(command, timeout_s=self._limits.command_s, output_bytes=kept)
    self.cwd = result.cwd
    ends = f"[stopped: {result.why}]" if result.why else f"[exit {result.code}]"
    output = result.output.rstrip("\n")
    if not result.why and result.code == 0:
      return output or "[no output]"
    return f"{output}\n{ends}".lstrip("\n")

  async def _grep(self, pattern: str, path: str = ".") -> str:
    # -s: no messages about unreadable files
    command = (
      f"cd {shlex.quote(self.cwd)} && LC_ALL=C.UTF-8 grep -rHnIsE --exclude-dir=__pycache__ "
      f"-e {shlex.quote(pattern)} -- {shlex.quote(path)} | sort -t: -k1,1 -k2,2n | head -c 200000"
    )
    wrapped = f"( set -o pipefail; {command} )"
    result = await self._box().exec(wrapped, timeout_s=self._limits.command_s, output_bytes=200_000)
    if result.why:
      raise ToolError(f"the search was stopped: {result.why}. Ask for something simpler.")
    if result.code == 2 and (not result.output or result.output.startswith("grep: ")):
      why = result.output.partition("\n")[0] or "grep does not take this pattern or path"
      raise ToolError(f"{why}; patterns are those of grep -E.")
    return result.output.removeprefix("./").replace("\n./", "\n").rstrip("\n") or "No line matches."

  async def _search_code(self, query: str) -> str:
    found: Index = await asyncio.to_thread(self._indexes.of, self._name, self._files)
    hits = await asyncio.to_thread(found.search, query, frozenset(), SEARCH_HITS)
    shown = []
    for hit in hits:
      line = self._files[hit.chunk.title][: hit.chunk.start].count("\n") + 1
      shown.append(f"# {hit.chunk.title}:{line}\n{hit.chunk.text.strip(chr(10))}")
    return "\n".join(shown) or "Nothing was found."

  async def _fetch_page(self, url: str) -> str:
    assert self._pages is not None  # the tool is offered only with pages
    text = self._pages.text(url)
    if text is None:
      near = self._pages.nearest(url)
      hint = f" There are: {', '.join(near)}" if near else ""
      raise ToolError(f"404: there is no page {url[:200]!r}.{hint}")
    return text

  async def _todo(self, items: Sequence[Mapping[str, str]]) -> str:
    self.todos = [{"text": item["text"], "status": item["status"]} for item in items]
    left = sum(item["status"] != "done" for item in self.todos)
    return f"{len(self.todos)} to-dos, {left} open."
