"""What the readers of published question sets share: their rows, and questions made of them."""

from __future__ import annotations

import dataclasses
import pathlib
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from jaxrl_agents.agents.search.tasks.document_tasks import Question
from jaxrl_agents.corpus import rows
from jaxrl_agents.types import Split

NO_GOLD = "without a gold document"
NOT_IN_CORPUS = "with a gold document that the corpus lacks"

_SHORT_ANSWERS = ("", "yes", "no")
"""Answers that no document holds word for word."""


def of_files(path: pathlib.Path, most: int) -> Iterator[tuple[str, Split | None, dict[str, Any]]]:
  """The first `most` rows of each file (all for 0), with their split."""
  for file in rows.files(path):
    for number, (place, row) in enumerate(rows.read(file)):
      if most and number >= most:
        break
      own = row.get("split")
      named = rows.SPLIT_NAMES.get(own) if isinstance(own, str) else None
      yield place, named or rows.split_named(file.name), row


def field_list(place: str, row: Mapping[str, Any], name: str) -> list[Any]:
  """A field that is a list, empty if the row lacks it; ValueError if it is something else."""
  value = row.get(name) or []
  if not isinstance(value, list):
    raise ValueError(f"{place}: field {name!r} is a {type(value).__name__}; write a list")
  return value


def question(place: str, row: Mapping[str, Any], gold: Sequence[str], **options: Any) -> Question:
  """The question of a row, with its id and answer; ValueError if it lacks id or text."""
  own_id = first_text(row, "_id", "id", "query_id")
  text = row.get("question") or row.get("query")
  if not own_id or not isinstance(text, str):
    raise ValueError(f"{place}: has no '_id' or 'id', or no text 'question'; give it both")
  options = {name: tuple(v) if name == "holding" else v for name, v in options.items()}
  return Question(own_id, text, tuple(gold), answer=first_text(row, "answer"), **options)


def first_text(row: Mapping[str, Any], *names: str) -> str:
  """The first of these fields that a row has, as text; 0 counts. "" if it has none."""
  return next((str(row[name]) for name in names if row.get(name) not in (None, "", [], {})), "")


def completed(found: Question, split: Split | None, texts: Mapping[str, str]) -> Question:
  """The question with its split, and with the gold documents that say its answer if none is
  known to hold it.
  """
  holding = found.holding or holding_answer(found.answer, found.gold, texts)
  return dataclasses.replace(found, split=split, holding=holding)


def holding_answer(answer: str, gold: Sequence[str], texts: Mapping[str, str]) -> tuple[str, ...]:
  """The gold documents in which the answer stands as whole words; case and space do not count."""
  words = re.findall(r"\w+", answer.lower())
  if " ".join(words) in _SHORT_ANSWERS:
    return ()
  said = f" {' '.join(words)} "
  padded = lambda text: " ".join(["", *re.findall(r"\w+", text.lower()), ""])
  return tuple(name for name in gold if said in padded(texts[name]))
