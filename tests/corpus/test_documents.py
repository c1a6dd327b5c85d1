import gzip
import importlib.metadata
import json
import sys
import time

import pytest

from jaxrl_agents.corpus import documents, readers


def write_jsonl(path, *lines):
  path.write_text("\n".join(line if isinstance(line, str) else json.dumps(line) for line in lines))


def test_a_folder_gives_one_document_a_file_in_order_of_names(tmp_path):
  (tmp_path / "b.md").write_text("# Beta\n")
  (tmp_path / "a.txt").write_bytes(b"\xef\xbb\xbfalpha\r\nline")
  (tmp_path / "sub").mkdir()
  (tmp_path / "sub" / "c.txt.gz").write_bytes(gzip.compress("gämma".encode(), mtime=0))
  (tmp_path / "sub" / "d.txt.GZ").write_bytes(gzip.compress(b"delta", mtime=0))
  (tmp_path / "picture.png").write_bytes(b"\x89PNG\0")
  (tmp_path / ".hidden.txt").write_text("no")
  loaded = documents.load(tmp_path)
  names = ["a.txt", "b.md", "sub/c.txt.gz", "sub/d.txt.GZ"]
  assert [d.metadata["source"] for d in loaded] == names
  assert [d.text for d in loaded] == ["alpha\nline", "# Beta\n", "gämma", "delta"]


def test_ids_are_distinct_numbers_of_one_length_fixed_by_the_seed(tmp_path):
  write_jsonl(tmp_path / "corpus.jsonl", *({"_id": f"d{i}", "text": "x"} for i in range(950)))
  first, again = documents.load(tmp_path), documents.load(tmp_path)
  other = documents.load(tmp_path, seed=1)
  ids = [d.id for d in first]
  assert len(set(ids)) == 950
  assert {len(name) for name in ids} == {4}
  assert all(name.isdecimal() for name in ids)
  assert ids != sorted(ids)
  assert ids == [d.id for d in again] != [d.id for d in other]
  assert documents.content_hash(first) == documents.content_hash(again)
  assert documents.content_hash(first) != documents.content_hash(other)


def test_a_beir_record_keeps_its_id_and_metadata(tmp_path):
  record = {"_id": "MED-1", "title": "T", "text": "body", "metadata": {"url": "u"}}
  (tmp_path / "corpus.jsonl.gz").write_bytes(gzip.compress((json.dumps(record) + "\n\n").encode()))
  (document,) = documents.load(tmp_path)
  assert (document.title, document.text) == ("T", "body")
  assert document.metadata == {"url": "u", "source": "MED-1", "kind": "jsonl"}


def test_html_becomes_lines_of_text_without_scripts(tmp_path):
  (tmp_path / "page.html").write_text(
    "<html><head><title>A &amp; B</title><style>p{}</style></head><body><script>x<y</script>"
    "<h1>Head</h1><p>One\n  two<br>three <b>bold</b></p><ul><li>item</li></ul></body>"
  )
  (document,) = documents.load(tmp_path)
  assert document.title == "A & B"
  assert document.text == "Head\n\nOne two\nthree bold\n\nitem"


@pytest.mark.parametrize(
  ("page", "words"),
  [
    ('<p>a</p><script>s="<!--";</script><p>b</p><!-- <script> --><p>c</p>', "a b c"),
    ("<p>a</p><STYLE>a{}</style ><p>b</p><script>never closed <!-- <p>c</p>", "a b"),
    ("<p>a</p><style-guide>b</style-guide><p>c</p>", "a b c"),
    ("<p>a</p><script src='x'/><p>b</p>", "a b"),
    ('<p>a</p><img alt="<script>"><p>b</p>', "a b"),
  ],
)
def test_what_looks_like_a_comment_or_a_script_hides_no_text(tmp_path, page, words):
  (tmp_path / "page.html").write_text(page)
  (document,) = documents.load(tmp_path)
  assert document.text.split() == words.split()


def test_many_scripts_that_never_end_take_no_quadratic_time(tmp_path):
  (tmp_path / "page.html").write_text("<p>a</p>" + "<script >" * 200_000)
  began = time.monotonic()
  assert documents.load(tmp_path)[0].text.split()[0] == "a"
  assert time.monotonic() - began < 20


