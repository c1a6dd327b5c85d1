"""Task files in the JSON form of Context-1's generator, read and written.

One file per seed, `tasks[k]["level"] == k` (https://github.com/chroma-core/context-1-data-gen, at
0685d48). Fields of theirs that we do not use are kept when a file is written again; fields of ours
("split", "kind", "clue", "name", "chunk_ids", "is_answer") are ignored by their code. An item's key
may be "id" or "url". `pages` makes a corpus and tasks of what was read.
"""

from __future__ import annotations

import json
import os
import pathlib
from collections.abc import Mapping
from typing import Any

from jaxrl_agents.agents.search.tasks.chains import Chain, Distractor, Item, Level
from jaxrl_agents.corpus import readers
from jaxrl_agents.corpus.splits import split_of

_ITEM_FIELDS = frozenset(
  [
    "id",
    "reasoning",
    "clue_quotes",
    "item_quotes",
    "truth_quotes",
    "contains_truth",
    "is_answer",
    "chunk_ids",
    "answer_chunk_ids",
    "name",
    "clue",
    "relevant_prev_url",
    "prev_item",
  ]
)
_LEVEL_FIELDS = frozenset(
  [
    "level",
    "clues",
    "question",
    "truth",
    "truth_type",
    "supporting_items",
    "bridging_item",
    "items_and_contents",
    "distractors",
    "distractors_and_contents",
    "kind",
    "passed_verification",
    "failure_reasons",
  ]
)


def write(chain: Chain, folder: str | os.PathLike[str]) -> pathlib.Path:
  """Writes a chain to `folder`/<seed id>.json and returns the path."""
  path = pathlib.Path(folder) / f"{chain.seed_id}.json"
  path.parent.mkdir(parents=True, exist_ok=True)
  record = {**chain.extra, "split": chain.split, "tasks": [_level_out(x) for x in chain.levels]}
  path.write_text(json.dumps(record, indent=4, ensure_ascii=False) + "\n", encoding="utf-8")
  return path


def read(path: str | os.PathLike[str]) -> Chain:
  """Reads a task file. A file without "split" gets that of its seed's hash.

  Raises:
    ValueError: names the file, the field and the remedy.
  """
  path = pathlib.Path(path)
  try:
    record = json.loads(readers.read_text(path))
  except (ValueError, RecursionError) as error:
    raise ValueError(f"{path}: not readable as JSON ({error}); write the file anew") from error
  tasks = _field(record, "tasks", list, str(path))
  levels = []
  for index, raw in enumerate(tasks):
    place = f"{path}: tasks[{index}]"
    levels.append(_level_in(raw, place))
    if levels[-1].level != index:
      raise ValueError(f"{place}.level is {levels[-1].level}; order the tasks by level, from 0")
  if not levels:
    raise ValueError(f"{path}: tasks is empty; leave the file out")
  split = record.get("split", split_of(path.stem))
  if split not in ("train", "dev", "test"):
    raise ValueError(f"{path}: split is {split!r}; use train, dev or test")
  extra = {key: value for key, value in record.items() if key not in ("tasks", "split")}
  return Chain(path.stem, tuple(levels), split, extra)


def read_folder(folder: str | os.PathLike[str]) -> list[Chain]:
  """Reads every .json file of a folder, by name; ValueError as from `read`, or if none is there."""
  paths = sorted(pathlib.Path(folder).glob("*.json"))
  if not paths:
    raise ValueError(f"{folder}: no .json file; name the folder that holds one task file per seed")
  return [read(path) for path in paths]


def _level_out(level: Level) -> dict[str, Any]:
  record: dict[str, Any] = {
    **level.extra,
    "level": level.level,
    "clues": level.clues,
    "question": level.question,
    "truth": level.truth,
    "truth_type": level.truth_type,
    "kind": level.kind,
    "supporting_items": [_item_out(item) for item in level.supporting_items],
    "items_and_contents": {item.id: item.text for item in level.items}
    | dict(level.extra.get("items_and_contents", {})),
    "distractors": [{**d.extra, "id": d.id, "reasoning": d.reasoning} for d in level.distractors],
    "distractors_and_contents": {each.id: each.text for each in level.distractors},
    "passed_verification": level.passed,
    "failure_reasons": list(level.failure_reasons),
  }
  record.setdefault("distractors_passed_verification", True)
  if level.bridging_item is not None:
    bridge = level.bridging_item
    record["bridging_item"] = {
      **_item_out(bridge),
      "relevant_prev_url": bridge.previous_id,
      "prev_item": {
        **bridge.extra.get("prev_item", {}),
        "item_quotes": list(bridge.previous_quotes),
      },
    }
  return record


