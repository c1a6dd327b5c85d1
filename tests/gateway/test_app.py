"""The routes: who may use which, what is refused, and clients that go away or send nonsense."""

import asyncio
import contextlib
import http.client
import json
import re
import socket
import threading
import time
import types
import urllib.parse

import numpy as np
import pytest

from jaxrl_agents.gateway import connections, http_requests, sessions, sse
from jaxrl_agents.gateway import registry as registry_lib
from jaxrl_agents.gateway.app import make_app
from jaxrl_agents.gateway.registry import Registry
from jaxrl_agents.gateway.requests import Refusal
from jaxrl_agents.gateway.sessions import Limits, Session
from tests.gateway.serving import CHAT, SERVICE_KEY, Says, body, serving, tool, words

USER = {"role": "user", "content": "a"}


def send(gateway, method, path, content=b"", key="", **headers):
  """(status, headers, JSON or text) of one request."""
  address = urllib.parse.urlparse(gateway.url)
  connection = http.client.HTTPConnection(address.hostname, address.port, timeout=20)
  sent = {"authorization": f"Bearer {key}"} if key else {}
  raw = json.dumps(content).encode() if isinstance(content, dict) else content
  connection.request(method, path, raw, sent | {k.replace("_", "-"): v for k, v in headers.items()})
  reply = connection.getresponse()
  text = reply.read().decode()
  connection.close()
  is_json = "json" in reply.headers.get("content-type", "")
  return reply.status, reply.headers, json.loads(text) if is_json else text


@pytest.fixture(scope="module")
def gateway():
  with serving(Says("fine")) as running:
    yield running


def chat(gateway, session, *messages, **fields):
  return send(
    gateway, "POST", "/v1/chat/completions", body(*(messages or (USER,)), **fields), session.key
  )


def test_a_session_is_opened_rewarded_finished_and_exported_over_http(gateway):
  opened = {"task_id": "t1", "max_calls": 2, "metadata": {"a": 1}}
  status, _, found = send(gateway, "POST", "/sessions", opened, SERVICE_KEY)
  assert status == 200 and found["base_url"] == f"{gateway.url}/v1"
  place = f"/sessions/{found['session_id']}"
  key = found["api_key"]
  for expected in (200, 200, 429):
    status, head, _ = send(gateway, "POST", "/v1/chat/completions", body(USER), key)
    assert status == expected
  assert head["x-should-retry"] == "false"
  status, _, text = send(gateway, "GET", f"{place}/trajectory", key=SERVICE_KEY)
  assert status == 409 and "finish it first" in text["error"]["message"]
  reward = {"parts": {"reward": 0.5}, "event_id": "e1"}
  for attached in (True, False):
    _, _, told = send(gateway, "POST", f"{place}/rewards", reward, SERVICE_KEY)
    assert told == {"attached": attached, "rewards": {"reward": 0.5}}
  status, _, state = send(gateway, "POST", f"{place}/finish", {"stop": "answer"}, SERVICE_KEY)
  assert (status, state["state"], state["calls"]) == (200, "finished", 2)
  _, _, left = send(gateway, "GET", f"{place}/trajectory", key=SERVICE_KEY)
  assert left["rewards"] == {"reward": 0.5} and left["task_id"] == "t1"
  assert left["info"]["metadata"] == {"a": 1}
  segment = left["segments"][0]
  sampled = [t for t, m in zip(segment["tokens"], segment["loss_mask"], strict=True) if m]
  assert words(sampled) == "fine<|end|>"


def test_keys_open_what_is_theirs_and_nothing_else(gateway):
  one, other = gateway.open(), gateway.open()
  assert chat(gateway, one)[0] == 200
  assert send(gateway, "GET", f"/s/{one.key}/v1/models")[0] == 200
  assert send(gateway, "GET", "/v1/models", x_api_key=one.key)[0] == 200
  assert send(gateway, "GET", "/v1/models")[0] == 401
  for key in ("", one.key, other.control_key, "sk-none"):
    assert send(gateway, "GET", f"/sessions/{one.id}", key=key)[0] == 401
    assert send(gateway, "POST", f"/sessions/{one.id}/rewards", {"parts": {}}, key)[0] == 401
  assert send(gateway, "GET", f"/sessions/{one.id}", key=one.control_key)[0] == 200
  assert send(gateway, "POST", "/sessions", {}, one.key)[0] == 401
  assert send(gateway, "GET", "/sessions/none", key=SERVICE_KEY)[0] == 404
  status, _, text = send(gateway, "GET", "/metrics", key=SERVICE_KEY)
  assert status == 200 and 'gateway_sessions{state="open"}' in text


