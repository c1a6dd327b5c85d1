"""Answers of judges on disk, each under a digest of all that was asked.

A file per answer, named by the SHA-256 of (address, model, request). It is written whole or not at
all, so that processes and runs share a folder; a damaged one counts as missing. What a judge says
about a text never expires: remove the folder to have all asked again.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import pathlib
from collections.abc import Mapping
from typing import Any

from jaxrl_agents import file_digests


class VerdictCache:
  """A folder of answers. Invariant: a file that can be read holds what the judge answered."""

  def __init__(self, folder: str | os.PathLike[str]):
    self._folder = pathlib.Path(folder)

  def key(self, url: str, model: str, request: Mapping[str, Any]) -> str:
    """The name of a request."""
    text = json.dumps([url, model, request], sort_keys=True)
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()

  def get(self, key: str) -> str | None:
    """The answer to a request; None if there is none."""
    try:
      return str(file_digests.read_record(self._path(key).read_bytes())["answer"])
    except (OSError, ValueError, KeyError):
      return None

  def put(self, key: str, answer: str) -> None:
    """Keeps an answer; a full disk only means that it is asked for again."""
    path = self._path(key)
    partial = path.with_name(f".{path.name}.{os.getpid()}")
    with contextlib.suppress(OSError):
      path.parent.mkdir(parents=True, exist_ok=True)
      try:
        partial.write_text(json.dumps(file_digests.with_digest({"answer": answer})), "utf-8")
        os.replace(partial, path)
      finally:
        partial.unlink(missing_ok=True)

  def _path(self, key: str) -> pathlib.Path:
    return self._folder / key[:2] / f"{key}.json"
