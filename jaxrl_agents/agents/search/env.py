"""The search environment of Context-1: find the documents that support an answer, and prune.

The policy searches, greps, reads and prunes under a token budget, and ends with a reply without
calls that lists documents. Numbers are in `agents.search.config`; the defaults are Context-1's.

Source: Chroma, "Context-1", https://www.trychroma.com/research/context-1; tool and budget details
from https://github.com/pat-jj/harness-1. One choice is ours: a prune call hides only results of
earlier turns, so that grep can show a pruned chunk again, as the report says it can.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from jaxrl_agents.agents import added_tools, system_prompt
from jaxrl_agents.agents.episode import Stop, TurnLoop
from jaxrl_agents.agents.search import reward, view
from jaxrl_agents.agents.search.tools import SearchServices, SearchTools
from jaxrl_agents.harness.tools import Tool, ToolError, problem_with, run_call
from jaxrl_agents.types import Context, Message, Task, ToolCall, ToolSpec, Trajectory


class SearchEnv:
  """One episode. Invariant: `_messages` only grows; what the policy sees is `_view()`.

  All texts call chunks by the names of `ids`; the code calls them by their own ids. An episode ends
  with an `episode.Stop` other than STEP_LIMIT. `first` are the messages before the question.
  """

  def __init__(self, task: Task, services: SearchServices, first: Sequence[Message]):
    self._task, self._corpus, self._first = task, SearchTools(task, services), list(first)
    self.ids = self._corpus.ids
    self._chat, self._limits = services.chat, services.limits
    self._messages: list[Message] = []
    self._prunes: list[tuple[int, frozenset[str]]] = []  # (messages before the turn, ids)
    self._prunable: set[str] = set()  # ids of the calls whose results show chunk ids
    self._loop = TurnLoop(
      self._chat.stop_tokens,
      max_turns=self._limits.max_turns,
      cut_off=view.CUT_OFF,
      run_calls=self._run_calls,
    )
    tools = list(self._corpus.tools)
    if self._limits.can_prune:
      tools.append(Tool(view.PRUNE, self._prune, self._limits.tool_deadline_s))
    self._tools = {tool.spec.name: tool for tool in tools}

  def add_tools(self, tools: Sequence[Tool]) -> None:
    """Gives the policy further tools; their results cannot be pruned."""
    self._tools |= added_tools.checked(
      tools, self._tools, max_tokens=lambda: self._corpus.max_tokens, count=self._chat.count
    )
    self._first = added_tools.announced(self._first, tools, self._limits.system_prompt)

  async def start(self) -> Context:
    """The question, after the first messages."""
    self._messages += [*self._first, Message("user", self._task.prompt)]
    return self._next()

  async def step(self, reply: Message) -> Context:
    """Records the turn, then runs its calls one after another."""
    stop = await self._loop.take(reply, self._messages)
    if stop is not Stop.ANSWER:
      last = self._messages[-1]
      line = view.usage_line(self._usage(), self._limits.threshold_tokens)
      self._messages[-1] = dataclasses.replace(last, content=last.content + line)
    return self._context(stop=stop) if stop else self._next()

  def rewards(self, trajectory: Trajectory) -> dict[str, float]:
    """The parts of `reward.search_parts`."""
    return reward.search_parts(
      trajectory.log,
      trajectory.stop,
      self._task.facts,
      ids=self.ids.ids,
      was_shown=self._corpus.was_shown,
      max_documents=self._limits.max_documents,
    )

  async def close(self) -> None:
    """The environment holds nothing that needs closing."""

  def _next(self) -> Context:
    """The next context, with the notice above the threshold; an overflow ends the episode."""
    usage = self._usage()
    room = self._limits.token_budget - usage
    if room < 1:
      return self._context(stop=Stop.CONTEXT_OVERFLOW)
    notices: tuple[Message, ...] = ()
    hinted = ("training", "all") if self._task.split == "train" else ("all",)
    if usage > self._limits.threshold_tokens and self._limits.show_hint in hinted:
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
    """The messages; each result lacks the chunks that a later turn pruned."""
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
        ids = frozenset(reward.prune_call_ids(call)) & self._corpus.displayed
        if ids:
          self._prunes.append((before, ids))

  async def _run_calls(self, calls: Sequence[ToolCall]) -> list[Message]:
    """The results of the calls of one turn; each counts against the budget of those after it."""
    self._record_prunes(calls[: self._limits.max_calls], len(self._messages) - 1)
    usage, used, results = self._usage(), 0, []
    for number, call in enumerate(calls):
      text = view.too_many_calls(number, self._limits.max_calls)
      text = text or await self._run_call(call, usage, used)
      used += self._chat.count(text)
      if call.name in reward.SHOWING_TOOLS:
        self._prunable.add(call.id)
      results.append(Message("tool", text, tool_call_id=call.id))
    return results

  async def _run_call(self, call: ToolCall, usage: int, used: int) -> str:
    limits = self._limits
    cutoff = view.rejection_budget(
      limits.token_budget, limits.threshold_tokens, limits.spillage_fraction
    )
    if call.name != reward.PRUNE_TOOL and usage + used > cutoff:
      return view.rejection(usage + used, limits.threshold_tokens, limits.can_prune)
    self._corpus.allow(limits.token_budget - usage - used)
    return await run_call(self._tools, call)

  async def _prune(self, chunk_ids: Sequence[str]) -> str:
    unknown = [i for i in chunk_ids if i not in self._corpus.displayed]
    if not unknown:
      return view.PRUNED
    names = ", ".join(i[:40] for i in unknown[:5])
    if len(unknown) == len(chunk_ids):
      raise ToolError(f"none of these was shown: {names}. Use the ids after DOCUMENT ID.")
    return f"{view.PRUNED}, but never shown: {names}"


def make(task: Task, services: SearchServices) -> SearchEnv:
  """A fresh episode of `task`.

  Raises:
    ValueError: the task has no gold facts or documents.
  """
  if not task.facts.get("facts") and not task.facts.get("document_ids"):
    raise ValueError(
      f"task {task.id!r} has neither facts['facts'] nor facts['document_ids'], by which the reward "
      "judges an answer; make tasks with scripts/make_search_tasks.py"
    )
  limits = services.limits
  first = system_prompt.messages(limits.system_prompt, view.system_prompt(limits))
  return SearchEnv(task, services, first)
