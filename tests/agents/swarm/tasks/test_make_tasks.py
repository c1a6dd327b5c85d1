"""Swarm tasks: what they ask is true, found by a search, and too much for one agent alone."""

import collections
import dataclasses
import json

import pytest

from jaxrl_agents import chat
from jaxrl_agents.agents.search import reward
from jaxrl_agents.agents.search.tasks import task_set as frozen
from jaxrl_agents.agents.swarm.tasks import budgets, make_tasks, rows
from jaxrl_agents.agents.swarm.tasks import facts as swarm_facts
from jaxrl_agents.agents.swarm.tasks.budgets import Budgets
from jaxrl_agents.corpus import chunks as chunks_lib
from jaxrl_agents.corpus import documents as documents_lib
from jaxrl_agents.corpus import splits
from jaxrl_agents.corpus.documents import Document
from jaxrl_agents.corpus.index import hybrid as index_lib
from jaxrl_agents.corpus.index.hybrid import Fusion

COUNT = chunks_lib.count_words_and_marks
LIMITS = {"train": 40, "dev": 2, "test": 5}
KINDS = {"wide class": 0.4, "wide def": 0.4, "narrow def": 0.2}
BUDGETS = Budgets(name_tokens=8, max_shown=3)


def make(documents, chunks, index, **options):
  options = {"limits": LIMITS, "kinds": KINDS, "budgets": BUDGETS} | options
  return make_tasks.make(documents, chunks, index, count_tokens=COUNT, **options)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
  """Forty modules of three definitions each, with names that no other has."""
  folder = tmp_path_factory.mktemp("source")
  for i in range(40):
    word = "".join("bcdfghklmn"[int(digit)] + "aeiou"[i % 5] for digit in f"{i:02d}") + "x"
    (folder / f"m{word}.py").write_text(
      f"class {word.title()}(Base{i % 9}):\n  size = {i}\n\n\n"
      f"def take_{word}(first{i % 7}, second):\n  return second\n\n\n"
      f"def give_{word}(other{i % 7}):\n  return other{i % 7}\n"
    )
  return folder


@pytest.fixture(scope="module")
def corpus(folder, tmp_path_factory):
  documents = documents_lib.load(folder)
  chunks = chunks_lib.cut(documents, COUNT, max_tokens=16)
  return documents, chunks, index_lib.build(chunks, tmp_path_factory.mktemp("index"), rank=16)


@pytest.fixture(scope="module")
def made(corpus):
  return make(*corpus)


def facts_of(text):
  return {
    (f.kind, f.name, f.value)
    for f in swarm_facts.read([Document("1", "m", text, {"source": "m", "kind": "python"})])
  }


def test_facts_are_definitions_whose_line_states_their_value():
  text = """
class Foo(Bar): pass
class Two(A, B): pass
class Meta(Bar, metaclass=M): pass
class Deep(a.B): pass
class Plain(object): pass
def take(first, second=1):
  def inner(self, x): pass
async def wait(x): pass
def long(
    first): pass
PORT = 25   # mail
BIG = 1000
FLAG = True
one = two = 3
"""
  assert facts_of(text) == {
    ("class", "Foo", "Bar"),
    ("def", "take", "first"),
    ("constant", "PORT", "25"),
  }


def test_a_name_that_is_defined_twice_is_no_fact():
  assert facts_of("def f(a): pass\nclass C:\n  def f(self): pass\ndef g(b): pass") == {
    ("def", "g", "b")
  }


def test_steps_of_one_agent_and_of_a_swarm():
  # ten rows of one look-up: ten turns and the answer; assign, look up, tell, answer
  assert budgets.single_steps(10, 1, 1) == 11 and budgets.swarm_steps(10, 1, 16) == 4
  assert budgets.single_steps(6, 2, 1) == 13 and budgets.swarm_steps(6, 2, 16) == 5
  assert budgets.single_steps(6, 2, 4) == 5
  assert budgets.swarm_steps(10, 2, 4) == 1 + 2 * 3 + 1 + 1
  assert budgets.single_rows(10, 1, 4, Budgets()) == 3
  assert budgets.single_rows(10, 1, 9, Budgets(token_budget=500, lookup_tokens=100)) == 5


