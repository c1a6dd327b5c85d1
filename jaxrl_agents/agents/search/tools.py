"""The tools of one agent that look into a corpus: search, grep and read.

Source: Chroma, "Context-1", https://www.trychroma.com/research/context-1; tool details from
https://github.com/pat-jj/harness-1.
"""

from __future__ import annotations

import asyncio
import collections
import concurrent.futures
import dataclasses
import math
import random
import re
from collections.abc import Sequence

from jaxrl_agents.agents.chat_endpoint import Client
from jaxrl_agents.agents.search import reranking, reward, view
from jaxrl_agents.agents.search.config import SearchConfig
from jaxrl_agents.agents.search.short_ids import ShortIds
from jaxrl_agents.chat import Chat
from jaxrl_agents.config import CorpusConfig, cache_folder
from jaxrl_agents.corpus.chunks import Chunk
from jaxrl_agents.corpus.grep import GrepError
from jaxrl_agents.corpus.index import hybrid as index
from jaxrl_agents.corpus.index import store
from jaxrl_agents.corpus.index.hybrid import Fusion, Index
from jaxrl_agents.harness.tools import Tool, ToolError, late
from jaxrl_agents.types import Task

READ_CHUNKS = 300
"""Most chunks of a document that read_document ranks, as in the harness above."""

_GREPS = concurrent.futures.ThreadPoolExecutor(4, "grep")
"""Patterns may be slow: those of some episodes must not hold up the searches of others."""

_LIST_NUMBER = re.compile(r"(?:^\s*|(?<=\. ))\d{1,3}\. ")
"""The number of an entry of a list, which a query may quote and no chunk should be found by. Longer
numbers, such as years, are searched for.
"""


@dataclasses.dataclass(frozen=True)
class SearchServices:
  """What the episodes of one process share."""

  chat: Chat
  index: Index
  limits: SearchConfig
  reranker: Client | None = None


