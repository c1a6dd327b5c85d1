"""The nonlinear length penalty of Composer 2, https://arxiv.org/abs/2603.24477 section 4.2.

C_{k,q}(x) = ((1 + k x)^(1 - q) - 1) / (k (1 - q)) of the effort x of an episode. It increases, is
concave for q > 0 and has slope 1 at 0: additional effort costs much on an easy task and little on a
hard one. Composer 2 does not publish k, q or the weights of the effort; the defaults are ours.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Sequence

from jaxrl_agents.types import Message


def length_penalty(effort: float, *, k: float, q: float) -> float:
  """C_{k,q}(effort); log(1 + k x) / k at q = 1, and x itself at k = 0 or q = 0.

  Raises:
    ValueError: a negative effort, k or q.
  """
  if effort < 0 or k < 0 or q < 0:
    raise ValueError(f"effort={effort}, k={k} and q={q} must not be negative")
  if k == 0:
    return effort
  if math.isclose(q, 1.0, abs_tol=1e-9):
    return math.log1p(k * effort) / k
  return math.expm1((1 - q) * math.log1p(k * effort)) / (k * (1 - q))


@dataclasses.dataclass(frozen=True)
class Spent:
  """What an episode used: tokens of its parts, calls and turns of the policy."""

  thinking_tokens: int
  call_tokens: int
  output_tokens: int
  final_tokens: int
  calls: int
  turns: int

  @property
  def effort(self) -> float:
    """x = (thinking + calls + final) / 1000 + outputs / 4000 + 0.05 per call + 0.1 per turn."""
    written = self.thinking_tokens + self.call_tokens + self.final_tokens
    return written / 1_000 + self.output_tokens / 4_000 + 0.05 * self.calls + 0.1 * self.turns


def spent(log: Sequence[Message], stop: str, count: Callable[[str], int]) -> Spent:
  """What the episode of a log used.

  A turn of the policy consists of thinking (its reasoning, and its content unless that is the
  answer) and calls. Both are counted in sampled tokens where these are known.

  Args:
    log: every message of the episode.
    stop: why it ended; after "answer", the content of the last turn is the final message.
    count: counts the tokens of a text.
  """
  replies = [message for message in log if message.role == "assistant"]
  thinking = call_tokens = final = calls = 0
  for i, reply in enumerate(replies):
    words = count(reply.content) if reply.content else 0
    thought = count(reply.reasoning) if reply.reasoning else 0
    is_final = stop == "answer" and i == len(replies) - 1
    final += words if is_final else 0
    thinking += thought + (0 if is_final else words)
    if reply.tool_calls:
      whole = len(reply.tokens) if reply.tokens is not None else 0
      call_tokens += max(0, whole - words - thought)
    calls += len(reply.tool_calls)
  output = sum(count(message.content) for message in log if message.role == "tool")
  return Spent(thinking, call_tokens, output, final, calls, len(replies))
