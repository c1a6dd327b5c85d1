"""Users over HTTP: arms, the log, feedback, what is refused, and a server that starts again."""

import dataclasses
import json

import numpy as np
import openai
import pytest

from jaxrl_agents import record_log
from jaxrl_agents.realtime import calls as calls_lib
from jaxrl_agents.realtime.arms import CANARY, STABLE, user_hash
from jaxrl_agents.realtime.deployment import Deployer
from jaxrl_agents.realtime.feedback import Kind
from jaxrl_agents.realtime.traffic import Traffic, user_key
from tests.gateway.serving import SERVICE_KEY, Grows, Says, body, calls, serving, tool, words
from tests.gateway.test_app import send
from tests.realtime.test_deployment import publish

KINDS = {"persist": Kind(100.0)}
USER = {"role": "user", "content": "a"}


class Clock:
  now_s = 0.0

  def __call__(self):
    return self.now_s


@pytest.fixture
def at(tmp_path):
  """(traffic, clock, a function that opens a gateway over it)."""
  for version in (0, 1):
    publish(tmp_path, version)
  clock, said = Clock(), {STABLE: Says("old"), CANARY: Says("new")}
  traffic = Traffic(tmp_path, Deployer(tmp_path), said, kinds=KINDS, clock=clock)
  yield traffic, clock
  traffic.log.close()


def opened(gateway, user, **metadata):
  """(status, what was answered) of a session of a user."""
  asked = {"metadata": {"user": user, **metadata}}
  status, _, found = send(gateway, "POST", "/sessions", asked, SERVICE_KEY)
  return status, found


def said(gateway, session, *messages, **fields):
  asked = body(*(messages or (USER,)), **fields)
  _, _, found = send(gateway, "POST", "/v1/chat/completions", asked, session["api_key"])
  return found["choices"][0]["message"]


def tell(gateway, key, **fields):
  event = {"event_id": "e", "user": "ann", "kind": "persist", "value": 1, **fields}
  status, _, found = send(gateway, "POST", "/feedback", event, key)
  return status, found


def of_arm(traffic, arm):
  """A user of an arm."""
  names = (f"user {i}" for i in range(10_000))
  return next(n for n in names if traffic.deployer.now.arm(user_hash(n, traffic.user_key)) == arm)


def test_sessions_of_users_are_logged_and_others_are_not(at):
  traffic, clock = at
  with serving(Says("nobody's"), traffic=traffic) as gateway:
    clock.now_s = 7.0
    _, session = opened(gateway, "ann", features={"repo": 2.5})
    answer = said(gateway, session)
    said(gateway, session, USER, answer, {"role": "user", "content": "again"})
    _, _, other = send(gateway, "POST", "/sessions", {}, SERVICE_KEY)
    assert said(gateway, other)["content"] == "nobody's"
  found = [r for r in record_log.scan(traffic.log.path) if r["kind"] == "call"]
  first, second = (traffic.join.calls[r["id"]].call for r in found)
  assert (first.arm, first.user, first.time_s) == (STABLE, user_hash("ann", traffic.user_key), 7.0)
  assert first.features["repo"] == 2.5 and second.features["turn"] == 1.0
  assert second.parent == first.id and len(second.prompt) < len(first.prompt) + 10
  assert words(first.generation.tokens) == "old<|end|>"
  assert first.digest == traffic.deployer.now.stable.digest
  assert "ann" not in json.dumps(found)
  assert traffic.join.calls[first.id].delivered


def test_replies_to_users_are_streamed_while_they_are_sampled_and_end_with_a_stop_text(at):
  traffic, _ = at
  traffic._samplers[STABLE] = sampler = Grows("I look left, then right: one two three.")
  with serving(Says(""), traffic=traffic) as gateway:
    _, session = opened(gateway, "ann")
    client = openai.OpenAI(base_url=f"{gateway.url}/v1", api_key=session["api_key"])
    asked = {"model": "m", "messages": [USER], "stop": " one", "stream": True}
    deltas = [chunk.choices[0].delta.content for chunk in client.chat.completions.create(**asked)]
  texts = [text for text in deltas if text]
  assert len(texts) > 1 and "".join(texts) == "I look left, then right:"
  (joined,) = traffic.join.calls.values()
  assert sampler.said == [len(joined.call.generation.tokens)]


