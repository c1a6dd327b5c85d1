"""The Anthropic library, over /v1/messages, streamed, with a tool."""

import anthropic

client = anthropic.Anthropic()
schema = {"type": "object", "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}}}
messages = [{"role": "user", "content": "What is 2 + 3?"}]
while True:
  with client.messages.stream(
    model="policy",
    max_tokens=100,
    system="Add with the tool.",
    messages=messages,
    tools=[{"name": "add", "input_schema": schema}],
  ) as stream:
    reply = stream.get_final_message()
  calls = [block for block in reply.content if block.type == "tool_use"]
  if not calls:
    break
  results = [
    {"type": "tool_result", "tool_use_id": call.id, "content": str(sum(call.input.values()))}
    for call in calls
  ]
  messages += [
    {"role": "assistant", "content": [block.to_dict() for block in reply.content]},
    {"role": "user", "content": results},
  ]
print(reply.content[0].text)
