"""Context-1's reward: the parts measured from an episode's log, and their total.

The log is append-only: a chunk that was pruned later still counts as shown. `search_parts` measures
once per episode; `search_total` weighs the parts late, so that weights can change (beta moves
between epochs) without another rollout.

Source: Chroma, "Context-1", https://www.trychroma.com/research/context-1, the reward section. Where
the report leaves a choice open, a comment here says that the choice is ours.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from jaxrl_agents.agents.search.config import SearchReward
from jaxrl_agents.types import Message, ToolCall

HIT_PATTERN = re.compile(r"^# DOCUMENT ID: (\S+) \(\d+ tokens\)", re.MULTILINE)
ANSWER_PATTERN = re.compile(r"<Document\s+id\s*=\s*[\"']?([^\s\"'<>]+?)[\"']?\s*/?>", re.IGNORECASE)
SHOWING_TOOLS = ("search_corpus", "grep_corpus")
SEARCH_TOOL, PRUNE_TOOL = "search_corpus", "prune_chunks"
EPSILON = 0.001
"""The least that an answered episode earns (ours)."""


def document_of(chunk_id: str) -> str:
  """The document of a chunk id: "417_31" -> "417". An id without "_" is that of a document."""
  return chunk_id.rsplit("_", 1)[0]


def hit_ids(text: str) -> list[str]:
  """Chunk ids in the text of a tool result, in order."""
  return HIT_PATTERN.findall(text)


def answer_ids(text: str) -> list[str]:
  """Distinct ids of the `<Document id=...>` marks of an answer, most relevant first."""
  return list(dict.fromkeys(ANSWER_PATTERN.findall(text)))


def answer(ids: Iterable[str]) -> Message:
  """The reply that lists distinct ids, most relevant first."""
  return Message("assistant", "\n".join(f"<Document id={i}>" for i in dict.fromkeys(ids)))


def calls(log: Iterable[Message]) -> list[ToolCall]:
  """All tool calls of an episode, in order."""
  return [call for message in log if message.role == "assistant" for call in message.tool_calls]


def prune_call_ids(call: ToolCall) -> list[str]:
  """The ids that a well-formed prune call names; none for any other call."""
  ids = call.arguments.get("chunk_ids")
  if call.error or call.name != PRUNE_TOOL or not isinstance(ids, (list, tuple)):
    return []
  return [i for i in ids if isinstance(i, str)]


def shown_ids(log: Sequence[Message]) -> list[str]:
  """Distinct chunk ids that search or grep ever displayed, pruned ones included, in order."""
  names = {call.id: call.name for call in calls(log)}
  results = (m for m in log if m.role == "tool" and names.get(m.tool_call_id) in SHOWING_TOOLS)
  return list(dict.fromkeys(i for message in results for i in hit_ids(message.content)))


def pruned_ids(log: Sequence[Message]) -> list[str]:
  """Distinct chunk ids that were displayed at some time and that a prune call named."""
  shown = set(shown_ids(log))
  named = (i for call in _ran(log) for i in prune_call_ids(call))
  return list(dict.fromkeys(i for i in named if i in shown))


def final_answer(log: Sequence[Message], stop: str) -> str:
  """Text of the answer, "" for an episode that ended otherwise."""
  replies = [message for message in log if message.role == "assistant"]
  return replies[-1].content if stop == "answer" and replies else ""


def gold_ids(facts: Mapping[str, Any]) -> set[str]:
  """All chunk ids (fact level) or document ids (document level) that support the task."""
  if "facts" in facts:
    return {i for fact in facts["facts"] for i in fact["chunk_ids"]}
  return set(facts["document_ids"])


def recall(chunk_ids: Iterable[str], facts: Mapping[str, Any]) -> float:
  """Share of gold facts that one of the chunks states; of gold documents at document level."""
  chunk_ids = set(chunk_ids)
  if "facts" in facts:
    hits = [bool(chunk_ids & set(fact["chunk_ids"])) for fact in facts["facts"]]
  else:
    documents = {document_of(i) for i in chunk_ids}
    hits = [gold in documents for gold in facts["document_ids"]]
  return sum(hits) / len(hits) if hits else 0.0


def precision(chunk_ids: Iterable[str], facts: Mapping[str, Any], *, wrong: int = 0) -> float:
  """Share of the chunks that support a gold fact; of their documents at document level.

  `wrong` further marks of the answer count as wrong: ids that the policy was never shown, and
  repetitions.
  """
  ids = set(chunk_ids) if "facts" in facts else {document_of(i) for i in chunk_ids}
  listed = len(ids) + wrong
  return len(ids & gold_ids(facts)) / listed if listed else 0.0


def answer_found(chunk_ids: Iterable[str], facts: Mapping[str, Any]) -> float:
  """1 if the output has a chunk (document) that directly holds the answer, else 0.

  Fact level: the "answer_chunk_ids" of the facts flagged `is_final_answer`, or all their chunks if
  they name none. Document level: `gold_document_ids`. Tasks that
  flag none: any gold one.
  """
  if "facts" not in facts:
    gold = facts.get("gold_document_ids") or facts["document_ids"]
    return float(bool({document_of(i) for i in chunk_ids} & set(gold)))
  final = [fact for fact in facts["facts"] if fact.get("is_final_answer")] or facts["facts"]
  holding = {i for fact in final for i in fact.get("answer_chunk_ids") or fact["chunk_ids"]}
  return float(not holding.isdisjoint(chunk_ids))


def f_beta(precision: float, recall: float, beta: float) -> float:
  """(1 + b^2) P R / (b^2 P + R); 0 where both are 0."""
  if precision + recall == 0:
    return 0.0
  return (1 + beta**2) * precision * recall / (beta**2 * precision + recall)


def prune_penalty(names: Iterable[str]) -> float:
  """0.1 for each prune call beyond the third of an unbroken streak, capped at 0.5.

  `names` are the tools of all calls of the episode that ran, flattened; only a call that shows
  something ends a streak. One cap for all streaks (ours).
  """
  excess = streak = 0
  for name in names:
    if name == PRUNE_TOOL:
      streak += 1
      excess += streak > 3
    elif name in SHOWING_TOOLS:
      streak = 0
  return min(0.1 * excess, 0.5)


def _ran(log: Sequence[Message]) -> list[ToolCall]:
  """The calls whose result is no error."""
  errors = {m.tool_call_id for m in log if m.role == "tool" and m.content.startswith("Error: ")}
  return [call for call in calls(log) if call.id not in errors]


def repeat_penalty(repeated: int) -> float:
  """0.1 for each mark of the answer that names the id of an earlier one, capped at 0.5 (ours).

  Precision alone counts repetitions too little where beta is large: a policy that does not know
  when its list ends would then go on repeating the list.
  """
  return min(0.1 * repeated, 0.5)


def turn_penalty(turns: int) -> float:
  """0.5 clip((turns - 64) / 64, 0, 1), turns of the model."""
  return 0.5 * min(max((turns - 64) / 64, 0.0), 1.0)


def prune_accuracy(pruned: Sequence[str], facts: Mapping[str, Any]) -> float | None:
  """1 - share of pruned ids that are gold, by chunk or document; None where nothing was pruned."""
  if not pruned:
    return None
  gold = gold_ids(facts)
  return 1 - sum(i in gold or document_of(i) in gold for i in pruned) / len(pruned)


def verbatim_queries(log: Sequence[Message]) -> float | None:
  """The share of the queries that are quotes; None without a search.

  A quote stands in the question word for word, or begins with words of the question and ends with
  words of an earlier result.
  """
  question = "".join(message.content for message in log if message.role == "user")
  read, quoted = "", []
  for message in log:
    if message.role == "tool":
      read += f"{message.content}\n"
    for call in calls([message]):
      if call.name == SEARCH_TOOL:
        quoted.append(_is_quote(call.arguments.get("query"), question, read))
  return sum(quoted) / len(quoted) if quoted else None


def _is_quote(query: Any, question: str, read: str) -> bool:
  if not isinstance(query, str) or not query.strip():
    return False
  query = query.strip()
  ends = [match.start() for match in re.finditer(r"\W|$", query)]
  return any(query[:end] in question and query[end:].strip() in read for end in ends)


def search_parts(
  log: Sequence[Message],
  stop: str,
  facts: Mapping[str, Any],
  *,
  ids: Mapping[str, str] | None = None,
  was_shown: Callable[[str], bool],
  max_documents: int,
) -> dict[str, float]:
  """The measured parts of one search episode.

  Args:
    log: every message ever shown.
    stop: why the episode ended; only "answer" completes it.
    facts: the gold of the task: "facts" [{fact, chunk_ids, is_final_answer, answer_chunk_ids}], or
      "document_ids" and maybe "gold_document_ids".
    ids: {name: chunk id} of chunks that had another name in the log.
    was_shown: whether a tool showed the policy a chunk or document of this id. Every other id in
      an answer is wrong: it earns nothing, and lowers the precision; so does a mark that names the
      id of an earlier one (both ours). Two chunks of one document are no repetition.
    max_documents: further ids of the answer are ignored.

  Returns:
    precision, output_recall, f1, answer_found of the output set; trajectory_recall; the penalties;
    counts; "prune_accuracy" only if something was pruned, "verbatim_queries" only if something was
    searched for. completed is 0 for an episode that ended
    without an answer (context overflow, turn limit, malformed).
  """
  named = ids or {}
  marks, pruned, shown = (
    [named.get(name, name) for name in names]
    for names in (ANSWER_PATTERN.findall(final_answer(log, stop)), pruned_ids(log), shown_ids(log))
  )
  listed = list(dict.fromkeys(marks))
  counted = listed[:max_documents]
  output = [i for i in counted if was_shown(i)]
  unseen, repeated = len(counted) - len(output), len(marks) - len(listed)
  all_calls = calls(log)
  turns = sum(message.role == "assistant" for message in log)
  p, r = precision(output, facts, wrong=unseen + repeated), recall(output, facts)
  parts = {
    "completed": float(stop == "answer"),
    "precision": p,
    "output_recall": r,
    "f1": f_beta(p, r, 1.0),
    "trajectory_recall": recall(shown, facts),
    "answer_found": answer_found(output, facts),
    "prune_penalty": prune_penalty(call.name for call in _ran(log)),
    "repeat_penalty": repeat_penalty(repeated),
    "turn_penalty": turn_penalty(turns),
    "turns": float(turns),
    "tool_calls": float(len(all_calls)),
    "malformed_calls": float(sum(bool(call.error) for call in all_calls)),
    "num_shown": float(len(shown)),
    "num_pruned": float(len(pruned)),
    "num_output": float(len(counted)),
    "unseen_output": float(unseen),
    "repeated_output": float(repeated),
  }
  verbatim = verbatim_queries(log)
  if verbatim is not None:
    parts["verbatim_queries"] = verbatim
  accuracy = prune_accuracy(pruned, facts)
  return parts if accuracy is None else parts | {"prune_accuracy": accuracy}


def beta_of(betas: Sequence[float], progress: float) -> float:
  """The beta of F_beta after the share `progress` of the steps; all phases are equally long."""
  return betas[min(int(progress * len(betas) + 1e-9), len(betas) - 1)]


def search_total(
  parts: Mapping[str, float], *, beta: float, weights: SearchReward = SearchReward()
) -> float:
  """The scalar reward of Context-1 from the parts of `search_parts`.

  r_pre = 0.7 F_beta + 0.3 trajectory_recall + answer_found;
  r = min(max(r_pre - prune_penalty - repeat_penalty - turn_penalty, epsilon), max(r_pre, epsilon)),
  at most 2. The repeat_penalty is ours. An episode without an answer gets exactly 0. That an empty
  answer gets epsilon and not 0 is our reading of the report's clamp.
  """
  w = weights
  if not parts["completed"]:
    return 0.0
  r_pre = (
    w.f_beta * f_beta(parts["precision"], parts["output_recall"], beta)
    + w.trajectory_recall * parts["trajectory_recall"]
    + w.answer_found * parts["answer_found"]
  )
  penalties = (
    w.prune_penalty * parts["prune_penalty"]
    + w.repeat_penalty * parts["repeat_penalty"]
    + parts["turn_penalty"]
  )
  raw = r_pre - penalties
  return min(max(raw, EPSILON), max(r_pre, EPSILON))
