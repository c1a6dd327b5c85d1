"""The folder that holds an index: written once under a content hash, then only mapped.

Files: meta.json, chunks.json (ids, documents, titles), texts.bin (UTF-8, one after the other), the
vocabulary, one .npy for each array of `Store`, and the digests of them all, which every process
verifies as it opens the index.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import mmap
import os
import pathlib
import secrets
import shutil
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from jaxrl_agents import file_digests, full_disk
from jaxrl_agents.corpus.chunks import Chunk
from jaxrl_agents.corpus.index import bm25 as lexical
from jaxrl_agents.corpus.index import dense, words

_FORMAT = 3
_ARRAYS = ("text_ends", "starts", "bm25_weights", "bm25_rows", "bm25_ends", "vectors", "lsa_basis")


@dataclasses.dataclass(frozen=True)
class Store:
  """An index in memory maps. Row i of every array is chunk i; N chunks, R width of the vectors.

  Attributes:
    folder: where it lies.
    dense_leg: "lsa" or "minilm".
    ids, doc_ids, titles: of each chunk.
    row_of_id: chunk id -> row.
    rows_of_document: document id -> its rows.
    text_bytes: all texts, UTF-8; text i is `text_bytes[text_ends[i]:text_ends[i + 1]]`.
    text_ends: int64 [N + 1].
    starts: offset of each chunk in its document in characters, int64 [N].
    bm25: over titles and texts.
    lsa: the projection of queries; basis of width 0 with MiniLM.
    vectors: unit vectors of titles and texts, float32 [N, R].
  """

  folder: pathlib.Path
  dense_leg: str
  ids: Sequence[str]
  doc_ids: Sequence[str]
  titles: Sequence[str]
  row_of_id: Mapping[str, int]
  rows_of_document: Mapping[str, range]
  text_bytes: mmap.mmap | bytes
  text_ends: np.ndarray
  starts: np.ndarray
  bm25: lexical.Bm25
  lsa: dense.Lsa
  vectors: np.ndarray

  def chunk(self, row: int) -> Chunk:
    """Returns the chunk of a row."""
    start = int(self.starts[row])
    return Chunk(self.ids[row], self.doc_ids[row], self.titles[row], self._text(row), start)

  def texts(self) -> Iterator[str]:
    """Yields the text of every chunk in order."""
    return (self._text(row) for row in range(len(self.ids)))

  def rows_of(self, chunk_ids: Collection[str]) -> np.ndarray:
    """Returns the rows of those ids that the index has, int64."""
    rows = [self.row_of_id[name] for name in chunk_ids if name in self.row_of_id]
    return np.asarray(rows, np.int64)

  def _text(self, row: int) -> str:
    span = slice(int(self.text_ends[row]), int(self.text_ends[row + 1]))
    return self.text_bytes[span].decode("utf-8", "surrogatepass")


def write_store(
  chunks: Sequence[Chunk],
  cache_dir: str | os.PathLike[str],
  *,
  dense_leg: str,
  rank: int,
  k1: float,
  b: float,
) -> pathlib.Path:
  """Returns the folder of the index of these chunks, writing it if it is not there.

  The folder appears whole or not at all: it is written under another name and renamed.
  """
  rows_of_document = _checked_rows(chunks)
  settings: list[str | float] = [dense_leg, rank if dense_leg == "lsa" else 0, k1, b]
  folder = pathlib.Path(cache_dir) / _digest(chunks, settings)[:32]
  if folder.is_dir():
    return folder
  searched = [f"{chunk.title}\n{chunk.text}".strip() for chunk in chunks]
  vocabulary, counts = words.count(searched)
  bm25 = lexical.fit(vocabulary, counts, k1=k1, b=b)
  arrays = {"bm25_weights": bm25.weights, "bm25_rows": bm25.rows, "bm25_ends": bm25.ends}
  if dense_leg == "lsa":
    lsa, arrays["vectors"] = dense.fit(vocabulary, counts, rank=rank)
    arrays["lsa_basis"] = lsa.basis
  elif dense_leg == "minilm":
    from jaxrl_agents.corpus.index import encode

    arrays["vectors"] = encode.cached_vectors(searched, cache_dir)
    arrays["lsa_basis"] = np.zeros((0, 0), np.float32)
  else:
    raise ValueError(f"dense leg {dense_leg!r} is unknown; use lsa or minilm")
  encoded = [chunk.text.encode("utf-8", "surrogatepass") for chunk in chunks]
  arrays["text_ends"] = np.cumsum([0, *map(len, encoded)], dtype=np.int64)
  arrays["starts"] = np.asarray([chunk.start for chunk in chunks], np.int64)
  records = {
    "meta": {"format": _FORMAT, "dense_leg": dense_leg, "num_chunks": len(chunks)},
    "vocabulary": vocabulary,
    "chunks": {
      "ids": [chunk.id for chunk in chunks],
      "documents": [[name, len(rows)] for name, rows in rows_of_document.items()],
      "titles": [chunks[rows.start].title for rows in rows_of_document.values()],
    },
  }
  with full_disk.named(folder.parent):
    _write_folder(folder, arrays, records, b"".join(encoded))
  return folder


def _write_folder(
  folder: pathlib.Path,
  arrays: Mapping[str, np.ndarray],
  records: Mapping[str, Any],
  text_bytes: bytes,
) -> None:
  partial = folder.with_name(f".{folder.name}.{secrets.token_hex(4)}")
  partial.mkdir(parents=True)
  try:
    for name, array in arrays.items():
      np.save(partial / f"{name}.npy", array)
    for name, record in records.items():
      (partial / f"{name}.json").write_text(json.dumps(record), "utf-8")
    (partial / "texts.bin").write_bytes(text_bytes)
    file_digests.write(partial)
    partial.rename(folder)
  except OSError:  # such as a full disk
    shutil.rmtree(partial, ignore_errors=True)
    if not folder.is_dir():  # another process was first, with the same content
      raise


def located(folder: str | os.PathLike[str], cache_dir: str | os.PathLike[str]) -> pathlib.Path:
  """The folder of an index on this machine: the folder itself, or one of the same name in the
  cache.

  The name is a hash of the index's whole content, so that folders of the same name are equal.

  Raises:
    ValueError: it is in neither place.
  """
  folder, kept = pathlib.Path(folder), pathlib.Path(cache_dir) / pathlib.Path(folder).name
  for place in (folder, kept):
    if place.is_dir():
      return place
  raise ValueError(
    f"the corpus' index {folder.name} is not on this machine, neither as {folder} nor as {kept}; "
    "share the first, or copy it to the second"
  )


def open_store(folder: str | os.PathLike[str]) -> Store:
  """Maps the index in a folder; ValueError if it is not an index, incomplete or damaged."""
  folder = pathlib.Path(folder)
  try:
    if problem := file_digests.damage(folder):
      raise ValueError(problem)
    meta = json.loads((folder / "meta.json").read_text("utf-8"))
    if meta["format"] != _FORMAT:
      raise ValueError(f"format {meta['format']}, this version reads {_FORMAT}")
    vocabulary = json.loads((folder / "vocabulary.json").read_text("utf-8"))
    records = json.loads((folder / "chunks.json").read_text("utf-8"))
    arrays = {name: np.load(folder / f"{name}.npy", mmap_mode="r") for name in _ARRAYS}
    text_bytes = _mapped(folder / "texts.bin")
    if len(records["ids"]) != meta["num_chunks"] or arrays["text_ends"][-1] != len(text_bytes):
      raise ValueError("files of different indexes")
  except (OSError, ValueError, KeyError, TypeError) as error:
    raise ValueError(
      f"{folder}: no whole index ({error}); remove the folder and build the index again"
    ) from None
  return _store(folder, meta["dense_leg"], vocabulary, records, arrays, text_bytes)


def _store(
  folder: pathlib.Path,
  dense_leg: str,
  vocabulary: dict[str, int],
  records: dict[str, Any],
  arrays: dict[str, np.ndarray],
  text_bytes: mmap.mmap | bytes,
) -> Store:
  plain = {name: array.view(np.ndarray) for name, array in arrays.items()}  # cheaper to index
  rows_of_document: dict[str, range] = {}
  doc_ids: list[str] = []
  titles: list[str] = []
  for (name, count), title in zip(records["documents"], records["titles"], strict=True):
    rows_of_document[name] = range(len(doc_ids), len(doc_ids) + count)
    doc_ids += [name] * count
    titles += [title] * count
  bm25 = lexical.Bm25(
    vocabulary, plain["bm25_weights"], plain["bm25_rows"], plain["bm25_ends"], len(doc_ids)
  )
  return Store(
    folder=folder,
    dense_leg=dense_leg,
    ids=records["ids"],
    doc_ids=doc_ids,
    titles=titles,
    row_of_id={name: row for row, name in enumerate(records["ids"])},
    rows_of_document=rows_of_document,
    text_bytes=text_bytes,
    text_ends=plain["text_ends"],
    starts=plain["starts"],
    bm25=bm25,
    lsa=dense.Lsa(vocabulary, plain["lsa_basis"]),
    vectors=plain["vectors"],
  )


def _mapped(path: pathlib.Path) -> mmap.mmap | bytes:
  with path.open("rb") as file:
    size = os.fstat(file.fileno()).st_size
    return mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) if size else b""


def _checked_rows(chunks: Sequence[Chunk]) -> dict[str, range]:
  """Document id -> rows; ValueError if there are no chunks, or ids or documents repeat."""
  if not chunks:
    raise ValueError("an index of no chunks; give it documents that hold text")
  seen: set[str] = set()
  rows_of_document: dict[str, range] = {}
  for row, chunk in enumerate(chunks):
    if chunk.id in seen:
      raise ValueError(f"two chunks have the id {chunk.id!r}; give each its own")
    seen.add(chunk.id)
    rows = rows_of_document.get(chunk.doc_id, range(row, row))
    if rows.stop != row:
      raise ValueError(f"the chunks of document {chunk.doc_id!r} are not together; sort them")
    rows_of_document[chunk.doc_id] = range(rows.start, row + 1)
  return rows_of_document


def _digest(chunks: Sequence[Chunk], settings: Sequence[str | float]) -> str:
  digest = hashlib.sha256(json.dumps([_FORMAT, *settings]).encode())
  for chunk in chunks:
    for part in (chunk.id, chunk.doc_id, chunk.title, chunk.text, str(chunk.start)):
      digest.update(part.encode("utf-8", "surrogatepass") + b"\0")
  return digest.hexdigest()
