"""What a sandbox changed, compared with the layers it started from (host side)."""

from __future__ import annotations

import os
from collections.abc import Callable

from jaxrl_agents.sandbox.delta import Entry
from jaxrl_agents.sandbox.errors import Refused
from jaxrl_agents.sandbox.host import unpacking
from jaxrl_agents.sandbox.host.contents import MAX_HOLE_BYTES, Contents, TooLarge
from jaxrl_agents.sandbox.host.layer_store import Store
from jaxrl_agents.sandbox.host.merged_layers import Found, Layers
from jaxrl_agents.sandbox.records import Change

_KINDS = {"f": "file", "h": "file", "l": "link", "d": "folder", "p": "pipe"}


def changes_of(
  store: Store,
  layers: tuple[str, ...],
  entries: list[Entry],
  body: bytes | bytearray,
  *,
  check: Callable[[], None] = lambda: None,
) -> dict[str, Change]:
  """{path: change} for the entries of an agent (checked here); what became equal is left out.

  It costs the folders that were touched, not all there is.

  Args:
    check: called now and then; what it raises ends the work.

  Raises:
    ValueError: entries that no honest agent sends.
    Refused: files that would fill the memory with holes.
  """
  unpacking.check(entries, len(body))
  written = _contents(entries, body)
  changes: dict[str, Change] = {}
  present = {entry[1] for entry in entries if entry[0] != "w"}
  replaced: set[str] = set()  # folders of which all that was there is gone, unless it is present
  with Layers(store.folder, layers, check) as before:
    contents = Contents(before)
    old = lambda found: _old(before, contents, found)
    for kind, path, mode, _, extra in entries:
      check()
      found = before.find(path)
      if path.rpartition("/")[0] in replaced:
        replaced.add(path)
      elif found and found.kind == "d" and (kind != "d" or extra):
        replaced.add(path)
        for below in before.below(found):
          if below.path not in present:
            changes[below.path] = Change("gone", old(below), None, 0)
      if kind == "w":
        if found:
          changes[path] = Change("gone", old(found), None, 0)
        continue
      kind, content = _KINDS[kind], written.get(path)
      was = old(found) if found else None
      if not found or (_KINDS[found.kind], was, before.mode(found)) != (kind, content, mode):
        changes[path] = Change(kind, was, content, mode)
  return changes


def _contents(entries: list[Entry], body: bytes | bytearray) -> dict[str, bytes]:
  sizes = sum(sum(entry[4][-1]) for entry in entries if entry[0] == "f")
  if sizes > 2 * len(body) + MAX_HOLE_BYTES:
    raise Refused(f"files of {sizes} bytes are mostly holes; remove them")
  contents: dict[str, bytes] = {}
  view, at = memoryview(body), 0
  for kind, path, _, _, extra in entries:
    if kind == "l":
      contents[path] = os.fsencode(extra)
    elif kind == "h":
      contents[path] = contents[extra]
    elif kind == "f":
      parts: list[bytes | memoryview] = []
      size = 0
      for offset, length in extra:
        parts += [bytes(offset - size), view[at : at + length]]
        size, at = offset + length, at + length
      contents[path] = b"".join(parts)
  return contents


def _old(layers: Layers, contents: Contents, found: Found) -> bytes | None:
  """Content of a file or target of a link; None of anything else."""
  if found.kind == "l":
    return os.fsencode(layers.target(found))
  if found.kind != "f":
    return None
  try:
    return contents.of(found)
  except TooLarge as error:
    raise Refused(str(error)) from None