@pytest.mark.parametrize(
  ("content", "named"),
  [
    (b"{", "not valid JSON"),
    (b"[]", "the body is a JSON array"),
    (b"{}", "messages is missing"),
    (body(), "messages is empty"),
    (body({"role": "wizard", "content": "a"}), "messages[0].role='wizard'"),
    (body({"role": "tool", "content": "a"}), "messages[0].tool_call_id is missing"),
    (body(USER, temperature="hot"), "temperature is a JSON string; send a whole number or"),
    (body(USER, temperature=7), "temperature=7; send a number from 0 to 2"),
    (body(USER, n=0), "n=0; send a whole number from 1 on"),
    (body(USER, n=99), "may have 16 replies to one request"),
    (body(USER, max_tokens=True), "max_tokens is a JSON boolean"),
    (body(USER, logit_bias={"5": 1}), "logit_bias is not supported"),
    (body(USER, top_logprobs=3), "top_logprobs is not supported"),
    (body(USER, stop=["", "a"]), "stop must be texts that are not empty"),
    (body(USER, stop=["a"] * 100_000), "stop has 100000 entries; send at most 64"),
    (body(USER, tools=[{"type": "retrieval"}]), "tools[0] is of type 'retrieval'"),
    (body(USER, tools=[{"type": "function", "function": {}}]), "tools[0].function.name is missing"),
    (body(["a"]), "messages[0] is a JSON array"),
  ],
)
def test_a_request_that_is_wrong_is_refused_with_the_field_and_the_remedy(gateway, content, named):
  session = gateway.open()
  status, _, found = send(gateway, "POST", "/v1/chat/completions", content, session.key)
  assert status == 400 and named in found["error"]["message"], found
  assert found["error"]["type"] == "invalid_request_error"
  assert not session.tree.calls


def test_fields_without_effect_are_named_in_the_reply_and_counted(gateway):
  session = gateway.open()
  asked = {"response_format": {"type": "json_object"}, "user": "u", "temperature": 0.1}
  _, head, _ = chat(gateway, session, **asked, tools=[tool()], tool_choice="required")
  named = ["response_format", "user", "tool_choice", "temperature"]
  assert head["x-fields-without-effect"] == ", ".join(named)
  assert session.counters()["fields_without_effect"] == dict.fromkeys(named, 1)


def test_fields_without_effect_beyond_any_number_lose_no_reply_and_take_no_room(gateway):
  session = gateway.open()
  for i in range(20):
    asked = {f"field {i} {k} " + "x" * 100: 1 for k in range(1_000)}
    status, head, _ = chat(gateway, session, **asked, temperature=0.1)
    named = head["x-fields-without-effect"].split(", ")
    assert status == 200 and len(named) == 34 and named[-2:] == ["others", "temperature"]
  counted = session.counters()["fields_without_effect"]
  assert len(counted) <= 258 and counted["temperature"] == 20 and max(map(len, counted)) == 64


def test_training_keeps_its_own_temperature_and_other_sessions_have_the_one_they_ask_for():
  with serving(Says("fine"), temperature=0.7) as gateway:
    for training, expected in ((True, 0.7), (False, 0.1)):
      chat(gateway, gateway.open(training=training), temperature=0.1)
      assert gateway.served.sampler.asked[-1][1].temperature == expected


def test_a_seed_gives_the_same_reply_again_where_nothing_is_trained():
  with serving(Says("fine")) as gateway:
    sampler = gateway.served.sampler

    def seeds(session):
      before = len(sampler.asked)
      for _ in range(2):
        chat(gateway, session, seed=7, n=2)
      return [limits.seed for _, limits in sampler.asked[before:]]

    first, second = (seeds(gateway.open(training=False)) for _ in range(2))
    assert first == second == 2 * first[:2] and first[0] != first[1]
    assert len(set(seeds(gateway.open()))) == 4  # rollouts of a group are not to be equal


