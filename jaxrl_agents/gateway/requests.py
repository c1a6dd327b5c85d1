"""What every dialect of the gateway makes of an HTTP request, and what it makes a reply of."""

from __future__ import annotations

import dataclasses
import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from jaxrl_agents.chat import replies
from jaxrl_agents.types import Generation, Message, ToolCall, ToolSpec

SAMPLING: Mapping[str, Sequence[Any]] = {
  "top_k": (0, -1),
  "min_p": (0,),
  "typical_p": (1,),
  "logit_bias": ({},),
  "presence_penalty": (0,),
  "frequency_penalty": (0,),
  "repetition_penalty": (1,),
  "top_logprobs": (0,),
}
"""Fields of requests that would change what is sampled or how it is reported, and the values with
which they do not. The policy does not have them: they are refused.
"""

LEAST_TOP_P = 1e-6

MOST_STOPS = 64
"""Texts, or ids, that may end a reply: each is looked for after each step of the sampler, while all
other replies wait.
"""


class Refusal(Exception):
  """A request that is not served.

  Attributes:
    status: of HTTP.
    message: cause and remedy.
    code: for programs, such as "context_length_exceeded".
    param: the field of the request that is wrong.
    retry: whether the same request may succeed later; None leaves it to the client.
  """

  def __init__(
    self,
    status: int,
    message: str,
    *,
    code: str = "",
    param: str = "",
    retry: bool | None = None,
  ):
    super().__init__(message)
    self.status, self.message, self.code, self.param = status, message, code, param
    self.retry = retry

  @property
  def headers(self) -> dict[str, str]:
    """The headers by which clients decide whether to try again."""
    if self.retry is None:
      return {}
    wait = {"retry-after": "1"} if self.retry else {}
    return {"x-should-retry": str(self.retry).lower(), **wait}


@dataclasses.dataclass(frozen=True)
class Request:
  """One request for replies, in no dialect.

  Attributes:
    messages: the history.
    tools: that the policy may call.
    prompt: ids in the place of messages, int32 [P]; None if the prompt is to be rendered.
    text: a text in the place of messages; "" if there is none.
    max_tokens: of a reply; 0 for as many as there is room for.
    n: replies to sample.
    seed: of the agent's own choice; None for one that follows from session and history.
    stop: texts before which a reply ends.
    stop_tokens: ids that end a reply besides those of the chat format.
    temperature, top_p: as asked; they hold where the session is of no training run.
    may_call: whether calls in the reply are given out as calls; else they are text.
    text_tools: names of tools whose calls are given out as one text, their argument "input".
    without_effect: fields of the request that change nothing.
  """

  messages: tuple[Message, ...] = ()
  tools: tuple[ToolSpec, ...] = ()
  prompt: np.ndarray | None = None
  text: str = ""
  max_tokens: int = 0
  n: int = 1
  seed: int | None = None
  stop: tuple[str, ...] = ()
  stop_tokens: tuple[int, ...] = ()
  temperature: float | None = None
  top_p: float | None = None
  may_call: bool = True
  text_tools: frozenset[str] = frozenset()
  without_effect: tuple[str, ...] = ()


@dataclasses.dataclass(frozen=True)
class Asked:
  """A request, and how its replies are to be written down.

  Attributes:
    request: in no dialect.
    model: by which name the client asked.
    stream: whether as server-sent events.
    logprobs: whether with the log-probability of each token.
    usage: whether a stream ends with the number of tokens.
    ids: whether with the ids of prompt and reply.
    namespaces: of the tools that have one, by the name that the policy knows them by.
  """

  request: Request
  model: str = ""
  stream: bool = False
  logprobs: bool = False
  usage: bool = False
  ids: bool = False
  namespaces: Mapping[str, str] = dataclasses.field(default_factory=dict)

  @property
  def grows(self) -> bool:
    """Whether a stream has the text of the reply while it is sampled: not of several replies, nor
    where each token is told of.
    """
    return self.stream and self.request.n == 1 and not self.logprobs and not self.ids