class SearchTools:
  """Search, grep and read of one agent. Invariant: a search never finds a chunk twice.

  All texts call chunks by the names of `ids`; the code calls them by their own ids.

  Attributes:
    ids: the names of chunks.
    displayed: names that search or grep showed.
    max_tokens: of the output of the next call.
    tools: run one after another, as a search depends on those before it.
  """

  def __init__(self, task: Task, services: SearchServices):
    self.ids = ShortIds(task)
    self.displayed: set[str] = set()
    self.max_tokens = services.limits.tool_output_tokens
    self._chat, self._index, self._limits = services.chat, services.index, services.limits
    self._reranker = services.reranker
    self._shown_chunks: set[str] = set()
    self._shown_documents: set[str] = set()
    self._found: set[str] = set()  # chunks that a search returned; no search returns them again
    self._first_query: dict[str, str] = {}  # {document: the query that first found it}
    runs = [(view.SEARCH, self._search), (view.GREP, self._grep), (view.READ, self._read)]
    self.tools = [Tool(spec, run, self._limits.tool_deadline_s) for spec, run in runs]
    if self._limits.tool_latency_s:
      draw = random.Random(f"latency {task.id}")
      delay = (self._limits.tool_latency_s, self._limits.tool_latency_sigma)
      self.tools = [late(tool, *delay, draw) for tool in self.tools]

  def allow(self, left: int) -> None:
    """Sets `max_tokens` for a context with `left` tokens to its end."""
    self.max_tokens = self._limits.tool_output_tokens
    if left < self._limits.tool_output_tokens:
      self.max_tokens = max(self._limits.reply_reserve_tokens, left // 2)

  def was_shown(self, an_id: str) -> bool:
    """Whether search or grep showed the chunk of this id, or any tool a part of the document.

    Where ids are short, only chunks have names: "7" is no document.
    """
    return an_id in self._shown_chunks or (not self.ids.used and an_id in self._shown_documents)

  async def _search(self, query: str) -> str:
    result = await self._results(_LIST_NUMBER.sub("", query))
    return view.quoting(query, result) if self._limits.quote_query else result

  async def _results(self, query: str) -> str:
    fusion = fusion_of(self._limits)
    exclude, limits = frozenset(self._found), self._limits
    limit = limits.rerank.candidates if self._reranker else limits.max_shown
    hits = await asyncio.to_thread(self._index.search, query, exclude, limit, settings=fusion)
    if self._reranker:
      deadline_s = limits.tool_deadline_s
      hits = await reranking.reranked(self._reranker, query, hits, deadline_s=deadline_s)
      hits = hits[: limits.max_shown]
    if not hits:
      return view.NO_RESULTS
    shown = self._that_fit(hits)
    for chunk in shown:
      self._found.add(chunk.id)
      self._first_query.setdefault(chunk.doc_id, query)
    return self._show(shown)

  async def _grep(self, pattern: str) -> str:
    limit, timeout_s = self._limits.grep_limit, self._limits.tool_deadline_s / 5
    try:
      loop = asyncio.get_running_loop()
      hits = await loop.run_in_executor(_GREPS, self._index.grep, pattern, limit, timeout_s)
    except GrepError as error:
      raise ToolError(str(error)) from error
    return self._show(self._that_fit(hits)) if hits else view.NO_RESULTS

  def _that_fit(self, hits: Sequence[index.Hit]) -> list[Chunk]:
    """The chunks of the first hits that fit the tokens of a result.

    Raises:
      ToolError: not even one does.
    """
    shown = view.first_that_fit(
      [hit.chunk for hit in hits], self.max_tokens, lambda c: self._chat.count(self._hit(c))
    )
    if not shown:
      raise self._no_room("result")
    return shown

  def _no_room(self, what: str) -> ToolError:
    remedy = "Prune chunks first, or" if self._limits.can_prune else "You can only"
    return ToolError(f"no {what} fits the {self.max_tokens} tokens left. {remedy} answer.")

  async def _read(self, doc_id: str) -> str:
    chunks = self._document(doc_id.strip())[:READ_CHUNKS]
    query = self._first_query.get(chunks[0].doc_id)
    ranked = ranked_by(query, chunks) if query else chunks
    kept = view.first_that_fit(ranked, self.max_tokens, lambda c: self._chat.count(c.text))
    if not kept:
      raise self._no_room("part of it")
    self._shown_documents.add(chunks[0].doc_id)
    order = {chunk.id: i for i, chunk in enumerate(chunks)}
    body = "".join(chunk.text for chunk in sorted(kept, key=lambda c: order[c.id]))
    return f"# Document ({self._chat.count(body)} tokens)\n{view.disarmed(body)}"

  def _hit(self, chunk: Chunk) -> str:
    return view.hit(self.ids.name(chunk.id), chunk.text, self._chat.count(chunk.text))

  def _show(self, chunks: Sequence[Chunk]) -> str:
    self.displayed.update(self.ids.name(chunk.id) for chunk in chunks)
    self._shown_chunks.update(chunk.id for chunk in chunks)
    self._shown_documents.update(chunk.doc_id for chunk in chunks)
    return "\n".join(self._hit(chunk) for chunk in chunks)

  def _document(self, doc_id: str) -> list[Chunk]:
    """The chunks of a document, by its id or by that of one of its chunks. A number stands for a
    chunk only once it was shown: gold chunks have theirs from the start.
    """
    known = not self.ids.used or doc_id in self.displayed
    chunk_id = self.ids.chunk_id(doc_id) if known else doc_id
    for name in (chunk_id, reward.document_of(chunk_id)):
      chunks = self._index.document(name)
      if chunks:
        return list(chunks)
    raise ToolError(
      f"there is no document {doc_id[:40]!r}. Use a DOCUMENT ID, or its part before _."
    )


def fusion_of(limits: SearchConfig) -> Fusion:
  """How search_corpus ranks."""
  fused = limits.rerank.candidates if limits.rerank.url else Fusion.fused
  return Fusion(by=limits.fusion, dense_weight=limits.dense_weight, fused=fused)


def ranked_by(query: str, chunks: Sequence[Chunk]) -> list[Chunk]:
  """The chunks of one document, best match of the query's words first; ties in document order.

  The score sums log((n + 1) / (number of chunks that have the word)) over the words that the chunk
  shares with the query, n chunks in all: a word of every chunk counts little.
  """
  words = [set(re.findall(r"\w+", chunk.text.lower())) for chunk in chunks]
  counts = collections.Counter(word for present in words for word in present)
  wanted = set(re.findall(r"\w+", query.lower()))

  def score(i: int) -> float:
    return sum(math.log((len(chunks) + 1) / counts[word]) for word in sorted(wanted & words[i]))

  return [chunks[i] for i in sorted(range(len(chunks)), key=lambda i: (-score(i), i))]


def load_services(chat: Chat, index_folder: str, limits: SearchConfig) -> SearchServices:
  """The services of a process, with the index that `hybrid.build` wrote.

  Where `index_folder`, which lies in the run's `corpus.cache`, is not on this machine, a copy is
  looked for in this machine's $JAXRL_CACHE, or else in the default of `corpus.cache`.

  Raises:
    ValueError: the index is not on this machine, or the key of the reranker cannot be read.
  """
  folder = store.located(index_folder, cache_folder(CorpusConfig()))
  return SearchServices(chat, index.load(folder), limits, reranking.opened(limits))