def test_a_client_that_goes_away_before_the_reply_leaves_a_call_that_is_not_trained():
  with serving(Says("slow", delay_s=0.5)) as gateway:
    session = gateway.open()
    address = urllib.parse.urlparse(gateway.url)
    raw = body(USER)
    head = (
      "POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n"
      f"authorization: Bearer {session.key}\r\ncontent-length: {len(raw)}\r\n\r\n"
    )
    with socket.create_connection((address.hostname, address.port), timeout=10) as connection:
      connection.sendall(head.encode() + raw)
      time.sleep(0.2)
    deadline = time.monotonic() + 10
    while not session.tree.calls and time.monotonic() < deadline:
      time.sleep(0.05)
    time.sleep(0.2)
    left = gateway.left(session)
  assert left.metrics["lost_calls"] == 1 and not left.segments


def test_a_stream_that_waits_sends_comments_and_no_empty_event(monkeypatch):
  monkeypatch.setattr(sse, "GRACE_S", 0.05)
  monkeypatch.setattr(sse, "KEEPALIVE_S", 0.1)
  with serving(Says("slow", delay_s=0.5)) as gateway:
    _, _, text = chat(gateway, gateway.open(), stream=True)
  assert text.count(": sampling\n") >= 2
  events = [line for line in text.split("\n") if line.startswith("data: ")]
  assert events[-1] == "data: [DONE]" and all(len(line) > 6 for line in events)


def test_a_fault_after_the_stream_has_begun_is_an_event(monkeypatch):
  monkeypatch.setattr(sse, "GRACE_S", 0.05)
  with serving(Says(RuntimeError("no memory"), delay_s=0.4)) as gateway:
    session = gateway.open()
    status, _, text = chat(gateway, session, stream=True)
  assert status == 200 and "event: error" in text and "no memory" in text and session.error


def test_bodies_that_are_too_large_or_never_end_are_refused(gateway, monkeypatch):
  session = gateway.open()
  monkeypatch.setattr(http_requests, "MAX_BODY_BYTES", 1_000)
  assert chat(gateway, session, {"role": "user", "content": "a" * 2_000})[0] == 413
  monkeypatch.setattr(http_requests, "BODY_S", 0.2)
  address = urllib.parse.urlparse(gateway.url)
  with socket.create_connection((address.hostname, address.port), timeout=10) as connection:
    connection.sendall(
      b"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\ncontent-length: 500\r\n"
      + f"authorization: Bearer {session.key}\r\n\r\n{{".encode()
    )
    assert b" 408 " in connection.recv(4_096)
  assert chat(gateway, gateway.open())[0] == 200


MANY = {
  "messages": body(*[{"role": "user", "content": ""}] * 100_000),
  "parts": body({"role": "user", "content": [{"type": "text", "text": ""}] * 100_000}),
  "tools": body(USER, tools=[tool()] * 30_000),
  "fields": body(USER, **{f"field {i}": 1 for i in range(200_000)}),
  "objects": b'{"messages": [' + b"{}," * 200_000 + b"{}]}",
}


@pytest.mark.parametrize("content", MANY.values(), ids=MANY)
def test_a_body_of_more_objects_and_fields_than_any_agent_sends_is_refused(gateway, content):
  session = gateway.open()
  status, head, found = send(gateway, "POST", "/v1/chat/completions", content, session.key)
  assert status == 413 and "more than 100000 JSON objects and fields" in found["error"]["message"]
  assert head["x-should-retry"] == "false" and not session.tree.calls


def test_a_history_of_thousands_of_messages_is_refused_only_if_the_context_is_too_small(gateway):
  call = {"id": "c", "type": "function", "function": {"name": "look", "arguments": "{}"}}
  turn = (
    {"role": "assistant", "content": [{"type": "text", "text": "a"}], "tool_calls": [call]},
    {"role": "tool", "content": "b", "tool_call_id": "c"},
  )
  status, _, found = chat(gateway, gateway.open(), USER, *turn * 4_000, tools=[tool()] * 200)
  assert status == 400 and found["error"]["code"] == "context_length_exceeded"


