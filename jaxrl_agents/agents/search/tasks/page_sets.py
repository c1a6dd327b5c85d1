"""Readers of question sets about pages that come in a corpus of their own: FRAMES, BrowseComp-Plus.

Sources: https://huggingface.co/datasets/google/frames-benchmark,
https://github.com/texttron/BrowseComp-Plus.
"""

from __future__ import annotations

import ast
import collections
import dataclasses
import pathlib
import re
import urllib.parse
from collections.abc import Mapping, Sequence
from typing import Any

from jaxrl_agents.agents.search.tasks import question_rows
from jaxrl_agents.agents.search.tasks.document_tasks import Collection, Question
from jaxrl_agents.agents.search.tasks.question_rows import NO_GOLD, NOT_IN_CORPUS
from jaxrl_agents.corpus import documents as documents_lib
from jaxrl_agents.corpus.documents import Document
from jaxrl_agents.types import Split


def frames(path: pathlib.Path, documents: str, max_questions: int, seed: int) -> Collection:
  """FRAMES: a question and the Wikipedia pages that it takes, found in the corpus by address or by
  title. A question with a page that the corpus lacks is left out.
  """
  corpus = _beside(path, documents, seed)
  pages = _by_address(corpus)
  texts = {str(document.metadata["source"]): document.text for document in corpus}
  found: list[Question] = []
  left_out: collections.Counter[str] = collections.Counter()
  for number, (place, split, row) in enumerate(question_rows.of_files(path, max_questions)):
    own = {name.strip().lower(): value for name, value in row.items()}
    text, answer = own.get("prompt"), str(own.get("answer") or "")
    if not isinstance(text, str):
      raise ValueError(f"{place}: no column 'Prompt'; a row has Prompt, Answer and wiki_links")
    named = [pages.get(address(link)) for link in _links(place, own)]
    gold = tuple(dict.fromkeys(name for name in named if name))
    if not named or None in named:
      left_out[NOT_IN_CORPUS if named else NO_GOLD] += 1
      continue
    own_id = str(own.get("_id") or own.get("id") or own.get("") or number)
    question = Question(f"frames_{own_id}", text, gold, answer, kind="frames question")
    found.append(question_rows.completed(question, split, texts))
  return Collection(corpus, found, left_out)


def _links(place: str, row: Mapping[str, Any]) -> list[str]:
  """The distinct addresses of a row: wiki_links, or the columns wikipedia_link_1 and so on."""
  listed = row.get("wiki_links")
  if isinstance(listed, str) and listed.strip():
    try:
      listed = ast.literal_eval(listed)
    except (ValueError, SyntaxError, RecursionError, MemoryError):
      raise ValueError(f"{place}: wiki_links is no list of addresses: {listed[:80]!r}") from None
  if not listed:
    listed = [row[name] for name in row if name.startswith("wikipedia_link")]
  # Some cells hold several addresses, and an address may hold a comma.
  parts = (part for link in listed if link for part in re.split(r"[\s,]+(?=https?://)", str(link)))
  found = (part.split()[0].rstrip(",") for part in parts if part.strip().startswith("http"))
  return list(dict.fromkeys(found))


def address(link: str) -> str:
  """What of an address names a page: without scheme, "www.", mobile host, fragment and query."""
  parts = urllib.parse.urlsplit(link.strip())
  host = parts.netloc.lower().removeprefix("www.").replace(".m.", ".")
  page = urllib.parse.unquote(parts.path).replace(" ", "_").rstrip("/")
  return f"{host}{page}"


def _by_address(corpus: Sequence[Document]) -> dict[str, str]:
  """{address: name} of the documents; an English Wikipedia page is also found by its title."""
  found: dict[str, str] = {}
  for document in corpus:
    name = str(document.metadata["source"])
    title = document.title.replace(" ", "_")
    found.setdefault(f"en.wikipedia.org/wiki/{title}", name)
    for link in (document.metadata.get("url"), name):
      if isinstance(link, str) and "://" in link:
        found[address(link)] = name
  return found


def browsecomp_plus(
  path: pathlib.Path, documents: str, max_questions: int, seed: int
) -> Collection:
  """BrowseComp-Plus, decrypted: evidence documents support the answer, gold documents hold it.

  The corpus is `documents`, or else all documents whose text the rows hold.
  """
  given = _beside(path, documents, seed) if documents else []
  known = {str(document.metadata["source"]): document for document in given}
  found: list[tuple[Question, Split | None]] = []
  left_out: collections.Counter[str] = collections.Counter()
  for place, split, row in question_rows.of_files(path, max_questions):
    listed = {
      name: [_page(place, each, name) for each in question_rows.field_list(place, row, name)]
      for name in ("gold_docs", "evidence_docs", "negative_docs")
    }
    if not documents:
      for page in (page for pages in listed.values() for page in pages if page.text.strip()):
        known.setdefault(str(page.metadata["source"]), page)
    holding = [str(page.metadata["source"]) for page in listed["gold_docs"]]
    gold = [str(page.metadata["source"]) for page in listed["evidence_docs"]]
    gold = list(dict.fromkeys([*gold, *holding]))
    if not gold:
      left_out[NO_GOLD] += 1
    else:
      kind = "browsecomp_plus question"
      found.append((question_rows.question(place, row, gold, kind=kind, holding=holding), split))
  corpus = given or documents_lib.numbered(list(known.values()), path, seed)
  whole = [(q, split) for q, split in found if set(q.gold) <= known.keys()]
  if len(whole) < len(found):
    left_out[NOT_IN_CORPUS] += len(found) - len(whole)
  return Collection(corpus, [dataclasses.replace(q, split=s) for q, s in whole], left_out)


def _page(place: str, value: Any, name: str) -> Document:
  """A document of a row; its text is empty where the row only names it."""
  each = value if isinstance(value, dict) else {"docid": value}
  own_id = question_rows.first_text(each, "docid", "_id", "id")
  if not own_id:
    raise ValueError(f"{place}: a document of {name} has no 'docid'; give it one")
  metadata = {"source": own_id, "kind": "text", "url": str(each.get("url") or "")}
  return Document("", str(each.get("title") or ""), str(each.get("text") or ""), metadata)


def _beside(path: pathlib.Path, documents: str, seed: int) -> list[Document]:
  if not documents:
    raise ValueError(
      f"{path}: the questions refer to pages that the file does not hold; name the folder of their "
      "corpus (--documents=FOLDER: JSON lines of url, title and text)"
    )
  return documents_lib.load(pathlib.Path(documents).expanduser(), seed=seed)
