"""Task files of Context-1's generator are read and written as they are."""

import json

import pytest

from jaxrl_agents.agents.search.tasks import chroma_files, make_tasks, page_chains
from jaxrl_agents.corpus import chunks

PAGES = {
  "https://a.example": "Otters hold hands.\nThey sleep on their backs in the kelp.",
  "https://b.example": "A river otter dives.\nThe Tamar runs into Plymouth Sound.",
  "https://c.example": "Kelp grows half a metre a day.",
  "https://d.example": "Plymouth has a lighthouse on its green.",
  "https://e.example": "Smeaton built the lighthouse of Eddystone.",
  "https://f.example": "Cement sets under water.",
  "https://z.example": "Seals sleep in the kelp too.",
}


def web_item(name, quote, contains_truth=False):
  url = f"https://{name}.example"
  return {
    "url": url,
    "reasoning": "it says so",
    "clue_quotes": ["sleeps"],
    "item_quotes": [quote],
    "truth_quotes": ["The Tamar"] if contains_truth else [],
    "contains_truth": contains_truth,
    "score": 3,  # unknown to us
  }


def web_file():
  """As their web stages write it: "url" keys, no truth_type, fields that are not ours."""
  level_zero = {
    "level": 0,
    "clues": "An animal sleeps. A river runs. A plant grows.",
    "question": "Which river?",
    "truth": "Tamar",
    "supporting_items": [
      web_item("a", "They sleep on their backs"),
      web_item("b", "A river otter dives", True),
      web_item("c", "half a metre a day"),
    ],
    "items_and_contents": {f"https://{n}.example": PAGES[f"https://{n}.example"] for n in "abc"},
    "distractors": [{"id": "https://z.example", "reasoning": "also in the kelp"}],
    "distractors_and_contents": {"https://z.example": PAGES["https://z.example"]},
    "passed_verification": True,
    "failure_reasons": [],
  }
  bridge = web_item("d", "Plymouth has a lighthouse")
  bridge |= {"relevant_prev_url": "https://b.example", "prev_item": {"item_quotes": ["Plymouth"]}}
  level_one = {
    **level_zero,
    "level": 1,
    "clues": "That water has a tower. It had a builder.",
    "truth": "Smeaton",
    "question": "Who built it?",
    "bridging_item": bridge,
    "supporting_items": [web_item("e", "Smeaton built"), web_item("f", "under water")],
    "items_and_contents": {f"https://{n}.example": PAGES[f"https://{n}.example"] for n in "def"},
    "distractors": [],
    "distractors_and_contents": {},
  }
  return {"tasks": [level_zero, level_one], "surfaced_urls": ["https://a.example"]}


def write_json(folder, record, name="seed"):
  path = folder / f"{name}.json"
  path.write_text(json.dumps(record))
  return path


def test_what_is_written_reads_back_the_same(made, tmp_path):
  chains = [chain for each in made[1].values() for chain in each]
  for chain in chains:
    assert chroma_files.read(chroma_files.write(chain, tmp_path)) == chain
  assert sorted(chroma_files.read_folder(tmp_path), key=lambda c: c.seed_id) == sorted(
    chains, key=lambda c: c.seed_id
  )


def test_written_files_have_the_fields_their_code_reads(made, tmp_path):
  chain = next(chain for chain in made[1]["train"] if len(chain.levels) > 1)
  record = json.loads(chroma_files.write(chain, tmp_path).read_text())
  for index, task in enumerate(record["tasks"]):
    assert task["level"] == index
    assert len(task["supporting_items"]) == (2 if index else 3)
    assert len(task["items_and_contents"]) == 3
    assert ("bridging_item" in task) == (index > 0)
    assert task["passed_verification"] is True
    for name in ("clues", "question", "truth", "truth_type"):
      assert isinstance(task[name], str)
    for item in task["supporting_items"]:
      assert {"id", "reasoning", "clue_quotes", "item_quotes", "truth_quotes"} <= item.keys()
      assert item["id"] in task["items_and_contents"]
      assert item["not_relevant"] is False
    assert [d["id"] for d in task["distractors"]] == list(task["distractors_and_contents"])
  bridge = record["tasks"][1]["bridging_item"]
  earlier = [item["id"] for item in record["tasks"][0]["supporting_items"]]
  assert bridge["relevant_prev_url"] in earlier


def test_a_file_of_theirs_is_read_and_its_unknown_fields_are_kept(tmp_path):
  chain = chroma_files.read(write_json(tmp_path, web_file()))
  assert [item.id[8] for item in chain.levels[0].items] == ["a", "b", "c"]
  assert [item.is_answer for item in chain.levels[0].items] == [False, True, False]
  assert chain.levels[1].bridging_item.previous_id == "https://b.example"
  assert chain.levels[0].truth_type == ""
  (tmp_path / "out").mkdir()
  again = json.loads(chroma_files.write(chain, tmp_path / "out").read_text())
  assert again["surfaced_urls"] == ["https://a.example"]
  assert again["tasks"][0]["supporting_items"][0]["score"] == 3
  assert chroma_files.read(tmp_path / "out" / "seed.json") == chain


def cut_corpus(folder):
  read = chroma_files.read_folder(folder)
  documents = page_chains.corpus(read, seed=1)
  return read, documents, chunks.cut(documents, max_tokens=7)


def test_the_corpus_is_all_pages_under_random_numbers(tmp_path):
  write_json(tmp_path, web_file())
  _, documents, _ = cut_corpus(tmp_path)
  assert {d.metadata["source"]: d.text for d in documents} == PAGES
  assert all(d.id.isdigit() for d in documents)
  assert len({d.id for d in documents}) == len(PAGES)