@dataclasses.dataclass(frozen=True)
class Reply:
  """One reply to a request.

  Attributes:
    id: of the call.
    prompt: ids, int32 [P].
    generation: what was sampled, cut where a stop text ended it.
    message: as the agent gets it.
    stop: "stop" (the policy ended it), "stop_text", "length", "tool_calls".
    stop_text: the text that ended it.
  """

  id: str
  prompt: np.ndarray
  generation: Generation
  message: Message
  stop: str
  stop_text: str = ""

  @property
  def version(self) -> int:
    """The newest weights that sampled a token."""
    return int(self.generation.versions.max(initial=-1))


class Fields:
  """The fields of a JSON object, read one after another. Invariant: none is overlooked: `rest` is
  what nobody asked for, in this object or in those that were taken out of it.

  Raises:
    Refusal: 400, the object is none or a field has another type; it names the field.
  """

  def __init__(self, value: Any, name: str = ""):
    self._name = name
    if not isinstance(value, Mapping):
      what = f"{name} is" if name else "the body is"
      raise Refusal(400, f"{what} a JSON {_kind(value)}; send an object", param=name)
    self._left = dict(value)
    self._inner: list[Fields] = []

  def inside(self, value: Any, name: str) -> Fields:
    """The fields of an object that is part of this one."""
    inner = Fields(value, name)
    self._inner.append(inner)
    return inner

  def named(self, field: str) -> str:
    """The field's path in the request."""
    return f"{self._name}.{field}" if self._name else field

  def take(self, field: str, kinds: type | tuple[type, ...], default: Any = None) -> Any:
    """The value of a field, `default` if it is absent or null."""
    value = self._left.pop(field, None)
    if value is None:
      return default
    allowed = kinds if isinstance(kinds, tuple) else (kinds,)
    fits = isinstance(value, allowed) and (bool in allowed or not isinstance(value, bool))
    if not fits:
      expected = " or ".join(_NAMES[kind] for kind in allowed)
      path = self.named(field)
      raise Refusal(400, f"{path} is a JSON {_kind(value)}; send {expected}", param=path)
    return value

  def need(self, field: str, kinds: type | tuple[type, ...]) -> Any:
    """The value of a field that must be there."""
    value = self.take(field, kinds)
    if value is None:
      raise Refusal(400, f"{self.named(field)} is missing", param=self.named(field))
    return value

  def whole(self, field: str, *, least: int, default: int = 0) -> int:
    """A whole number of at least `least`."""
    value = self.take(field, (int, float))
    if value is None:
      return default
    fraction = isinstance(value, float) and not value.is_integer()
    if fraction or value < least:
      path = self.named(field)
      raise Refusal(400, f"{path}={value}; send a whole number from {least} on", param=path)
    return int(value)

  def number(self, field: str, *, least: float, most: float) -> float | None:
    """A number in a range, None if there is none."""
    value = self.take(field, (int, float))
    if value is not None and not least <= value <= most:
      path = self.named(field)
      raise Refusal(400, f"{path}={value}; send a number from {least:g} to {most:g}", param=path)
    return None if value is None else float(value)

  def top_p(self) -> float | None:
    """The field "top_p" of a request, None if there is none. 0 asks for the likeliest token."""
    value = self.number("top_p", least=0, most=1)
    return None if value is None else max(value, LEAST_TOP_P)

  def refuse(self, fields: Mapping[str, Sequence[Any]]) -> None:
    """Refuses each of `fields` that has a value beside null and those listed, which ask nothing."""
    for field, harmless in fields.items():
      value = self._left.pop(field, None)
      if value is not None and value not in harmless:
        path = self.named(field)
        raise Refusal(400, f"{path} is not supported; leave it out", param=path)

  def rest(self) -> tuple[str, ...]:
    """Paths of fields with a value that nobody asked for, without the numbers of array entries."""
    own = (self.named(name) for name, value in self._left.items() if value is not None)
    paths = {re.sub(r"\[\d+\]", "[]", path) for path in own}
    return tuple(sorted(paths.union(*(inner.rest() for inner in self._inner))))


