"""What an agent answered, checked: it may have been taken over, and its words are data.

Each function raises ValueError for what no agent of ours says.
"""

from __future__ import annotations

import os
from typing import Any

from jaxrl_agents.sandbox.records import ExecResult

_MAX_PATH_BYTES = 4_096


def exec_result(head: dict[str, Any], body: bytes | bytearray) -> ExecResult:
  """The result of a command, with a note where output is missing."""
  try:
    cut = min(int(head["head"]), len(body))
    missing = int(head["total"]) - len(body)
    code, seconds = int(head["code"]), float(head["seconds"])
    why, cwd = str(head["why"]), str(head["cwd"])
  except (KeyError, TypeError, ValueError, OverflowError) as error:
    raise ValueError(f"an answer to exec makes no sense: {error!r}") from None
  shown = body.decode("utf-8", "replace")
  if missing > 0:
    note = f"\n[... {missing} bytes of output are missing here ...]\n"
    shown = body[:cut].decode("utf-8", "replace") + note + body[cut:].decode("utf-8", "replace")
  return ExecResult(
    code=code,
    output=shown,
    missing_bytes=max(0, missing),
    why=why,
    cwd=cwd,
    seconds=seconds,
  )


def check_delta(head: dict[str, Any]) -> None:
  """Looks at the shell's state and directory; at the entries, `delta.check` does."""
  if not isinstance(head.get("entries"), list):
    raise ValueError("an answer to delta lacks its entries")
  if not _is_text(head.get("state")):
    raise ValueError("an answer to delta has a state that no shell can read")
  if not _is_path(head.get("cwd")):
    raise ValueError(f"an answer to delta has the directory {str(head.get('cwd'))[:200]!r}")


def paths(head: dict[str, Any], limit: int) -> list[str]:
  """Where something was found, `limit` places at most."""
  found = head.get("found")
  if not isinstance(found, list) or not all(_is_text(p) and p.startswith("/") for p in found):
    raise ValueError("an answer to find is no list of paths")
  return found[:limit]


def _is_text(text: Any) -> bool:
  """Whether a program can be given `text`; any bytes but NUL can be in it, as surrogates."""
  try:
    return isinstance(text, str) and b"\0" not in os.fsencode(text)
  except UnicodeEncodeError:
    return False


def _is_path(text: Any) -> bool:
  return _is_text(text) and text.startswith("/") and len(os.fsencode(text)) <= _MAX_PATH_BYTES
