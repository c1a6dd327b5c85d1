"""POST /inference/v1/generate: ids in, ids out, as clients of other RL frameworks send them."""

from __future__ import annotations

import base64
from collections.abc import Sequence
from typing import Any

import numpy as np

from jaxrl_agents.chat import Chat
from jaxrl_agents.gateway.dialects.chat import FINISH
from jaxrl_agents.gateway.requests import (
  SAMPLING,
  Asked,
  Fields,
  Reply,
  Request,
  check_stops,
  ids_of,
  stop_texts,
)


def parse(body: Any, chat: Chat) -> Asked:
  """The request in a JSON body.

  Raises:
    Refusal: 400, with the field that is wrong or not supported.
  """
  fields = Fields(body)
  params = fields.inside(fields.take("sampling_params", dict, {}), "sampling_params")
  params.refuse({**SAMPLING, "prompt_logprobs": (False,)})
  stops = params.take("stop_token_ids", list, [])
  check_stops(stops, "sampling_params.stop_token_ids")
  model = fields.take("model", str, "")
  request = Request(
    prompt=ids_of(fields.need("token_ids", list), "token_ids", chat.vocab_size),
    max_tokens=params.whole("max_tokens", least=1),
    n=params.whole("n", least=1, default=1),
    seed=params.take("seed", int),
    stop=stop_texts(params.take("stop", (str, list)), "sampling_params.stop"),
    stop_tokens=tuple(
      ids_of(stops, "sampling_params.stop_token_ids", chat.vocab_size).tolist() if stops else ()
    ),
    temperature=params.number("temperature", least=0, most=2),
    top_p=params.top_p(),
    may_call=False,
    without_effect=fields.rest(),
  )
  return Asked(request, model, logprobs=True, ids=True)


def body_of(asked: Asked, replies: Sequence[Reply]) -> dict[str, Any]:
  """Ids, log-probabilities, and the experts of the tokens if the policy has any."""
  return {
    "request_id": replies[0].id,
    "model": asked.model,
    "prompt_token_ids": replies[0].prompt.tolist(),
    "choices": [_choice(i, reply) for i, reply in enumerate(replies)],
  }


def _choice(i: int, reply: Reply) -> dict[str, Any]:
  generation = reply.generation
  pairs = zip(generation.tokens, generation.logprobs, strict=True)
  content = [{"token": f"token_id:{t}", "logprob": float(logprob)} for t, logprob in pairs]
  choice: dict[str, Any] = {
    "index": i,
    "token_ids": generation.tokens.tolist(),
    "versions": generation.versions.tolist(),
    "logprobs": {"content": content},
    "finish_reason": FINISH.get(reply.stop, reply.stop),
  }
  if generation.routing is not None:
    rows = np.ascontiguousarray(generation.routing)
    choice["routed_experts"] = {
      "data": base64.b64encode(rows.tobytes()).decode(),
      "shape": list(rows.shape),
      "dtype": str(rows.dtype),
      "start": len(reply.prompt) + len(generation.tokens) - len(rows),
    }
  return choice
