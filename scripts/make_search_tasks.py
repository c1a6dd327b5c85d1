"""Makes a frozen set of search tasks, of a corpus or of a published question set.

    python scripts/make_search_tasks.py --corpus=python --out=tasks        # Python's library, 30 s
    python scripts/make_search_tasks.py --corpus=FOLDER --out=tasks        # .txt .md .html .jsonl
    python scripts/make_search_tasks.py --corpus=chroma:FOLDER --out=tasks # Context-1's task files
    python scripts/make_search_tasks.py --corpus=hotpotqa:FILE --out=tasks # and other forms:

beir, hotpotqa, 2wiki, musique, frames and browsecomp_plus (see search.tasks.published_sets). A run
takes the set with --set corpus.source=tasks. Needs no network and no model.

With --hops, later clues are found only with a name from the hits of earlier ones
(search.tasks.hops); a run that takes the set needs search.hops=True:

    python scripts/make_search_tasks.py --corpus=python --hops --chunk_tokens=96 \\
      --dense_weight=0.3 --out=tasks

Prints the yield by split and level and three of the tasks. --format=chroma writes a JSON file per
seed, as Context-1's generator does, in the place of tasks.jsonl and its corpus.
"""

from __future__ import annotations

import pathlib
import random
import tempfile
import time
from collections.abc import Callable

from absl import flags

from jaxrl_agents import chat as chat_lib
from jaxrl_agents.agents.search.tasks import (
  chroma_files,
  difficulty,
  document_tasks,
  make_tasks,
  published_sets,
)
from jaxrl_agents.agents.search.tasks.chains import Chain
from jaxrl_agents.agents.search.tasks.hop_search import HopSearch
from jaxrl_agents.corpus.index import hybrid as index_lib
from jaxrl_agents.runs import entry_point

CORPUS = flags.DEFINE_string(
  "corpus",
  "python",
  f'"python", "package:NAME", a folder, "chroma:FOLDER", or "FORM:PATH" with a form of '
  f"{', '.join(published_sets.FORMS)}.",
)
DOCUMENTS = flags.DEFINE_string(
  "documents", "", f"For {', '.join(published_sets.WITH_DOCUMENTS)}: the folder of their pages."
)
SPLITS = flags.DEFINE_enum(
  "splits", "own", ["own", "hash"], "For FORM:PATH: the set's own splits where it has any, or ours."
)
MAX_QUESTIONS = flags.DEFINE_integer(
  "max_questions", 0, "For FORM:PATH: the first rows of each file; 0 for all.", lower_bound=0
)
OUT = flags.DEFINE_string("out", None, "Folder to write.", required=True)
SEED = flags.DEFINE_integer("seed", 0, "Of document numbers and of every draw.")
CHUNK_TOKENS = flags.DEFINE_integer("chunk_tokens", 64, "Most tokens of a chunk.", lower_bound=1)
FORMAT = flags.DEFINE_enum("format", "native", ["native", "chroma"], "What to write.")
TOKENIZER = flags.DEFINE_string("tokenizer", "base", "Tokenizer to count with: a folder, or base.")
PER_TRUTH = flags.DEFINE_integer(
  "per_truth", make_tasks.PER_TRUTH, "Most chains that end in the same answer."
)
GOLD = flags.DEFINE_enum("gold", "fact", ["fact", "document"], "For chroma:FOLDER: what is gold.")
HOPS = flags.DEFINE_bool("hops", False, "Of documents: tasks with hops.")
INDEX = flags.DEFINE_string(
  "index", "", "Folder for a search index: also prints how many gold facts it finds."
)
DENSE_WEIGHT = flags.DEFINE_float(
  "dense_weight", 1.0, "Of the dense ranking, with --index or --hops."
)

_STARTED = time.monotonic()


