"""Corpora that are made to fill the memory or to break a reader: holes, bombs, odd files."""

import contextlib
import gzip
import io
import json
import os
import random
import tarfile
import tracemalloc
import zipfile

import pytest

from jaxrl_agents.agents.coding import services
from jaxrl_agents.agents.coding.tasks import archives, suite_repos
from jaxrl_agents.agents.search.tasks import chroma_files
from jaxrl_agents.corpus import beir, documents, frozen_sets, page_recorder, readers
from tests.hostile.conftest import nest

MEBIBYTE = 1 << 20


def hole(path, size=1 << 40):
  with open(path, "wb") as file:
    file.truncate(size)


def bomb(path, size=300 * MEBIBYTE, content=b"a"):
  with gzip.open(path, "wb", 1) as file:
    for _ in range(size // MEBIBYTE):
      file.write(content * (MEBIBYTE // len(content)))


READS = {
  "a text": ("x.txt", lambda folder: documents.load(folder)),
  "a page": ("x.html", lambda folder: documents.load(folder)),
  "a module": ("x.py", lambda folder: documents.load(folder)),
  "a collection": ("corpus.jsonl", lambda folder: documents.load(folder)),
  "queries": ("queries.jsonl", lambda folder: beir.load_queries(folder)),
  "judgments": ("qrels/test.tsv", lambda folder: beir.load_qrels(folder, "test")),
  "a task": ("x.json", lambda folder: chroma_files.read_folder(folder)),
  "recorded pages": ("x.jsonl", lambda folder: page_recorder.recorded(folder / "x.jsonl")),
  "pages": ("x.jsonl", lambda folder: services.load_pages(folder / "x.jsonl")),
  "a repository": ("x.py", lambda folder: suite_repos.folder(folder)),
}


def peak_bytes(call, match):
  tracemalloc.start()
  try:
    with pytest.raises(ValueError, match=match):
      call()
    return tracemalloc.get_traced_memory()[1]
  finally:
    tracemalloc.stop()


@pytest.mark.parametrize(("name", "read"), READS.values(), ids=READS)
def test_a_file_of_holes_is_refused_within_the_limit_of_a_document(tmp_path, name, read):
  (tmp_path / name).parent.mkdir(exist_ok=True)
  hole(tmp_path / name)
  peak = peak_bytes(lambda: read(tmp_path), r"1099511627776 bytes .* more than|0 Python files")
  assert peak < 2.5 * readers.MAX_DOCUMENT_BYTES


@pytest.mark.slow
@pytest.mark.parametrize("name", ["x.txt.gz", "x.html.gz", "x.py.gz", "corpus.jsonl.gz"])
def test_a_bomb_is_refused_with_file_size_and_limit(tmp_path, name):
  bomb(tmp_path / name)
  size = (tmp_path / name).stat().st_size
  told = rf"{name}: {size} bytes on the disk, and more than {readers.MAX_DOCUMENT_BYTES} bytes"
  assert peak_bytes(lambda: documents.load(tmp_path), told) < 2.5 * readers.MAX_DOCUMENT_BYTES


@pytest.mark.slow
def test_a_bomb_in_a_frozen_set_takes_no_memory(tmp_path):
  frozen_sets.write(tmp_path / "set", {"a.gz": b"content"}, {})
  manifest = frozen_sets.read_manifest(tmp_path / "set", maker="make.py")
  bomb(tmp_path / "set" / "a.gz")
  read = lambda: frozen_sets.read(tmp_path / "set", "a.gz", manifest, maker="make.py")
  assert peak_bytes(read, "but the manifest says") < 8 * MEBIBYTE


def test_a_collection_is_read_line_by_line(tmp_path):
  lines = [json.dumps({"_id": str(i), "text": "x"}) for i in range(3)]
  (tmp_path / "corpus.jsonl").write_bytes(
    b"\xef\xbb\xbf" + "\r\n".join(lines[:2]).encode() + b"\r" + lines[2].encode()
  )
  assert [number for number, _ in readers.read_jsonl(tmp_path / "corpus.jsonl")] == [1, 2, 3]


@pytest.mark.parametrize(
  ("text", "match"),
  [
    (b'{"text": "x"}\n\n\xff', "line 3: not UTF-8 .byte 0xff"),
    (b'{"text": "x"}\n{"text": "\0"}', "line 2: binary"),
    (b"[" * 100_000, "line 1: not JSON .RecursionError"),
    (b"1" * 10_000, "line 1: not JSON"),
  ],
)
def test_a_damaged_line_is_named(tmp_path, text, match):
  (tmp_path / "corpus.jsonl").write_bytes(text)
  with pytest.raises(ValueError, match=match):
    documents.load(tmp_path)


def test_a_task_file_of_nested_lists_is_refused(tmp_path):
  (tmp_path / "x.json").write_text("[" * 100_000)
  with pytest.raises(ValueError, match="not readable as JSON"):
    chroma_files.read_folder(tmp_path)


def test_a_folder_that_is_deep_and_has_odd_files_is_read(deep_folder):
  there = nest(deep_folder, 1_200)
  for name, text in (("deep.txt", b"text"), ("deep.py", b"X = 1")):
    file = os.open(name, os.O_CREAT | os.O_WRONLY, dir_fd=there)
    os.write(file, text)
    os.close(file)
  os.close(there)
  os.mkfifo(deep_folder / "pipe.txt")
  (deep_folder / "loop.txt").symlink_to("loop.txt")
  (deep_folder / "up").symlink_to("..")
  (deep_folder / "folder.txt").mkdir()
  (deep_folder / "zero.txt").symlink_to("/dev/zero")
  found = documents.load(deep_folder)
  assert [document.title[-8:] for document in found] == ["/deep.py", "deep.txt"]
  assert len(suite_repos.folder(deep_folder).files) == 2  # and check.py


def test_folders_nested_too_deep_for_the_kernel_are_an_error_that_names_one(deep_folder):
  os.close(nest(deep_folder, 30, "d" * 200))
  with pytest.raises(ValueError, match=r"ddd: cannot be read \(File name too long\); mend it"):
    documents.load(deep_folder)


def test_a_page_that_was_cut_off_is_removed_without_reading_what_is_before(tmp_path):
  out = tmp_path / "pages.jsonl"
  hole(out, 1 << 33)
  with open(out, "ab") as file:
    file.write(b'\n{"url": "cut')
  tracemalloc.start()
  page_recorder._ended(out)
  assert tracemalloc.get_traced_memory()[1] < 3 * readers.MAX_DOCUMENT_BYTES
  tracemalloc.stop()
  assert out.stat().st_size == (1 << 33) + 1


def tar_of(path, members):
  with tarfile.open(path, "w:gz", compresslevel=1) as archive:
    for name, content in members:
      info = tarfile.TarInfo(name)
      info.size = len(content)
      archive.addfile(info, io.BytesIO(content))


def zip_of(path, members, **options):
  with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED, **options) as archive:
    for name, content in members:
      archive.writestr(name, content)


SOURCE = [("p-1/p.py", b"X = 1\n"), ("p-1/../../evil.py", b"x"), ("p-1/test_p.py", b"import p\n")]


@pytest.mark.parametrize(("name", "pack"), [("p-1.tar.gz", tar_of), ("p-1.zip", zip_of)])
def test_an_archive_gives_its_sources(tmp_path, name, pack):
  pack(tmp_path / name, SOURCE)
  assert sorted(suite_repos.folder(tmp_path / name).files) == ["check.py", "p.py", "test_p.py"]


@pytest.mark.slow
@pytest.mark.parametrize(("name", "pack"), [("p-1.tar.gz", tar_of), ("p-1.zip", zip_of)])
@pytest.mark.parametrize(
  ("members", "match"),
  [
    ([("p-1/big.py", b"a" * 80 * MEBIBYTE)] * 5, "0 Python files|more than"),
    ([(f"p-1/f{i}.py", b"a" * 390_000) for i in range(20)], "Python files of 4290000 characters"),
  ],
)
def test_an_archive_that_is_a_bomb_is_refused(tmp_path, name, pack, members, match):
  pack(tmp_path / name, members)
  assert peak_bytes(lambda: suite_repos.folder(tmp_path / name), match) < 80 * MEBIBYTE


def test_an_archive_of_too_many_members_is_refused(tmp_path):
  header = tarfile.TarInfo("p-1/p.py").tobuf()
  (tmp_path / "p-1.tar").write_bytes(header * 50_001)
  (tmp_path / "p-1.zip").write_bytes(b"PK\x01\x02" * 50_001)
  for name in ("p-1.tar", "p-1.zip"):
    with pytest.raises(ValueError, match="more than 50000 members"):
      suite_repos.folder(tmp_path / name)


def test_a_zip_that_lies_about_sizes_is_refused(tmp_path):
  place = tmp_path / "p-1.zip"
  zip_of(place, [("p-1/p.py", b"a" * MEBIBYTE)])
  content = place.read_bytes()
  told = MEBIBYTE.to_bytes(4, "little")
  assert content.count(told) == 2
  place.write_bytes(content.replace(told, (1000).to_bytes(4, "little")))
  with pytest.raises(ValueError, match="can be read: Bad CRC-32"):
    suite_repos.folder(place)


def test_a_tar_whose_long_name_claims_gigabytes_is_refused(tmp_path):
  info = tarfile.TarInfo("././@LongLink")
  info.type, info.size = tarfile.GNUTYPE_LONGNAME, 7 << 30
  (tmp_path / "p-1.tar").write_bytes(info.tobuf(tarfile.GNU_FORMAT) + bytes(1 << 20))
  with pytest.raises(ValueError, match="can be read|more than"):
    suite_repos.folder(tmp_path / "p-1.tar")


@pytest.mark.parametrize(("name", "pack"), [("p-1.tar.gz", tar_of), ("p-1.zip", zip_of)])
def test_a_damaged_archive_is_a_value_error_or_gives_something(tmp_path, name, pack):
  draw = random.Random(7)
  pack(tmp_path / name, SOURCE * 20)
  whole = (tmp_path / name).read_bytes()
  for _ in range(150):
    content = bytearray(whole)
    if name.endswith(".gz"):
      content = bytearray(gzip.decompress(whole))
    for _ in range(draw.randint(1, 8)):
      content[draw.randrange(len(content))] = draw.randrange(256)
    damaged = tmp_path / ("damaged-1" + (".tar" if name.endswith(".gz") else ".zip"))
    damaged.write_bytes(content)
    with contextlib.suppress(ValueError):
      list(archives.members(damaged, lambda name: True, 1000))
