"""What coding episodes share: code indexes, recorded pages, services of a process."""

import pytest

from jaxrl_agents import chat
from jaxrl_agents.agents.coding import services
from jaxrl_agents.agents.coding.config import CodingConfig


def test_an_index_is_made_once_and_the_oldest_goes(monkeypatch):
  monkeypatch.setattr(services, "MAX_INDEXES", 2)
  indexes = services.CodeIndexes(chunk_tokens=40)
  first = indexes.of("a", {"a.py": "def f():\n  return 'cherry'\n"})
  assert indexes.of("a", {}) is first
  indexes.of("b", {"b.py": "def g():\n  return 'plum'\n"})
  indexes.of("c", {"c.py": "def h():\n  return 'quince'\n"})
  assert not first.folder.exists()
  hits = indexes.of("c", {}).search("quince")
  assert hits[0].chunk.title == "c.py"
  with pytest.raises(ValueError, match="no chunks"):
    indexes.of("d", {"d.py": " \n"})


def test_pages_are_found_whatever_the_scheme_case_and_end(tmp_path):
  file = tmp_path / "pages.jsonl"
  file.write_text('{"url": "https://Docs.Example/A/", "title": "A", "text": "the text"}\n')
  pages = services.load_pages(file)
  assert pages.text("http://docs.example/a#part") == "A\n\nthe text"
  assert pages.text("https://docs.example/b") is None
  assert pages.nearest("https://docs.example/b") == ["docs.example/a"]


@pytest.mark.parametrize("line", ["{", '{"url": "x"}', "[1]", '{"text": "x"}'])
def test_a_line_that_is_no_page_is_named(tmp_path, line):
  file = tmp_path / "pages.jsonl"
  file.write_text(f'{{"url": "a", "text": "b"}}\n{line}\n')
  with pytest.raises(ValueError, match=r"pages.jsonl, line 2: .*; give url and text"):
    services.load_pages(file)


def test_a_folder_without_tasks_is_an_error_that_says_how_to_make_some(tmp_path):
  with pytest.raises(ValueError, match=r"make the set with scripts/make_coding_tasks.py"):
    services.load_services(chat.load("base"), CodingConfig(tasks=str(tmp_path)))
  with pytest.raises(ValueError, match="no such file; write JSON lines"):
    services.load_pages(tmp_path / "absent.jsonl")