@pytest.mark.parametrize("begin", [b"", b"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\n"])
def test_a_client_that_does_not_end_the_head_of_a_request_is_let_go(gateway, monkeypatch, begin):
  monkeypatch.setattr(connections, "HEAD_S", 0.5)
  address = urllib.parse.urlparse(gateway.url)
  first = b"GET /healthz HTTP/1.1\r\nhost: x\r\n\r\n"
  for before in (b"", first):
    with socket.create_connection((address.hostname, address.port), timeout=20) as connection:
      connection.sendall(before)
      answer = b""
      while before and not answer.endswith(b"ok"):
        answer += connection.recv(4_096)
      connection.sendall(begin)
      connection.settimeout(0.2)
      began, end = time.monotonic(), None
      while end is None and time.monotonic() < began + 20:
        try:
          end = connection.recv(4_096)
        except TimeoutError:
          connection.sendall(begin and b"x-drop: by drop\r\n")
        except ConnectionError:
          end = b""
      assert end == b""


def test_a_reply_may_take_longer_than_the_head_of_its_request(monkeypatch):
  monkeypatch.setattr(connections, "HEAD_S", 0.3)
  with serving(Says("fine", delay_s=1.0)) as gateway:
    assert chat(gateway, gateway.open())[0] == 200


def test_who_has_no_key_has_no_large_body_read(gateway):
  large = json.dumps({"session": "s", "event_id": "e" * 70_000}).encode()
  for key in ("", SERVICE_KEY):
    status, _, found = send(gateway, "POST", "/feedback", large, key)
    assert status == 413 and "larger than 65536 bytes" in found["error"]["message"]
  place = f"/sessions/{gateway.open().id}"
  replies = ("/v1/chat/completions", "/v1/messages", "/v1/messages/count_tokens")
  for path in (*replies, "/sessions", f"{place}/rewards", f"{place}/finish"):
    assert send(gateway, "POST", path, b"{", "sk-none")[0] == 401  # and not 400: it was not read


def test_a_client_that_does_not_read_its_reply_is_let_go(monkeypatch):
  monkeypatch.setattr(connections, "UNREAD_S", 0.5)
  said = CHAT.encode("word " * 60_000)  # a reply of 5 MB
  with serving(Says(said), max_context_tokens=1 << 20, max_new_tokens=1 << 20) as gateway:
    address, raw = urllib.parse.urlparse(gateway.url), body(USER, logprobs=True)
    head = (
      "POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\nconnection: close\r\n"
      f"authorization: Bearer {gateway.open().key}\r\ncontent-length: {len(raw)}\r\n\r\n"
    )
    for waits_s in (0.0, 3.0):
      with socket.socket() as connection:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4_096)
        connection.settimeout(30)
        connection.connect((address.hostname, address.port))
        connection.sendall(head.encode() + raw)
        got = connection.recv(1 << 10)
        size = int(re.search(rb"content-length: (\d+)", got)[1]) + got.index(b"\r\n\r\n") + 4
        time.sleep(waits_s)
        with contextlib.suppress(ConnectionError):
          while part := connection.recv(1 << 20):
            got += part
      assert size > 5_000_000 and (len(got) == size) == (not waits_s)


def test_calls_at_once_and_tokens_are_bounded():
  with serving(Says("fine", delay_s=0.3)) as gateway:
    session = gateway.open(Limits(tokens=4, at_once=1))
    background = threading.Thread(target=chat, args=(gateway, session))
    background.start()
    time.sleep(0.1)
    status, head, _ = chat(gateway, session)
    assert (status, head["x-should-retry"], head["retry-after"]) == (429, "true", "1")
    background.join()
    assert chat(gateway, session)[0] == 200
    assert "sampled tokens" in chat(gateway, session)[2]["error"]["message"]