def test_a_task_is_kept_if_a_swarm_has_the_steps_for_it_and_one_agent_has_not():
  steps = lambda form, rows, lookups, **b: budgets.max_steps(form, rows, lookups, Budgets(**b))
  assert steps("wide", 8, 1) == 0  # 0.4 of 9 steps are 3, a swarm needs 4
  assert steps("wide", 9, 1) == 4 and steps("wide", 6, 2) == 5
  assert steps("wide", 9, 1, max_calls=9) == 0
  assert steps("wide", 9, 1, share=0.9) == 0  # eight of nine rows are within one agent's reach
  assert steps("narrow", 1, 1) == 3 and steps("narrow", 2, 1) == 3 and steps("narrow", 3, 1) == 0


def test_every_kept_task_is_within_reach_of_a_swarm_only_or_of_one_agent_only(made):
  kinds = collections.Counter()
  for task in (task for each in made.tasks.values() for task in each):
    facts = task.facts
    kinds[facts["kind"]] += 1
    if facts["kind"].startswith("narrow"):
      assert facts["single_steps"] <= facts["max_steps"] < facts["swarm_steps"]
    else:
      assert facts["swarm_steps"] <= facts["max_steps"] <= 0.4 * facts["single_steps"]
      assert facts["max_steps"] - 1 <= 0.5 * len(facts["rows"])
  assert (
    kinds.total() == 47 and len(kinds) == 3 and 0.05 < kinds["narrow def"] / kinds.total() < 0.4
  )


def test_every_cell_stands_in_a_chunk_that_a_search_for_its_row_shows(corpus, made):
  _, _, index = corpus
  for task in made.tasks["train"]:
    for row in task.facts["rows"]:
      hits = index.search(row["lookups"][0], limit=3, settings=Fusion(dense_weight=0.3))
      assert row["source"] in {hit.chunk.id for hit in hits}
      name, value = list(row["cells"].values())
      text = index.chunk(row["source"]).text
      assert f"class {name}({value}" in text or f"def {name}({value}" in text


def test_prompts_list_the_names_and_the_columns_and_never_say_how(made):
  for task in made.tasks["train"]:
    for row in task.facts["rows"]:
      assert f".{row['lookups'][0]}." in task.prompt
    assert task.prompt.endswith(f"Table: {task.facts['header']}")
    for word in ("parallel", "agent", "at once", "concurrent", "simultaneous", "assign"):
      assert word not in task.prompt.lower()


def test_what_is_to_be_copied_has_the_same_tokens_wherever_it_stands(corpus, made):
  encode = lambda text: chat.load().encode(text).tolist()
  _, _, index = corpus
  holds = lambda text, part: str(encode(part))[1:-1] in str(encode(text))
  for task in made.tasks["train"][:10]:
    for row in task.facts["rows"]:
      name, value = row["cells"].values()
      line = index.chunk(row["source"]).text
      for text in (task.prompt, line, f"| {name} |{value}|", f'{{"query": "{row["lookups"][0]}"}}'):
        assert holds(text, f" {name}"), text
      for text in (line, f"| {name} |{value}|", f'{{"query": "{value} class"}}'):
        assert holds(text, value), text


def test_splits_share_no_module_and_no_prompt(corpus, made):
  documents, chunks, index = corpus
  found = rows.read_rows(documents, chunks, index, count_tokens=COUNT, budgets=BUDGETS)
  group = {row.name: row.group for each in found.values() for row in each}
  for split, tasks in made.tasks.items():
    names = [row["cells"]["name"] for task in tasks for row in task.facts["rows"]]
    assert {splits.split_of(group[name]) for name in names} <= {split}
  prompts = [task.prompt for tasks in made.tasks.values() for task in tasks]
  assert len(set(prompts)) == len(prompts)


def test_no_chain_leads_from_a_module_of_one_split_into_one_of_another(tmp_path):
  modules = {split: [] for split in splits.SPLITS}
  for i in range(200):
    word = "".join("bcdfghklmn"[int(digit)] + "aeiou"[i % 5] for digit in f"{i:03d}") + "x"
    modules[splits.split_of(word)].append(word)
  train, test = modules["train"][:12], modules["test"][:12]
  texts = {word: f"class {word.title()}(Base{word}):\n  pass\n" for word in (*train, *test)}
  for bases in (train, test):  # in each split, a half of the chains ends in the other one
    for own, base in zip((train[:6] + test[:6]), bases, strict=True):
      texts[own] += f"\n\nclass My{own}{base}({base.title()}):\n  pass\n"
  documents = [
    Document(str(i), word, text, {"source": word, "kind": "python"})
    for i, (word, text) in enumerate(sorted(texts.items()))
  ]
  chunks = chunks_lib.cut(documents, COUNT, max_tokens=10)
  made = make(
    documents,
    chunks,
    index_lib.build(chunks, tmp_path, rank=16),
    limits={"train": 9, "dev": 0, "test": 9},
    kinds={"narrow class chain": 1.0},
    budgets=Budgets(max_shown=9),
  )
  source = {document.id: document.metadata["source"] for document in documents}
  for split in ("train", "test"):
    asked = [row for task in made.tasks[split] for row in task.facts["rows"]]
    chunk_ids = {chunk_id for row in asked for chunk_id in row["chunk_ids"]}
    assert {splits.split_of(source[reward.document_of(i)]) for i in chunk_ids} == {split}


