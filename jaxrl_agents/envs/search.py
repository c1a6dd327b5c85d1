"""The search environment of Context-1: find the documents that support an answer, and prune.

The policy searches, greps, reads and prunes under a token budget, and ends with a reply without
calls that lists documents. Numbers are in `config.SearchConfig`; the defaults are Context-1's.

Source: Chroma, "Context-1", https://www.trychroma.com/research/context-1; tool and budget details
from https://github.com/pat-jj/harness-1. Ours is: a prune call hides only what was shown before its
turn, so that grep can show a pruned chunk again, as the report says it can.
"""

from __future__ import annotations

import asyncio
import collections
import dataclasses
import math
import os
import pathlib
import re
from collections.abc import Sequence

from jaxrl_agents import chat
from jaxrl_agents.chat import Chat
from jaxrl_agents.config import CorpusConfig, SearchConfig
from jaxrl_agents.envs import search_view as view
from jaxrl_agents.envs.short_ids import ShortIds
from jaxrl_agents.harness.process import Services
from jaxrl_agents.harness.tools import Tool, ToolError, problem_with, run_call
from jaxrl_agents.retrieval import index, store
from jaxrl_agents.retrieval.chunks import Chunk
from jaxrl_agents.retrieval.grep import GrepError
from jaxrl_agents.retrieval.index import Fusion, Index
from jaxrl_agents.rewards import rules
from jaxrl_agents.types import Context, Message, Task, ToolCall, ToolSpec, Trajectory


@dataclasses.dataclass(frozen=True)
class SearchServices:
  """What the episodes of one process share."""

  chat: Chat
  index: Index
  limits: SearchConfig


