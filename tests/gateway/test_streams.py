"""Streams have the text of a reply while it is sampled, and stop texts end it then."""

import contextlib
import http.client
import json
import random
import urllib.parse

import anthropic
import numpy as np
import openai
import pytest

from jaxrl_agents.gateway import sse
from jaxrl_agents.gateway.progress import rest_of, text_so_far, watch
from jaxrl_agents.gateway.requests import Request
from jaxrl_agents.types import Message
from tests.chat import families
from tests.gateway.serving import CHAT, Grows, calls, serving, tool, words

USER = {"role": "user", "content": "go"}
SAID = "I look left, then right: one two three."
LOOK = calls(("look", {"what": "left"}), text=SAID)


def openai_chat(gateway, session):
  client = openai.OpenAI(base_url=f"{gateway.url}/v1", api_key=session.key)
  with client.chat.completions.stream(model="m", messages=[USER], tools=[tool()]) as events:
    texts = [e.delta for e in events if e.type == "content.delta"]
    message = events.get_final_completion().choices[0].message
  return texts, message.content, [c.function.arguments for c in message.tool_calls or ()]


def openai_responses(gateway, session):
  client = openai.OpenAI(base_url=f"{gateway.url}/v1", api_key=session.key)
  offered = [{"type": "function", "strict": False, **tool()["function"]}]
  with client.responses.stream(model="m", input="go", tools=offered) as events:
    texts = [e.delta for e in events if e.type == "response.output_text.delta"]
    response = events.get_final_response()
  called = [item.arguments for item in response.output if item.type == "function_call"]
  return texts, response.output_text, called


def anthropic_messages(gateway, session):
  client = anthropic.Anthropic(base_url=gateway.url, api_key=session.key)
  offered = [{"name": "look", "input_schema": tool()["function"]["parameters"]}]
  asked = {"model": "m", "max_tokens": 99, "messages": [USER], "tools": offered}
  with client.messages.stream(**asked) as events:
    texts = list(events.text_stream)
    message = events.get_final_message()
  said = "".join(block.text for block in message.content if block.type == "text")
  return texts, said, [b.input["what"] for b in message.content if b.type == "tool_use"]


def openai_completions(gateway, session):
  client = openai.OpenAI(base_url=f"{gateway.url}/v1", api_key=session.key)
  chunks = list(client.completions.create(model="m", prompt="go", stream=True))
  assert len({(chunk.id, chunk.created) for chunk in chunks}) == 1
  texts = [chunk.choices[0].text for chunk in chunks]
  return texts, "".join(texts), []


@contextlib.contextmanager
def streaming(gateway, session, path="chat/completions", *, begins="data: ", **headers):
  """The lines of a stream that begin so, as they come."""
  connection = http.client.HTTPConnection(urllib.parse.urlsplit(gateway.url).netloc, timeout=20)
  asked = json.dumps({"model": "m", "messages": [USER], "input": "go", "stream": True})
  headers = {"authorization": f"Bearer {session.key}", **headers}
  connection.request("POST", f"/v1/{path}", asked, headers)
  response = connection.getresponse()
  lines = (line.decode().strip() for line in response)
  try:
    yield (line for line in lines if line.startswith(begins))
  finally:
    response.close()
    connection.close()


CLIENTS = [openai_chat, openai_responses, anthropic_messages, openai_completions]


@pytest.mark.parametrize("ask", CLIENTS)
def test_text_comes_in_pieces_that_make_up_the_reply_and_all_of_it_is_trained(ask):
  with serving(Grows(SAID)) as gateway:
    session = gateway.open()
    texts, said, called = ask(gateway, session)
    left = gateway.left(session)
  assert len(texts) > 1
  assert "".join(texts) == said == SAID
  assert called == []
  (segment,) = left.segments
  assert words(segment.tokens[segment.loss_mask]) == f"{SAID}<|end|>"


@pytest.mark.parametrize("ask", CLIENTS[:3])
def test_calls_follow_the_text_that_went_out_before_them(ask):
  with serving(Grows(LOOK)) as gateway:
    texts, said, called = ask(gateway, gateway.open())
  assert len(texts) > 1
  assert "".join(texts) == said == SAID
  assert len(called) == 1 and "left" in called[0]


@pytest.mark.parametrize("ask", CLIENTS[:3])
def test_a_reply_with_calls_alone_and_one_with_a_broken_call_come_whole(ask):
  broken = CHAT.encode("first <|call|>")
  broken = np.concatenate([CHAT.encode("first "), [CHAT.id_of("<|call|>")], CHAT.encode("look")])
  with serving(Grows(calls(("look", {"what": "left"})), broken)) as gateway:
    session = gateway.open()
    assert ask(gateway, session)[0] == []
    texts, said, called = ask(gateway, session)
  assert "".join(texts) == said == "first <|call|>look"
  assert called == []


