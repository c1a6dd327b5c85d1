"""Question sets in their published forms become corpora and questions about whole documents."""

import csv
import io
import json

import pytest

from jaxrl_agents.agents.search.tasks import published_sets
from jaxrl_agents.agents.search.tasks.page_sets import address

LAKE = ["The lake lies in Cumbria.", " It is deep."]
TOWER = ["The tower was built in 1759.", " Smeaton built it."]
OTHER = ["Kelp grows fast."]
HOTPOT = {
  "_id": "h1",
  "question": "When was the tower by the lake built?",
  "answer": "1759",
  "type": "bridge",
  "level": "hard",
  "context": [["Lake", LAKE], ["Tower", TOWER], ["Kelp", OTHER]],
  "supporting_facts": [["Lake", 0], ["Tower", 0], ["Tower", 1]],
}
MUSIQUE = {
  "id": "2hop__1_2",
  "question": "Where does the river by the city of WILM end?",
  "answer": "the Sound",
  "answerable": True,
  "paragraphs": [
    {"idx": 0, "title": "WILM", "paragraph_text": "WILM is in Plym.", "is_supporting": True},
    {"idx": 1, "title": "Plym", "paragraph_text": "Into the Sound it goes.", "is_supporting": True},
    {"idx": 2, "title": "Plym", "paragraph_text": "Plym is old.", "is_supporting": False},
  ],
  "question_decomposition": [
    {"question": "WILM >> city", "answer": "Plym", "paragraph_support_idx": 0},
    {"question": "Where does the river by #1 end?", "answer": "x", "paragraph_support_idx": 1},
  ],
}


def lines(*records):
  return "".join(json.dumps(record) + "\n" for record in records)


def text_of(collection, name):
  (found,) = [d.text for d in collection.documents if d.metadata["source"] == name]
  return found


def test_paragraphs_of_hotpotqa_are_pooled_and_the_supporting_ones_are_gold(tmp_path):
  second = HOTPOT | {"_id": "h2", "context": [["Lake", LAKE], ["Tower", OTHER]]}
  (tmp_path / "hotpot_train_v1.1.json").write_text(json.dumps([HOTPOT]))
  (tmp_path / "hotpot_dev_distractor_v1.json").write_text(json.dumps([second]))
  found = published_sets.read("hotpotqa", tmp_path)
  of_dev, of_train = found.questions
  assert (of_train.id, of_train.split, of_dev.split) == ("h1", "train", "dev")
  assert len(found.documents) == 4  # Lake once, two Towers, Kelp
  assert [text_of(found, name) for name in of_train.gold] == [
    "The lake lies in Cumbria. It is deep.",
    "The tower was built in 1759. Smeaton built it.",
  ]
  assert of_train.holding == of_train.gold[1:]  # the one that says 1759
  assert of_dev.gold[0] == of_train.gold[0]
  assert of_dev.gold[1] != of_train.gold[1]
  assert of_dev.holding == ()


def test_columns_in_the_place_of_pairs_are_the_same_question(tmp_path):
  columns = HOTPOT | {
    "context": {"title": ["Lake", "Tower", "Kelp"], "sentences": [LAKE, TOWER, OTHER]},
    "supporting_facts": {"title": ["Lake", "Tower"], "sent_id": [0, 0]},
  }
  (tmp_path / "a.json").write_text(json.dumps([HOTPOT]))
  (tmp_path / "b.jsonl").write_text(lines(columns))
  first, second = (published_sets.read("2wiki", tmp_path / n) for n in ("a.json", "b.jsonl"))
  assert first == second


def test_a_question_whose_gold_is_not_given_is_left_out_and_counted(tmp_path):
  lacking = HOTPOT | {"_id": "h3", "supporting_facts": [["Nowhere", 0]]}
  hidden = HOTPOT | {"_id": "h4", "supporting_facts": []}
  (tmp_path / "a.json").write_text(json.dumps([HOTPOT, lacking, hidden]))
  found = published_sets.read("hotpotqa", tmp_path / "a.json")
  assert [question.id for question in found.questions] == ["h1"]
  assert found.left_out == {"without a gold document": 2}


