"""The client libraries that agents are written with, against the gateway."""

import time

import anthropic
import numpy as np
import openai
import pytest

from jaxrl_agents.types import Message
from tests.chat import families
from tests.gateway.serving import CHAT, SERVICE_KEY, Says, calls, serving, tool, words

WEATHER = {"type": "object", "properties": {"what": {"type": "string"}}}


def openai_of(gateway, session, **options):
  return openai.OpenAI(base_url=f"{gateway.url}/v1", api_key=session.key, **options)


def anthropic_of(gateway, session):
  return anthropic.Anthropic(base_url=gateway.url, api_key=session.key)


def trained_text(trajectory):
  return [words(s.tokens[s.loss_mask]) for s in trajectory.segments]


LOOKS = '<|call|>look{"what": "left"}<|/call|><|call|>look{"what": "right"}<|/call|><|end|>'
TWICE = calls(("look", {"what": "left"}), ("look", {"what": "right"}))


@pytest.mark.parametrize("stream", [False, True])
def test_a_chat_with_tools_is_one_segment_with_every_sampled_token(stream):
  with serving(Says(TWICE, "nothing there")) as gateway:
    session = gateway.open()
    client = openai_of(gateway, session)
    messages = [{"role": "developer", "content": "Look."}, {"role": "user", "content": "go"}]

    def ask():
      if not stream:
        return client.chat.completions.create(model="m", messages=messages, tools=[tool()])
      with client.chat.completions.stream(model="m", messages=messages, tools=[tool()]) as events:
        return events.get_final_completion()

    first = ask().choices[0]
    assert first.finish_reason == "tool_calls" and first.message.content is None
    assert [c.function.arguments for c in first.message.tool_calls] == [
      '{"what": "left"}',
      '{"what": "right"}',
    ]
    messages.append(first.message.to_dict())
    for call in first.message.tool_calls:
      messages.append({"role": "tool", "tool_call_id": call.id, "content": "dust"})
    last = ask().choices[0]
    assert (last.finish_reason, last.message.content) == ("stop", "nothing there")
    left = gateway.left(session)
  assert trained_text(left) == [f"{LOOKS}nothing there<|end|>"]
  (segment,) = left.segments
  assert set(segment.versions[segment.loss_mask]) == {0, 1}


@pytest.mark.parametrize("stream", [False, True])
def test_messages_with_tools_are_one_segment(stream):
  with serving(Says(TWICE, "nothing there")) as gateway:
    session = gateway.open()
    client = anthropic_of(gateway, session)
    messages = [{"role": "user", "content": "go"}]
    billing = {"type": "text", "text": "x-anthropic-billing-header: cch=1"}

    def ask(number):
      asked = {
        "model": "m",
        "max_tokens": 60,
        "messages": messages,
        "tools": [{"name": "look", "input_schema": WEATHER}],
        "system": [
          billing | {"text": f"{billing['text']}{number}"},
          {"type": "text", "text": "Be."},
        ],
      }
      if not stream:
        return client.messages.create(**asked)
      with client.messages.stream(**asked) as events:
        return events.get_final_message()

    first = ask(1)
    assert first.stop_reason == "tool_use"
    assert [block.input for block in first.content] == [{"what": "left"}, {"what": "right"}]
    results = [
      {"type": "tool_result", "tool_use_id": b.id, "content": "dust"} for b in first.content
    ]
    messages += [
      {"role": "assistant", "content": [b.to_dict() for b in first.content]},
      {"role": "user", "content": results},
    ]
    counted = client.messages.count_tokens(
      model="m", messages=messages, system="Be.", tools=[{"name": "look", "input_schema": WEATHER}]
    )
    last = ask(2)
    assert last.stop_reason == "end_turn" and last.content[0].text == "nothing there"
    assert counted.input_tokens == last.usage.input_tokens
    left = gateway.left(session)
  assert trained_text(left) == [f"{LOOKS}nothing there<|end|>"]
  assert left.metrics["turns"] == 2  # counting tokens is no call


@pytest.mark.parametrize("stream", [False, True])
def test_responses_with_tools_are_one_segment(stream):
  with serving(Says(TWICE, "nothing there")) as gateway:
    session = gateway.open()
    client = openai_of(gateway, session)
    items = [{"role": "user", "content": "go"}]
    tools = [
      {"type": "function", "name": "look", "parameters": WEATHER, "strict": False},
      {"type": "web_search"},
    ]

    def ask():
      asked = {"model": "m", "instructions": "Be.", "input": items, "tools": tools}
      if not stream:
        return client.responses.create(**asked)
      with client.responses.stream(**asked) as events:
        kinds = [event.type for event in events]
        assert kinds[0] == "response.created" and kinds[-1] == "response.completed"
        return events.get_final_response()

    first = ask()
    assert [item.type for item in first.output] == ["function_call", "function_call"]
    items += [
      {k: v for k, v in i.to_dict().items() if k != "parsed_arguments"} for i in first.output
    ]
    for item in first.output:
      items.append({"type": "function_call_output", "call_id": item.call_id, "output": "dust"})
    assert ask().output_text == "nothing there"
    left = gateway.left(session)
    assert session.without_effect["tools of type web_search"] == 2
  assert trained_text(left) == [f"{LOOKS}nothing there<|end|>"]


