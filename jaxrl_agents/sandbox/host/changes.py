"""What a sandbox changed, compared with the layers it started from (host side)."""

from __future__ import annotations

import os
import pathlib
import stat

from jaxrl_agents.sandbox import delta, overlay
from jaxrl_agents.sandbox.delta import Entry
from jaxrl_agents.sandbox.errors import Refused
from jaxrl_agents.sandbox.host.layer_store import Store
from jaxrl_agents.sandbox.records import Change

MAX_HOLE_BYTES = 64 << 20
_KINDS = {"f": "file", "h": "file", "l": "link", "d": "folder", "p": "pipe"}
_Old = tuple[str, bytes | None, int]  # kind, content, mode


def changes_of(
  store: Store, layers: tuple[str, ...], entries: list[Entry], body: bytes
) -> dict[str, Change]:
  """{path: change} for the entries of an agent (checked here); what became equal is left out.

  It costs what was touched, not what there is.

  Raises:
    ValueError: entries that no honest agent sends.
    Refused: files that would fill the memory with holes.
  """
  delta.check(entries, len(body))
  contents = _contents(entries, body)
  changes: dict[str, Change] = {}
  present = {entry[1] for entry in entries if entry[0] != "w"}
  for kind, path, mode, _, extra in entries:
    old = _old(store, layers, path)
    if old and old[0] == "folder" and (kind != "d" or extra):
      for below in overlay.walk(store.folder, layers, path):
        gone = _old(store, layers, below)
        if below not in present and gone:
          changes[below] = Change("gone", gone[1], None, 0)
    if kind == "w":
      if old:
        changes[path] = Change("gone", old[1], None, 0)
    elif old != (_KINDS[kind], contents.get(path), mode):
      changes[path] = Change(_KINDS[kind], old[1] if old else None, contents.get(path), mode)
  return changes


def _contents(entries: list[Entry], body: bytes) -> dict[str, bytes]:
  sizes = sum(sum(entry[4][-1]) for entry in entries if entry[0] == "f")
  if sizes > 2 * len(body) + MAX_HOLE_BYTES:
    raise Refused(f"files of {sizes} bytes are mostly holes; remove them")
  contents: dict[str, bytes] = {}
  at = 0
  for kind, path, _, _, extra in entries:
    if kind == "l":
      contents[path] = os.fsencode(extra)
    elif kind == "h":
      contents[path] = contents[extra]
    elif kind == "f":
      parts, size = [], 0
      for offset, length in extra:
        parts += [bytes(offset - size), body[at : at + length]]
        size, at = offset + length, at + length
      contents[path] = b"".join(parts)
  return contents


def _old(store: Store, layers: tuple[str, ...], path: str) -> _Old | None:
  found = overlay.find(store.folder, layers, path)
  if not found:
    return None
  place, status = found
  mode = stat.S_IMODE(status.st_mode)
  if stat.S_ISLNK(status.st_mode):
    return "link", os.fsencode(os.readlink(place)), mode
  if stat.S_ISDIR(status.st_mode):
    return "folder", None, mode
  if stat.S_ISREG(status.st_mode):
    with overlay.opened_up(place):
      return "file", pathlib.Path(place).read_bytes(), mode
  return "pipe", None, mode