class BreaksCalls(Says):
  """Leaves out the end of its tool calls."""

  async def generate(self, prompt, limits):
    found = await super().generate(prompt, limits)
    keep = np.arange(len(found.tokens)) != len(found.tokens) - 2
    assert words(found.tokens[~keep]) == "<|/call|>"
    return dataclasses.replace(
      found,
      tokens=found.tokens[keep],
      logprobs=found.logprobs[keep],
      versions=found.versions[keep],
      routing=None,
    )


def test_broken_tool_calls_are_logged_with_their_error_and_cost_reward(at):
  traffic, _ = at
  traffic._samplers[STABLE] = BreaksCalls(calls(("look", {"what": "x"})))
  with serving(Says(""), traffic=traffic) as gateway:
    _, session = opened(gateway, "ann")
    said(gateway, session, tools=[tool()])
  (joined,) = traffic.join.calls.values()
  assert joined.call.errors and joined.call.behaviour["invalid_tool"] == 1
  assert joined.call.tools and joined.reward(KINDS) == -0.5


def test_feedback_needs_the_key_of_its_session_and_its_own_user(at):
  traffic, clock = at
  with serving(Says(""), traffic=traffic) as gateway:
    _, ann = opened(gateway, "ann")
    _, bob = opened(gateway, "bob")
    said(gateway, ann), said(gateway, bob)
    mine = {"session": ann["session_id"]}
    assert tell(gateway, ann["api_key"], **mine)[0] == 401  # an agent cannot praise itself
    assert tell(gateway, bob["control_key"], **mine, user="bob")[0] == 401
    assert tell(gateway, SERVICE_KEY, **mine, user="bob")[0] == 403
    assert tell(gateway, SERVICE_KEY, session="none")[0] == 400
    assert tell(gateway, SERVICE_KEY, **mine, value="much")[0] == 400
    assert tell(gateway, SERVICE_KEY, **mine, value=None)[0] == 400
    assert tell(gateway, SERVICE_KEY, **mine, more=1)[0] == 400
    assert tell(gateway, ann["control_key"], **mine) == (200, {"accepted": True})
    assert tell(gateway, SERVICE_KEY, **mine) == (200, {"accepted": False})
    clock.now_s = 101.0
    assert tell(gateway, SERVICE_KEY, **mine, event_id="late") == (200, {"accepted": True})
  assert traffic.join.counts == {"joined": 1, "late": 1}
  (closed, _) = traffic.join.closed(101.0)
  assert closed.reward(KINDS) == 1.0


@pytest.mark.parametrize("prefix", ["", "chatcmpl-"])
def test_feedback_may_be_about_one_call_by_the_id_of_its_reply(at, prefix):
  traffic, clock = at
  with serving(Says(""), traffic=traffic) as gateway:
    _, ann = opened(gateway, "ann")
    first = said(gateway, ann)
    said(gateway, ann, USER, first, USER)
    (name, other) = traffic.join.calls
    about = {"session": ann["session_id"], "call": f"{prefix}{other}"}
    assert tell(gateway, SERVICE_KEY, **about) == (200, {"accepted": True})
  clock.now_s = 101.0
  traffic.join.closed(101.0)
  rewards = [traffic.join.calls[each].reward(KINDS) for each in (name, other)]
  assert rewards == [0.0, 1.0]


def test_a_call_that_could_not_be_logged_is_the_parent_of_none(at, monkeypatch):
  traffic, _ = at
  append, full = traffic.append, [OSError(28, "No space left on device")]

  def once_full(record, **options):
    if record["kind"] == "call" and full:
      raise full.pop()
    append(record, **options)

  monkeypatch.setattr(traffic, "append", once_full)
  with serving(Says(""), traffic=traffic) as gateway:
    _, ann = opened(gateway, "ann")
    asked = body(USER)
    assert send(gateway, "POST", "/v1/chat/completions", asked, ann["api_key"])[0] == 503
    answer = said(gateway, ann)
    said(gateway, ann, USER, answer, {"role": "user", "content": "again"})
  of_id = lambda name: traffic.join.calls[name].call
  segments = [calls_lib.segment(each.call, of_id) for each in traffic.join.calls.values()]
  whole = words(segments[-1].tokens)
  assert len(segments) == 2 and whole.count("old<|end|>") == 2 and "again" in whole