def test_deep_tasks_ask_for_the_only_chain_that_ends_as_asked(tmp_path):
  tops = ["Alga", "Birch", "Cedar", "Daisy", "Elder", "Ferns", "Grass", "Hazel"]
  text = "".join(
    f"class {top}(Base{top}):\n  pass\n\n\nclass My{top}({top}):\n  pass\n\n\n" for top in tops
  )
  document = Document("1", "m", text, {"source": "aaa", "kind": "python"})
  chunks = chunks_lib.cut([document], COUNT, max_tokens=10)
  index = index_lib.build(chunks, tmp_path, rank=4)
  split = splits.split_of("aaa")
  limits = {"train": 0, "dev": 0, "test": 0} | {split: 12}
  assert split == "train"
  task_set = make(
    [document],
    chunks,
    index,
    limits=limits,
    kinds={"deep class chain": 1.0},
    budgets=Budgets(max_shown=9),
  )
  assert len(task_set.tasks["train"]) == 12
  for task in task_set.tasks["train"]:
    facts = task.facts
    ends = {row["cells"]["name"]: row["cells"]["base of base"] for row in facts["rows"]}
    assert [name for name, end in ends.items() if end == facts["asked"]] == [facts["truth"]]
    assert facts["asked"] == f"Base{facts['truth'].removeprefix('My')}"
    assert task.prompt.endswith(f"Which name has |{facts['asked']}|? Table: |base of base| name |")
    assert facts["swarm_steps"] == 5 <= facts["max_steps"]


def test_the_same_seed_makes_the_same_tasks_and_a_frozen_set_is_refused_once_changed(
  corpus, made, tmp_path
):
  again = make(*corpus)
  assert again.tasks == made.tasks
  assert make(*corpus, seed=1).tasks["train"] != made.tasks["train"]
  frozen.save(made, tmp_path / "set")
  loaded = frozen.load(tmp_path / "set")
  assert loaded.tasks == made.tasks
  lines = (tmp_path / "set" / "tasks.jsonl").read_text().splitlines()
  record = json.loads(lines[0])
  record["facts"]["max_steps"] += 1
  (tmp_path / "set" / "tasks.jsonl").write_text("\n".join([json.dumps(record), *lines[1:]]) + "\n")
  with pytest.raises(ValueError, match="frozen"):
    frozen.load(tmp_path / "set")


def test_gold_chunks_of_a_task_are_those_of_its_rows(made):
  task = made.tasks["train"][0]
  sources = {chunk_id for row in task.facts["rows"] for chunk_id in row["chunk_ids"]}
  assert reward.gold_ids(task.facts) == sources


def test_a_prepared_set_is_made_once(folder, tmp_path):
  options = {
    "count_tokens": COUNT,
    "chunk_tokens": 16,
    "cache_dir": tmp_path,
    "budgets": BUDGETS,
    "kinds": KINDS,
    "limits": LIMITS,
  }
  first, index = make_tasks.prepared(folder, **options)
  folders = sorted(tmp_path.iterdir())
  second, _ = make_tasks.prepared(folder, **options)
  assert second.tasks == first.tasks and sorted(tmp_path.iterdir()) == folders
  assert len(index) == len(first.chunks)
  other = dataclasses.replace(BUDGETS, share=0.45)
  make_tasks.prepared(folder, **{**options, "budgets": other})
  assert len(list(tmp_path.iterdir())) == len(folders) + 1


def test_a_corpus_without_definitions_is_an_error(tmp_path):
  document = Document("1", "m", "x = 1\n", {"source": "m", "kind": "python"})
  chunks = chunks_lib.cut([document], COUNT, max_tokens=48)
  index = index_lib.build(chunks, tmp_path, rank=4)
  with pytest.raises(ValueError, match="use a larger corpus"):
    make([document], chunks, index)
