"""Reads question sets in their published file forms, for `document_tasks`.

    beir             a folder: corpus.jsonl, queries.jsonl, qrels/*.tsv
    hotpotqa, 2wiki  rows with "context" and "supporting_facts", which name paragraphs by title
    musique          rows with "paragraphs", of which some have "is_supporting"
    frames           rows with "Prompt", "Answer" and Wikipedia links; pages in a corpus beside it
    browsecomp_plus  rows with "query", "evidence_docs", "gold_docs"; pages there or beside it

Rows are read from a JSON list, JSON lines, CSV or TSV.

Source of the BEIR layout: https://github.com/beir-cellar/beir.
"""

from __future__ import annotations

import collections
import difflib
import os
import pathlib
from collections.abc import Callable, Mapping

from jaxrl_agents.agents.search.tasks import page_sets, paragraph_sets, question_rows
from jaxrl_agents.agents.search.tasks.document_tasks import Collection, Question
from jaxrl_agents.agents.search.tasks.question_rows import NO_GOLD, NOT_IN_CORPUS
from jaxrl_agents.corpus import beir, rows
from jaxrl_agents.corpus import documents as documents_lib


def read(
  form: str,
  path: str | os.PathLike[str],
  *,
  documents: str = "",
  max_questions: int = 0,
  seed: int = 0,
) -> Collection:
  """Reads a question set.

  Args:
    form: one of FORMS.
    path: the file, or a folder of files; the words train, dev and test in a file's name are the
      split of its rows.
    documents: folder of the pages that questions refer to; for frames and browsecomp_plus.
    max_questions: keeps the first rows of each file; 0 for all.
    seed: of the numbers of the documents.

  Raises:
    ValueError: names the file, the row, the field and the remedy.
  """
  if form not in FORMS:
    (near,) = difflib.get_close_matches(form, FORMS, n=1, cutoff=0.0)
    raise ValueError(f"{form!r} is no form of question sets; did you mean {near!r}?")
  if documents and form not in WITH_DOCUMENTS:
    raise ValueError(f"{form}: a folder of documents has no effect; the set brings its own")
  path = pathlib.Path(path).expanduser()
  return FORMS[form](path, documents, max_questions, seed)


def _beir(path: pathlib.Path, documents: str, max_questions: int, seed: int) -> Collection:
  corpus = documents_lib.load(path, seed=seed)
  texts = {str(document.metadata["source"]): document.text for document in corpus}
  queries, answers = beir.load_queries(path), beir.load_answers(path)
  found: dict[str, Question] = {}
  left_out: collections.Counter[str] = collections.Counter()
  names = sorted(file.stem for file in (path / "qrels").glob("*.tsv"))
  if not names:
    raise ValueError(f"{path / 'qrels'}: no judgments; a BEIR collection has qrels/SPLIT.tsv")
  for name in sorted(names, key=lambda name: rows.split_named(name) != "test"):
    judged = list(beir.load_qrels(path, name).items())
    for query_id, grades in judged[: max_questions or None]:
      gold = tuple(document for document, grade in grades.items() if grade > 0)
      why = NO_GOLD if not gold else "" if set(gold) <= texts.keys() else NOT_IN_CORPUS
      if query_id not in queries:
        why = "that is judged but not in queries.jsonl"
      elif query_id in found:
        why = "judged in another split too"
      if why:
        left_out[why] += 1
        continue
      split = rows.split_named(name)
      answer = answers.get(query_id, "")
      question = Question(query_id, queries[query_id], gold, answer, kind="beir query")
      found[query_id] = question_rows.completed(question, split, texts)
  return Collection(corpus, list(found.values()), left_out)


FORMS: Mapping[str, Callable[[pathlib.Path, str, int, int], Collection]] = {
  "beir": _beir,
  "hotpotqa": paragraph_sets.pooled(paragraph_sets.hotpotqa),
  "2wiki": paragraph_sets.pooled(paragraph_sets.hotpotqa),
  "musique": paragraph_sets.pooled(paragraph_sets.musique),
  "frames": page_sets.frames,
  "browsecomp_plus": page_sets.browsecomp_plus,
}
"""{form: its reader}"""

WITH_DOCUMENTS = ("frames", "browsecomp_plus")
"""Forms whose pages may come in a folder of their own."""