def test_the_last_step_of_musique_holds_the_answer_and_steps_are_queries(tmp_path):
  unanswerable = MUSIQUE | {"id": "2hop__9", "answerable": False}
  (tmp_path / "musique_ans_v1.0_dev.jsonl").write_text(lines(MUSIQUE, unanswerable))
  found = published_sets.read("musique", tmp_path)
  (question,) = found.questions
  assert (question.id, question.split, question.kind) == ("2hop__1_2", "dev", "2-hop question")
  first, last = question.gold
  assert text_of(found, last) == "Into the Sound it goes."
  assert question.holding == (last,)
  assert question.queries == {first: "WILM city", last: "Where does the river by Plym end?"}
  assert sorted(d.title for d in found.documents) == ["Plym", "Plym", "WILM"]


def test_judgments_of_a_beir_collection_are_gold_and_their_files_are_splits(tmp_path):
  (tmp_path / "corpus.jsonl").write_text(
    lines(*({"_id": name, "title": name, "text": f"About {name}."} for name in "abc"))
  )
  queries = [{"_id": "q1", "text": "One?", "metadata": {"answer": "About b"}}]
  queries += [{"_id": i, "text": f"{i}?"} for i in ("q2", "q3")]
  (tmp_path / "queries.jsonl").write_text(lines(*queries))
  (tmp_path / "qrels").mkdir()
  header = "query-id\tcorpus-id\tscore\n"
  (tmp_path / "qrels" / "train.tsv").write_text(header + "q1\ta\t1\nq1\tb\t2\nq1\tc\t0\nq2\ta\t1\n")
  (tmp_path / "qrels" / "test.tsv").write_text(header + "q2\tc\t1\nq3\tmissing\t1\n")
  found = published_sets.read("beir", tmp_path)
  q2, q1 = found.questions
  assert (q1.id, q1.split, q1.gold, q1.holding) == ("q1", "train", ("a", "b"), ("b",))
  assert (q2.id, q2.split, q2.gold) == ("q2", "test", ("c",))  # never trained on
  assert found.left_out == {
    "judged in another split too": 1,
    "with a gold document that the corpus lacks": 1,
  }


def frames_table(rows):
  written = io.StringIO()
  table = csv.writer(written, delimiter="\t", lineterminator="\n")
  table.writerow(["", "Prompt", "Answer", "wikipedia_link_1", "wikipedia_link_2", "wiki_links"])
  table.writerows(rows)
  return written.getvalue()


def test_an_address_of_frames_may_hold_a_comma_and_a_cell_several_addresses(tmp_path):
  pages = tmp_path / "pages"
  pages.mkdir()
  wiki = "https://en.wikipedia.org/wiki/"
  titles = ("Washington", "Washington,_D.C.", "Springfield,_Illinois")
  (pages / "pages.jsonl").write_text(
    lines(*({"url": f"{wiki}{title}", "text": f"About {title}."} for title in titles))
  )
  cell = f"{wiki}Washington,_D.C., {wiki}Springfield,_Illinois"
  (tmp_path / "test.tsv").write_text(frames_table([["0", "Which capital?", "x", cell, "", ""]]))
  (question,) = published_sets.read("frames", tmp_path / "test.tsv", documents=str(pages)).questions
  assert question.gold == (f"{wiki}Washington,_D.C.", f"{wiki}Springfield,_Illinois")


def test_links_of_frames_are_found_by_address_and_by_title(tmp_path):
  pages = tmp_path / "pages"
  pages.mkdir()
  (pages / "pages.jsonl").write_text(
    lines(
      {"url": "https://en.wikipedia.org/wiki/Walter_Hunt_(inventor)", "text": "Hunt, 1796."},
      {"_id": "7", "title": "Cotton gin", "text": "A cotton gin separates."},
    )
  )
  links = [
    "https://en.m.wikipedia.org/wiki/Walter_Hunt_%28inventor%29",
    "https://en.wikipedia.org/wiki/Cotton_gin#:~:text=A%20cotton",
  ]
  rows = [["0", "Whose age?", "1796", *links, str(links)]]
  rows += [["1", "And who?", "x", links[0], "https://en.wikipedia.org/wiki/Nobody", ""]]
  (tmp_path / "test.tsv").write_text(frames_table(rows))
  found = published_sets.read("frames", tmp_path / "test.tsv", documents=str(pages))
  (question,) = found.questions
  assert (question.id, question.text, question.split) == ("frames_0", "Whose age?", "test")
  assert question.gold == ("https://en.wikipedia.org/wiki/Walter_Hunt_(inventor)", "7")
  assert question.holding == question.gold[:1]
  assert found.left_out == {"with a gold document that the corpus lacks": 1}
  with pytest.raises(ValueError, match="--documents=FOLDER"):
    published_sets.read("frames", tmp_path / "test.tsv")


