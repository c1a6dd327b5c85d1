"""Readers of question sets that bring their paragraphs: HotpotQA, 2WikiMultihopQA and MuSiQue.

The paragraphs of all questions are pooled into one corpus.

Sources: https://github.com/hotpotqa/hotpot, https://github.com/Alab-NII/2wikimultihop,
https://github.com/StonyBrookNLP/musique.
"""

from __future__ import annotations

import collections
import hashlib
import pathlib
from collections.abc import Callable, Mapping
from typing import Any

from jaxrl_agents.agents.search.tasks import question_rows
from jaxrl_agents.agents.search.tasks.document_tasks import Collection, Question
from jaxrl_agents.corpus import documents as documents_lib
from jaxrl_agents.corpus.documents import Document
from jaxrl_agents.types import Split


class Pool:
  """Paragraphs of all questions. Invariant: equal title and text are one document."""

  def __init__(self) -> None:
    self._documents: dict[tuple[str, str], Document] = {}
    self._names: set[str] = set()

  def add(self, title: str, text: str) -> str:
    """The name of a paragraph: its title, with a part of its hash if another has the same title."""
    key = (title, text)
    if key not in self._documents:
      name = title
      if not title or title in self._names:
        name = f"{title} #{hashlib.sha256(text.encode()).hexdigest()[:12]}"
      self._names.add(name)
      self._documents[key] = Document("", title, text, {"source": name, "kind": "text"})
    return str(self._documents[key].metadata["source"])

  def numbered(self, path: pathlib.Path, seed: int) -> list[Document]:
    """All documents, with numbers as ids."""
    return documents_lib.numbered(list(self._documents.values()), path, seed)


def pooled(make: Callable[[str, Mapping[str, Any], Pool], Question | None]) -> Any:
  """The reader of a form whose rows bring their paragraphs."""

  def reader(path: pathlib.Path, documents: str, max_questions: int, seed: int) -> Collection:
    pool = Pool()
    found: list[tuple[Question, Split | None]] = []
    left_out: collections.Counter[str] = collections.Counter()
    for place, split, row in question_rows.of_files(path, max_questions):
      question = make(place, row, pool)
      if question is None:
        left_out[question_rows.NO_GOLD] += 1
      else:
        found.append((question, split))
    corpus = pool.numbered(path, seed)
    texts = {str(document.metadata["source"]): document.text for document in corpus}
    return Collection(
      corpus, [question_rows.completed(q, split, texts) for q, split in found], left_out
    )

  return reader


def hotpotqa(place: str, row: Mapping[str, Any], pool: Pool) -> Question | None:
  """A question of HotpotQA or 2WikiMultihopQA; None if its gold is not among its paragraphs."""
  texts: dict[str, list[str]] = {}
  for title, sentences in _pairs(place, row, "context", "title", "sentences"):
    if not isinstance(sentences, list):
      raise ValueError(f"{place}: context of {title!r} is no list of sentences; write one")
    text = " ".join(str(sentence).strip() for sentence in sentences)
    if text.strip():
      texts.setdefault(str(title), []).append(pool.add(str(title), text))
  supporting = _pairs(place, row, "supporting_facts", "title", "sent_id")
  titles = dict.fromkeys(str(title) for title, _ in supporting)
  gold = [texts[title][0] for title in titles if title in texts]
  if len(gold) < len(titles) or not gold:
    return None
  return question_rows.question(place, row, gold, kind=f"{row.get('type') or 'hotpotqa'} question")


def _pairs(place: str, row: Mapping[str, Any], name: str, *columns: str) -> list[tuple[Any, Any]]:
  """A list of pairs; some copies of these sets write {column: list} instead."""
  value = row.get(name) or []
  if isinstance(value, dict):
    value = list(zip(*(value.get(column, ()) for column in columns), strict=True))
  if not isinstance(value, list) or any(len(pair) != 2 for pair in value):
    raise ValueError(f"{place}: field {name!r} is no list of pairs ({', '.join(columns)})")
  return [(first, second) for first, second in value]


def musique(place: str, row: Mapping[str, Any], pool: Pool) -> Question | None:
  """A question of MuSiQue; None if it cannot be answered. The paragraph of the last step holds the
  answer, and the question of each step is the query for its paragraph.
  """
  names: dict[Any, str] = {}
  gold: dict[str, None] = {}
  for number, each in enumerate(question_rows.field_list(place, row, "paragraphs")):
    text = str(each.get("paragraph_text") or each.get("text") or "")
    if text.strip():
      name = pool.add(str(each.get("title", "")), text)
      names[each.get("idx", number)] = name
      if each.get("is_supporting"):
        gold[name] = None
  if not gold or row.get("answerable") is False:
    return None
  queries: dict[str, str] = {}
  answers: list[str] = []
  last = ""
  for step in row.get("question_decomposition") or ():
    asked = str(step.get("question", ""))
    for number, answer in reversed(list(enumerate(answers, 1))):
      asked = asked.replace(f"#{number}", answer)
    answers.append(str(step.get("answer", "")))
    last = names.get(step.get("paragraph_support_idx"), "")
    if last:
      queries.setdefault(last, asked.replace(" >> ", " "))
  holding = [last] if last in gold else []
  kind = f"{len(gold)}-hop question"
  return question_rows.question(place, row, list(gold), kind=kind, holding=holding, queries=queries)