def _item_out(item: Item) -> dict[str, Any]:
  return {
    "not_relevant": False,
    **item.extra,
    "id": item.id,
    "reasoning": item.reasoning,
    "clue_quotes": list(item.clue_quotes),
    "item_quotes": list(item.item_quotes),
    "truth_quotes": list(item.truth_quotes),
    "contains_truth": item.contains_truth,
    "is_answer": item.is_answer,
    "chunk_ids": list(item.chunk_ids),
    "answer_chunk_ids": list(item.answer_chunk_ids),
    "name": item.name,
    "clue": item.clue,
  }


def _level_in(raw: Any, place: str) -> Level:
  contents = dict(_field(raw, "items_and_contents", dict, place))
  supporting = _field(raw, "supporting_items", list, place)
  items = tuple(
    _item_in(each, contents, f"{place}.supporting_items[{i}]") for i, each in enumerate(supporting)
  )
  bridge = None
  if raw.get("bridging_item"):
    bridge = _item_in(raw["bridging_item"], contents, f"{place}.bridging_item")
  texts = _field(raw, "distractors_and_contents", dict, place, default={})
  distractors = []
  for i, each in enumerate(_field(raw, "distractors", list, place, default=[])):
    at = f"{place}.distractors[{i}]"
    page = _id(each, at)
    extra = {key: value for key, value in each.items() if key not in ("id", "reasoning")}
    if page in texts:
      distractors.append(Distractor(page, str(texts[page]), str(each.get("reasoning", "")), extra))
  extra = {key: value for key, value in raw.items() if key not in _LEVEL_FIELDS}
  if extra.get("distractors_passed_verification") is True:
    del extra["distractors_passed_verification"]
  used = {item.id for item in items} | ({bridge.id} if bridge else set())
  rest = {key: text for key, text in contents.items() if key not in used}
  if rest:
    extra["items_and_contents"] = rest
  return Level(
    level=_field(raw, "level", int, place),
    clues=_field(raw, "clues", str, place),
    question=_field(raw, "question", str, place),
    truth=_field(raw, "truth", str, place),
    truth_type=str(raw.get("truth_type", "")),
    supporting_items=items,
    bridging_item=bridge,
    distractors=tuple(distractors),
    kind=str(raw.get("kind", "")),
    passed=_field(raw, "passed_verification", bool, place),
    failure_reasons=_quotes(raw, "failure_reasons", place),
    extra=extra,
  )


def _item_in(raw: Any, contents: Mapping[str, str], place: str) -> Item:
  page = _id(raw, place)
  if page not in contents:
    raise ValueError(
      f"{place}: {page!r} is not in items_and_contents; add the text of the page, or drop the task"
    )
  extra = {key: value for key, value in raw.items() if key not in _ITEM_FIELDS}
  if extra.get("not_relevant") is False:
    del extra["not_relevant"]
  previous = dict(raw.get("prev_item") or {})
  previous_quotes = tuple(previous.pop("item_quotes", ()))
  if previous:
    extra["prev_item"] = previous
  contains_truth = bool(raw.get("contains_truth", False))
  return Item(
    id=page,
    text=str(contents[page]),
    clue_quotes=_quotes(raw, "clue_quotes", place),
    item_quotes=_quotes(raw, "item_quotes", place),
    truth_quotes=_quotes(raw, "truth_quotes", place),
    contains_truth=contains_truth,
    is_answer=bool(raw.get("is_answer", contains_truth)),
    chunk_ids=_quotes(raw, "chunk_ids", place),
    answer_chunk_ids=_quotes(raw, "answer_chunk_ids", place),
    name=str(raw.get("name", "")),
    clue=str(raw.get("clue", "") if "clue" in raw else " ".join(raw.get("clue_quotes") or ())),
    reasoning=str(raw.get("reasoning", "")),
    previous_id=str(raw.get("relevant_prev_url") or raw.get("relevant_prev_id") or ""),
    previous_quotes=previous_quotes,
    extra=extra,
  )


def _id(raw: Any, place: str) -> str:
  page = (raw.get("id") or raw.get("url")) if isinstance(raw, dict) else None
  if not isinstance(page, str):
    raise ValueError(f"{place}: neither 'id' nor 'url' is a text; name the page that it stands for")
  return page


def _quotes(raw: Mapping[str, Any], name: str, place: str) -> tuple[str, ...]:
  quotes = raw.get(name) or []
  if not isinstance(quotes, list) or not all(isinstance(quote, str) for quote in quotes):
    raise ValueError(f"{place}.{name} is not a list of texts; write each quote as one text")
  return tuple(quotes)


def _field(raw: Any, name: str, kind: type, place: str, default: Any = None) -> Any:
  """A field of an object, of a type; an error that names the place, the field and the remedy."""
  value = raw.get(name, default) if isinstance(raw, dict) else None
  if not isinstance(value, kind) or (kind is int and isinstance(value, bool)):
    found = "missing" if value is None else f"{value!r:.40}"
    raise ValueError(f"{place}: field {name!r} is {found}; it must be a JSON {_JSON[kind]}")
  return value


_JSON = {list: "list", dict: "object", str: "text", int: "whole number", bool: "true or false"}
