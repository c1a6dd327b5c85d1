"""What the coding episodes of a process share: repositories, sandboxes, judge, indexes, pages."""

from __future__ import annotations

import asyncio
import collections
import dataclasses
import difflib
import os
import pathlib
import shutil
import tempfile
import threading
from collections.abc import Mapping, Sequence

from jaxrl_agents.agents.coding.config import CodingConfig
from jaxrl_agents.agents.coding.judge import repo as repo_lib
from jaxrl_agents.agents.coding.judge import verdict as judge_lib
from jaxrl_agents.agents.coding.judge.repo import Repo
from jaxrl_agents.agents.coding.judge.verdict import Judge
from jaxrl_agents.chat import Chat
from jaxrl_agents.corpus import chunks, documents, readers
from jaxrl_agents.corpus.index import hybrid
from jaxrl_agents.sandbox.host.runtime import Runtime
from jaxrl_agents.sandbox.host.sandboxes import Sandboxes
from jaxrl_agents.types import Task

MAX_INDEXES = 64


class Workshop:
  """Opens the sandboxes when the first episode needs them, and one judge for all episodes.

  All uses must be in one event loop. Sandboxes that are never closed end with the process.
  """

  def __init__(self, backend: str = "namespaces", **options):
    self._backend, self._options = backend, options
    self._opening: asyncio.Task[Judge] | None = None
    self._ending: asyncio.Task[None] | None = None
    self.boxes: Sandboxes | None = None

  def show(self, packages: Sequence[str]) -> None:
    """Has the sandboxes show these Python packages to programs in them.

    Raises:
      ValueError: sandboxes are open already, without them.
    """
    wanted = Runtime(packages=tuple(packages))
    if self._options.get("runtime", Runtime()) == wanted:
      return
    if self._opening is not None:
      raise ValueError(f"the sandboxes are open, without the packages {', '.join(packages)}")
    self._options["runtime"] = wanted

  async def judge(self) -> Judge:
    """The judge; its sandboxes (`boxes`) are open.

    Raises:
      sandbox.errors.NoSandbox: this machine cannot run the backend; the message names the remedy.
    """
    if self._opening is not None and self._opening.done() and not self._is_usable(self._opening):
      self._opening = None  # what failed once, or died since, may work now
      if self.boxes is not None:
        self._ending, self.boxes = asyncio.create_task(self.boxes.close()), None
    if self._opening is None:
      self._opening = asyncio.create_task(self._open())
    return await asyncio.shield(self._opening)

  def _is_usable(self, opened: asyncio.Task[Judge]) -> bool:
    failed = opened.cancelled() or opened.exception() is not None
    return not failed and self.boxes is not None and self.boxes.is_open

  async def _open(self) -> Judge:
    boxes = Sandboxes(self._backend, **self._options)
    await boxes.__aenter__()
    self.boxes = boxes
    return Judge(boxes)

  async def close(self) -> None:
    """Ends all sandboxes; the next use opens new ones."""
    if self._opening is not None:
      judge = await self._opening
      self._opening = self.boxes = None
      await judge.boxes.close()


class CodeIndexes:
  """Search indexes of file trees, built at first use; the last `MAX_INDEXES` are kept."""

  def __init__(self, chunk_tokens: int):
    self._chunk_tokens = chunk_tokens
    self._folder: tempfile.TemporaryDirectory[str] | None = None
    self._found: collections.OrderedDict[str, hybrid.Index] = collections.OrderedDict()
    self._lock = threading.Lock()

  def of(self, name: str, files: Mapping[str, str]) -> hybrid.Index:
    """The index of the Python files of the tree called `name`; ValueError if it has none. Safe in
    several threads; an index is built once.
    """
    with self._lock:
      return self._of(name, files)

  def _of(self, name: str, files: Mapping[str, str]) -> hybrid.Index:
    if name not in self._found:
      texts = {path: text for path, text in sorted(files.items()) if text.strip()}
      found = [
        documents.Document(str(i), path, text, {"source": path, "kind": "python"})
        for i, (path, text) in enumerate(texts.items(), 100)
      ]
      cut = chunks.cut(found, max_tokens=self._chunk_tokens)
      self._folder = self._folder or tempfile.TemporaryDirectory(prefix="code_index_")
      self._found[name] = hybrid.build(cut, self._folder.name, rank=32)
      while len(self._found) > MAX_INDEXES:
        _, oldest = self._found.popitem(last=False)
        shutil.rmtree(oldest.folder, ignore_errors=True)
    self._found.move_to_end(name)
    return self._found[name]


class Pages:
  """Recorded web pages; every other address counts as missing."""

  def __init__(self, pages: Mapping[str, str]):
    self._pages = {_plain(url): text for url, text in pages.items()}

  def text(self, url: str) -> str | None:
    """The text of a page; None if it was not recorded."""
    return self._pages.get(_plain(url))

  def nearest(self, url: str) -> list[str]:
    """At most three recorded addresses that resemble `url`."""
    return difflib.get_close_matches(_plain(url), list(self._pages), n=3, cutoff=0.3)


def _plain(url: str) -> str:
  plain = url.strip().partition("#")[0].removeprefix("https://").removeprefix("http://")
  return plain.rstrip("/").lower()


def load_pages(path: str | os.PathLike[str]) -> Pages:
  """The pages of a file of JSON lines {"url", "title", "text"}.

  Raises:
    ValueError: the file is missing, or a line has other content.
  """
  place = pathlib.Path(path).expanduser()
  if not place.is_file():
    raise ValueError(f"{place}: no such file; write JSON lines with url, title and text")
  pages = {}
  number = 0
  try:
    for line, record in readers.read_jsonl(place):
      number = line
      pages[record["url"]] = f"{record.get('title', '')}\n\n{record['text']}".strip()
  except (KeyError, TypeError) as error:
    raise ValueError(f"{place}, line {number}: {error!r}; give url and text") from error
  except ValueError as error:
    raise ValueError(f"{error}; give url and text") from error
  return Pages(pages)


@dataclasses.dataclass(frozen=True)
class CodingServices:
  """What the episodes of one process share."""

  chat: Chat
  repos: Mapping[str, Repo]
  limits: CodingConfig
  workshop: Workshop
  indexes: CodeIndexes
  pages: Pages | None = None


def check(task: Task, services: CodingServices) -> None:
  """Raises ValueError where the repository is missing, or the limits contradict each other."""
  limits = services.limits
  if task.facts["repo"] not in services.repos:
    raise ValueError(
      f"task {task.id!r} is of repository {task.facts['repo']}, which coding.tasks="
      f"{limits.tasks!r} lacks; give the folder that the task is from"
    )
  calls = services.repos[task.facts["repo"]].kind == "calls"
  longest_s = 2 * (judge_lib.CALLS_S if calls else judge_lib.SUITE_S)
  if limits.grade_s <= longest_s:
    raise ValueError(
      f"coding.grade_s={limits.grade_s:g} is not above the {longest_s:g} s that judging may take; "
      "what an agent wrote would pass for a fault of the machine; raise it"
    )


def load_services(chat: Chat, limits: CodingConfig) -> CodingServices:
  """The services of a process, with the repositories of `limits.tasks`."""
  return CodingServices(
    chat,
    repo_lib.load(limits.tasks),
    limits,
    Workshop(limits.backend),
    CodeIndexes(limits.chunk_tokens),
    load_pages(limits.pages) if limits.pages else None,
  )