def test_after_a_restart_a_session_keeps_its_user_and_its_key_and_its_id_is_taken(at):
  traffic, _ = at
  with serving(Says(""), traffic=traffic) as gateway:
    asked = {"session_id": "chat-7", "metadata": {"user": "ann"}}
    _, _, ann = send(gateway, "POST", "/sessions", asked, SERVICE_KEY)
    said(gateway, ann)
  with serving(Says(""), traffic=traffic) as gateway:  # which knows no session
    asked["metadata"] = {"user": "bob"}
    status, _, found = send(gateway, "POST", "/sessions", asked, SERVICE_KEY)
    assert status == 409 and "choose another session_id" in found["error"]["message"]
    _, bob = opened(gateway, "bob")
    said(gateway, bob)
    assert tell(gateway, bob["control_key"], session="chat-7")[0] == 401
    assert tell(gateway, traffic.control_key("none"), session="none")[0] == 401
    assert tell(gateway, ann["control_key"], session="chat-7") == (200, {"accepted": True})


def test_a_gateway_without_users_takes_no_feedback_and_wrong_metadata_is_refused(at):
  with serving(Says("")) as gateway:
    assert tell(gateway, SERVICE_KEY, session="s")[0] == 404
  with serving(Says(""), traffic=at[0]) as gateway:
    assert opened(gateway, 5)[0] == 400
    for wrong in ("x", 1e200, 10**400, True):
      status, found = opened(gateway, "ann", features={"a": wrong})
      assert status == 400 and found["error"]["param"] == "metadata.features"
    for field, value in (("trainable", False), ("sampling", {"temperature": 0.2})):
      asked = {"metadata": {"user": "ann"}, field: value}
      status, _, found = send(gateway, "POST", "/sessions", asked, SERVICE_KEY)
      assert status == 400 and found["error"]["param"] == field
      assert send(gateway, "POST", "/sessions", {field: value}, SERVICE_KEY)[0] == 200  # of nobody


def test_a_canary_session_keeps_its_arm_and_falls_back_after_a_roll_back(at):
  traffic, _ = at
  traffic.deployer.propose(1)
  traffic.deployer.advance()
  with serving(Says(""), traffic=traffic) as gateway:
    session = opened(gateway, of_arm(traffic, CANARY))[1]
    other = opened(gateway, of_arm(traffic, STABLE))[1]
    assert said(gateway, session)["content"] == "new"
    assert said(gateway, other)["content"] == "old"
    traffic.deployer.advance()
    assert said(gateway, other)["content"] == "old"  # whatever the share is now
    traffic.deployer.roll_back()
    assert said(gateway, session)["content"] == "old"
  arms = [each.call.arm for each in traffic.join.calls.values()]
  assert arms == [CANARY, STABLE, STABLE, CANARY]


def test_a_server_that_starts_again_names_a_torn_end_and_goes_on_where_it_stood(
  at, tmp_path, capfd
):
  traffic, clock = at
  with serving(Says(""), traffic=traffic) as gateway:
    _, ann = opened(gateway, "ann")
    said(gateway, ann)
    tell(gateway, ann["control_key"], session=ann["session_id"])
  traffic.log.close()
  with traffic.log.path.open("ab") as file:  # as a process that is killed may leave it
    file.write(record_log.packed({"kind": "event"})[:-1])
  again = Traffic(tmp_path, Deployer(tmp_path), {}, kinds=KINDS, clock=clock)
  assert "traffic.log: the last 31 bytes, from byte " in capfd.readouterr().err
  with serving(Says(""), traffic=again) as gateway:
    assert tell(gateway, SERVICE_KEY, session=ann["session_id"]) == (200, {"accepted": False})
  again.log.close()
  assert again.join.counts == traffic.join.counts == {"joined": 1}
  assert [j.values for j in again.join.calls.values()] == [{"persist": 1.0}]


def test_the_key_of_user_names_is_kept_and_damage_is_named(tmp_path):
  file = tmp_path / "user.key"
  key = user_key(file)
  assert len(key) == 32 and user_key(file) == key and file.stat().st_mode & 0o077 == 0
  file.write_bytes(b"short")
  with pytest.raises(ValueError, match="has 5 bytes, a key has 32"):
    user_key(file)
