"""LiteLLM: streams, refusals, broken connections, the same call again.

Over /v1/chat/completions, as the provider "openai", and over /v1/messages, as "anthropic".
"""

import json
import os

os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"

import litellm
from relay import Relay, fails

litellm.suppress_debug_info = True
relay = Relay(os.environ["OPENAI_BASE_URL"])
schema = {"type": "object", "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}}}
ADD = {"type": "function", "function": {"name": "add", "parameters": schema}}
BASES = {"openai": relay.url, "anthropic": relay.url.removesuffix("/v1")}


def answer(provider, question, **options):
  """What the policy says at the end of a conversation with a tool."""
  messages = [{"role": "user", "content": question}]
  while True:
    asked = {"api_base": BASES[provider], "tools": [ADD], **options}
    reply = litellm.completion(f"{provider}/policy", messages, **asked)
    if options.get("stream"):
      pieces = list(reply)
      assert len(pieces) > 1, pieces
      reply = litellm.stream_chunk_builder(pieces)
    said = reply.choices[0].message
    if not said.tool_calls:
      return said.content
    messages.append(said.model_dump())
    for call in said.tool_calls:
      result = str(sum(json.loads(call.function.arguments).values()))
      messages.append({"role": "tool", "tool_call_id": call.id, "content": result})


for provider in BASES:
  asked = lambda kind, to=provider: f"What is 2 + 3, {kind} by {to}?"
  # As it is, and once more.
  for _ in range(2):
    assert answer(provider, asked("plain")) == "5"
  # In pieces.
  assert answer(provider, asked("streamed"), stream=True) == "5"
  # A field that the gateway does not have, and a prompt that is too long.
  with fails(litellm.BadRequestError, "top_k is not supported; leave it out"):
    answer(provider, asked("refused"), top_k=5)
  with fails(litellm.ContextWindowExceededError, "prompt is too long: "):
    answer(provider, asked("word " * 20_000))
  # The connection breaks while the second reply is sampled, or in the middle of it. OpenAI's
  # library repeats the request and marks it; LiteLLM's own client does not mark it.
  for fault in ("lost", "cut"):
    relay.faults, relay.repetitions = ["", fault], []
    assert answer(provider, asked(fault), num_retries=2) == "5"
    assert relay.repetitions == [False, False, provider == "openai"], relay.repetitions
  # Without repetitions it is an error, and so is a stream that breaks.
  for fault, stream in (("lost", False), ("cut", True)):
    relay.faults, relay.repetitions = ["", fault], []
    broken = asked(f"{fault} {stream}")
    error = litellm.ServiceUnavailableError if stream else litellm.InternalServerError
    with fails(error, "onnect"):
      answer(provider, broken, stream=stream, max_retries=0)
    assert answer(provider, broken, stream=stream, max_retries=0) == "5"
    assert relay.repetitions == [False] * 4, relay.repetitions
print(5)