def test_a_session_that_expires_is_an_error_and_takes_rewards_until_their_deadline():
  now = [0.0]
  with serving(Says("fine")) as gateway:
    limits = Limits(ttl_s=10, reward_s=5)
    session = gateway.registry.add(Session(gateway.served, limits, clock=lambda: now[0]))
    assert chat(gateway, session)[0] == 200
    now[0] = 12
    assert chat(gateway, session)[0] == 409
    place = f"/sessions/{session.id}/rewards"
    assert send(gateway, "POST", place, {"parts": {"reward": 1}}, SERVICE_KEY)[0] == 200
    now[0] = 16
    assert send(gateway, "POST", place, {"parts": {"reward": 1}}, SERVICE_KEY)[0] == 409
    left = gateway.left(session)
  assert "expired after 10 s" in left.error and not left.rewards


def test_ids_in_and_ids_out(gateway):
  session = gateway.open()
  asked = {"token_ids": [5, 6, 7], "sampling_params": {"max_tokens": 9, "logprobs": 1}}
  status, _, found = send(gateway, "POST", "/inference/v1/generate", asked, session.key)
  assert status == 200 and found["prompt_token_ids"] == [5, 6, 7]
  choice = found["choices"][0]
  assert words(choice["token_ids"]) == "fine<|end|>"
  assert choice["logprobs"]["content"][1] == {
    "token": f"token_id:{choice['token_ids'][1]}",
    "logprob": pytest.approx(-0.01),
  }
  assert choice["routed_experts"]["shape"] == [3 + len(choice["token_ids"]), 1, 2]
  asked["sampling_params"]["stop_token_ids"] = [5] * 65
  status, _, found = send(gateway, "POST", "/inference/v1/generate", asked, session.key)
  assert status == 400 and "stop_token_ids has 65 entries" in found["error"]["message"]
  del asked["sampling_params"]
  for wrong in ([], [-1], ["a"], [10**9], "text"):
    asked["token_ids"] = wrong
    assert send(gateway, "POST", "/inference/v1/generate", asked, session.key)[0] == 400


def test_a_completion_is_the_text_that_was_sampled():
  sampler = Says(CHAT.encode("  return x + 1\n\n"))
  with serving(sampler) as gateway:
    asked = {"prompt": "def f(x):\n", "max_tokens": 99}
    _, _, found = send(gateway, "POST", "/v1/completions", asked, gateway.open().key)
    assert found["choices"][0]["text"] == "  return x + 1\n\n"
    assert CHAT.decode(sampler.asked[0][0]) == "def f(x):\n"


def test_what_is_far_too_long_is_refused_before_it_is_tokenised(gateway, monkeypatch):
  monkeypatch.setattr(type(CHAT), "encode", lambda *_: pytest.fail("tokenised"))
  session = gateway.open(max_context_tokens=64)
  asked = {"prompt": "word " * 100_000}
  status, _, found = send(gateway, "POST", "/v1/completions", asked, session.key)
  assert status == 400 and "prompt is too long: 500000 characters" in found["error"]["message"]
  long = tool()
  long["function"]["description"] = "word " * 100_000
  assert chat(gateway, session, tools=[long])[0] == 400


def test_a_schema_that_a_chat_format_cannot_write_is_the_fault_of_the_request(gateway, monkeypatch):
  def render(*_):
    raise AttributeError("'list' object has no attribute 'get'")

  monkeypatch.setattr(type(CHAT), "render", render)
  session = gateway.open()
  status, _, found = chat(gateway, session, tools=[tool()])
  assert status == 400 and found["error"]["param"] == "tools" and not session.error


def test_events_of_a_stream_are_lines_for_every_client():
  text = "one\u2028two\u0085three"
  raw = sse.encoded(("", {"text": text})).decode()
  assert len(raw.splitlines()) == 2 and json.loads(raw.removeprefix("data: ")) == {"text": text}


def test_a_gateway_without_a_service_key_is_refused():
  with pytest.raises(ValueError, match="service key is empty"):
    make_app(Registry(), service_key="")


