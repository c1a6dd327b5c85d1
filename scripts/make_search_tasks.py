"""Makes a frozen set of multi-hop search tasks from a corpus, without network or model.

    python scripts/make_search_tasks.py --corpus=python --out=tasks        # Python's library, 30 s
    python scripts/make_search_tasks.py --corpus=FOLDER --out=tasks        # .txt .md .html .jsonl
    python scripts/make_search_tasks.py --corpus=chroma:FOLDER --out=tasks # Context-1's task files

Prints the yield by split and level and three of the tasks. --format=chroma writes a JSON file per
seed, as Context-1's generator does, in the place of tasks.jsonl and its corpus.
"""

from __future__ import annotations

import random
import time

from absl import flags

from jaxrl_agents import chat as chat_lib
from jaxrl_agents.agents.search.tasks import chroma_files, difficulty, make_tasks
from jaxrl_agents.corpus.index import hybrid as index_lib
from jaxrl_agents.runs import entry_point

CORPUS = flags.DEFINE_string("corpus", "python", '"python", a folder, or "chroma:FOLDER".')
OUT = flags.DEFINE_string("out", None, "Folder to write.", required=True)
SEED = flags.DEFINE_integer("seed", 0, "Of document numbers and of every draw.")
CHUNK_TOKENS = flags.DEFINE_integer("chunk_tokens", 64, "Most tokens of a chunk.", lower_bound=1)
FORMAT = flags.DEFINE_enum("format", "native", ["native", "chroma"], "What to write.")
TOKENIZER = flags.DEFINE_string("tokenizer", "base", "What counts tokens: as chat.load takes it.")
PER_TRUTH = flags.DEFINE_integer("per_truth", make_tasks.PER_TRUTH, "Most chains from one truth.")
GOLD = flags.DEFINE_enum("gold", "fact", ["fact", "document"], "For chroma:FOLDER: what is gold.")
INDEX = flags.DEFINE_string("index", "", "Folder for an index: also prints what BM25 alone finds.")

_STARTED = time.monotonic()


def main() -> None:
  """Makes, writes and shows a task set."""
  count_tokens = chat_lib.load(TOKENIZER.value).count
  if CORPUS.value.startswith("chroma:"):
    read = chroma_files.read_folder(CORPUS.value.removeprefix("chroma:"))
    task_set = make_tasks.from_chains(
      read,
      count_tokens=count_tokens,
      chunk_tokens=CHUNK_TOKENS.value,
      gold=GOLD.value,
      seed=SEED.value,
    )
    chains = {"all": read}
  else:
    task_set, chains = make_tasks.make(
      CORPUS.value,
      count_tokens=count_tokens,
      chunk_tokens=CHUNK_TOKENS.value,
      seed=SEED.value,
      per_truth=PER_TRUTH.value,
      report=report,
    )
  if FORMAT.value == "native":
    make_tasks.save(task_set, OUT.value)
  else:
    for chain in (chain for each in chains.values() for chain in each):
      chroma_files.write(chain, OUT.value)
  report(f"written to {OUT.value}")
  show(task_set)
  if INDEX.value:
    show_difficulty(task_set)


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
  everything = [task for tasks in task_set.tasks.values() for task in tasks]
  for task in random.Random(SEED.value).sample(everything, min(3, len(everything))):
    print(f"\n{task.id} ({task.facts['kind']})\n{task.prompt}\n  -> {task.facts['truth']}")


def show_difficulty(task_set: make_tasks.TaskSet) -> None:
  """Prints what BM25 finds of the test tasks' facts (the dev or train tasks' if there are none)."""
  if GOLD.value == "document":
    raise ValueError("--index measures facts; use it with --gold=fact")
  index = index_lib.build(task_set.chunks, INDEX.value)
  tasks = next(task_set.tasks[s] for s in ("test", "dev", "train") if task_set.tasks[s])
  found = difficulty.measure(index, tasks)
  print(
    f"\nBM25 over {len(index)} chunks, top 10, {len(tasks)} tasks with {found.facts} facts: the "
    f"whole question finds {found.whole:.0%} of the facts ({found.answer:.0%} of the answers), one "
    f"query per clue {found.by_clue:.0%}"
  )


if __name__ == "__main__":
  entry_point.run(main)
