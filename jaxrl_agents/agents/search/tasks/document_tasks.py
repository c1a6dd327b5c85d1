"""Task sets of questions whose gold are whole documents, as published collections have them."""

from __future__ import annotations

import collections
import dataclasses
import platform
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from jaxrl_agents.agents.search.tasks import make_tasks
from jaxrl_agents.agents.search.tasks.practice import Clue
from jaxrl_agents.agents.search.tasks.task_set import TaskSet
from jaxrl_agents.corpus import chunks as chunks_lib
from jaxrl_agents.corpus.chunks import Chunk
from jaxrl_agents.corpus.documents import Document
from jaxrl_agents.corpus.splits import SPLITS, split_of
from jaxrl_agents.types import Split, Task

MAX_GROUP_SHARE = 0.3
"""Share of the questions up to which questions that share gold documents stay in one split."""

MAX_LEVEL = 3
"""A question of n gold documents has level n - 1, and this at most."""


@dataclasses.dataclass(frozen=True)
class Question:
  """A question of a collection. Documents are called by their names, `metadata["source"]`.

  Attributes:
    id: unique in the collection.
    text: what the policy reads.
    gold: the documents that support the answer.
    answer: to the question; "" if the collection has none.
    holding: those of `gold` that hold the answer; empty if that is not known.
    split: the collection's own; None if it has none.
    kind: of the question, as the collection calls it.
    queries: {document: a query that finds it}, for scripted players; its title stands for others.
  """

  id: str
  text: str
  gold: tuple[str, ...]
  answer: str = ""
  holding: tuple[str, ...] = ()
  split: Split | None = None
  kind: str = ""
  queries: Mapping[str, str] = dataclasses.field(default_factory=dict)


@dataclasses.dataclass(frozen=True)
class Collection:
  """Numbered documents, questions about them, and how many questions were left out, by reason."""

  documents: Sequence[Document]
  questions: Sequence[Question]
  left_out: Mapping[str, int] = dataclasses.field(default_factory=dict)


def make(
  collection: Collection,
  *,
  source: str,
  count_tokens: Callable[[str], int],
  chunk_tokens: int,
  own_splits: bool = True,
  seed: int = 0,
) -> TaskSet:
  """The task set of a collection.

  The facts of a task are "document_ids", "gold_document_ids" if it is known which of them hold the
  answer, "clues" (a query for each gold document, with all its chunks), "truth" and "level".

  Args:
    collection: as `published_sets.read` returns it.
    source: named in the manifest.
    count_tokens: tokens of a text, by the policy's tokenizer.
    chunk_tokens: most tokens of a chunk.
    own_splits: whether a question keeps the split that the collection gives it.
    seed: that numbered the documents; recorded.

  Raises:
    ValueError: no question is left, or two have one id.
  """
  documents, questions = collection.documents, collection.questions
  left_out = ", ".join(f"{count} {why}" for why, count in collection.left_out.items())
  if not questions:
    raise ValueError(f"{source}: no question is left ({left_out or 'there are none'})")
  repeated = [i for i, n in collections.Counter(q.id for q in questions).items() if n > 1]
  if repeated:
    raise ValueError(f"{source}: two questions have the id {repeated[0]!r}; make the ids distinct")
  chunks = chunks_lib.cut(documents, count_tokens, max_tokens=chunk_tokens)
  of_document: dict[str, list[Chunk]] = {document.id: [] for document in documents}
  for chunk in chunks:
    of_document[chunk.doc_id].append(chunk)
  named = {str(document.metadata["source"]): document for document in documents}
  chosen = splits(questions, own=own_splits)
  by_split: dict[str, list[Task]] = {split: [] for split in SPLITS}
  for question in questions:
    facts = _facts(question, named, of_document)
    split = chosen[question.id]
    by_split[split].append(Task(question.id, "search", question.text, facts, split, seed))
  tasks = {split: tuple(each) for split, each in by_split.items()}
  manifest = {
    "source": source,
    "seed": seed,
    "chunk_tokens": chunk_tokens,
    "gold": "document",
    "python": platform.python_version(),
    "counts": make_tasks.yield_table(tasks),
    "left_out": dict(collection.left_out),
    "shared_gold_documents": shared_gold(questions, chosen),
  }
  clues: dict[str, tuple[Clue, ...]] = {split: _clues(tasks[split]) for split in SPLITS}
  return TaskSet(tuple(documents), tuple(chunks), tasks, clues, manifest)


def splits(questions: Sequence[Question], *, own: bool = True) -> dict[str, Split]:
  """{question id: split}: its own if `own` and it has one, else by a hash of gold documents.

  Questions that share a gold document, also by way of others, get one split, that of the hash of
  the smallest name among their documents. Where such a group would have more than MAX_GROUP_SHARE
  of the questions, each of its questions gets the split of the document that most of them share.
  """
  counts = collections.Counter(name for question in questions for name in question.gold)
  group_of = _groups(questions)
  sizes = collections.Counter(group_of[question.gold[0]] for question in questions)
  chosen: dict[str, Split] = {}
  for question in questions:
    group = group_of[question.gold[0]]
    if own and question.split:
      chosen[question.id] = question.split
    elif sizes[group] <= max(1, MAX_GROUP_SHARE * len(questions)):
      chosen[question.id] = split_of(group)
    else:
      chosen[question.id] = split_of(min(question.gold, key=lambda name: (-counts[name], name)))
  return chosen


def shared_gold(questions: Sequence[Question], chosen: Mapping[str, Split]) -> int:
  """How many documents are gold in more than one split."""
  seen: dict[str, set[Split]] = collections.defaultdict(set)
  for question in questions:
    for name in question.gold:
      seen[name].add(chosen[question.id])
  return sum(len(each) > 1 for each in seen.values())


def _groups(questions: Sequence[Question]) -> dict[str, str]:
  """{gold document: the smallest name among those that questions tie it to}, by union-find."""
  parent: dict[str, str] = {}

  def root(name: str) -> str:
    while parent.setdefault(name, name) != name:
      parent[name] = parent[parent[name]]
      name = parent[name]
    return name

  for question in questions:
    roots = sorted({root(name) for name in question.gold})
    for each in roots:
      parent[each] = roots[0]
  return {name: root(name) for name in list(parent)}


def _facts(
  question: Question,
  named: Mapping[str, Document],
  of_document: Mapping[str, Sequence[Chunk]],
) -> dict[str, Any]:
  gold = [named[name] for name in question.gold]
  facts: dict[str, Any] = {
    "level": min(len(gold) - 1, MAX_LEVEL),
    "kind": question.kind,
    "truth": question.answer,
    "document_ids": [document.id for document in gold],
    "clues": [
      {
        "text": question.queries.get(name) or document.title or question.text,
        "chunk_ids": [chunk.id for chunk in of_document[document.id]],
        "name": document.title,
      }
      for name, document in zip(question.gold, gold, strict=True)
    ],
    "distractors": [],
  }
  if question.holding:
    facts["gold_document_ids"] = [named[name].id for name in question.holding]
  return facts


def _clues(tasks: Sequence[Task]) -> tuple[Clue, ...]:
  """One clue for each gold document, for practice."""
  found: dict[tuple[str, ...], Clue] = {}
  for clue in (clue for task in tasks for clue in task.facts["clues"]):
    ids = tuple(clue["chunk_ids"])
    found.setdefault(ids, Clue(clue["text"], ids, clue["name"], "text"))
  return tuple(found.values())