def test_several_replies_to_one_request_are_siblings_that_are_all_trained():
  with serving(Says("one", "two", "three")) as gateway:
    session = gateway.open()
    found = openai_of(gateway, session).chat.completions.create(
      model="m", messages=[{"role": "user", "content": "a"}], n=3, logprobs=True
    )
    assert [c.message.content for c in found.choices] == ["one", "two", "three"]
    tokens = [len(c.logprobs.content) for c in found.choices]
    assert found.usage.completion_tokens == sum(tokens)
    assert found.choices[1].logprobs.content[1].logprob == pytest.approx(-0.01)
    left = gateway.left(session)
  assert trained_text(left) == ["one<|end|>", "two<|end|>", "three<|end|>"]


def test_a_stop_text_ends_the_reply_and_what_was_sampled_after_it_is_not_trained():
  with serving(Says("think. Observation: more")) as gateway:
    session = gateway.open()
    found = openai_of(gateway, session).chat.completions.create(
      model="m", messages=[{"role": "user", "content": "a"}], stop=["Observation:"]
    )
    assert found.choices[0].message.content == "think. "
    assert found.choices[0].finish_reason == "stop"
    (segment,) = gateway.left(session).segments
    text = words(segment.tokens[segment.loss_mask])
    assert text.endswith("Observation:") and len(segment.routing) == len(segment.tokens)
    other = gateway.open()
    found = anthropic_of(gateway, other).messages.create(
      model="m", max_tokens=50, messages=[{"role": "user", "content": "a"}], stop_sequences=["th"]
    )
    assert (found.stop_reason, found.stop_sequence) == ("stop_sequence", "th")


def test_a_stop_text_within_a_thought_is_not_given_out(tmp_path):
  thinks = families.load(tmp_path / "qwen3", "qwen3")
  reply = thinks.encode_reply(Message("assistant", "yes", reasoning="so. Observation: more"))
  with serving(Says(reply)) as gateway:
    session = gateway.open(chat=thinks)
    found = openai_of(gateway, session).chat.completions.create(
      model="m", messages=[{"role": "user", "content": "a"}], stop=["Observation:"]
    )
    assert found.choices[0].message.reasoning_content == "so. "
    (segment,) = gateway.left(session).segments
  assert thinks.decode(segment.tokens[segment.loss_mask]).endswith("so. Observation:")


def test_a_client_that_repeats_a_request_after_a_timeout_gets_the_reply_of_the_first():
  with serving(Says("slow reply", delay_s=0.8)) as gateway:
    session = gateway.open()
    client = openai_of(gateway, session, timeout=0.5, max_retries=3)
    found = client.chat.completions.create(model="m", messages=[{"role": "user", "content": "a"}])
    assert found.choices[0].message.content == "slow reply"
    left = gateway.left(session)
  assert left.metrics["turns"] == 1 and trained_text(left) == ["slow reply<|end|>"]


def test_an_equal_request_that_is_no_repetition_is_another_draw():
  with serving(Says("one", "two")) as gateway:
    session = gateway.open()
    client = openai_of(gateway, session)
    ask = lambda: client.chat.completions.create(
      model="m", messages=[{"role": "user", "content": "a"}]
    )
    assert [ask().choices[0].message.content for _ in range(2)] == ["one", "two"]
    assert len(gateway.left(session).segments) == 2
    seeds = [limits.seed for _, limits in gateway.served.sampler.asked]
    assert len(set(seeds)) == 2


def test_a_base_url_that_is_wrong_is_refused_with_the_right_one():
  with serving(Says("x")) as gateway:
    key, ask = gateway.open().key, {"model": "m", "messages": [{"role": "user", "content": "a"}]}
    with pytest.raises(openai.NotFoundError, match="base URL of openai ends with /v1"):
      openai.OpenAI(base_url=gateway.url, api_key=key).chat.completions.create(**ask)
    other = anthropic.Anthropic(base_url=f"{gateway.url}/v1", api_key=key)
    with pytest.raises(anthropic.NotFoundError, match="that of anthropic does not") as caught:
      other.messages.create(max_tokens=5, **ask)
    assert caught.value.body["error"]["type"] == "not_found_error" and key not in str(caught.value)
    with pytest.raises(openai.APIStatusError, match="there is no GET of this path"):
      openai.OpenAI(base_url=f"{gateway.url}/v1", api_key=key).get("/responses", cast_to=object)