def test_an_address_is_the_same_in_all_its_spellings():
  wanted = "en.wikipedia.org/wiki/Jim_Morrison"
  for link in ("https://www.en.wikipedia.org/wiki/Jim%20Morrison/", "http://en.m." + wanted[3:]):
    assert address(link + "#Death") == wanted


@pytest.mark.parametrize("beside", [True, False])
def test_evidence_of_browsecomp_plus_is_gold_and_its_gold_holds_the_answer(tmp_path, beside):
  texts = {"11": "Evidence.", "12": "The answer.", "13": "Nothing."}
  pages = tmp_path / "pages"
  pages.mkdir()
  (pages / "corpus.jsonl").write_text(
    lines(*({"docid": i, "text": text, "url": ""} for i, text in texts.items()))
  )
  given = lambda *ids: [{"docid": i} if beside else {"docid": i, "text": texts[i]} for i in ids]
  row = {
    "query_id": "5",
    "query": "Who?",
    "answer": "somebody",
    "gold_docs": given("12"),
    "evidence_docs": given("11", "12"),
    "negative_docs": given("13"),
  }
  (tmp_path / "rows.jsonl").write_text(lines(row))
  documents = str(pages) if beside else ""
  found = published_sets.read("browsecomp_plus", tmp_path / "rows.jsonl", documents=documents)
  (question,) = found.questions
  assert (question.id, question.gold, question.holding) == ("5", ("11", "12"), ("12",))
  assert sorted(d.metadata["source"] for d in found.documents) == ["11", "12", "13"]


def test_the_first_rows_of_each_file_are_kept_if_so_wished(tmp_path):
  (tmp_path / "a.json").write_text(json.dumps([HOTPOT | {"_id": str(i)} for i in range(5)]))
  found = published_sets.read("hotpotqa", tmp_path, max_questions=2)
  assert [question.id for question in found.questions] == ["0", "1"]


def test_files_may_be_numbered_from_0_and_ask_for_a_number(tmp_path):
  (tmp_path / "a.json").write_text(json.dumps([HOTPOT | {"_id": 0, "answer": 0}]))
  (question,) = published_sets.read("hotpotqa", tmp_path).questions
  assert (question.id, question.answer) == ("0", "0")


def test_a_page_without_an_id_is_refused(tmp_path):
  row = {
    "query_id": 0,
    "query": "Who?",
    "evidence_docs": [{"docid": 0, "text": "He."}, {"text": "x"}],
  }
  (tmp_path / "a.jsonl").write_text(json.dumps(row))
  with pytest.raises(ValueError, match="a document of evidence_docs has no 'docid'"):
    published_sets.read("browsecomp_plus", tmp_path)


def test_bad_rows_and_forms_are_refused_with_their_place(tmp_path):
  (tmp_path / "a.json").write_text(json.dumps([HOTPOT | {"context": "text"}]))
  with pytest.raises(ValueError, match=r"a\.json, row 1: field 'context' is no list of pairs"):
    published_sets.read("hotpotqa", tmp_path / "a.json")
  (tmp_path / "a.json").write_text(json.dumps([HOTPOT | {"question": None}]))
  with pytest.raises(ValueError, match=r"row 1: has no '_id' or 'id', or no text 'question'"):
    published_sets.read("hotpotqa", tmp_path / "a.json")
  with pytest.raises(ValueError, match="did you mean 'hotpotqa'"):
    published_sets.read("hotpot", tmp_path)
  with pytest.raises(ValueError, match="the set brings its own"):
    published_sets.read("musique", tmp_path, documents="pages")