class SearchEnv:
  """One episode. Invariant: `_messages` only grows; what the policy sees is `_view()`.

  Chunks go by the names of `ids` in all that is shown or said, by their own ids inside.

  Stops: "answer"; "turn_limit"; "context_overflow" (no room is left for a reply); "malformed" (more
  than `max_malformed_turns` turns in a row of which no call could be parsed, or that were cut off).
  """

  def __init__(self, task: Task, services: SearchServices):
    self._task, self.ids = task, ShortIds(task)
    self._chat, self._index, self._limits = services.chat, services.index, services.limits
    self._messages: list[Message] = []
    self._prunes: list[tuple[int, frozenset[str]]] = []  # (messages before the turn, ids)
    self._prunable: set[str] = set()  # ids of the calls whose results show chunk ids
    self._displayed: set[str] = set()  # names, by search or grep
    self._found: set[str] = set()  # by search: never found again
    self._first_query: dict[str, str] = {}  # of each document
    self._turns = self._malformed_turns = 0
    self._max_tokens = 0  # for the output of the call that runs now
    self._tools = {tool.spec.name: tool for tool in self._make_tools()}

  async def start(self) -> Context:
    """The question, after the system prompt if there is one."""
    if self._limits.system_prompt:
      self._messages.append(Message("system", self._limits.system_prompt))
    self._messages.append(Message("user", self._task.prompt))
    return self._next()

  async def step(self, reply: Message) -> Context:
    """Records the turn, then runs its calls one after another."""
    before = len(self._messages)
    self._messages.append(reply)
    self._turns += 1
    cut_off = reply.tokens is not None and (
      not len(reply.tokens) or int(reply.tokens[-1]) not in self._chat.stop_tokens
    )
    if not reply.tool_calls and not cut_off:
      return self._context(stop="answer")
    if reply.tool_calls:
      self._record_prunes(reply.tool_calls, before)
      self._messages += await self._run_calls(reply.tool_calls)
    else:
      self._messages.append(Message("user", view.CUT_OFF))
    last = self._messages[-1]
    line = view.usage_line(self._usage(), self._limits.threshold_tokens)
    self._messages[-1] = dataclasses.replace(last, content=last.content + line)
    malformed = all(call.error for call in reply.tool_calls)
    self._malformed_turns = self._malformed_turns + 1 if malformed else 0
    if self._malformed_turns > self._limits.max_malformed_turns:
      return self._context(stop="malformed")
    if self._turns >= self._limits.max_turns:
      return self._context(stop="turn_limit")
    return self._next()

  def rewards(self, trajectory: Trajectory) -> dict[str, float]:
    """The parts of `rules.search_parts`."""
    return rules.search_parts(
      trajectory.log,
      trajectory.stop,
      self._task.facts,
      ids=self.ids.ids,
      exists=self._exists,
      max_documents=self._limits.max_documents,
    )

  async def close(self) -> None:
    """Holds nothing that needs closing."""

  def _next(self) -> Context:
    """The next context, with the one-time notice where it is due; an overflow ends the episode."""
    usage = self._usage()
    room = self._limits.token_budget - usage
    if room < 1:
      return self._context(stop="context_overflow")
    notices: tuple[Message, ...] = ()
    training = self._task.split == "train"
    if usage > self._limits.threshold_tokens and self._limits.show_hint and training:
      text = view.over_threshold_notice(
        usage, self._limits.threshold_tokens, self._limits.can_prune
      )
      notice = Message("user", text, ephemeral=True)
      room_after = self._limits.token_budget - self._usage(notice)
      if room_after > 0:
        notices, room = (notice,), room_after
    return self._context(notices, max_new_tokens=min(self._limits.max_new_tokens, room))

  def _context(
    self, notices: tuple[Message, ...] = (), *, stop: str = "", max_new_tokens: int = 0
  ) -> Context:
    return Context(
      messages=(*self._view(), *notices),
      tools=self._specs(),
      max_new_tokens=max_new_tokens,
      done=bool(stop),
      stop=stop,
    )

  def _specs(self) -> tuple[ToolSpec, ...]:
    return tuple(tool.spec for tool in self._tools.values())

  def _view(self) -> list[Message]:
    """The messages with pruned spans cut out of the results shown before each prune."""
    messages = list(self._messages)
    for i, message in enumerate(messages):
      if message.tool_call_id in self._prunable:
        ids = frozenset().union(*(ids for before, ids in self._prunes if i < before))
        content = view.without_spans(message.content, ids)
        messages[i] = dataclasses.replace(message, content=content)
    return messages

  def _usage(self, *notices: Message) -> int:
    """Tokens of the prompt that the policy would see now, with `notices` at its end."""
    return len(self._chat.render((*self._view(), *notices), self._specs()))

  def _record_prunes(self, calls: Sequence[ToolCall], before: int) -> None:
    for call in calls:
      if call.name in self._tools and not problem_with(self._tools, call):
        ids = frozenset(rules.prune_call_ids(call)) & self._displayed
        if ids:
          self._prunes.append((before, ids))

  async def _run_calls(self, calls: Sequence[ToolCall]) -> list[Message]:
    """The results of the calls of one turn; each counts against the budget of those after it."""
    usage, used, results = self._usage(), 0, []
    for call in calls:
      text = await self._run_call(call, usage, used)
      used += self._chat.count(text)
      if call.name in rules.SHOWING_TOOLS:
        self._prunable.add(call.id)
      results.append(Message("tool", text, tool_call_id=call.id))
    return results

  async def _run_call(self, call: ToolCall, usage: int, used: int) -> str:
    limits = self._limits
    cutoff = view.rejection_budget(
      limits.token_budget, limits.threshold_tokens, limits.spillage_fraction
    )
    if call.name != rules.PRUNE_TOOL and usage + used > cutoff:
      return view.rejection(usage + used, limits.threshold_tokens, limits.can_prune)
    left = limits.token_budget - usage - used
    self._max_tokens = limits.tool_output_tokens
    if left < limits.tool_output_tokens:
      self._max_tokens = max(limits.reply_reserve_tokens, left // 2)
    return await run_call(self._tools, call)

  def _make_tools(self) -> list[Tool]:
    runs = [(view.SEARCH, self._search), (view.GREP, self._grep), (view.READ, self._read)]
    if self._limits.can_prune:
      runs.append((view.PRUNE, self._prune))
    return [Tool(spec, run, self._limits.tool_deadline_s) for spec, run in runs]

  async def _search(self, query: str) -> str:
    fusion = fusion_of(self._limits)
    exclude, limit = frozenset(self._found), self._limits.max_shown
    hits = await asyncio.to_thread(self._index.search, query, exclude, limit, settings=fusion)
    if not hits:
      return view.NO_RESULTS
    shown = view.first_that_fit(
      [hit.chunk for hit in hits], self._max_tokens, lambda c: self._chat.count(self._hit(c))
    )
    if not shown:
      remedy = "Prune chunks first, or" if self._limits.can_prune else "You can only"
      raise ToolError(f"no result fits the {self._max_tokens} tokens left. {remedy} answer.")
    for chunk in shown:
      self._found.add(chunk.id)
      self._first_query.setdefault(chunk.doc_id, query)
    return self._show(shown)

  async def _grep(self, pattern: str) -> str:
    limit, timeout_s = self._limits.grep_limit, self._limits.tool_deadline_s / 5
    try:
      hits = await asyncio.to_thread(self._index.grep, pattern, limit, timeout_s)
    except GrepError as error:
      raise ToolError(str(error)) from error
    return self._show([hit.chunk for hit in hits]) if hits else view.NO_RESULTS

  async def _read(self, doc_id: str) -> str:
    chunks = self._document(doc_id.strip())[: self._limits.read_chunks]
    query = self._first_query.get(chunks[0].doc_id)
    ranked = ranked_by(query, chunks) if query else chunks
    kept = view.first_that_fit(ranked, self._max_tokens, lambda c: self._chat.count(c.text))
    order = {chunk.id: i for i, chunk in enumerate(chunks)}
    body = "".join(chunk.text for chunk in sorted(kept, key=lambda c: order[c.id]))
    return f"# Document ({self._chat.count(body)} tokens)\n{view.disarmed(body)}"

  async def _prune(self, chunk_ids: Sequence[str]) -> str:
    unknown = [i for i in chunk_ids if i not in self._displayed]
    if not unknown:
      return view.PRUNED
    names = ", ".join(i[:40] for i in unknown[:5])
    if len(unknown) == len(chunk_ids):
      raise ToolError(f"none of these was shown: {names}. Use the ids after DOCUMENT ID.")
    return f"{view.PRUNED}, but never shown: {names}"

  def _hit(self, chunk: Chunk) -> str:
    return view.hit(self.ids.name(chunk.id), chunk.text, self._chat.count(chunk.text))

  def _show(self, chunks: Sequence[Chunk]) -> str:
    self._displayed.update(self.ids.name(chunk.id) for chunk in chunks)
    return "\n".join(self._hit(chunk) for chunk in chunks)

  def _document(self, doc_id: str) -> list[Chunk]:
    """The chunks of a document, named by its id or by that of one of its chunks."""
    chunk_id = self.ids.chunk_id(doc_id)
    for name in (chunk_id, rules.document_of(chunk_id)):
      chunks = self._index.document(name)
      if chunks:
        return list(chunks)
    raise ToolError(
      f"there is no document {doc_id[:40]!r}. Use a DOCUMENT ID, or its part before _."
    )

  def _exists(self, chunk_id: str) -> bool:
    """Whether an id of an answer names a chunk, or a document, of the corpus.

    Where ids are short, only what was named exists: "7" is no document.
    """
    if self.ids.used:
      return chunk_id in self.ids.ids.values()
    chunks = self._index.document(rules.document_of(chunk_id))
    return any(chunk.id == chunk_id for chunk in chunks) or bool(self._index.document(chunk_id))


def fusion_of(limits: SearchConfig) -> Fusion:
  """How search_corpus ranks."""
  return Fusion(limits.fan_out, limits.fused, dense_weight=limits.dense_weight)


def ranked_by(query: str, chunks: Sequence[Chunk]) -> list[Chunk]:
  """The chunks of one document, best match of the query's words first; equals in document order.

  Score: sum over the words of the query that a chunk has of log((n + 1) / (number of chunks that
  have the word)), n chunks in all, so that a word of every chunk hardly tells them apart.
  """
  words = [set(re.findall(r"\w+", chunk.text.lower())) for chunk in chunks]
  counts = collections.Counter(word for present in words for word in present)
  wanted = set(re.findall(r"\w+", query.lower()))

  def score(i: int) -> float:
    return sum(math.log((len(chunks) + 1) / counts[word]) for word in sorted(wanted & words[i]))

  return [chunks[i] for i in sorted(range(len(chunks)), key=lambda i: (-score(i), i))]


def load_services(tokenizer: str, index_folder: str, limits: SearchConfig) -> SearchServices:
  """The services of a process: the tokenizer of `chat.load`, an index that `index.build` wrote.

  Raises:
    ValueError: one of them is not on this machine.
  """
  cache = pathlib.Path(os.environ.get("JAXRL_CACHE", CorpusConfig.cache)).expanduser()
  folder = store.located(index_folder, cache)
  return SearchServices(chat.load(tokenizer), index.load(folder), limits)


def policy_services(tokenizer: str, index_folder: str, limits: SearchConfig) -> Services:
  """For `WorkerSpec.build`: episodes that the policy plays."""
  shared = load_services(tokenizer, index_folder, limits)
  return Services(shared.chat, lambda task, seed, sampler: (make(task, shared), sampler))


def make(task: Task, services: SearchServices) -> SearchEnv:
  """A fresh episode of `task`.

  Raises:
    ValueError: the task has no gold facts or documents, or the limits contradict one another.
  """
  limits = services.limits
  if limits.reply_reserve_tokens > limits.tool_output_tokens:
    raise ValueError(
      f"search.reply_reserve_tokens={limits.reply_reserve_tokens} is more than search."
      f"tool_output_tokens={limits.tool_output_tokens}, which it is the floor of; lower it"
    )
  if not task.facts.get("facts") and not task.facts.get("document_ids"):
    raise ValueError(f"task {task.id!r} has neither facts['facts'] nor facts['document_ids']")
  return SearchEnv(task, services)
