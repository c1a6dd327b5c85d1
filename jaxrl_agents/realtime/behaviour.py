"""What a reply is like, whatever its user thinks of it: figures that the gate guards.

Thumbs, evaluations and A/B tests may all be fine while a policy learns something that nobody votes
on: to ask back instead of risking an answer, to refuse, to write more, to break its calls. So these
rates may not move with an update.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence

from jaxrl_agents.realtime.regression_gate import Guard
from jaxrl_agents.types import Generation, Message

SHARES = ("invalid_tool", "question", "refusal")
"""Figures that are 0 or 1 for each call."""

FIGURES = (*SHARES, "edit_size", "length", "latency_s", "entropy")

TOLERANCE: Mapping[str, float] = {
  "invalid_tool": 0.02,
  "question": 0.02,
  "refusal": 0.02,
  "edit_size": 0.25,
  "length": 0.25,
  "latency_s": 1.0,
  "entropy": 0.5,
}
"""Moves that pass in any case: of shares by so much, of the others by this share of their mean over
the history. A policy that learns what users prefer becomes surer of it, so its entropy falls."""

LIMIT: Mapping[str, float] = {"entropy": 0.75}
"""Moves that never pass, as a share of the mean over the history. A policy with less than a quarter
of the entropy hardly tries anything new, so later updates cannot bring the rest back."""

_REFUSAL = re.compile(
  r"\bI(?:['’]m| am)? (?:sorry|unable|not able)\b|\bI (?:cannot|can['’]t|won['’]t|will not)\b",
  re.IGNORECASE,
)


def figures(reply: Message, generation: Generation, latency_s: float) -> dict[str, float]:
  """The figures of one call.

  invalid_tool  1 if a call of a tool could not be read
  question      1 if the reply calls no tool and ends in a question mark
  refusal       1 if the reply says that it cannot or will not
  edit_size     characters of the text arguments of all tool calls
  length        sampled tokens
  latency_s     seconds, as given
  entropy       mean of -log p over the sampled tokens, nats: an unbiased estimate of the entropy of
                the policy at its sampling temperature
  """
  calls, text = reply.tool_calls, reply.content.strip()
  edits = [v for call in calls for v in call.arguments.values() if isinstance(v, str)]
  tokens = len(generation.tokens)
  return {
    "invalid_tool": float(any(call.error for call in calls)),
    "question": float(not calls and text.endswith("?")),
    "refusal": float(bool(_REFUSAL.search(text))),
    "edit_size": float(sum(map(len, edits))),
    "length": float(tokens),
    "latency_s": float(latency_s),
    "entropy": float(-generation.logprobs.sum() / tokens) if tokens else 0.0,
  }


def means(calls: Iterable[Mapping[str, float]]) -> dict[str, tuple[float, float]]:
  """{figure: (mean over calls, standard error of that mean)}; {} without calls.

  The error of a share of k in n is sqrt(q (1 - q) / n) with q = (k + 1) / (n + 2), which is not 0
  where the share is.
  """
  rows = list(calls)
  found = {}
  for name in FIGURES if rows else ():
    values = [row[name] for row in rows]
    n = len(values)
    mean = sum(values) / n
    if name in SHARES:
      share = (sum(values) + 1) / (n + 2)
      error = math.sqrt(share * (1 - share) / n)
    else:
      error = math.sqrt(sum((v - mean) ** 2 for v in values) / max(n - 1, 1) / n)
    found[name] = mean, error
  return found


def guards(
  history: Sequence[Mapping[str, float]], candidate: Mapping[str, tuple[float, float]]
) -> list[Guard]:
  """A guard for each figure of a candidate.

  Args:
    history: {figure: mean} of each accepted version, oldest first.
    candidate: as of `means`.
  """
  found = []
  for name, (mean, error) in candidate.items():
    earlier = [row[name] for row in history if name in row]
    unit = 1.0 if name in SHARES else sum(earlier) / max(len(earlier), 1)
    limit = LIMIT[name] * unit if name in LIMIT else math.inf
    found.append(Guard(name, earlier, mean, error, TOLERANCE[name] * unit, limit))
  return found
