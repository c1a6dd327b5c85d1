"""The hits of a search in the order of a reranker behind an API.

POST /rerank {"model", "query", "documents", "top_n"} -> {"results": [{"index", "relevance_score"},
...]}: the interface of Cohere (https://docs.cohere.com/reference/rerank), which vLLM, Jina and
others serve as well.
"""

from __future__ import annotations

import asyncio
import json
import math
from collections.abc import Sequence

from jaxrl_agents.agents.chat_endpoint import Client, Endpoint, EndpointError, read_key
from jaxrl_agents.agents.search.config import SearchConfig
from jaxrl_agents.corpus.index.hybrid import Hit

TRIES = 3
_SHARE = 0.8
"""Share of the tool's deadline, which must not come first: it would be an error of the policy."""


def opened(limits: SearchConfig) -> Client | None:
  """The client of the reranker; None if there is none.

  Raises:
    ValueError: its key cannot be read.
  """
  wanted = limits.rerank
  if not wanted.url:
    return None
  key = read_key(wanted.key_file, wanted.key_env)
  request_s = _SHARE * limits.tool_deadline_s / TRIES
  return Client(Endpoint(wanted.url, wanted.model, key, request_s, TRIES))


async def reranked(
  client: Client, query: str, hits: Sequence[Hit], *, deadline_s: float
) -> list[Hit]:
  """The hits, best score first, equal ones as they were; their scores are those of the reranker.

  Raises:
    EndpointError: there were no usable scores within the tries, or within a share of the deadline
      of the tool.
  """
  if not hits:
    return []
  texts = [hit.chunk.text for hit in hits]
  request = {"query": query, "documents": texts, "top_n": len(texts)}
  try:
    async with asyncio.timeout(_SHARE * deadline_s):
      scores = await client.post("/rerank", request, lambda answer: read(answer, len(texts)))
  except TimeoutError:
    raise EndpointError(
      f"the reranker at {client.endpoint.url} gave no scores within {_SHARE * deadline_s:g} s"
    ) from None
  order = sorted(range(len(hits)), key=lambda i: (-scores[i], i))
  return [Hit(hits[i].chunk, scores[i]) for i in order]


def read(answer: bytes, count: int) -> list[float]:
  """The scores of an answer in the order of the texts. Raises ValueError if it has not one each."""
  try:
    found = {
      each["index"]: float(each["relevance_score"]) for each in json.loads(answer)["results"]
    }
  except (ValueError, RecursionError, LookupError, TypeError) as error:
    raise ValueError(
      f'it is not {{"results": [{{"index", "relevance_score"}}, ...]}} ({type(error).__name__})'
    ) from None
  if sorted(found, key=str) != sorted(range(count), key=str):
    raise ValueError(f"{len(found)} scores for {count} texts; one for each is needed")
  if not all(math.isfinite(score) for score in found.values()):
    raise ValueError("a score is not finite")
  return [found[i] for i in range(count)]