def test_an_installed_package_is_its_modules_without_tests_and_is_not_imported(
  tmp_path, monkeypatch
):
  own = ("__init__", "latest", "sub/__init__", "sub/till", "sub")
  tests = ("tests/a", "test_b", "c_test", "conftest", "testing/d", "_test_data/e", "tests")
  for name in (f"shop/{stem}.py" for stem in own + tests):
    path = tmp_path / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("raise SystemExit\n")
  monkeypatch.syspath_prepend(tmp_path)
  loaded = documents.load("package:shop")
  sources = [d.metadata["source"] for d in loaded]
  assert sources == ["shop", "shop.latest", "shop.sub", "shop.sub.till"]
  assert loaded[2].metadata["path"] == "shop/sub/__init__.py"
  assert {d.metadata["kind"] for d in loaded} == {"python"}
  assert "shop" not in sys.modules
  assert documents.version("package:shop") == ""
  assert documents.version("package:numpy") == importlib.metadata.version("numpy")
  (tmp_path / "kiosk.py").write_text("raise SystemExit\n")
  assert [d.metadata["source"] for d in documents.load("package:kiosk")] == ["kiosk"]
  both = {d.metadata["source"] for d in documents.load("package:shop,kiosk")}
  assert both == {"kiosk", *(d.metadata["source"] for d in loaded)}
  for name in ("shops", "shop.sub", ""):
    with pytest.raises(ValueError, match=f"package:{name}: no package of that name"):
      documents.load(f"package:{name}")


def test_the_standard_library_is_the_running_one():
  loaded = documents.load("python")
  by_source = {d.metadata["source"]: d for d in loaded}
  assert "def unquote(" in by_source["urllib.parse"].text
  assert "json" in by_source and "json.decoder" in by_source
  assert not any(name.split(".")[0] in ("test", "idlelib", "encodings") for name in by_source)
  assert len(loaded) > 300
  assert list(by_source) == sorted(by_source)
  assert set(by_source) & set(sys.stdlib_module_names)


@pytest.mark.parametrize(
  ("name", "content", "message"),
  [
    ("a.txt", b"ok\n\xff\xfe", r"a\.txt, line 2: not UTF-8 \(byte 0xff\); convert it"),
    ("a.txt", b"ok\nbin\0ary", r"a\.txt, line 2: binary"),
    ("a.txt.gz", b"not gzip", r"a\.txt\.gz: not a whole gzip file"),
    (
      "a.txt.gz",
      gzip.compress(b"whole text" * 99, mtime=0)[:-9],
      r"a\.txt\.gz: not a whole gzip file",
    ),
    ("a.jsonl", b'{"text": "x"}\n{"text": ', r"a\.jsonl, line 2: not JSON"),
    ("a.jsonl", b"[" * 100_000, r"a\.jsonl, line 1: not JSON"),
    ("a.jsonl", b'{"text": "x"}\n[1]', r"a\.jsonl, line 2: a JSON list where an object"),
    ("a.jsonl", b'{"_id": "7"}', r"a\.jsonl, line 1: no field 'text'"),
    ("a.jsonl", b'{"text": ["x"]}', r"a\.jsonl, line 1: field 'text' is a list; write a string"),
    ("a.jsonl", b'{"text": "\\ud800"}', r"line 1: field 'text' holds half of a surrogate pair"),
    ("a.jsonl", b'{"text": "x", "metadata": 3}', r"line 1: field 'metadata' is not an object"),
    ("a.jsonl", b'{"_id": "1", "text": "x"}\n{"_id": "1", "text": "y"}', r"have the id '1'"),
    ("a.py", b"# coding: nonsense\nx = 1\n", r"a\.py: not in the encoding it declares"),
    ("a.txt", b" \n ", r"no document holds any text"),
    ("a.pdf", b"%PDF", r"no file with a name in \.txt"),
  ],
)
def test_a_bad_file_is_a_value_error_with_file_line_and_remedy(tmp_path, name, content, message):
  (tmp_path / name).write_bytes(content)
  with pytest.raises(ValueError, match=message):
    documents.load(tmp_path)


def test_a_missing_folder_or_a_file_is_a_value_error(tmp_path):
  with pytest.raises(ValueError, match="no such folder"):
    documents.load(tmp_path / "none")
  (tmp_path / "file.txt").write_text("x")
  with pytest.raises(ValueError, match="a file, not a folder"):
    documents.load(tmp_path / "file.txt")


def test_an_unreadable_file_is_a_value_error(tmp_path):
  with pytest.raises(ValueError, match="cannot be read"):
    readers.read_bytes(tmp_path)  # a folder where a file is expected