def main() -> None:
  """Makes, writes and shows a task set."""
  count_tokens = chat_lib.load(TOKENIZER.value).count
  form, _, path = CORPUS.value.partition(":")
  chains: dict[str, tuple[Chain, ...]] = {}
  published_form = form != "package" and path and not pathlib.Path(CORPUS.value).exists()
  if HOPS.value and published_form:
    raise ValueError(f"--hops has no effect on --corpus={CORPUS.value}, which brings its questions")
  if CORPUS.value.startswith("chroma:"):
    read = chroma_files.read_folder(CORPUS.value.removeprefix("chroma:"))
    task_set = make_tasks.from_chains(
      read,
      count_tokens=count_tokens,
      chunk_tokens=CHUNK_TOKENS.value,
      gold=GOLD.value,
      seed=SEED.value,
    )
    chains = {"all": tuple(read)}
  elif published_form:
    task_set = published(form, path, count_tokens)
  else:
    with tempfile.TemporaryDirectory() as scratch:
      fusion = index_lib.Fusion(dense_weight=DENSE_WEIGHT.value)
      task_set, chains = make_tasks.make(
        CORPUS.value,
        count_tokens=count_tokens,
        chunk_tokens=CHUNK_TOKENS.value,
        seed=SEED.value,
        per_truth=PER_TRUTH.value,
        limits=make_tasks.HOP_LIMITS if HOPS.value else make_tasks.LIMITS,
        hop_search=HopSearch(INDEX.value or scratch, "lsa", fusion) if HOPS.value else None,
        report=report,
      )
  if FORMAT.value == "native":
    make_tasks.save(task_set, OUT.value)
  elif not chains:
    raise ValueError(
      "--format=chroma writes chains of clues, and question sets and tasks with hops have none"
    )
  else:
    for chain in (chain for each in chains.values() for chain in each):
      chroma_files.write(chain, OUT.value)
  report(f"written to {OUT.value}")
  show(task_set)
  if INDEX.value:
    show_difficulty(task_set)


def published(form: str, path: str, count_tokens: Callable[[str], int]) -> make_tasks.TaskSet:
  """The task set of a question set in its published form."""
  collection = published_sets.read(
    form,
    path,
    documents=DOCUMENTS.value,
    max_questions=MAX_QUESTIONS.value,
    seed=SEED.value,
  )
  report(f"{len(collection.documents)} documents, {len(collection.questions)} questions")
  return document_tasks.make(
    collection,
    source=CORPUS.value,
    count_tokens=count_tokens,
    chunk_tokens=CHUNK_TOKENS.value,
    own_splits=SPLITS.value == "own",
    seed=SEED.value,
  )


def report(line: str) -> None:
  """Prints a stage and the seconds since the start."""
  print(f"{time.monotonic() - _STARTED:6.1f} s  {line}", flush=True)


def show(task_set: make_tasks.TaskSet) -> None:
  """Prints the yield table and three tasks."""
  counts = task_set.manifest["counts"]
  levels = sorted({level for each in counts.values() for level in each["level"]})
  print("\nsplit   tasks  clues " + "".join(f"  level {level}" for level in levels))
  for split, each in counts.items():
    tasks = sum(each["level"].values())
    row = f"{split:6} {tasks:6} {len(task_set.clues[split]):6} "
    print(row + "".join(f"{each['level'].get(level, 0):9}" for level in levels))
  for reason, count in task_set.manifest.get("refused", {}).items():
    print(f"{count:7} tries refused: {reason}")
  for reason, count in task_set.manifest.get("left_out", {}).items():
    print(f"{count:7} questions left out: {reason}")
  if task_set.manifest.get("shared_gold_documents"):
    print(f"{task_set.manifest['shared_gold_documents']:7} documents are gold in several splits")
  everything = [task for tasks in task_set.tasks.values() for task in tasks]
  for task in random.Random(SEED.value).sample(everything, min(3, len(everything))):
    print(f"\n{task.id} ({task.facts['kind']})\n{task.prompt}\n  -> {task.facts['truth']}")


def show_difficulty(task_set: make_tasks.TaskSet) -> None:
  """Prints what searches find of the test tasks' facts (of dev's or train's if there are none)."""
  if task_set.manifest.get("gold") == "document":
    raise ValueError("--index measures facts, and the gold of these tasks are documents")
  index = index_lib.build(task_set.chunks, INDEX.value)
  tasks = next(task_set.tasks[s] for s in ("test", "dev", "train") if task_set.tasks[s])
  settings = index_lib.Fusion(dense_weight=DENSE_WEIGHT.value)
  print(f"\n{len(index)} chunks, {len(tasks)} tasks; shares found by the whole question (facts, of")
  print("them answers) and by one query per clue (facts)")
  for mode in ("bm25", "hybrid"):
    for limit in (2, 4, 10):
      found = difficulty.measure(index, tasks, limit=limit, mode=mode, settings=settings)
      shares = f"{found.whole:6.1%} {found.answer:6.1%} {found.by_clue:6.1%}"
      print(f"{mode:6}  {limit:2} hits  {shares}  of {found.facts} facts")


if __name__ == "__main__":
  entry_point.run(main)
