"""One episode as the page shows it: turns, calls, chunks of results, the answer and the gold.

Everything is read from `Trajectory.log` (every message ever shown, never pruned) and `Task.facts`,
and returned as plain JSON values. Nothing is escaped here: the page's script inserts it as text,
never as markup. Results of an environment without chunks are shown as plain text.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from jaxrl_agents.agents.search import reward
from jaxrl_agents.agents.swarm import timeline
from jaxrl_agents.types import Message, Task, ToolCall, Trajectory

Json = dict[str, Any]

_MARKER = re.compile(r"^# DOCUMENT ID: (\S+) \((\d+) tokens\)[^\n]*", re.MULTILINE)
_USAGE = re.compile(r"\[Token usage: ([\d,]+)/([\d,]+)\]")


def describe(trajectory: Trajectory, task: Task) -> Json:
  """The conversation, the answer and the numbers of one rollout, ready for `json.dumps`, and the
  same for each of its sub-agents.
  """
  targets = gold_targets(task)
  turns, preamble = _turns(trajectory.log)
  prunings = _prunings(trajectory.log)
  seen: dict[str, int] = {}  # chunk id -> first turn that showed it
  cut: dict[str, int] = {}  # chunk id -> first turn that pruned it from what had been shown
  for turn, piece in _chunks(turns):
    later = [n for n in prunings.get(piece["id"], ()) if n > turn]
    piece["gold"] = _numbers_of(piece["id"], targets)
    piece["pruned"] = later[0] if later else None
    seen.setdefault(piece["id"], turn)
    if later:
      cut.setdefault(piece["id"], later[0])
  answer = reward.answer_ids(reward.final_answer(trajectory.log, trajectory.stop))
  return {
    "preamble": preamble,
    "turns": turns,
    "returned": [{"id": i, "gold": _numbers_of(i, targets)} for i in answer],
    "facts": [_fate(target, answer, seen, cut) for target in targets],
    "rewards": _finite(trajectory.rewards),
    "metrics": _finite(trajectory.metrics),
    "stop": trajectory.stop,
    "error": trajectory.error,
    "lists_documents": task.env == "search",
    "swarm": timeline.describe(trajectory, task) if _orchestrates(trajectory, task) else None,
    "children": [{"id": child.task_id, **describe(child, task)} for child in trajectory.children],
  }


def _orchestrates(trajectory: Trajectory, task: Task) -> bool:
  """Whether this is the episode of a swarm's orchestrator."""
  return task.env == "swarm" and trajectory.task_id == task.id


def gold_targets(task: Task) -> list[Json]:
  """What the task asks to find: {"text", "ids", "is_final_answer"} per fact, or per gold document.

  An id without a chunk number names a document; any of its chunks counts. Short ids replace those
  of the chunks that they name. Other agents' facts may have the same names and mean something else.
  """
  if task.env not in ("search", "swarm"):
    return []
  names: Mapping[str, str] = task.facts.get("short_ids", {})
  if "facts" in task.facts:
    return [
      {
        "text": str(fact.get("fact", "")),
        "ids": [names.get(chunk_id, str(chunk_id)) for chunk_id in fact["chunk_ids"]],
        "is_final_answer": bool(fact.get("is_final_answer", False)),
      }
      for fact in task.facts["facts"]
    ]
  final = set(map(str, task.facts.get("gold_document_ids", ())))
  return [
    {
      "text": "",
      "ids": [str(i), *(name for c, name in names.items() if reward.document_of(c) == str(i))],
      "is_final_answer": str(i) in final,
    }
    for i in task.facts.get("document_ids", ())
  ]


def _numbers_of(chunk_id: str, targets: list[Json]) -> list[int]:
  """Numbers (from 1) of the targets that a chunk answers."""
  names = {chunk_id, reward.document_of(chunk_id)}
  return [n for n, target in enumerate(targets, start=1) if names & set(target["ids"])]


def pieces(content: str) -> list[Json]:
  """Cuts a tool result at its chunk markers, "# DOCUMENT ID: 417_31 (58 tokens)".

  Returns mappings {"text"} for what stands outside chunks and {"id", "tokens", "text"} for a chunk.
  The usage line is left out: `usage` reads it.
  """
  body = _USAGE.sub("", content)
  marks = list(_MARKER.finditer(body))
  head = body[: marks[0].start()] if marks else body
  found: list[Json] = [{"text": head.strip()}] if head.strip() else []
  ends = [*(mark.start() for mark in marks[1:]), len(body)]
  for mark, end in zip(marks, ends, strict=False):
    found.append(
      {
        "id": mark[1],
        "tokens": int(mark[2]),
        "text": body[mark.end() : end].strip("\n").rstrip(),
      }
    )
  return found


