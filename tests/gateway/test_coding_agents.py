"""What Codex and Claude Code send and read beside the documented fields of their dialects."""

import anthropic
import openai
import pytest

from jaxrl_agents.gateway import sse
from tests.gateway.serving import Says, calls, serving, words

TEXT = {"type": "object", "properties": {"text": {"type": "string"}}}
TURN = {"x-codex-turn-metadata": '{"turn_id": "t1"}'}


def codex_of(gateway, session, **options):
  return openai.OpenAI(base_url=f"{gateway.url}/v1", api_key=session.key, max_retries=0, **options)


def claude_of(gateway, session, **headers):
  return anthropic.Anthropic(
    base_url=gateway.url, api_key=session.key, max_retries=0, default_headers=headers
  )


def trained_text(trajectory):
  return [words(s.tokens[s.loss_mask]) for s in trajectory.segments]


def function(name):
  return {"type": "function", "name": name, "parameters": TEXT}


def test_tools_of_namespaces_are_offered_by_joint_names_and_called_by_their_own():
  first = calls(("shell__run", {"input": "ls"}), ("clock__sleep", {"text": "1"}))
  with serving(Says(first, "done")) as gateway:
    session = gateway.open()
    grammar = {"type": "grammar", "syntax": "lark", "definition": "start: /.+/"}
    run = {"type": "custom", "name": "run", "format": grammar}
    tools = [
      {"type": "namespace", "name": "shell", "description": "Commands.", "tools": [run]},
      {"type": "namespace", "name": "clock", "tools": [function("sleep")]},
    ]
    items = [
      {"type": "additional_tools", "role": "developer", "tools": tools},
      {"role": "user", "content": "go"},
    ]
    ask = lambda: codex_of(gateway, session).responses.create(model="m", input=items)
    made = [item.to_dict() for item in ask().output]
    named = [(item["type"], item["namespace"], item["name"]) for item in made]
    assert named == [("custom_tool_call", "shell", "run"), ("function_call", "clock", "sleep")]
    assert made[0]["input"] == "ls" and made[1]["arguments"] == '{"text": "1"}'
    items += [{k: v for k, v in item.items() if k != "parsed_arguments"} for item in made]
    items += [
      {"type": "custom_tool_call_output", "call_id": made[0]["call_id"], "output": "a.txt"},
      {"type": "function_call_output", "call_id": made[1]["call_id"], "output": "slept"},
    ]
    assert ask().output_text == "done"
    assert [tool.name for tool in session.tree.calls[0].tools] == ["shell__run", "clock__sleep"]
    assert session.without_effect["grammars of custom tools"] == 2
    assert session.without_effect["descriptions of namespaces"] == 2
    left = gateway.left(session)
  sampled = '<|call|>shell__run{"input": "ls"}<|/call|><|call|>clock__sleep{"text": "1"}<|/call|>'
  assert trained_text(left) == [f"{sampled}<|end|>done<|end|>"]


def test_a_call_of_a_custom_tool_with_more_than_its_input_comes_back_as_it_was_sampled():
  with serving(Says(calls(("patch", {"input": "x", "why": "y"})), "done")) as gateway:
    session = gateway.open()
    items = [{"role": "user", "content": "go"}]
    tools = [{"type": "custom", "name": "patch"}]
    ask = lambda: codex_of(gateway, session).responses.create(model="m", input=items, tools=tools)
    (made,) = ask().output
    assert (made.type, made.input) == ("custom_tool_call", "x")
    output = {"type": "custom_tool_call_output", "call_id": made.call_id, "output": "patched"}
    items += [made.to_dict(), output]
    ask()
    left = gateway.left(session)
  sampled = '<|call|>patch{"input": "x", "why": "y"}<|/call|><|end|>'
  assert trained_text(left) == [f"{sampled}done<|end|>"]


def test_two_tools_of_one_joint_name_are_refused():
  with serving(Says("x")) as gateway:
    tools = [
      {"type": "namespace", "name": "clock", "tools": [function("sleep")]},
      function("clock__sleep"),
    ]
    with pytest.raises(openai.BadRequestError, match="two tools are called 'clock__sleep'"):
      codex_of(gateway, gateway.open()).responses.create(model="m", input="go", tools=tools)


def test_what_one_agent_of_codex_writes_to_another_is_a_message_of_the_user():
  with serving(Says("done")) as gateway:
    session = gateway.open()
    parts = [
      {"type": "input_text", "text": "Sender: /root\n"},
      {"type": "encrypted_content", "encrypted_content": "Write 5."},
    ]
    sent = {"type": "agent_message", "author": "/root", "recipient": "/root/a", "content": parts}
    codex_of(gateway, session).responses.create(model="m", input=[sent])
    (message,) = session.tree.calls[0].history
  assert (message.role, message.content) == ("user", "Sender: /root\nWrite 5.")