@pytest.mark.parametrize("ask", CLIENTS[:3])
def test_a_text_that_turns_out_to_be_a_thought_leaves_the_stream_and_its_calls_whole(ask, tmp_path):
  chat = families.load(tmp_path, "qwen3")
  call = ("<tool_call>", '{"name": "look", "arguments": {"what": "left"}}', "</tool_call>")
  reply = families.spelled(chat, ("the user asks for rivers", "</think>", *call))
  with serving(Grows(np.asarray(reply, np.int32))) as gateway:
    texts, _, called = ask(gateway, gateway.open(chat=chat))
  assert "the user asks for rivers".startswith("".join(texts)) and texts
  assert len(called) == 1 and "left" in called[0]


def test_the_first_text_comes_before_the_last_token_is_sampled():
  sampler = Grows(SAID, most=8)
  with serving(sampler) as gateway, streaming(gateway, gateway.open()) as lines:
    assert '"role": "assistant"' in next(lines)
    assert '"content": "I' in next(lines)
    assert sampler.said == []  # it waits in the middle of the reply
    sampler.go.set()
    assert list(lines)[-1] == "data: [DONE]"


def test_a_client_that_leaves_a_stream_and_asks_again_gets_the_same_reply():
  sampler = Grows(SAID, "another", most=8)
  with serving(sampler) as gateway:
    session, name = gateway.open(), {"idempotency-key": "a"}
    with streaming(gateway, session, **name) as lines:
      next(lines)
    sampler.go.set()
    with streaming(gateway, session, **name) as lines:
      events = [json.loads(line[6:]) for line in list(lines)[:-1]]
    left = gateway.left(session)
  assert "".join(e["choices"][0]["delta"].get("content") or "" for e in events) == SAID
  assert len(sampler.asked) == 1
  assert sum(int(segment.loss_mask.sum()) for segment in left.segments) == sampler.said[0]


@pytest.mark.parametrize("stream", [False, True])
def test_a_stop_text_ends_the_reply_with_the_token_that_completes_it(stream):
  sampler = Grows(SAID)
  with serving(sampler) as gateway:
    session = gateway.open()
    client = openai.OpenAI(base_url=f"{gateway.url}/v1", api_key=session.key)
    asked = {"model": "m", "messages": [USER], "stop": [" then", "never"]}
    if stream:
      chunks = list(client.chat.completions.create(**asked, stream=True))
      said = "".join(chunk.choices[0].delta.content or "" for chunk in chunks)
    else:
      said = client.chat.completions.create(**asked).choices[0].message.content
    (segment,) = gateway.left(session).segments
  assert said == "I look left,"
  assert words(segment.tokens[segment.loss_mask]) == "I look left, then"
  assert sampler.said == [int(segment.loss_mask.sum())]


def test_a_reply_that_grows_without_new_text_keeps_its_connection_open(monkeypatch):
  monkeypatch.setattr(sse, "KEEPALIVE_S", 0.1)
  with serving(Grows(calls(("look", {"what": "left and right " * 20})))) as gateway:
    with streaming(gateway, gateway.open(), begins=": ") as lines:
      assert len(list(lines)) >= 2


@pytest.mark.parametrize("stream", [False, True])
def test_of_a_stop_text_that_ends_with_white_space_the_agent_sees_nothing(stream):
  with serving(Grows("I look.\nObservation:\nthe door")) as gateway:
    client = openai.OpenAI(base_url=f"{gateway.url}/v1", api_key=gateway.open().key)
    asked = {"model": "m", "messages": [USER], "stop": "Observation:\n"}
    if stream:
      chunks = list(client.chat.completions.create(**asked, stream=True))
      said = "".join(chunk.choices[0].delta.content or "" for chunk in chunks)
    else:
      said = client.chat.completions.create(**asked).choices[0].message.content
  assert said == "I look.\n"


class Fails(Grows):
  """Fails in the middle of a reply."""

  async def watched(self, prompt, limits, watch):
    watch_some = lambda tokens, versions: watch(tokens, versions) or len(tokens) == 12
    await super().watched(prompt, limits, watch_some)
    raise RuntimeError("no pages")


