"""A reranker behind HTTP: the interface of Cohere, which vLLM, Jina and others serve as well.

POST {"model", "query", "documents", "top_n"} -> {"results": [{"index", "relevance_score"}, ...]}.
Source: https://docs.cohere.com/reference/rerank.
"""

from __future__ import annotations

import dataclasses
import http.client
import json
import math
import time
import urllib.error
import urllib.request
from collections.abc import Sequence
from typing import Any

MAX_BYTES = 4 << 20
"""Of a reply."""

PAUSES_S = (0.5, 2.0)
"""Before the second and the third try."""

_PASSING = (408, 425, 429, 500, 502, 503, 504)
"""Statuses after which the same request may succeed."""


class RerankError(OSError):
  """The reranker did not give a score for each text, and why."""


@dataclasses.dataclass(frozen=True)
class RerankEndpoint:
  """Scores texts for a query; called as `index.hybrid.Index.search` calls its `rerank`.

  Attributes:
    url: of the interface, with its path (http://127.0.0.1:8000/v1/rerank).
    model: name that is sent along; "" for none.
    key: sent as a bearer token; "" for none.
    deadline_s: of all tries together.
  """

  url: str
  model: str = ""
  key: str = dataclasses.field(default="", repr=False)
  deadline_s: float = 10.0

  def __call__(self, query: str, texts: Sequence[str]) -> list[float]:
    """The score of each text, higher for a better match.

    Raises:
      RerankError: no tries or no time are left, or the reply is not what the interface promises.
    """
    if not texts:
      return []
    ends = time.monotonic() + self.deadline_s
    body = {"query": query, "documents": list(texts), "top_n": len(texts)}
    if self.model:
      body["model"] = self.model
    for pause_s in (*PAUSES_S, None):
      try:
        return _scores(self._reply(body, ends), len(texts))
      except urllib.error.HTTPError as error:
        why = f"status {error.code}"
        again = error.code in _PASSING
      except (OSError, http.client.HTTPException) as error:
        why, again = str(error) or type(error).__name__, True
      except ValueError as error:
        why, again = str(error), False
      if not again or pause_s is None or time.monotonic() + pause_s >= ends:
        break
      time.sleep(pause_s)
    raise RerankError(f"the reranker at {self.url} failed: {why}")

  def _reply(self, body: dict[str, Any], ends: float) -> bytes:
    left_s = max(ends - time.monotonic(), 0.01)
    headers = {"Content-Type": "application/json"}
    if self.key:
      headers["Authorization"] = f"Bearer {self.key}"
    request = urllib.request.Request(self.url, json.dumps(body).encode(), headers)
    with urllib.request.urlopen(request, timeout=left_s) as answer:
      content = b""
      while part := answer.read1(1 << 16):
        content += part
        if len(content) > MAX_BYTES:
          raise ValueError(f"its reply has more than {MAX_BYTES} bytes")
        if time.monotonic() > ends:
          raise TimeoutError(f"its reply was not whole after {self.deadline_s:g} s")
    return content


def _scores(content: bytes, count: int) -> list[float]:
  """The scores of a reply, in the order of the texts; ValueError if it is not complete."""
  try:
    results = json.loads(content)["results"]
    found = {each["index"]: float(each["relevance_score"]) for each in results}
  except (ValueError, KeyError, TypeError, RecursionError) as error:
    raise ValueError(
      'its reply is not {"results": [{"index": 0, "relevance_score": 0.5}, ...]}: '
      f"{type(error).__name__} {str(error)[:80]}"
    ) from None
  if sorted(found, key=str) != sorted(range(count), key=str):
    raise ValueError(f"it gave {len(found)} scores for {count} texts; one for each is needed")
  if not all(math.isfinite(score) for score in found.values()):
    raise ValueError("it gave a score that is not finite")
  return [found[i] for i in range(count)]
