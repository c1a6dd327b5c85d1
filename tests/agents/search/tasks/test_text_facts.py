"""Facts of plain texts: what they are called, whom they mention, which rare terms they share."""

from jaxrl_agents.agents.search.tasks import text_facts
from jaxrl_agents.corpus.documents import Document

TEXTS = {
  "eddystone light.txt": (
    "The Eddystone Light stands on a reef. Dovetailed granite blocks resist enormous breaking "
    "waves through winter. It is old."
  ),
  "smeaton.txt": (
    "He was an engineer. He rebuilt the Eddystone light\nafter a fire. Hydraulic lime hardens very "
    "slowly beneath running water. John Smeaton died in 1792 of a stroke."
  ),
  "lime kiln.txt": (
    "Burnt stone gives quicklime for mortar and plaster across the county. A kiln for hydraulic "
    "work burns hotter. The men sang."
  ),
}


def read():
  documents = [
    Document(str(i), name, text, {"source": name, "kind": "text"})
    for i, (name, text) in enumerate(TEXTS.items())
  ]
  texts = {document.id: document.text for document in documents}
  domain = text_facts.read(documents)
  return domain, lambda span: span and texts[span.doc_id][span.start : span.end]


def test_a_text_is_named_by_its_title_or_by_a_name_that_no_other_has():
  domain, quote = read()
  truths = {key: quote(entity.truth) for key, entity in domain.entities.items()}
  assert truths["eddystone light.txt"] == "Eddystone Light"  # its title
  assert truths["lime kiln.txt"] is None  # "lime kiln" stands nowhere in it, nor any name
  smeaton = domain.entities["smeaton.txt"]
  assert (truths["smeaton.txt"], smeaton.name) == ("Smeaton", "Smeaton")


def test_a_table_without_a_sentence_is_read_once_from_its_begin():
  """From each of its capitals it would take hours."""
  table = Document("0", "table.txt", "Ab,cd " * 200_000, {"source": "table.txt", "kind": "text"})
  sentence = "Dovetailed granite blocks resist enormous breaking waves through winter."
  text = Document("1", "x", f"Ab,cd\n\n{sentence}", {"source": "x", "kind": "text"})
  others = [
    Document(str(i), str(i), "It is old.", {"source": str(i), "kind": "text"}) for i in range(2, 9)
  ]
  entities = text_facts.read([table, text, *others]).entities
  assert entities["table.txt"].summary is None
  found = entities["x"].summary
  assert text.text[found.start : found.end] == sentence


def test_a_text_is_described_by_its_most_distinctive_sentence_without_its_name():
  domain, quote = read()
  summaries = {key: quote(entity.summary) for key, entity in domain.entities.items()}
  assert summaries["eddystone light.txt"].startswith("Dovetailed granite blocks")
  assert summaries["smeaton.txt"].startswith("Hydraulic lime hardens")
  assert summaries["lime kiln.txt"].startswith("Burnt stone gives quicklime")


def test_texts_are_tied_by_mentions_and_by_rare_terms_with_the_words_that_show_it():
  domain, quote = read()
  ties = {(r.kind, r.source, r.target): quote(r.evidence) for r in domain.relations}
  assert "Eddystone light" in ties["mentions", "smeaton.txt", "eddystone light.txt"]
  shared = ties["shares_term", "smeaton.txt", "lime kiln.txt"]
  assert "Hydraulic" in shared
  assert {key[0] for key in ties} == {"mentions", "shares_term"}
  assert len([key for key in ties if key[0] == "mentions"]) == 1
