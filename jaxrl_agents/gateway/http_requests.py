"""What the HTTP interfaces of the gateway read of a request: its key and its body."""

from __future__ import annotations

import asyncio
import json
from typing import Any

from starlette.requests import Request as HttpRequest

from jaxrl_agents.gateway.requests import Refusal

MAX_BODY_BYTES = 64 << 20
BODY_S = 60.0
"""Seconds that a client has to send its body."""


def key_of(http: HttpRequest) -> str:
  """The key of a request; "" if it has none."""
  scheme, _, bearer = http.headers.get("authorization", "").partition(" ")
  return http.headers.get("x-api-key") or (bearer.strip() if scheme.lower() == "bearer" else "")


async def body_of(http: HttpRequest) -> bytes:
  """The body of a request.

  Raises:
    Refusal: 413, it is too large; 408, it takes too long.
  """
  parts, size = [], 0
  try:
    async with asyncio.timeout(BODY_S):
      async for part in http.stream():
        size += len(part)
        if size > MAX_BODY_BYTES:
          raise Refusal(413, f"the body is larger than {MAX_BODY_BYTES} bytes", retry=False)
        parts.append(part)
  except TimeoutError:
    raise Refusal(408, f"the body took longer than {BODY_S:g} s", retry=False) from None
  return b"".join(parts)


def as_json(raw: bytes) -> Any:
  """The JSON value of a body; {} if it is empty.

  Raises:
    Refusal: 400, it is not valid.
  """
  try:
    return json.loads(raw or b"{}")
  except (ValueError, RecursionError) as error:
    raise Refusal(400, f"the body is not valid JSON: {error}") from None
