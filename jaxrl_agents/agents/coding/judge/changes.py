"""Differences between two states of a sandbox, read from the layers that hold them."""

from __future__ import annotations

import collections
from collections.abc import Callable, Mapping

from jaxrl_agents.sandbox.host.contents import Contents
from jaxrl_agents.sandbox.host.layer_store import Store
from jaxrl_agents.sandbox.host.merged_layers import Found, Layers

ROOT = "work"
MAX_BYTES = 4_000_000
MAX_NEW_FILES = 2_000
"""Files that an agent may add, for the judge writes each of them into a sandbox of its own."""


def changes_between(
  store: Store,
  before: tuple[str, ...],
  after: tuple[str, ...],
  *,
  check: Callable[[], None] = lambda: None,
) -> dict[str, bytes | None]:
  """{path below /work: new content, None for removed} of the files that differ.

  Links, folders and pipes are ignored, and new files after the first two thousand by name. A file
  counts as removed if it is no regular file any more, has more than four million bytes, or if the
  files that differ have too many holes in all.

  Args:
    check: called now and then; what it raises ends the work.
  """
  names = (*after, *(name for name in before if name not in after))
  changed: dict[str, bytes | None] = {}
  added = 0
  with Layers(store.folder, names, check) as layers:
    contents = Contents(layers)
    stacks = [tuple(names.index(name) for name in chosen) for chosen in (after, before)]
    tops = [layers.listing("", stack)[0].get(ROOT) for stack in stacks]
    new_stack, old_stack = (top.stack if top else () for top in tops)
    differing = list(layers.differing(ROOT, new_stack, old_stack))
    for new, old in sorted(differing, key=_path):
      check()
      new, old = (found if found and found.kind == "f" else None for found in (new, old))
      if new and not old and added == MAX_NEW_FILES:
        continue
      content = _content(contents, new) if new else None
      if old and (content is None or content != _content(contents, old)):
        changed[old.path.removeprefix(f"{ROOT}/")] = content
      elif new and not old and content is not None:
        changed[new.path.removeprefix(f"{ROOT}/")] = content
        added += 1
  return changed


def _path(pair: tuple[Found | None, Found | None]) -> str:
  return next(found.path for found in pair if found)


def _content(contents: Contents, found: Found) -> bytes | None:
  try:
    return contents.of(found, MAX_BYTES)
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