def test_the_registry_forgets_what_is_over_and_nothing_that_came_later_under_its_name():
  now = [0.0]
  registry = Registry(clock=lambda: now[0])
  make = lambda ttl_s: Session(None, Limits(ttl_s=ttl_s, reward_s=0), id="a", clock=lambda: now[0])
  first = registry.add(make(10))
  registry.remove(first)
  second = registry.add(make(1_000))
  now[0] = 100.0  # the time of the first is over
  registry.add(Session(None, Limits(ttl_s=1, reward_s=0), id="b"))
  assert registry.of_id("a") is second and registry.of_key(first.key) is None
  now[0] = 2_000.0
  assert not registry.has("a")  # so that its name may be used again
  registry.add(Session(None, Limits(), id="c"))
  assert [session.id for session in registry.sessions()] == ["c"]


def test_a_registry_that_is_full_forgets_sessions_that_were_finished_and_rewarded(monkeypatch):
  monkeypatch.setattr(registry_lib, "MOST", 2)
  now = [0.0]
  registry = Registry(clock=lambda: now[0])
  make = lambda name: Session(None, Limits(reward_s=5), id=name, clock=lambda: now[0])
  first, _ = registry.add(make("a")), registry.add(make("b"))
  asyncio.run(first.finish())
  with pytest.raises(Refusal, match="2 sessions are held"):
    registry.add(make("c"))  # rewards of the first may still come
  now[0] = 6.0
  registry.add(make("c"))
  assert [session.id for session in registry.sessions()] == ["b", "c"]


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/messages", "/v1/responses"])
@pytest.mark.parametrize(
  "arguments", ['{"what": "\\ud83d"}', '{"what": NaN}', '{"what": 1e999}', '{"a": ' * 3_000]
)
@pytest.mark.parametrize("stream", [False, True])
def test_arguments_that_no_json_can_carry_reach_the_agent_as_they_were_written(
  path, arguments, stream
):
  call, end = CHAT.id_of("<|call|>"), [CHAT.id_of("<|/call|>"), CHAT.id_of("<|end|>")]
  written = np.concatenate([[call], CHAT.encode(f"look{arguments}"), end]).astype(np.int32)
  with serving(Says(written), max_context_tokens=32_768, max_new_tokens=32_768) as gateway:
    session = gateway.open()
    asked = {"model": "m", "messages": [USER], "input": "a", "max_tokens": 30_000, "stream": stream}
    asked.pop("input" if path != "/v1/responses" else "messages")
    if path == "/v1/responses":
      asked.pop("max_tokens")
    status, _, found = send(gateway, "POST", path, asked, session.key)
    left = gateway.left(session)
  call = left.log[-1].tool_calls[0]
  assert status == 200 and call.error and call.raw == arguments
  assert arguments[:6].replace('"', "") in re.sub(r'[\\"]', "", str(found))
  assert not left.error and left.metrics["lost_calls"] == 0


def test_halves_of_characters_in_a_request_are_replaced():
  with serving(Says("fine")) as gateway:
    raw = (
      rb'{"model": "\ud800", "messages": [{"role": "user", "content": "a \ud83d b \ud83d\ude00"}]}'
    )
    status, _, found = send(gateway, "POST", "/v1/chat/completions", raw, gateway.open().key)
  assert status == 200 and found["model"] == "\ufffd"
  assert "a \ufffd b \U0001f600" in words(gateway.served.sampler.asked[0][0])


def test_bytes_of_a_request_that_are_no_characters_are_replaced():
  with serving(Says("fine")) as gateway:
    raw = b'{"model": "\xed\xa0\xbd", "messages": [{"role": "user", "content": "a \xed\xa0\xbd"}]}'
    session = gateway.open()
    status, _, found = send(gateway, "POST", "/v1/chat/completions", raw, session.key)
    assert status == 200 and set(found["model"]) == {"\ufffd"}
    gateway.left(session)
    status, _, left = send(gateway, "GET", f"/sessions/{session.id}/trajectory", key=SERVICE_KEY)
  assert status == 200 and left["log"][0]["content"].startswith("a \ufffd")


@pytest.mark.parametrize("number", [b"NaN", b"-Infinity", b"1e999"])
def test_a_number_that_the_export_of_a_session_could_not_write_is_refused(gateway, number):
  raw = b'{"metadata": {"score": ' + number + b"}}"
  status, _, found = send(gateway, "POST", "/sessions", raw, SERVICE_KEY)
  assert status == 400 and f"{number.decode()} is no number of JSON" in found["error"]["message"]


