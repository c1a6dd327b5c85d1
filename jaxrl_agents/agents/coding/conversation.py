"""The messages that the policy sees, and the strategies that shorten them when they grow too long.

summarize     the policy writes a summary; the context becomes the request, the summary and the
              state that the harness knows
discard_all   the context becomes the request alone
hide_results  the contents of older tool results are removed
none          nothing is removed; the episode ends when the context is full
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from jaxrl_agents.agents.coding import view
from jaxrl_agents.agents.coding.config import CodingConfig
from jaxrl_agents.agents.system_prompt import messages
from jaxrl_agents.chat import Chat
from jaxrl_agents.types import Message, ToolSpec


class Conversation:
  """The conversation of one episode. Invariant: `messages` is the policy's next context, without
  the tools.

  Attributes:
    messages: begin with the system prompt, if there is one, and the request.
    summaries: how often the conversation was replaced by a summary.
    summarizing: whether the last message asks for a summary, so that the next reply is one.
  """

  def __init__(self, prompt: str, limits: CodingConfig, chat: Chat, tools: Sequence[ToolSpec]):
    self._limits, self._chat, self._tools = limits, chat, tools
    own = view.system_prompt(limits, tools)
    request = Message("user", prompt + view.counted(limits))
    self._head = (*messages(limits.system_prompt, own), request)
    self.messages: list[Message] = list(self._head)
    self.summaries = 0
    self.summarizing = False

  def usage(self) -> int:
    """Tokens of the policy's next prompt."""
    return len(self._chat.render(self.messages, self._tools))

  def room(self) -> int:
    """Tokens that are left for a reply."""
    return self._limits.token_budget - self.usage()

  def room_for_results(self) -> int:
    """Tokens that the results of a turn may take so that a summary or a reply still fits."""
    if self._limits.context == "summarize" and self.summaries < self._limits.max_summaries:
      request = self._chat.count(view.SUMMARIZE) + 8
      return self.room() - self._limits.summary_tokens - request
    return self.room() - min(self._limits.max_new_tokens, self._limits.token_budget // 8)

  def max_new_tokens(self) -> int:
    """Most tokens of the next reply."""
    most = self._limits.summary_tokens if self.summarizing else self._limits.max_new_tokens
    return min(most, max(1, self.room()))

  def shorten(self) -> None:
    """Shortens the messages, or asks for a summary, once they have reached the trigger."""
    limits = self._limits
    if limits.context == "none" or self.usage() < limits.trigger_fraction * limits.token_budget:
      return
    if limits.context == "hide_results":
      self.messages = view.with_hidden_results(self.messages, limits.keep_results)
    elif limits.context == "discard_all":
      self.messages = list(self._head)
      self.summaries += 1
    elif self.summaries < limits.max_summaries:
      request = view.SUMMARIZE.format(number=self.summaries + 1)
      self.messages.append(Message("user", request))
      self.summarizing = True

  def take_summary(self, reply: Message, state: Mapping[str, Any]) -> None:
    """Replaces the conversation by the policy's summary; tool calls in the reply are ignored."""
    self.summarizing = False
    self.summaries += 1
    known = {**state, "summaries": self.summaries}
    summary = view.summary_message(self.summaries, reply.content, known)
    self.messages = [*self._head, summary]
