"""Reads text, HTML, JSON lines and Python source; a bad file is a ValueError with a remedy.

A name that ends in `.gz` is read as its content would be without.
"""

from __future__ import annotations

import codecs
import contextlib
import gzip
import html.parser
import io
import json
import os
import pathlib
import re
import stat
import tokenize
import zlib
from collections.abc import Iterator
from typing import Any, BinaryIO, cast

MAX_DOCUMENT_BYTES = 64 << 20
"""Bytes of one document, unpacked: a file, or a line of a collection."""
MAX_COLLECTION_BYTES = 8 << 30
"""Bytes of a file of JSON lines, unpacked."""
_BLOCK = 1 << 20


@contextlib.contextmanager
def opened(path: pathlib.Path) -> Iterator[BinaryIO]:
  """A regular file, unpacked while it is read if its name ends in `.gz`; ValueError if it cannot
  be read.
  """
  try:
    with open(os.open(path, os.O_RDONLY | os.O_NONBLOCK), "rb") as file:
      if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
        raise ValueError(f"{path}: no regular file; remove it from the folder")
      if path.suffix.lower() == ".gz":
        with gzip.GzipFile(fileobj=file) as unpacked:
          yield cast(BinaryIO, unpacked)
      else:
        yield file
  except (gzip.BadGzipFile, EOFError, zlib.error) as error:
    raise ValueError(f"{path}: not a whole gzip file ({error}); fetch or pack it again") from None
  except OSError as error:
    raise ValueError(f"{path}: cannot be read ({error.strerror}); check path and rights") from None


def read_bytes(path: pathlib.Path, max_bytes: int = MAX_DOCUMENT_BYTES) -> bytes:
  """Returns the content of a file, unpacked if its name ends in `.gz`.

  No more than the limit is read, whatever size a file claims or unpacks to.

  Raises:
    ValueError: it cannot be read, or has more than `max_bytes`.
  """
  parts, size = [], 0
  with opened(path) as file:
    while size <= max_bytes and (part := file.read(min(_BLOCK, max_bytes + 1 - size))):
      parts.append(part)
      size += len(part)
  if size > max_bytes:
    raise too_large(path, max_bytes)
  return b"".join(parts)


def too_large(path: pathlib.Path, max_bytes: int) -> ValueError:
  """What is raised about a file of more than `max_bytes`."""
  size = path.stat().st_size
  return ValueError(
    f"{path}: {size} bytes on the disk, and more than {max_bytes} bytes of content; split it, or "
    "leave it out"
  )


def read_text(path: pathlib.Path, max_bytes: int = MAX_DOCUMENT_BYTES) -> str:
  """Returns the text of a UTF-8 file, without byte order mark and with \\n line ends."""
  return _text(path, read_bytes(path, max_bytes).removeprefix(codecs.BOM_UTF8), 1)


def _text(path: pathlib.Path, content: bytes, first_line: int) -> str:
  try:
    text = content.decode()
  except UnicodeDecodeError as error:
    line = content.count(b"\n", 0, error.start) + first_line
    raise ValueError(
      f"{path}, line {line}: not UTF-8 (byte 0x{content[error.start]:02x}); convert it, for "
      f"example with iconv -f latin1 -t utf-8, or remove it from the folder"
    ) from None
  if "\0" in text:
    line = text.count("\n", 0, text.index("\0")) + first_line
    raise ValueError(f"{path}, line {line}: binary (a NUL byte); remove it from the folder")
  return text.replace("\r\n", "\n").replace("\r", "\n")


def read_python(path: pathlib.Path) -> str:
  """Returns Python source in the encoding that it declares (PEP 263), with \\n line ends."""
  content = read_bytes(path)
  try:
    encoding, _ = tokenize.detect_encoding(io.BytesIO(content).readline)
    text = content.decode(encoding)
  except (SyntaxError, UnicodeDecodeError, LookupError):
    raise ValueError(
      f"{path}: not in the encoding it declares; save it as UTF-8 or remove it from the folder"
    ) from None
  return text.replace("\r\n", "\n").replace("\r", "\n")


def read_jsonl(path: pathlib.Path) -> Iterator[tuple[int, dict[str, Any]]]:
  """Yields (line number from 1, object) of every line that is not blank.

  Raises:
    ValueError: a line is no object or longer than MAX_DOCUMENT_BYTES, or the file is longer than
      MAX_COLLECTION_BYTES.
  """
  for number, line in _lines(path):
    if not line.strip():
      continue
    try:
      record = json.loads(line)
    except (ValueError, RecursionError) as error:
      reason = error.msg if isinstance(error, json.JSONDecodeError) else type(error).__name__
      raise ValueError(
        f"{path}, line {number}: not JSON ({reason}); write one whole object a line"
      ) from None
    if not isinstance(record, dict):
      raise ValueError(
        f"{path}, line {number}: a JSON {type(record).__name__} where an object was expected; "
        'write lines like {"_id": "7", "title": "", "text": "..."}'
      )
    yield number, record