def test_errors_reach_the_clients_as_their_own_kinds():
  with serving(Says("x"), max_context_tokens=20) as gateway:
    session = gateway.open()
    client, other = openai_of(gateway, session), anthropic_of(gateway, session)
    long = [{"role": "user", "content": "word " * 40}]
    with pytest.raises(openai.BadRequestError) as caught:
      client.chat.completions.create(model="m", messages=long)
    assert caught.value.code == "context_length_exceeded"
    with pytest.raises(anthropic.BadRequestError, match="context length is 20 tokens"):
      other.messages.create(model="m", max_tokens=5, messages=long)
    with pytest.raises(openai.AuthenticationError):
      openai.OpenAI(base_url=f"{gateway.url}/v1", api_key="sk-no").models.list()
    image = [{"type": "image_url", "image_url": {"url": "data:x"}}]
    with pytest.raises(openai.BadRequestError, match="reads text alone"):
      client.chat.completions.create(model="m", messages=[{"role": "user", "content": image}])
    gateway.run(session.finish())
    began = time.monotonic()
    with pytest.raises(openai.ConflictError, match="is finished"):  # and is not repeated
      client.chat.completions.create(model="m", messages=[{"role": "user", "content": "a"}])
    assert time.monotonic() - began < 2
    assert not session.error  # what an agent asks wrongly is no fault of the machinery


def test_a_prompt_that_is_too_long_is_refused_in_the_words_that_agents_look_for():
  # LiteLLM, LangChain, verifiers and Claude Code know this error by its text, not by its code.
  words = r"prompt is too long: \d+ tokens > 19 maximum; this model's maximum context length is 20 "
  with serving(Says("x"), max_context_tokens=20) as gateway:
    session = gateway.open()
    client, other = openai_of(gateway, session), anthropic_of(gateway, session)
    long = [{"role": "user", "content": "word " * 40}]
    with pytest.raises(openai.BadRequestError, match=words):
      client.chat.completions.create(model="m", messages=long)
    with pytest.raises(openai.BadRequestError, match=words):
      client.responses.create(model="m", input=long)
    with pytest.raises(anthropic.BadRequestError, match=words):
      other.messages.create(model="m", max_tokens=5, messages=long)


def test_a_fault_of_the_sampler_makes_the_session_a_failure_and_not_a_reward_of_zero():
  with serving(Says(RuntimeError("out of memory"))) as gateway:
    session = gateway.open()
    client = openai_of(gateway, session, max_retries=0)
    with pytest.raises(openai.InternalServerError, match="out of memory"):
      client.chat.completions.create(model="m", messages=[{"role": "user", "content": "a"}])
    gateway.run(session.finish())
    session.reward({"reward": 1.0}, "e")
    left = session.trajectory("t")
  assert "out of memory" in left.error and not left.segments and not left.rewards


def test_models_and_completions_answer():
  with serving(Says("and so on")) as gateway:
    session = gateway.open()
    client = openai_of(gateway, session)
    assert client.models.list().data[0].id == "policy"
    found = client.completions.create(model="m", prompt="once", max_tokens=50, logprobs=1)
    assert found.choices[0].text == "and so on"
    assert len(found.choices[0].logprobs.token_logprobs) == found.usage.completion_tokens
    (segment,) = gateway.left(session).segments
    assert words(segment.tokens) == "onceand so on<|end|>"


@pytest.mark.parametrize(("asked", "told"), [(0, True), (1, True), (False, False), (None, False)])
def test_no_likeliest_tokens_beside_the_sampled_one_are_log_probabilities_too(asked, told):
  with serving(Says("and so on")) as gateway:
    found = openai_of(gateway, gateway.open()).completions.create(
      model="m", prompt="once", logprobs=asked
    )
  assert (found.choices[0].logprobs is not None) == told


def test_the_service_key_with_a_session_id_opens_a_session_of_that_name():
  with serving(Says("one")) as gateway:
    client = openai.OpenAI(base_url=f"{gateway.url}/v1", api_key=SERVICE_KEY)
    for name in ("r1", "r1", "r2", None):
      header = {"X-Session-ID": name} if name else {}
      client.chat.completions.create(
        model="m", messages=[{"role": "user", "content": "a"}], extra_headers=header
      )
    assert [len(gateway.registry.of_id(n).tree.calls) for n in ("r1", "r2")] == [2, 1]
    assert len(gateway.registry.sessions()) == 2


@pytest.mark.parametrize("arguments", ['{"raw": "ls -la"}', '{"raw": oops}'])
def test_a_call_of_a_tool_with_a_parameter_raw_comes_back_as_it_was_sampled(arguments):
  marks = [CHAT.id_of(name) for name in ("<|call|>", "<|/call|>", "<|end|>")]
  written = np.asarray([marks[0], *CHAT.encode(f"run{arguments}"), *marks[1:]], np.int32)
  with serving(Says(written, "done")) as gateway:
    session = gateway.open()
    client = anthropic_of(gateway, session)
    schema = {"type": "object", "properties": {"raw": {"type": "string"}}}
    tools = [{"name": "run", "input_schema": schema}]
    ask = lambda: client.messages.create(model="m", max_tokens=60, messages=messages, tools=tools)
    messages = [{"role": "user", "content": "go"}]
    (block,) = ask().content
    result = {"type": "tool_result", "tool_use_id": block.id, "content": "dust"}
    messages += [
      {"role": "assistant", "content": [block.to_dict()]},
      {"role": "user", "content": [result]},
    ]
    ask()
    left = gateway.left(session)
  assert trained_text(left) == [f"<|call|>run{arguments}<|/call|><|end|>done<|end|>"]
