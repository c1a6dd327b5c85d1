"""The turn loop that the environments of all agents share.

A reply is an answer, a set of tool calls, or cut off at its token limit. Calls run and their
results are appended to the conversation. The episode ends with an answer or at one of the limits.
"""

from __future__ import annotations

import enum
from collections.abc import Awaitable, Callable, Sequence

from jaxrl_agents.types import Message, ToolCall

MAX_MALFORMED_TURNS = 3
"""Number of consecutive turns without a readable call after which an episode ends (ours)."""


class Stop(enum.StrEnum):
  """Why an episode ended."""

  ANSWER = "answer"
  TURN_LIMIT = "turn_limit"
  STEP_LIMIT = "step_limit"
  CONTEXT_OVERFLOW = "context_overflow"
  MALFORMED = "malformed"
  SANDBOX_LOST = "sandbox_lost"


class TurnLoop:
  """Takes the replies of one episode, one after another.

  Attributes:
    turns: replies taken so far.
    malformed: number of consecutive replies, up to the last, without a readable call.
  """

  def __init__(
    self,
    stop_tokens: Sequence[int],
    *,
    max_turns: int,
    cut_off: str,
    run_calls: Callable[[Sequence[ToolCall]], Awaitable[list[Message]]],
  ):
    """Sets the limits of the episode.

    Args:
      stop_tokens: ids that end a reply; a reply that ends otherwise was cut off.
      max_turns: turns after which the episode ends.
      cut_off: the message after a reply without calls that was cut off.
      run_calls: runs the calls of a turn and returns their results.
    """
    self._stop_tokens, self._max_turns = stop_tokens, max_turns
    self._cut_off, self._run_calls = cut_off, run_calls
    self.turns = self.malformed = 0

  async def take(
    self, reply: Message, messages: list[Message], *, is_last: bool = False
  ) -> Stop | None:
    """Appends a reply and its results to `messages`; returns why the episode ends, or None.

    Args:
      reply: of the policy.
      messages: the conversation.
      is_last: whether no step is left to use results in; calls then do not run.
    """
    self.turns += 1
    messages.append(reply)
    if not reply.tool_calls and not self.is_cut_off(reply):
      return Stop.ANSWER
    if is_last:
      return Stop.STEP_LIMIT
    if reply.tool_calls:
      messages += await self._run_calls(reply.tool_calls)
    else:
      messages.append(Message("user", self._cut_off))
    unreadable = all(call.error for call in reply.tool_calls)
    self.malformed = self.malformed + 1 if unreadable else 0
    if self.malformed > MAX_MALFORMED_TURNS:
      return Stop.MALFORMED
    return Stop.TURN_LIMIT if self.turns >= self._max_turns else None

  def is_cut_off(self, reply: Message) -> bool:
    """Whether a sampled reply ended at its token limit, without a stop token."""
    if reply.tokens is None:
      return False
    return not len(reply.tokens) or int(reply.tokens[-1]) not in self._stop_tokens
