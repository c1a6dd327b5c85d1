"""What the HTTP interfaces of the gateway read of a request: key, body, what it repeats."""

from __future__ import annotations

import asyncio
import hashlib
import json
import math
from typing import Any

from starlette.requests import Request as HttpRequest

from jaxrl_agents.gateway.requests import Refusal

MAX_BODY_BYTES = 64 << 20
MAX_EVENT_BYTES = 64 << 10
"""Of a body that is read before its key is known, since it names the session whose key opens it."""

MOST_ENTRIES = 100_000
"""JSON objects and their fields in a body. The event loop reads some 20 microseconds at each
message, and all other requests wait; a message, tool or call has 3 entries at least.
"""

BODY_S = 60.0
"""Seconds that a client has to send its body."""

AGENT_HEADERS = ("x-codex-turn-metadata", "x-claude-code-session-id", "x-claude-code-agent-id")
"""Headers by which Codex and Claude Code name the turn, the session and the sub-agent of a request.
They mark no repetition, but a turn of theirs never asks for two replies to one history."""


def key_of(http: HttpRequest) -> str:
  """The key of a request; "" if it has none."""
  scheme, _, bearer = http.headers.get("authorization", "").partition(" ")
  return http.headers.get("x-api-key") or (bearer.strip() if scheme.lower() == "bearer" else "")


async def body_of(http: HttpRequest, most: int | None = None) -> bytes:
  """The body of a request, of `most` bytes at most, or MAX_BODY_BYTES.

  Raises:
    Refusal: 413, it is too large; 408, it takes too long.
  """
  parts, size, most = [], 0, MAX_BODY_BYTES if most is None else most
  try:
    async with asyncio.timeout(BODY_S):
      async for part in http.stream():
        size += len(part)
        if size > most:
          raise Refusal(413, f"the body is larger than {most} bytes", retry=False)
        parts.append(part)
  except TimeoutError:
    raise Refusal(408, f"the body took longer than {BODY_S:g} s", retry=False) from None
  return b"".join(parts)


def as_json(raw: bytes) -> Any:
  """The JSON value of a body; {} if it is empty. It can be written as JSON in UTF-8 again.

  Raises:
    Refusal: 400, it is not valid, or has a number that JSON cannot write; 413, it has more than
      MOST_ENTRIES objects and fields.
  """
  entries = 0

  def counted(value: dict[str, Any]) -> dict[str, Any]:
    nonlocal entries
    entries += 1 + len(value)
    if entries > MOST_ENTRIES:
      text = f"the body has more than {MOST_ENTRIES} JSON objects and fields; send fewer messages"
      raise Refusal(413, text, retry=False)
    return value

  try:
    text = raw.decode(json.detect_encoding(raw), "replace") or "{}"
    value = json.loads(text, object_hook=counted, parse_constant=_no_number, parse_float=_number)
    return _whole_characters(value) if "\\ud" in text.lower() else value
  except (ValueError, RecursionError) as error:
    raise Refusal(400, f"the body is not valid JSON: {error}") from None


def _no_number(text: str) -> float:
  raise ValueError(f"{text} is no number of JSON; send null or a number in its place")


def _number(text: str) -> float:
  value = float(text)
  return value if math.isfinite(value) else _no_number(text)


def _whole_characters(value: Any) -> Any:
  """The value with U+FFFD for each half of a surrogate pair: clients that cut texts leave some."""
  text = json.dumps(value, ensure_ascii=False)
  return json.loads(text.encode("utf-16", "surrogatepass").decode("utf-16", "replace"))


def name_of(http: HttpRequest, raw: bytes, body: Any) -> tuple[str, str, bool]:
  """What a request and its repetition have in common (a name and a digest), and whether this is a
  repetition.

  Clients repeat a request when its connection broke. An equal body that is not marked as a
  repetition asks for another reply, unless it comes from an agent of AGENT_HEADERS. These may write
  the fields of the body in another order, and repeat a stream as a request for one body.
  """
  count = http.headers.get("x-stainless-retry-count", "")
  repeated = count.isdecimal() and count.strip("0") != ""
  if own := [http.headers.get(name, "") for name in AGENT_HEADERS if name in http.headers]:
    told = {field: value for field, value in body.items() if field != "stream"}
    raw, repeated = json.dumps([own, told], sort_keys=True).encode(), True
  digest = hashlib.blake2b(http.url.path.encode() + b"\0" + raw, digest_size=16).hexdigest()
  if name := http.headers.get("idempotency-key", ""):
    return f"key {name}", digest, True
  return f"body {digest}", digest, repeated
