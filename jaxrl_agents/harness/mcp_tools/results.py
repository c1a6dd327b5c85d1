"""The result of a call as the text that a policy reads."""

from __future__ import annotations

import json

from mcp.types import CallToolResult

MAX_CHARS = 200_000
"""Longest text of a result that is handed to the agent, which cuts it to its own limit."""


def text_of(result: CallToolResult) -> str:
  """The texts of a result, joined by line breaks; each other block is one line that names it.

  A result without blocks shows its structured content, if it has any, as JSON.
  """
  parts = [_named(block) for block in result.content]
  text = "\n".join(parts)
  if not parts and result.structured_content is not None:
    text = json.dumps(result.structured_content, ensure_ascii=False)
  if len(text) > MAX_CHARS:
    text = f"{text[:MAX_CHARS]}\n[{len(text) - MAX_CHARS} characters left out]"
  return text or "[no output]"


def _named(block: object) -> str:
  kind = getattr(block, "type", type(block).__name__)
  if kind == "text":
    return str(getattr(block, "text", ""))
  inner = getattr(block, "resource", block)  # of an embedded resource
  about = [str(getattr(inner, name)) for name in ("uri", "mime_type") if getattr(inner, name, None)]
  for name in ("data", "blob"):
    if isinstance(data := getattr(inner, name, None), str):
      about.append(f"{len(data) * 3 // 4} bytes")
  if isinstance(text := getattr(inner, "text", None), str):
    about.append(f"{len(text)} characters")
  return f"[{kind}, not shown: {', '.join(about)[:200] or 'no details'}]"