def test_a_session_is_finished_when_its_last_call_is_recorded():
  with serving(Says("slow", delay_s=0.6)) as gateway:
    session = gateway.open()
    asking = threading.Thread(target=chat, args=(gateway, session))
    asking.start()
    time.sleep(0.2)
    place = f"/sessions/{session.id}"
    ending = threading.Thread(
      target=send, args=(gateway, "POST", f"{place}/finish", {}, SERVICE_KEY)
    )
    ending.start()
    time.sleep(0.1)
    assert chat(gateway, session)[0] == 409
    assert send(gateway, "GET", f"{place}/trajectory", key=SERVICE_KEY)[0] == 409
    _, _, state = send(gateway, "POST", f"{place}/finish", {}, SERVICE_KEY)
    asking.join(), ending.join()
    _, _, left = send(gateway, "GET", f"{place}/trajectory", key=SERVICE_KEY)
  assert state["sampled_tokens"] > 0 and left["metrics"]["turns"] == 1


@pytest.mark.parametrize("grace_s", [5.0, 0.05])
@pytest.mark.parametrize("stream", [False, True])
def test_an_agent_whose_session_ends_before_its_reply_is_told_so(monkeypatch, stream, grace_s):
  monkeypatch.setattr(sessions, "DRAIN_S", 0.2)
  monkeypatch.setattr(sse, "GRACE_S", grace_s)
  with serving(Says("slow", delay_s=20)) as gateway:
    session, got = gateway.open(), []
    asking = threading.Thread(target=lambda: got.extend(chat(gateway, session, stream=stream)[::2]))
    asking.start()
    time.sleep(0.5)
    left = gateway.left(session)
    asking.join()
  begun = stream and grace_s < 0.5
  assert got[0] == (200 if begun else 409) and "is finished; open another one" in str(got[1])
  assert "1 calls were still being sampled" in left.error


def test_the_replies_to_one_request_together_stay_within_the_tokens_of_a_session():
  with serving(Says("a b c d e f g h")) as gateway:
    session = gateway.open(Limits(tokens=9))
    _, _, found = chat(gateway, session, n=4)
    assert found["usage"]["completion_tokens"] == 8
    assert [choice["finish_reason"] for choice in found["choices"]] == ["length"] * 4
    status, _, refused = chat(gateway, session, n=2)
  assert status == 429 and "9 sampled tokens" in refused["error"]["message"]


def test_calls_at_once_that_may_take_all_tokens_are_refused_until_they_have_ended():
  with serving(Says("fine", delay_s=0.4), max_new_tokens=64) as gateway:
    session, first = gateway.open(Limits(tokens=64)), []
    asking = threading.Thread(target=lambda: first.append(chat(gateway, session)[0]))
    asking.start()
    time.sleep(0.1)
    status, head, found = chat(gateway, session)
    assert (status, head["x-should-retry"]) == (429, "true")
    assert "its calls that run may take all that are left" in found["error"]["message"]
    asking.join()
    assert chat(gateway, session)[0] == 200 and first == [200]


@pytest.mark.parametrize("name", ["astropy/astropy-1", "..", "任务-1", "a\r\nb", "x" * 200])
def test_a_session_id_that_no_path_can_carry_is_refused(gateway, name):
  status, _, found = send(gateway, "POST", "/sessions", {"session_id": name}, SERVICE_KEY)
  assert status == 400 and "choose up to 128 letters" in found["error"]["message"]


def test_of_equal_requests_at_once_each_repetition_gets_a_reply_that_was_not_delivered():
  with serving(Says("one", "two", delay_s=0.5)) as gateway:
    session, said = gateway.open(), {}

    def ask(name, **headers):
      _, _, found = send(
        gateway, "POST", "/v1/chat/completions", body(USER), session.key, **headers
      )
      said[name] = found["choices"][0]["message"]["content"]

    address = urllib.parse.urlparse(gateway.url)
    raw = body(USER)
    head = (
      f"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {session.key}\r\n"
    )
    with socket.create_connection((address.hostname, address.port), timeout=10) as connection:
      connection.sendall(f"{head}content-length: {len(raw)}\r\n\r\n".encode() + raw)
      time.sleep(0.2)
      second = threading.Thread(target=ask, args=("second",))
      second.start()
      time.sleep(0.1)  # the first connection breaks here
    second.join()
    ask("first again", x_stainless_retry_count="1")
    ask("third")
  assert said == {"second": "two", "first again": "one", "third": "two"}
  assert len(session.tree.calls) == 3


