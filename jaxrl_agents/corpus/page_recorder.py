"""Records web pages for `fetch_page`: they are read once, so that training needs no network."""

from __future__ import annotations

import concurrent.futures
import http.client
import json
import os
import pathlib
import time
import urllib.request
from collections.abc import Iterable, Iterator, Mapping

from jaxrl_agents import background
from jaxrl_agents.corpus import readers

MAX_BYTES = 4_000_000
PLAIN = ("text/", "application/json", "application/xml", "application/xhtml+xml")
_AGENT = "jaxrl_agents page recorder"


class PageError(ValueError):
  """A page that cannot be recorded, and why."""


def fetched(url: str, *, deadline_s: float = 30.0, max_bytes: int = MAX_BYTES) -> dict[str, str]:
  """{"url", "title", "text"} of a page: the text of HTML, or other text as it is.

  The url is the requested one, even after redirects.

  Raises:
    PageError: the address is not http or https, the page is not complete within `deadline_s`, has
      an error status or more than `max_bytes`, or is not text in the encoding that it declares.
  """
  if not url.startswith(("http://", "https://")):
    raise PageError(f"{url}: begin with http:// or https://")
  # In a thread: a server may send its headers so slowly that no single wait is too long.
  answer = background.call(lambda: _answer(url, deadline_s, max_bytes), "page")
  try:
    kind, charset, content = answer.result(deadline_s)
  except concurrent.futures.TimeoutError:
    raise PageError(f"{url}: not whole after {deadline_s:g} s") from None
  except (OSError, ValueError, http.client.HTTPException) as error:
    raise PageError(f"{url}: {error}") from error
  if len(content) > max_bytes:
    raise PageError(f"{url}: more than {max_bytes} bytes")
  if not kind.startswith(PLAIN):
    raise PageError(f"{url}: {kind} is not text")
  try:
    text = content.decode(charset)
  except (UnicodeDecodeError, LookupError) as error:
    raise PageError(f"{url}: {error}") from error
  title = ""
  if kind in ("text/html", "application/xhtml+xml"):
    title, text = readers.html_to_text(text)
  return {"url": url, "title": title, "text": text}


def _answer(url: str, deadline_s: float, max_bytes: int) -> tuple[str, str, bytes]:
  """(type, encoding, content) of a page; a little more than `max_bytes` of a longer one."""
  ends = time.monotonic() + deadline_s
  request = urllib.request.Request(url, headers={"User-Agent": _AGENT})
  with urllib.request.urlopen(request, timeout=deadline_s) as answer:
    content = b""
    while len(content) <= max_bytes and (part := answer.read1(1 << 16)):
      content += part
      if time.monotonic() > ends:
        raise TimeoutError(f"not whole after {deadline_s:g} s")
    charset = answer.headers.get_content_charset() or "utf-8"
    return answer.headers.get_content_type(), charset, content


def recorded(file: pathlib.Path) -> set[str]:
  """The urls of a file of JSON lines; none where there is no file.

  Raises:
    ValueError: a line is something else.
  """
  if not file.exists():
    return set()
  try:
    return {record["url"] for _, record in readers.read_jsonl(file)}
  except (ValueError, KeyError, TypeError) as error:
    raise ValueError(f"{file}: not JSON lines with a url ({error!r}); name another file") from error


def _ended(file: pathlib.Path) -> None:
  """Removes an incomplete last line from the file, and ends a complete one with a newline."""
  with file.open("rb+") as lines:
    size = lines.seek(0, os.SEEK_END)
    lines.seek(max(0, size - readers.MAX_DOCUMENT_BYTES))
    last = lines.read().rpartition(b"\n")[2]
    if not last:
      return
    try:
      json.loads(last)
    except ValueError:
      lines.truncate(size - len(last))
    else:
      lines.write(b"\n")


def record(
  urls: Iterable[str], file: pathlib.Path, *, deadline_s: float = 30.0
) -> Iterator[tuple[str, str]]:
  """Appends those of `urls` to `file` that it lacks; yields (url, "" or the reason of a failure).

  Each page is written as soon as it is read, so that an interruption loses none; failed pages are
  tried again the next time.
  """
  if file.exists():
    _ended(file)
  known = recorded(file)
  for url in dict.fromkeys(urls):
    if url in known:
      continue
    try:
      page: Mapping[str, str] = fetched(url, deadline_s=deadline_s)
    except PageError as error:
      yield url, str(error)
      continue
    with file.open("a", encoding="utf-8") as out:
      out.write(json.dumps(page, ensure_ascii=False) + "\n")
    yield url, ""