def test_truncated_pages_are_joined_and_filtered_distractors_left_out(tmp_path):
  first, second = web_file(), web_file()
  first["tasks"][0]["filtered_distractors"] = [{"id": "https://z.example"}]
  contents = second["tasks"][0]["items_and_contents"]
  contents["https://a.example"] = "[Page truncated to 5 of 9 tokens]\nThey eat urchins."
  write_json(tmp_path, first, "one")
  write_json(tmp_path, second, "two")
  _, documents, _ = cut_corpus(tmp_path)
  texts = {d.metadata["source"]: d.text for d in documents}
  assert "https://z.example" not in texts
  assert texts["https://a.example"] == PAGES["https://a.example"] + "\nThey eat urchins."


def test_at_fact_level_the_chunks_with_the_quotes_are_gold(tmp_path):
  write_json(tmp_path, web_file())
  read, documents, cut = cut_corpus(tmp_path)
  first, second = page_chains.tasks(read, documents, cut, gold="fact")
  texts = {chunk.id: chunk.text for chunk in cut}
  gold = [[texts[i].strip() for i in fact["chunk_ids"]] for fact in first.facts["facts"]]
  assert gold == [
    ["They sleep on their", "backs in the kelp."],  # a cut goes through its quote
    ["A river otter dives.", "The Tamar runs into Plymouth Sound."],
    ["Kelp grows half", "a metre a day."],
  ]
  assert [fact["is_final_answer"] for fact in first.facts["facts"]] == [False, True, False]
  assert len(second.facts["facts"]) == 6
  assert second.prompt.endswith("It had a builder. Who built it?")


def test_at_document_level_every_page_is_gold_and_the_answers_are_marked(tmp_path):
  write_json(tmp_path, web_file())
  read, documents, cut = cut_corpus(tmp_path)
  first = page_chains.tasks(read, documents, cut, gold="document")[0]
  number = {d.metadata["source"][8]: d.id for d in documents}
  assert first.facts["document_ids"] == [number["a"], number["b"], number["c"]]
  assert first.facts["gold_document_ids"] == [number["b"]]
  assert "facts" not in first.facts


def test_levels_after_one_that_failed_its_verification_are_not_tasks(tmp_path):
  record = web_file()
  record["tasks"][1] |= {"passed_verification": False, "failure_reasons": ["no truth"]}
  write_json(tmp_path, record)
  read, documents, cut = cut_corpus(tmp_path)
  assert [task.id for task in page_chains.tasks(read, documents, cut, gold="fact")] == ["seed-0"]
  record["tasks"][0]["passed_verification"] = False
  write_json(tmp_path, record)
  with pytest.raises(ValueError, match="none of 1 task files passed"):
    make_tasks.from_chains(
      chroma_files.read_folder(tmp_path),
      count_tokens=chunks.count_words_and_marks,
      chunk_tokens=7,
      gold="fact",
    )


def test_a_task_whose_gold_page_is_not_in_the_corpus_is_refused_by_name(tmp_path):
  write_json(tmp_path, web_file())
  read, documents, cut = cut_corpus(tmp_path)
  without = [d for d in documents if d.metadata["source"] != "https://c.example"]
  kept = [c for c in cut if c.doc_id in {d.id for d in without}]
  with pytest.raises(ValueError, match="seed-0.*https://c.example"):
    page_chains.tasks(read, without, kept, gold="fact")


def broken(change):
  record = web_file()
  change(record)
  return record


@pytest.mark.parametrize(
  ("change", "message"),
  [
    (lambda r: r.pop("tasks"), "field 'tasks' is missing; it must be a JSON list"),
    (lambda r: r["tasks"].clear(), "tasks is empty"),
    (lambda r: r["tasks"].reverse(), r"tasks\[0\].level is 1; order the tasks"),
    (lambda r: r["tasks"][0].pop("truth"), r"tasks\[0\]: field 'truth' is missing"),
    (lambda r: r["tasks"][0].update(level="0"), "field 'level' is '0'"),
    (lambda r: r["tasks"][0].pop("passed_verification"), "field 'passed_verification' is missing"),
    (lambda r: r["tasks"][0]["supporting_items"][1].pop("url"), r"items\[1\]: neither 'id' nor"),
    (lambda r: r["tasks"][1]["items_and_contents"].popitem(), "not in items_and_contents"),
    (lambda r: r["tasks"][0]["supporting_items"][0].update(item_quotes="x"), "list of texts"),
    (lambda r: r.update(split="validation"), "split is 'validation'; use train"),
  ],
)
def test_a_bad_file_is_refused_with_file_field_and_remedy(tmp_path, change, message):
  path = write_json(tmp_path, broken(change))
  with pytest.raises(ValueError, match=message) as caught:
    chroma_files.read(path)
  assert str(path) in str(caught.value)


def test_what_is_no_json_or_no_folder_of_it_is_refused(tmp_path):
  (tmp_path / "seed.json").write_text("{")
  with pytest.raises(ValueError, match="not readable as JSON"):
    chroma_files.read_folder(tmp_path)
  with pytest.raises(ValueError, match="no .json file"):
    chroma_files.read_folder(tmp_path / "nothing")


def test_what_is_null_is_as_if_it_were_missing_and_other_types_are_named(tmp_path):
  record = web_file()
  record["tasks"][0]["failure_reasons"] = None
  record["tasks"][0]["supporting_items"][0] |= {"chunk_ids": None, "answer_chunk_ids": None}
  assert chroma_files.read(write_json(tmp_path, record)).levels[0].failure_reasons == ()
  record["tasks"][0]["supporting_items"][0]["chunk_ids"] = 7
  with pytest.raises(ValueError, match=r"supporting_items\[0\]\.chunk_ids is not a list of texts"):
    chroma_files.read(write_json(tmp_path, record))
