"""A task set is frozen: what is loaded is what was made, and anything else is refused."""

import dataclasses
import json

import pytest

from jaxrl_agents.agents.search.tasks import make_tasks, practice, task_set
from jaxrl_agents.corpus import chunks


@pytest.fixture(scope="module")
def saved(made, tmp_path_factory):
  folder = tmp_path_factory.mktemp("sets") / "small"
  task_set.save(made[0], folder)
  return folder


def copied(saved, tmp_path):
  for path in saved.iterdir():
    (tmp_path / path.name).write_bytes(path.read_bytes())
  return tmp_path


def test_loading_gives_back_what_was_saved(made, saved):
  loaded = task_set.load(saved)
  assert loaded.documents == made[0].documents
  assert loaded.chunks == made[0].chunks
  assert loaded.tasks == made[0].tasks
  assert loaded.clues == made[0].clues


def test_the_manifest_counts_tasks_by_split_level_and_kind(made, saved):
  manifest = json.loads((saved / "manifest.json").read_text())
  for split, tasks in made[0].tasks.items():
    assert sum(manifest["counts"][split]["level"].values()) == len(tasks)
    assert sum(manifest["counts"][split]["kind"].values()) == len(tasks)
  assert manifest["seed"] == 0
  assert manifest["chunk_tokens"] == 48


@pytest.mark.parametrize("file", task_set.FILES)
def test_a_changed_file_is_refused(saved, tmp_path, file):
  folder = copied(saved, tmp_path)
  content = bytearray((folder / file).read_bytes())
  content[len(content) // 2] ^= 1
  (folder / file).write_bytes(bytes(content))
  with pytest.raises(ValueError, match=file):
    task_set.load(folder)


def test_a_missing_file_or_manifest_is_refused(saved, tmp_path):
  folder = copied(saved, tmp_path)
  (folder / "tasks.jsonl").unlink()
  with pytest.raises(ValueError, match="does not exist"):
    task_set.load(folder)
  with pytest.raises(ValueError, match="has no manifest"):
    task_set.load(tmp_path / "nowhere")


def test_saving_the_same_again_is_fine_and_over_something_else_is_refused(made, saved):
  task_set.save(made[0], saved)
  other = dataclasses.replace(made[0], tasks={**made[0].tasks, "dev": ()})
  with pytest.raises(ValueError, match="holds something else"):
    task_set.save(other, saved)


def test_a_task_whose_gold_is_not_in_the_corpus_is_refused_by_name(made, tmp_path):
  task = made[0].tasks["train"][0]
  facts = json.loads(json.dumps(task.facts))
  facts["clues"][0]["chunk_ids"] = ["999_9"]
  broken = dataclasses.replace(task, id="the-broken-one", facts=facts)
  tasks = {"train": (broken,), "dev": (), "test": ()}
  task_set.save(dataclasses.replace(made[0], tasks=tasks), tmp_path / "set")
  with pytest.raises(ValueError, match="the-broken-one.*999_9"):
    task_set.load(tmp_path / "set")


def test_a_prepared_set_is_made_once_and_made_anew_for_another_cut(tmp_path):
  folder = tmp_path / "source"
  folder.mkdir()
  lines = []
  for name, other in (("boiler", "kettle"), ("kettle", "teapot"), ("teapot", "boiler")):
    lines.append(f'def make_{name}():\n  """Heat all the water of every big {name} slowly."""\n')
    lines.append(f"  return make_{other}()\n\n")
  (folder / "kitchen.py").write_text("".join(lines))
  options = {"count_tokens": chunks.count_words_and_marks, "cache_dir": tmp_path / "cache"}
  stages = []
  for chunk_tokens, reports in ((60, True), (60, False), (50, True)):
    stages.clear()
    found = make_tasks.prepared(folder, chunk_tokens=chunk_tokens, report=stages.append, **options)
    assert bool(stages) == reports
    assert sum(len(tasks) for tasks in found.tasks.values()) > 0
  assert len(list((tmp_path / "cache").iterdir())) == 2


def test_a_corpus_without_facts_is_refused(tmp_path):
  (tmp_path / "a.txt").write_text("Nothing much.")
  with pytest.raises(ValueError, match="no task could be made of 1 documents"):
    make_tasks.make(tmp_path, count_tokens=chunks.count_words_and_marks, chunk_tokens=50)


def test_practice_tasks_have_one_to_three_clues_and_the_fields_of_any_task(made):
  clues = made[0].clues["train"]
  tasks = practice.practice_tasks(clues, 60, seed=3)
  assert tasks == practice.practice_tasks(clues, 90, seed=3)[:60]
  assert {len(task.facts["facts"]) for task in tasks} == {1, 2, 3}
  known = {chunk.id for chunk in made[0].chunks}
  for task in tasks:
    assert task.facts.keys() == made[0].tasks["train"][0].facts.keys()
    assert sum(fact["is_final_answer"] for fact in task.facts["facts"]) == 1
    task_set.require_gold(task, known, "practice")
    for clue in task.facts["clues"]:
      assert clue["text"] in task.prompt


def test_the_clues_of_the_splits_share_no_entity(made):
  texts = [{clue.chunk_ids + (clue.name,) for clue in pool} for pool in made[0].clues.values()]
  assert all(len(each) > 10 for each in texts)
  assert not (texts[0] & texts[1] or texts[0] & texts[2] or texts[1] & texts[2])