@pytest.mark.parametrize("count, repeated", [("0", False), ("00", False), ("9" * 5_000, True)])
def test_a_count_of_repetitions_may_have_any_number_of_digits(count, repeated):
  url = types.SimpleNamespace(path="/v1/chat/completions")
  http = types.SimpleNamespace(headers={"x-stainless-retry-count": count}, url=url)
  assert http_requests.name_of(http, b"{}", {})[2] == repeated


def test_the_idempotency_key_of_another_request_is_refused(gateway):
  session = gateway.open()
  send_as = lambda raw: send(
    gateway, "POST", "/v1/chat/completions", raw, session.key, idempotency_key="k"
  )
  assert send_as(body(USER))[0] == send_as(body(USER))[0] == 200
  status, _, found = send_as(body(USER, n=3))
  assert status == 422 and "Idempotency-Key" in found["error"]["message"]


@pytest.mark.parametrize(
  ("path", "field"),
  [("/v1/chat/completions", "top_k"), ("/v1/messages", "top_k"), ("/v1/responses", "top_logprobs")],
)
def test_what_would_change_the_sampling_is_refused_in_every_dialect(gateway, path, field):
  asked = {"model": "m", "messages": [USER], "input": "a", "max_tokens": 9, field: 5}
  status, _, found = send(gateway, "POST", path, asked, gateway.open().key)
  assert status == 400 and f"{field} is not supported" in found["error"]["message"]


def test_fields_within_fields_are_named_too(gateway):
  named = {**USER, "name": "ann"}
  strict = tool()
  strict["function"]["strict"] = True
  _, head, _ = chat(gateway, gateway.open(), named, named, tools=[strict], größe=1)
  assert head["x-fields-without-effect"].split(", ") == [
    "gr%C3%B6%C3%9Fe", "messages[].name", "tools[].function.strict",
  ]  # fmt: skip


def test_a_result_of_a_tool_that_failed_reads_as_an_error_and_a_begun_reply_is_refused(gateway):
  session = gateway.open()
  call = {"type": "tool_use", "id": "c", "name": "look", "input": {}}
  result = {"type": "tool_result", "tool_use_id": "c", "content": "no file", "is_error": True}
  turns = [
    USER, {"role": "assistant", "content": [call]}, {"role": "user", "content": [result]},
  ]  # fmt: skip
  asked = {"model": "m", "max_tokens": 9, "messages": turns}
  status, _, _ = send(gateway, "POST", "/v1/messages", asked, session.key)
  assert status == 200 and "Error: no file" in words(gateway.served.sampler.asked[-1][0])
  asked["messages"] = [USER, {"role": "assistant", "content": "{"}]
  status, _, found = send(gateway, "POST", "/v1/messages", asked, session.key)
  assert status == 400 and "the last of messages is of the assistant" in found["error"]["message"]
  counted = send(gateway, "POST", "/v1/messages/count_tokens", asked, session.key)
  assert counted[0] == 200 and counted[2]["input_tokens"] > 0


def test_a_top_p_of_zero_and_numbers_without_sense_have_an_answer(gateway):
  session = gateway.open(training=False)
  assert chat(gateway, session, top_p=0)[0] == 200
  assert 0 < gateway.served.sampler.asked[-1][1].top_p < 1e-3
  for fields in ({"max_tokens": 0}, {"n": float("nan")}, {"max_tokens": float("inf")}):
    assert chat(gateway, session, **fields)[0] == 400
  status, _, _ = send(gateway, "POST", "/v1/completions", {"model": "m", "prompt": ""}, session.key)
  assert status == 400 and not session.error
  reward = {"parts": {"reward": 10**400}}
  assert send(gateway, "POST", f"/sessions/{session.id}/rewards", reward, SERVICE_KEY)[0] == 400