def test_a_response_that_fails_in_the_middle_goes_on_counting_its_events():
  with serving(Fails(SAID)) as gateway:
    with streaming(gateway, gateway.open(), "responses") as lines:
      events = [json.loads(line[6:]) for line in lines]
  kinds = [event["type"] for event in events]
  assert "response.output_text.delta" in kinds
  assert kinds[-2:] == ["error", "response.failed"]
  assert [event["sequence_number"] for event in events] == list(range(len(events)))
  assert len({event["response"]["id"] for event in events if "response" in event}) == 1


def test_of_several_replies_and_with_log_probabilities_a_stream_has_whole_ones():
  for fields in ({"n": 2}, {"logprobs": True}):
    with serving(Grows(SAID)) as gateway:
      client = openai.OpenAI(base_url=f"{gateway.url}/v1", api_key=gateway.open().key)
      chunks = client.chat.completions.create(model="m", messages=[USER], stream=True, **fields)
      texts = [c.choices[0].delta.content for c in chunks if c.choices[0].delta.content]
    assert texts == [SAID] * fields.get("n", 1)


def test_text_that_went_out_is_never_taken_back():
  draw = random.Random(0)
  pieces = ["a", "b ", " end", "en", "d", "\n", "é", "漢字", "🙂", " ", "<|end|", "stop"]
  for _ in range(300):
    text = "".join(draw.choices(pieces, k=draw.randint(1, 12))).strip()
    stop = tuple(draw.sample(["end", "b a", "字"], draw.randint(0, 2)))
    tokens = CHAT.encode_reply(Message("assistant", text))
    final = CHAT.parse(tokens).content
    for each in stop:
      final = final.split(each)[0]
    sent = ""
    for n in range(len(tokens) + 1):
      so_far = text_so_far(CHAT, Request(stop=stop), tokens[:n]).content
      assert so_far.startswith(sent) and final.startswith(so_far), (text, stop, n)
      sent = so_far
    assert sent + rest_of(Message("assistant", final), sent) == final


def test_a_stop_text_is_found_with_the_token_that_completes_it_whatever_a_program_samples():
  draw = random.Random(1)
  found = 0
  for _ in range(300):
    text = "".join(draw.choices(["ab", "c", " d", "漢", "ee", "\n"], k=draw.randint(1, 30)))
    stop = tuple(draw.sample(["bc", "c d", "漢漢", "e\ne", "zz"], draw.randint(1, 3)))
    tokens = CHAT.encode(text)
    holds = lambda n, t=tokens, s=stop: any(each in CHAT.decode(t[:n]) for each in s)
    wanted = next((n for n in range(len(tokens) + 1) if holds(n)), None)
    watched, n, ended = watch(CHAT, stop, None), 0, None
    while n < len(tokens) and ended is None:
      n = min(len(tokens), n + draw.randint(1, 9))
      ended = n if watched(tokens[:n], np.zeros(n, np.int32)) else None
    assert (ended is None) == (wanted is None)
    if wanted is not None:
      found += 1
      assert wanted <= ended < wanted + 9
  assert found > 50


def test_what_is_sampled_after_a_stop_text_does_not_go_out_wherever_that_text_stands(tmp_path):
  chat = families.load(tmp_path, "qwen3")
  of = lambda *pieces: np.asarray(families.spelled(chat, pieces)[:-1], np.int32)
  thought = of("<think>", "one END two", "</think>", "the answer")
  assert text_so_far(chat, Request(), thought).content == "the answer"
  assert text_so_far(chat, Request(stop=("END",)), thought).content == ""
  call = of("first ", "<tool_call>", '{"name": "END"}', "</tool_call>", " second")
  assert text_so_far(chat, Request(), call).content == "first  second"
  assert text_so_far(chat, Request(stop=("END",)), call).content == "first"
  space = np.concatenate([chat.encode("\n\n"), chat.encode("the answer")])
  assert text_so_far(chat, Request(), space).content == "the answer"
  assert text_so_far(chat, Request(stop=("\n\n",)), space).content == ""


def test_of_a_reply_with_a_broken_call_what_follows_the_text_goes_out_and_no_thought(tmp_path):
  chat = families.load(tmp_path, "qwen3")
  pieces = ("<think>", "I look left?", "</think>", "I look", "<tool_call>", "{")
  tokens = np.asarray(families.spelled(chat, pieces)[:-1], np.int32)
  sent = text_so_far(chat, Request(), tokens).content
  whole = chat.parse(tokens)
  said = Message("assistant", chat.decode(tokens), reasoning=whole.reasoning)
  assert (sent, rest_of(said, sent)) == ("I look", "<tool_call>{")
  assert rest_of(Message("assistant", "I look left.", reasoning="I look"), "I look") == " left."
