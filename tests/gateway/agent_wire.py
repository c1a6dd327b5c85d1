"""What an agent keeps of a conversation in each dialect, as JSON, and the ways it writes it anew.

A history is a list of items as the dialect sends them; its first item holds the system text.
"""

import copy
import json

from jaxrl_agents.gateway.dialects import chat, messages, responses

SYSTEM = "system"


class ChatAgent:
  """/v1/chat/completions."""

  dialect, route = chat, "/v1/chat/completions"

  def body(self, history, tools, max_tokens, stop, n):
    functions = [
      {"type": "function", "function": {"name": name, "parameters": {"type": "object"}}}
      for name in tools
    ]
    found = {"model": "m", "messages": history, "max_tokens": max_tokens, "n": n}
    return found | ({"tools": functions} if tools else {}) | ({"stop": stop} if stop else {})

  def said(self, body, choice=0):
    return [body["choices"][choice]["message"]]

  def calls(self, item):
    """[(id, JSON of the arguments, whoever changes them)] of an item."""
    return [
      (call["id"], call["function"]["arguments"], _setter(call["function"], "arguments"))
      for call in item.get("tool_calls") or ()
    ]

  def results(self, ids, texts):
    return [
      {"role": "tool", "tool_call_id": i, "content": text}
      for i, text in zip(ids, texts, strict=True)
    ]

  def user(self, text):
    return [{"role": "user", "content": text}]

  def assistant(self, text):
    return [{"role": "assistant", "content": text}]

  def is_assistant(self, item):
    return item["role"] == "assistant"

  def without_thought(self, items):
    for item in items:
      item.pop("reasoning_content", None)
    return items

  def in_other_words(self, items, draw):
    """The same reply, as others write it: parts, nulls, spaces at its ends, several turns."""
    (item,) = items
    kind = draw.choice(("parts", "spaces", "null", "split"))
    if kind == "parts" and item["content"]:
      item["content"] = [{"type": "text", "text": item["content"]}]
    elif kind == "spaces":
      item["content"] = f"\n{item['content'] or ''} "
    elif kind == "null" and item.get("tool_calls"):
      item["content"] = None
    elif kind == "split" and len(item.get("tool_calls") or ()) > 1:
      first, rest = copy.deepcopy(item), copy.deepcopy(item)
      first["tool_calls"], rest["tool_calls"] = item["tool_calls"][:1], item["tool_calls"][1:]
      rest["content"] = None
      return [first, rest]
    return items

  def edit(self, item, text):
    item["content"] = text


class MessagesAgent(ChatAgent):
  """/v1/messages: results of calls are parts of a user turn, and arguments are objects."""

  dialect, route = messages, "/v1/messages"

  def body(self, history, tools, max_tokens, stop, n):
    schemas = [{"name": name, "input_schema": {"type": "object"}} for name in tools]
    found = {"model": "m", "system": history[0]["content"], "messages": history[1:]}
    found |= {"max_tokens": max_tokens}
    return (
      found | ({"tools": schemas} if tools else {}) | ({"stop_sequences": stop} if stop else {})
    )

  def said(self, body, choice=0):
    return [{"role": "assistant", "content": body["content"]}]

  def calls(self, item):
    blocks = item["content"] if isinstance(item["content"], list) else ()
    return [
      (block["id"], json.dumps(block["input"]), _object_setter(block, "input"))
      for block in blocks
      if block["type"] == "tool_use"
    ]

  def results(self, ids, texts):
    blocks = [
      {"type": "tool_result", "tool_use_id": i, "content": text}
      for i, text in zip(ids, texts, strict=True)
    ]
    return [{"role": "user", "content": blocks}]

  def without_thought(self, items):
    for item in items:
      if isinstance(item["content"], list):
        item["content"] = [b for b in item["content"] if b["type"] != "thinking"]
    return items

  def in_other_words(self, items, draw):
    (item,) = items
    blocks = item["content"]
    if isinstance(blocks, list) and [b["type"] for b in blocks] == ["text"]:
      item["content"] = blocks[0]["text"] + draw.choice(("", " ", "\n"))
    return items

  def edit(self, item, text):
    if isinstance(item["content"], list) and item["role"] == "user":
      for block in item["content"]:
        block["content"] = text
    else:
      item["content"] = text


class ResponsesAgent(ChatAgent):
  """/v1/responses: thought, text and calls are items of their own."""

  dialect, route = responses, "/v1/responses"

  def body(self, history, tools, max_tokens, stop, n):
    functions = [{"type": "function", "name": name, "parameters": {}} for name in tools]
    found = {"model": "m", "instructions": history[0]["content"], "input": history[1:]}
    return found | {"max_output_tokens": max_tokens} | ({"tools": functions} if tools else {})

  def said(self, body, choice=0):
    return body["output"]

  def calls(self, item):
    if item.get("type") != "function_call":
      return []
    return [(item["call_id"], item["arguments"], _setter(item, "arguments"))]

  def results(self, ids, texts):
    return [
      {"type": "function_call_output", "call_id": i, "output": text}
      for i, text in zip(ids, texts, strict=True)
    ]

  def is_assistant(self, item):
    kind = item.get("type", "message")
    return kind in ("reasoning", "function_call") or item.get("role") == "assistant"

  def without_thought(self, items):
    return [item for item in items if item.get("type") != "reasoning"]

  def in_other_words(self, items, draw):
    for item in items:
      item.pop("id", None)
      item.pop("status", None)
      if item.get("role") == "assistant" and draw.random() < 0.5:
        item["content"] = item["content"][0]["text"]
    return items

  def edit(self, item, text):
    field = {"function_call_output": "output", "function_call": "arguments"}
    kind = item.get("type", "message")
    if kind == "function_call":
      item["arguments"] = json.dumps({"edited": text})
    elif kind != "reasoning":
      item[field.get(kind, "content")] = text


def written_anew(text, draw):
  """JSON of the same value, as another program writes it; as it is where it is no object."""
  try:
    value = json.loads(text)
  except ValueError:
    return text
  if not isinstance(value, dict):
    return text
  if draw.random() < 0.5:
    value = as_javascript(value)
  return json.dumps(
    value,
    ensure_ascii=draw.random() < 0.5,
    sort_keys=draw.random() < 0.5,
    separators=draw.choice(((",", ":"), (", ", ": "))),
  )


def as_javascript(value):
  """A JSON value as JSON.stringify writes it: every number is a double, and 1.0 is "1"."""
  if isinstance(value, dict):
    return {name: as_javascript(each) for name, each in value.items()}
  if isinstance(value, list):
    return [as_javascript(each) for each in value]
  if isinstance(value, int | float) and not isinstance(value, bool):
    double = float(value)
    return int(double) if double.is_integer() and abs(double) < 1e21 else double
  return value


def _setter(record, field):
  return lambda text: record.__setitem__(field, text)


def _object_setter(record, field):
  return lambda text: record.__setitem__(field, json.loads(text))
