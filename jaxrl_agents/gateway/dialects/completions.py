"""POST /v1/completions: https://platform.openai.com/docs/api-reference/completions."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from typing import Any

from jaxrl_agents.chat import Chat
from jaxrl_agents.gateway.dialects.chat import FINISH, counts
from jaxrl_agents.gateway.progress import rest_of
from jaxrl_agents.gateway.requests import (
  SAMPLING,
  Asked,
  Fields,
  Refusal,
  Reply,
  Request,
  ids_of,
  stop_texts,
)

DEFAULT_MAX_TOKENS = 16


def parse(body: Any, chat: Chat) -> Asked:
  """The request in a JSON body; its prompt is a text or an array of ids.

  Raises:
    Refusal: 400, with the field that is wrong or not supported.
  """
  fields = Fields(body)
  fields.refuse({**SAMPLING, "suffix": ("",), "echo": (False,), "best_of": (1,)})
  prompt = fields.need("prompt", (str, list))
  if isinstance(prompt, list) and len(prompt) == 1 and isinstance(prompt[0], str | list):
    prompt = prompt[0]
  if prompt == "":
    raise Refusal(400, "prompt is empty; send a text or an array of ids", param="prompt")
  extra = fields.inside(fields.take("stream_options", dict, {}), "stream_options")
  usage = extra.take("include_usage", bool, False)
  logprobs = fields.take("logprobs", (int, bool))  # 0 asks for those of the sampled tokens alone
  if logprobs not in (None, 0, 1):
    raise Refusal(400, f"logprobs={logprobs}; only the sampled token's is known", param="logprobs")
  told = logprobs is not None and logprobs is not False
  model, stream = fields.take("model", str, ""), fields.take("stream", bool, False)
  ids = fields.take("return_token_ids", bool, False)
  request = Request(
    prompt=None if isinstance(prompt, str) else ids_of(prompt, "prompt", chat.vocab_size),
    text=prompt if isinstance(prompt, str) else "",
    max_tokens=fields.whole("max_tokens", least=1, default=DEFAULT_MAX_TOKENS),
    n=fields.whole("n", least=1, default=1),
    seed=fields.take("seed", int),
    stop=stop_texts(fields.take("stop", (str, list)), "stop"),
    temperature=fields.number("temperature", least=0, most=2),
    top_p=fields.top_p(),
    may_call=False,
    without_effect=fields.rest(),
  )
  return Asked(request, model, stream, logprobs=told, usage=usage, ids=ids)


def body_of(asked: Asked, replies: Sequence[Reply]) -> dict[str, Any]:
  """The reply of a request that is not streamed."""
  choices = [_choice(asked, i, reply) for i, reply in enumerate(replies)]
  return _head(asked, replies) | {"choices": choices, "usage": counts(replies)}


class Stream:
  """The events of a stream: text, the reason of the end, usage if asked."""

  def __init__(self, asked: Asked):
    self._asked, self._sent = asked, ""
    self._head: dict[str, Any] = {}

  def more(self, partial: Reply) -> Iterator[tuple[str, dict[str, Any] | str]]:
    """New text."""
    text = partial.message.content
    if len(text) > len(self._sent):
      self._head = self._head or _head(self._asked, [partial])
      choice = {"index": 0, "text": text[len(self._sent) :], "finish_reason": None}
      yield "", self._head | {"choices": [choice | {"logprobs": None}]}
      self._sent = text

  def end(self, replies: Sequence[Reply]) -> Iterator[tuple[str, dict[str, Any] | str]]:
    """What is left of each reply, and how it ended."""
    head = self._head or _head(self._asked, replies)
    for i, reply in enumerate(replies):
      left = {"text": rest_of(reply.message, self._sent)}
      yield "", head | {"choices": [_choice(self._asked, i, reply) | left]}
    if self._asked.usage:
      yield "", head | {"choices": [], "usage": counts(replies)}
    yield "", "[DONE]"


def _head(asked: Asked, replies: Sequence[Reply]) -> dict[str, Any]:
  return {
    "id": f"cmpl-{replies[0].id}",
    "object": "text_completion",
    "created": int(time.time()),
    "model": asked.model,
    "system_fingerprint": f"v{max(reply.version for reply in replies)}",
  }


def _choice(asked: Asked, i: int, reply: Reply) -> dict[str, Any]:
  generation = reply.generation
  choice: dict[str, Any] = {
    "index": i,
    "text": reply.message.content,
    "finish_reason": FINISH.get(reply.stop, reply.stop),
    "logprobs": None,
  }
  if asked.logprobs:
    choice["logprobs"] = {
      "tokens": [f"token_id:{token}" for token in generation.tokens],
      "token_logprobs": generation.logprobs.tolist(),
      "top_logprobs": None,
      "text_offset": None,
    }
  if asked.ids:
    choice |= {
      "token_ids": generation.tokens.tolist(),
      "prompt_token_ids": reply.prompt.tolist(),
      "versions": generation.versions.tolist(),
    }
  return choice