def test_a_fault_after_a_stream_of_responses_has_begun_is_told_to_openai_and_to_codex(monkeypatch):
  monkeypatch.setattr(sse, "GRACE_S", 0.05)
  with serving(Says(RuntimeError("no memory"), delay_s=0.4)) as gateway:
    client = codex_of(gateway, gateway.open())
    with pytest.raises(openai.APIError, match="no memory"):
      list(client.responses.create(model="m", input="go", stream=True))
    raw = client.responses.with_raw_response.create(model="m", input="again", stream=True)
    events = raw.http_response.read().decode().split("\n\n")
  assert events[1].startswith("event: response.failed\n")
  assert (
    '"error": {"code": "server_error", "message": "the sampler failed: no memory"}' in events[1]
  )


def test_a_turn_of_codex_that_asks_again_gets_the_reply_that_was_sampled_for_it():
  with serving(Says("one", "two", "three")) as gateway:
    session = gateway.open()
    client = codex_of(gateway, session)

    def ask(turn, **fields):
      body = {"model": "m", "input": "go", **fields}
      return client.responses.create(**body, extra_headers={"x-codex-turn-metadata": turn})

    assert ask("t1", store=False, user="u").output_text == "one"
    assert ask("t1", user="u", store=False).output_text == "one"  # fields in another order
    assert ask("t2", user="u", store=False).output_text == "two"
    left = gateway.left(session)
  assert trained_text(left) == ["one<|end|>", "two<|end|>"]


def test_claude_code_gets_the_same_reply_without_a_stream_and_its_sub_agents_get_their_own():
  with serving(Says("one", "two")) as gateway:
    session = gateway.open()
    asked = {"model": "m", "max_tokens": 20, "messages": [{"role": "user", "content": "go"}]}
    main = claude_of(gateway, session, **{"x-claude-code-session-id": "s"})
    with main.messages.stream(**asked) as events:
      assert events.get_final_message().content[0].text == "one"
    assert main.messages.create(**asked).content[0].text == "one"
    headers = {"x-claude-code-session-id": "s", "x-claude-code-agent-id": "a"}
    assert claude_of(gateway, session, **headers).messages.create(**asked).content[0].text == "two"
    left = gateway.left(session)
  assert trained_text(left) == ["one<|end|>", "two<|end|>"]


def test_a_request_that_failed_is_sampled_anew_when_it_is_repeated():
  with serving(Says(RuntimeError("no memory"), "fine")) as gateway:
    client = codex_of(gateway, gateway.open(), default_headers=TURN)
    with pytest.raises(openai.InternalServerError, match="no memory"):
      client.responses.create(model="m", input="go")
    assert client.responses.create(model="m", input="go").output_text == "fine"


def test_a_deferred_tool_is_not_offered_and_is_defined_where_a_search_found_it():
  search = calls(("ToolSearch", {"text": "fetch"}))
  with serving(Says(search, calls(("Fetch", {"text": "a"})), "done"), max_context_tokens=2048) as g:
    session = g.open()
    client = claude_of(g, session)
    tools = [{"name": "ToolSearch", "input_schema": TEXT}]
    messages = [{"role": "user", "content": "go"}]

    def ask(*result):
      reply = client.messages.create(model="m", max_tokens=60, messages=messages, tools=tools)
      if not result:
        return reply
      found = {"type": "tool_result", "tool_use_id": reply.content[0].id, "content": list(result)}
      said = [block.to_dict() for block in reply.content]
      messages.extend(
        [{"role": "assistant", "content": said}, {"role": "user", "content": [found]}]
      )
      return reply

    ask({"type": "tool_reference", "tool_name": "Fetch"})
    with pytest.raises(anthropic.BadRequestError, match="tool_name='Fetch' is none of the tools"):
      ask()
    fetch = {"name": "Fetch", "description": "Gets it.", "input_schema": TEXT}
    tools.append(fetch | {"defer_loading": True})
    assert ask({"type": "text", "text": "page"}).content[0].name == "Fetch"
    assert ask().content[0].text == "done"
    assert {tool.name for call in session.tree.calls for tool in call.tools} == {"ToolSearch"}
    defined = session.tree.calls[1].history[-1].content
    left = g.left(session)
  assert defined == (
    '{"name": "Fetch", "description": "Gets it.", "input_schema": {"type": "object", '
    '"properties": {"text": {"type": "string"}}}}\n'
  )
  assert len(left.segments) == 1 and left.metrics["turns"] == 3