def _lines(path: pathlib.Path) -> Iterator[tuple[int, str]]:
  number = size = 0
  with opened(path) as file:
    while line := file.readline(MAX_DOCUMENT_BYTES + 1):
      size += len(line)
      if len(line) > MAX_DOCUMENT_BYTES:
        raise ValueError(f"line {number + 1} of {too_large(path, MAX_DOCUMENT_BYTES)}")
      if size > MAX_COLLECTION_BYTES:
        raise too_large(path, MAX_COLLECTION_BYTES)
      line = line if number else line.removeprefix(codecs.BOM_UTF8)
      for part in _text(path, line, number + 1).removesuffix("\n").split("\n"):
        number += 1
        yield number, part


def string_field(path: pathlib.Path, number: int, record: dict[str, Any], *names: str) -> str:
  """Returns the first of the named fields that a record has, as a string; "" if it has none."""
  for name in names:
    value = record.get(name)
    if value is None:
      continue
    if isinstance(value, int) and not isinstance(value, bool):
      value = str(value)
    if not isinstance(value, str):
      raise ValueError(
        f"{path}, line {number}: field {name!r} is a {type(value).__name__}; write a string"
      )
    if re.search("[\ud800-\udfff]", value):
      raise ValueError(
        f"{path}, line {number}: field {name!r} holds half of a surrogate pair; write the character"
      )
    return value
  return ""


def html_to_text(source: str) -> tuple[str, str]:
  """Returns (title, text) of an HTML page: one line a block, without scripts and styles.

  Lines and indentation of <pre> are kept.
  """
  parser = _TextParser()
  parser.feed(_tidied(source))
  parser.close()
  title = re.sub(r"\s+", " ", "".join(parser.title)).strip()
  text = re.sub(r"[ \t]*\n[ \t]*", "\n", "".join(parser.parts))
  return title, re.sub(r"\n{3,}", "\n\n", text).strip().replace(_KEPT_SPACE, " ")


def _tidied(source: str) -> str:
  """HTML without scripts, styles, comments, declarations, and tags that are never closed.

  What looks like a comment in a script or a style is none. The parser of the
  standard library takes quadratic time over many of these, and asserts that it knows every
  declaration.
  """
  kept, at, looked = [], 0, 0
  ends = dict(_ENDS)
  while begun := _OPENS.search(source, looked):
    if not (name := begun[1]):
      kept.append(source[at : begun.start()])
      end = source.find("-->", begun.end())
      at = looked = len(source) if end < 0 else end + 3
      continue
    looked = begun.end()
    if end_tag := ends.get(name.lower()):
      ended = end_tag.search(source, looked)
      if ended:
        kept.append(source[at : begun.start()])
        at = looked = ended.end()
      else:
        del ends[name.lower()]  # there is none behind it either
  text = _DECLARATION.sub("", "".join([*kept, source[at:]]))
  last = text.rfind(">") + 1
  return text[:last] + text[last:].replace("<", "&lt;")


_OPENS = re.compile(r"<!--|<(script|style)(?=[\s>])[^>]*(?<!/)>", re.IGNORECASE)
_ENDS = {
  "script": re.compile(r"</script\s*>", re.IGNORECASE),
  "style": re.compile(r"</style\s*>", re.IGNORECASE),
}
_DECLARATION = re.compile(r"<[!?][^>]*>?")
_KEPT_SPACE = "\u00a0"
_HIDDEN = frozenset({"script", "style", "template", "noscript", "svg", "iframe", "object"})
_PARAGRAPHS = frozenset({
  "article", "aside", "blockquote", "dl", "figure", "footer", "form", "h1", "h2", "h3", "h4", "h5",
  "h6", "header", "hr", "main", "nav", "ol", "p", "pre", "section", "table", "ul",
})  # fmt: skip
_LINES = frozenset({"br", "dd", "div", "dt", "figcaption", "li", "option", "tr"})


class _TextParser(html.parser.HTMLParser):
  """Collects text. Invariants: `hidden` counts the open elements whose content is not text, `kept`
  those whose lines and spaces stay.
  """

  def __init__(self) -> None:
    super().__init__(convert_charrefs=True)
    self.parts: list[str] = []
    self.title: list[str] = []
    self.hidden = self.kept = 0
    self.in_title = False

  def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
    self.hidden += tag in _HIDDEN
    self.kept += tag == "pre"
    self.in_title = self.in_title or (tag == "title" and not self.hidden)
    self._separate(tag)

  def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
    self._separate(tag)

  def handle_endtag(self, tag: str) -> None:
    self.hidden = max(0, self.hidden - (tag in _HIDDEN))
    self.kept = max(0, self.kept - (tag == "pre"))
    self.in_title = self.in_title and tag != "title"
    self._separate(tag)

  def handle_data(self, data: str) -> None:
    if self.in_title:
      self.title.append(data)
    elif self.kept and not self.hidden:
      self.parts.append(data.expandtabs(4).replace(" ", _KEPT_SPACE))
    elif not self.hidden:
      self.parts.append(re.sub(r"\s+", " ", data))

  def _separate(self, tag: str) -> None:
    if tag in _PARAGRAPHS:
      self.parts.append("\n\n")
    elif tag in _LINES:
      self.parts.append("\n")
    elif tag in ("td", "th"):
      self.parts.append(" ")