def usage(content: str) -> tuple[int, int] | None:
  """(used, shown limit) in tokens of the last "[Token usage: 401/512]" in a message, or None."""
  found = _USAGE.findall(content)
  if not found:
    return None
  used, limit = (int(number.replace(",", "")) for number in found[-1])
  return used, limit


def _turns(log: Iterable[Message]) -> tuple[list[Json], list[Json]]:
  """Splits the log at assistant messages: (turns, messages before the first of them)."""
  turns: list[Json] = []
  preamble: list[Json] = []
  for message in log:
    if message.role == "assistant":
      turns.append(_turn(message, len(turns) + 1))
    elif not turns:
      preamble.append(_note(message))
    else:
      _add_observation(turns[-1], message)
  return turns, preamble


def _note(message: Message) -> Json:
  text = _USAGE.sub("", message.content).strip()
  return {"role": message.role, "text": text, "ephemeral": message.ephemeral}


def _turn(message: Message, number: int) -> Json:
  return {
    "number": number,
    "text": "\n\n".join(filter(None, (message.reasoning, message.content))),
    "sampled": None if message.tokens is None else int(len(message.tokens)),
    "calls": [_call(call) for call in message.tool_calls],
    "notes": [],
    "usage": None,
    "limit": None,
  }


def _call(call: ToolCall) -> Json:
  return {
    "id": call.id,
    "name": call.name,
    "arguments": {str(key): _plain(value) for key, value in call.arguments.items()},
    "error": call.error,
    "answered": False,
    "pieces": [],
  }


def _add_observation(turn: Json, message: Message) -> None:
  """Puts a tool message under the call it answers, by id or else in order; others become notes."""
  unanswered = [call for call in turn["calls"] if not call["answered"]]
  named = [call for call in unanswered if message.tool_call_id == call["id"]]
  target = (named or unanswered or [None])[0] if message.role == "tool" else None
  if target is None:
    turn["notes"].append(_note(message))
  else:
    target["answered"] = True
    target["pieces"] = pieces(message.content)
  reading = usage(message.content)
  if reading:
    turn["usage"], turn["limit"] = reading


def _chunks(turns: list[Json]) -> Iterator[tuple[int, Json]]:
  """(turn number, piece) of every chunk in a result."""
  for turn in turns:
    for call in turn["calls"]:
      for piece in call["pieces"]:
        if "id" in piece:
          yield turn["number"], piece


def _prunings(log: Iterable[Message]) -> dict[str, list[int]]:
  """Chunk id -> the turns that pruned it, ascending.

  A prune call hides what was shown before its turn; a later search may show the chunk again. A call
  that could not be parsed prunes nothing.
  """
  prunings: dict[str, list[int]] = {}
  replies = (message for message in log if message.role == "assistant")
  for number, reply in enumerate(replies, start=1):
    for call in reply.tool_calls:
      for chunk_id in reward.prune_call_ids(call):
        prunings.setdefault(chunk_id, []).append(number)
  return prunings


def _fate(target: Json, answer: list[str], seen: Mapping[str, int], cut: Mapping[str, int]) -> Json:
  """A gold target and what happened to it: returned, seen in a turn, pruned in a turn."""

  def first(turns: Mapping[str, int]) -> int | None:
    return min((turns[i] for i in turns if _numbers_of(i, [target])), default=None)

  return {
    **target,
    "returned": any(_numbers_of(chunk_id, [target]) for chunk_id in answer),
    "seen": first(seen),
    "pruned": first(cut),
  }


def _finite(values: Mapping[str, Any]) -> dict[str, float]:
  """Finite numbers to 6 decimals; JSON has no other."""
  return {str(k): round(float(v), 6) for k, v in values.items() if math.isfinite(float(v))}


def _plain(value: Any) -> Any:
  """An argument that a policy wrote, as JSON: a value of json.loads as it is, anything else as
  text.
  """
  if value is None or isinstance(value, (str, int, bool)):
    return value
  if isinstance(value, float) and math.isfinite(value):
    return value
  if isinstance(value, (list, tuple)):
    return [_plain(item) for item in value]
  if isinstance(value, Mapping):
    return {str(key): _plain(item) for key, item in value.items()}
  return str(value)
