"""Corpus and tasks of chains that bring their own pages, as task files of Context-1's generator do.

All supporting pages and distractors make the corpus; each page gets a random number, and an item's
gold is what was cut from its page.
"""

from __future__ import annotations

import random
import re
from collections.abc import Mapping, Sequence
from typing import Any

from jaxrl_agents.agents.search.tasks import chains as chains_lib
from jaxrl_agents.agents.search.tasks import quote_verification
from jaxrl_agents.agents.search.tasks.chains import Chain, Item
from jaxrl_agents.corpus.chunks import Chunk
from jaxrl_agents.corpus.documents import Document
from jaxrl_agents.types import Task

GOLD = ("fact", "document")
"""What finds an item: a chunk that holds one of its quotes, or any chunk of its page."""

MAX_RUN = 4
"""Most neighbouring chunks that one quote is looked for in."""

_TRUNCATED = re.compile(r"^\[Page truncated.*?tokens\]\n", re.DOTALL)


def corpus(chains: Sequence[Chain], *, seed: int = 0) -> list[Document]:
  """Every supporting page and distractor as a document; metadata["source"] is the page's own id.

  As in their index, a page seen twice counts once, unless the second is another part of a truncated
  page; distractors that a check has filtered out stay out.
  """
  filtered = {
    str(each.get("id"))
    for chain in chains
    for level in chain.levels
    for each in level.extra.get("filtered_distractors", ())
  }
  texts: dict[str, str] = {}
  for level in (level for chain in chains for level in chain.levels):
    contents = {item.id: item.text for item in level.items}
    contents |= level.extra.get("items_and_contents", {})
    contents |= {each.id: each.text for each in level.distractors if each.id not in filtered}
    for page, text in contents.items():
      part = _TRUNCATED.sub("", text)
      if page not in texts:
        texts[page] = part
      elif part != text and part not in texts[page]:
        texts[page] += "\n" + part
  pages = sorted(page for page, text in texts.items() if text.strip())
  low = 100
  while 9 * low < len(pages):
    low *= 10
  numbers = random.Random(seed).sample(range(low, 10 * low), len(pages))
  return [
    Document(str(number), "", texts[page], {"source": page, "kind": "text"})
    for number, page in zip(numbers, pages, strict=True)
  ]


def tasks(
  chains: Sequence[Chain],
  documents: Sequence[Document],
  chunks: Sequence[Chunk],
  *,
  gold: str,
  seed: int = 0,
) -> list[Task]:
  """The tasks of every level up to the first that did not pass its verification.

  Args:
    chains: as read.
    documents: of `corpus(chains)`.
    chunks: cut from the documents.
    gold: one of GOLD. "fact": facts as `chains.task` gives them, with the chunks that hold its
      quotes (all of the page where none is found). "document": "document_ids" of all pages, and
      "gold_document_ids" of those that hold the truth, in the place of "facts".
    seed: recorded in the tasks.

  Raises:
    ValueError: a page of a task is not in the corpus; names the task and the page.
  """
  if gold not in GOLD:
    raise ValueError(f"gold is {gold!r}; use one of {GOLD}")
  cut: dict[str, list[Chunk]] = {document.id: [] for document in documents}
  for chunk in chunks:
    cut[chunk.doc_id].append(chunk)
  by_page = {str(each.metadata["source"]): cut[each.id] for each in documents if cut[each.id]}
  made = []
  for chain in chains:
    passed = [level.passed for level in chain.levels]
    for level in range(passed.index(False) if False in passed else len(passed)):
      task = chains_lib.task(chain, level, seed)
      made.append(_grounded(task, chain, level, by_page, gold))
  return made


def _grounded(
  task: Task, chain: Chain, level: int, by_page: Mapping[str, Sequence[Chunk]], gold: str
) -> Task:
  """The task with ids of the corpus in the place of its pages."""
  items = [item for each in chain.levels[: level + 1] for item in each.items]
  chunks = []
  for item in items:
    for page in _pages(item):
      if page not in by_page:
        raise ValueError(
          f"task {task.id}: gold page {page!r} is not in the corpus; make the corpus from the same "
          "task files"
        )
    chunks.append([chunk for page in _pages(item) for chunk in by_page[page]])
  found = [_holding(item, each) for item, each in zip(items, chunks, strict=True)]
  facts: dict[str, Any] = dict(task.facts)
  for name in ("facts", "clues"):
    facts[name] = [{**f, "chunk_ids": ids} for f, ids in zip(facts[name], found, strict=True)]
  for fact, item, each, ids in zip(facts["facts"], items, chunks, found, strict=True):
    if fact["is_final_answer"]:
      fact["answer_chunk_ids"] = _said_in(item.truth_quotes, each) or ids
  distractors = (by_page.get(page, ()) for page in facts["distractors"])
  facts["distractors"] = [chunk.id for each in distractors for chunk in each]
  if gold == "document":
    final = {i for fact in facts.pop("facts") for i in fact.get("answer_chunk_ids", ())}
    answers = [each for each in chunks if final & {chunk.id for chunk in each}]
    facts["document_ids"] = _documents(chunks)
    facts["gold_document_ids"] = _documents(answers)
  return Task(task.id, task.env, task.prompt, facts, task.split, task.seed)


def _pages(item: Item) -> list[str]:
  """The page of an item, and the pages that state the same fact."""
  return [item.id, *(str(each["id"]) for each in item.extra.get("additional_chunks") or ())]


def _holding(item: Item, chunks: Sequence[Chunk]) -> list[str]:
  """The chunks that hold the quotes of an item; all if none is found."""
  quotes = (*item.item_quotes, *item.truth_quotes)
  return _said_in(quotes, chunks) or [chunk.id for chunk in chunks]


def _said_in(quotes: Sequence[str], chunks: Sequence[Chunk]) -> list[str]:
  """For each quote the fewest neighbouring chunks that hold it."""
  found: dict[str, None] = {}
  for quote in quotes:
    found |= dict.fromkeys(chunk.id for chunk in _shortest_run(quote, chunks))
  return list(found)


def _shortest_run(quote: str, chunks: Sequence[Chunk]) -> Sequence[Chunk]:
  """One chunk, or the two to MAX_RUN in a row that a quote is cut over; none if it is not there."""
  for length in range(1, MAX_RUN + 1):
    for start in range(len(chunks) - length + 1):
      run = chunks[start : start + length]
      if quote_verification.contains("".join(chunk.text for chunk in run), quote):
        return run
  return ()


def _documents(chunks: Sequence[Sequence[Chunk]]) -> list[str]:
  return list(dict.fromkeys(chunk.doc_id for each in chunks for chunk in each))
