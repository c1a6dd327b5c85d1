"""Differences between two states of a sandbox, read from the layers that hold them."""

from __future__ import annotations

import collections
import pathlib
from collections.abc import Mapping

from jaxrl_agents.sandbox import overlay
from jaxrl_agents.sandbox.host.layer_store import Store

ROOT = "work"
MAX_BYTES = 4_000_000


def changes_between(
  store: Store, before: tuple[str, ...], after: tuple[str, ...]
) -> dict[str, bytes | None]:
  """{path below /work: new content, None for removed} of the files that differ.

  Links, folders and pipes are ignored. A file counts as removed if it is no regular file any more
  or has more than four million bytes.
  """
  old, new = (overlay.files(store.folder, layers, ROOT) for layers in (before, after))
  changed: dict[str, bytes | None] = {path: None for path in old if path not in new}
  for path, place in new.items():
    if path in old and old[path] == place:
      continue  # same file in the same layer
    content = _content(place)
    if path not in old:
      changed |= {} if content is None else {path: content}
    elif content is None or content != _content(old[path]):
      changed[path] = content
  return changed


def _content(place: str) -> bytes | None:
  try:
    with overlay.opened_up(place):
      file = pathlib.Path(place)
      return file.read_bytes() if file.stat().st_size <= MAX_BYTES else None
  except OSError:
    return None


def added_lines(before: Mapping[str, str], changes: Mapping[str, bytes | None]) -> list[str]:
  """The lines that changes of Python files add to `before`, in order, file by file.

  A line counts as added as often as it occurs more often than before, so that a moved line does
  not count. This takes time in proportion to the lines, whatever a policy wrote.
  """
  added: list[str] = []
  for path, content in sorted(changes.items()):
    if content is None or not path.endswith(".py") or len(content) > 200_000:
      continue
    old = collections.Counter(before.get(path, "").split("\n"))
    for line in content.decode("utf-8", "replace").split("\n"):
      if old[line] > 0:
        old[line] -= 1
      else:
        added.append(line)
  return added