_NAMES: Mapping[type, str] = {
  str: "a string",
  int: "a whole number",
  float: "a number",
  bool: "true or false",
  list: "an array",
  dict: "an object",
}


def _kind(value: Any) -> str:
  names = {str: "string", bool: "boolean", list: "array", dict: "object", type(None): "null"}
  return names.get(type(value), "number")


def stop_texts(value: Any, param: str) -> tuple[str, ...]:
  """The texts that end a reply, from a string or an array of strings.

  Raises:
    Refusal: 400, it is something else, one of them is empty, or they are more than MOST_STOPS.
  """
  texts = [value] if isinstance(value, str) else list(value or ())
  check_stops(texts, param)
  if not all(isinstance(text, str) and text for text in texts):
    raise Refusal(400, f"{param} must be texts that are not empty", param=param)
  return tuple(texts)


def check_stops(stops: Sequence[Any], param: str) -> None:
  """Raises Refusal, 400, if they are more than MOST_STOPS."""
  if len(stops) > MOST_STOPS:
    raise Refusal(400, f"{param} has {len(stops)} entries; send at most {MOST_STOPS}", param=param)


def text_of(content: Any, param: str, fields: Fields, *, kinds: Sequence[str]) -> str:
  """The text of a message's content: a string, or an array of parts with text. `fields` are of the
  object that the content is part of.

  Raises:
    Refusal: 400, a part is no text, such as an image.
  """
  if content is None or isinstance(content, str):
    return content or ""
  if not isinstance(content, list):
    raise Refusal(400, f"{param} is a JSON {_kind(content)}; send a string", param=param)
  texts = []
  for i, part in enumerate(content):
    if isinstance(part, str):
      texts.append(part)
      continue
    inner = fields.inside(part, f"{param}[{i}]")
    kind = inner.take("type", str, "text")
    if kind not in kinds:
      raise Refusal(
        400, f"{param}[{i}] is of type {kind!r}; this policy reads text alone", param=param
      )
    texts.append(inner.take("text", str) or inner.take("refusal", str, ""))
  return "".join(texts)


def ids_of(value: Any, param: str, vocab_size: int) -> np.ndarray:
  """Token ids from an array of whole numbers, int32 [T].

  Raises:
    Refusal: 400, it is something else, is empty, or holds no id of the vocabulary.
  """
  fits = isinstance(value, list) and all(type(i) is int and 0 <= i < vocab_size for i in value)
  if not fits or not value:
    raise Refusal(
      400, f"{param} must be an array of ids from 0 to {vocab_size - 1}, one at least", param=param
    )
  return np.asarray(value, np.int32)


def call_of(call_id: str, name: str, text: str) -> ToolCall:
  """A call of an earlier reply, whose arguments are the JSON `text`."""
  try:
    arguments = replies.parsed(text or "{}")
  except ValueError as error:
    return ToolCall(call_id, name, {}, error=str(error), raw=text)
  if not isinstance(arguments, dict):
    return ToolCall(call_id, name, {}, error="no JSON object", raw=text)
  return ToolCall(call_id, name, arguments)


def arguments_of(call: ToolCall) -> str:
  """The arguments of a call as JSON, or as the policy wrote them where they are none."""
  return call.raw or json.dumps(dict(call.arguments), ensure_ascii=False)


def tool_spec(fields: Fields, schema: str) -> ToolSpec:
  """A tool from its name, description and JSON schema, which stands in the field `schema`."""
  parameters = fields.take(schema, dict, {}) or {"type": "object", "properties": {}}
  name = fields.need("name", str)
  if not name:
    raise Refusal(400, f"{fields.named('name')} is empty", param=fields.named("name"))
  return ToolSpec(name, fields.take("description", str, ""), parameters)
