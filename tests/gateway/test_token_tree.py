"""Calls of a session to segments: each sampled token once, under the context it was sampled in."""

import dataclasses

import numpy as np

from jaxrl_agents.gateway.token_tree import Call, TokenTree, kinds
from jaxrl_agents.harness.segments import Turn
from jaxrl_agents.types import NOT_ROUTED, Generation, Message, ToolSpec
from tests.gateway.serving import CHAT, calls, words

LOOK = ToolSpec("look", "", {"type": "object", "properties": {}})


class Session:
  """Asks a tree for prompts and adds replies, as the gateway does; each token has a logprob of its
  own, by which it is known again."""

  def __init__(self):
    self.tree, self.drawn = TokenTree(), 0

  def ask(self, history, reply, *, tokens=None, delivered=True, tools=(), wait=False):
    """The message that the agent gets, and the call (added unless `wait`)."""
    history = self.tree.with_ids(history, tools)
    prompt = CHAT.render(history, tools)
    if tokens is None:
      tokens = CHAT.encode_reply(reply)
    logprobs = -np.arange(self.drawn, self.drawn + len(tokens), dtype=np.float32) / 1024
    self.drawn += len(tokens)
    number = len(self.tree.calls) + 1000 * wait
    rows = len(prompt) + len(tokens) - self.tree.routed_tokens(prompt)
    routing = np.full((rows, 1, 1), number, np.uint16)
    routing[-1] = NOT_ROUTED  # the last token was sampled, and not read
    generation = Generation(tokens, logprobs, np.full(len(tokens), number), routing, "stop")
    named = tuple(
      dataclasses.replace(call, id=f"{number}.{i}") for i, call in enumerate(reply.tool_calls)
    )
    said = dataclasses.replace(reply, tokens=tokens, tool_calls=named)
    turn = Turn(prompt, generation)
    call = Call(str(number), history, tuple(tools), turn, said, delivered=delivered)
    if not wait:
      self.tree.add(call)
    return dataclasses.replace(said, tokens=None), call


def user(text):
  return Message("user", text)


def spelled(text):
  """Ids of a text, a character at a time: not those that the tokenizer makes of the whole."""
  return np.concatenate(
    [*(CHAT.encode(c) for c in text), CHAT.encode_reply(Message("assistant", ""))]
  )


def trained(segments):
  """[(context, logprob)] of the trained tokens, in order."""
  return [
    (tuple(s.tokens[:i].tolist()), float(s.logprobs[i]))
    for s in segments
    for i in np.flatnonzero(s.loss_mask)
  ]


def sampled(calls):
  """The same, of what was sampled."""
  found = []
  for call in calls:
    for i, logprob in enumerate(call.turn.generation.logprobs):
      found.append((tuple(call.tokens[: len(call.turn.prompt) + i].tolist()), float(logprob)))
  return found


def test_a_history_that_grows_is_one_segment_with_the_ids_as_they_were_sampled():
  session = Session()
  first, _ = session.ask(
    [user("a")], Message("assistant", "hello there"), tokens=spelled("hello there")
  )
  session.ask([user("a"), first, user("b")], Message("assistant", "bye"))
  (segment,) = session.tree.segments()
  text = "<|user|>a<|end|><|assistant|>hello there<|end|><|user|>b<|end|><|assistant|>bye<|end|>"
  assert words(segment.tokens) == text
  assert segment.loss_mask.sum() == len("hello there") + 1 + len(CHAT.encode("bye")) + 1
  assert trained([segment]) == sampled(session.tree.calls)


def test_an_edited_reply_is_context_and_its_own_tokens_are_trained_in_a_segment_of_their_own():
  session = Session()
  first, _ = session.ask([user("a")], Message("assistant", "wrong"))
  edited = dataclasses.replace(first, content="right")
  session.ask([user("a"), edited, user("b")], Message("assistant", "fine"))
  segments = session.tree.segments()
  assert [words(s.tokens[s.loss_mask]) for s in segments] == ["wrong<|end|>", "fine<|end|>"]
  assert "right" in words(segments[1].tokens)


def test_branches_of_one_history_share_it_and_train_it_once():
  session = Session()
  first, _ = session.ask([user("a")], Message("assistant", "one"))
  for name in "bc":
    session.ask([user("a"), first, user(name)], Message("assistant", name * 3))
  segments = session.tree.segments()
  assert [words(s.tokens[s.loss_mask]) for s in segments] == [
    "one<|end|>bbb<|end|>",
    "ccc<|end|>",
  ]
  assert trained(segments) == sampled(session.tree.calls)


def test_a_reply_that_was_never_delivered_is_left_out_unless_a_later_history_holds_it():
  session = Session()
  lost, _ = session.ask([user("a")], Message("assistant", "lost"), delivered=False)
  session.ask([user("a")], Message("assistant", "kept"))
  assert [words(s.tokens[s.loss_mask]) for s in session.tree.segments()] == ["kept<|end|>"]
  session.ask([user("a"), lost, user("b")], Message("assistant", "on"))
  assert [words(s.tokens[s.loss_mask]) for s in session.tree.segments()] == [
    "kept<|end|>",
    "lost<|end|>on<|end|>",
  ]


def test_calls_are_known_by_their_ids_where_parts_are_missing_but_not_where_one_changed():
  session = Session()
  reply, call = session.ask([user("a")], calls(("look", {"x": 1, "y": 2}), text="well"))
  for changed, same in (
    (dataclasses.replace(reply, content=""), True),
    (dataclasses.replace(reply, content=" well\n"), True),
    (dataclasses.replace(reply, content="ill"), False),
    (
      dataclasses.replace(
        reply,
        content="",
        tool_calls=(dataclasses.replace(reply.tool_calls[0], arguments={"x": 1, "y": 3}),),
      ),
      False,
    ),
  ):
    (found,) = session.tree.with_ids([changed])
    assert (found.tokens is call.reply.tokens) == same


def test_a_reply_that_comes_back_in_parts_stands_once():
  session = Session()
  reply, call = session.ask([user("a")], calls(("look", {"x": 1}), ("look", {"x": 2})))
  parts = [dataclasses.replace(reply, tool_calls=(each,)) for each in reply.tool_calls]
  results = [Message("tool", "r", tool_call_id=each.id) for each in reply.tool_calls]
  history = [user("a"), parts[0], results[0], parts[1], results[1]]
  found = session.tree.with_ids(history)
  assert [m.role for m in found] == ["user", "assistant", "tool", "tool"]
  assert found[1] is call.reply


def test_a_call_that_ends_late_is_found_as_the_parent_of_those_that_extend_it():
  session = Session()
  _, late = session.ask([user("a")], Message("assistant", "slow"), wait=True)
  said = Message("assistant", "slow")  # as text: the tree does not know it yet
  session.ask([user("a"), said, user("b")], Message("assistant", "quick"))
  session.tree.add(late)
  (segment,) = session.tree.segments()
  assert words(segment.tokens[segment.loss_mask]) == "slow<|end|>quick<|end|>"


def test_the_experts_of_a_token_are_those_of_the_call_that_read_it_first():
  session = Session()
  first, call = session.ask([user("a")], Message("assistant", "one"))
  session.ask([user("a"), first, user("b")], Message("assistant", "two"))
  (segment,) = session.tree.segments()
  n, rows = len(call.tokens), segment.routing[:, 0, 0]
  assert rows[: n - 1].tolist() == [0] * (n - 1)
  assert rows[n - 1 : -1].tolist() == [1] * (len(rows) - n)
  assert rows[-1] == NOT_ROUTED  # nobody has read it yet


def test_calls_without_tools_are_side_calls_where_the_main_ones_have_some():
  session = Session()
  system = Message("system", "Be an agent.")
  session.ask(
    [Message("system", "Make a title."), user("a")], Message("assistant", "A title, long")
  )
  session.ask([system, user("a")], calls(("look", {})), tools=(LOOK,))
  session.ask([Message("system", "Be small."), user("a")], Message("assistant", "x"), tools=(LOOK,))
  found = kinds(session.tree.calls)
  assert [found[id(call)] for call in session.tree.calls] == ["side", "main", "sub"]
  segments = session.tree.segments(lambda call: found[id(call)] != "side")
  assert len(segments) == 2
  alone = Session()
  alone.ask([user("a")], Message("assistant", "x"))
  assert list(kinds(alone.tree.calls).values()) == ["main"]


def test_numbers_are_the_same_as_a_client_in_javascript_writes_them():
  session = Session()
  reply, call = session.ask([user("a")], calls(("look", {"x": 1.0, "y": [2**53 + 1]})))
  rewritten = dataclasses.replace(reply.tool_calls[0], arguments={"y": [2**53], "x": 1})
  (_, found) = session.tree.with_ids(
    [user("a"), dataclasses.replace(reply, tool_calls=(rewritten,))]
  )
  assert found is call.reply
  changed = dataclasses.replace(reply.tool_calls[0], arguments={"y": [2**53], "x": True})
  sent = dataclasses.replace(reply, tool_calls=(changed,))
  assert session.tree.with_ids([user("a"), sent])[1] is sent


def test_a_reply_goes_on_from_the_ids_it_was_sampled_after_where_another_has_the_same_text():
  session = Session()
  first, _ = session.ask([user("a")], Message("assistant", "yes"), tokens=spelled("yes"))
  second, _ = session.ask([user("a"), first, user("b")], Message("assistant", "no"))
  session.ask([user("a")], Message("assistant", "yes"))  # the same text in other ids
  session.ask([user("a"), first, user("b"), second, user("c")], Message("assistant", "on"))
  segments = session.tree.segments()
  assert [words(s.tokens[s.loss_mask]) for s in segments] == [
    "yes<|end|>",
    "yes<|end|>no<|end|>on<|end|>",
  ]


def test_a_reply_that_comes_back_without_its_text_goes_on_from_the_ids_it_was_sampled_after_too():
  session = Session()
  session.ask([user("a")], Message("assistant", "yes"))
  spelt = Message("assistant", "yes", reasoning="hm")  # by which the agent could tell it
  first, _ = session.ask([user("a")], spelt, tokens=spelled("yes"))
  second, call = session.ask([user("a"), first, user("b")], calls(("look", {}), text="no"))
  first, second = (
    dataclasses.replace(first, reasoning=""),
    dataclasses.replace(second, content=""),
  )
  found = session.tree.with_ids([user("a"), first, user("b"), second])
  assert found == (*call.history, call.reply)


def test_of_replies_with_the_same_text_the_one_with_the_same_tools_and_thought_is_meant():
  session = Session()
  ask = lambda thought, tools=(LOOK,), **more: session.ask(
    [user("a")], Message("assistant", "yes", reasoning=thought), tools=tools, **more
  )
  _, bare = ask("hm", tools=())
  _, lost = ask("hm", delivered=False)
  sent, got = ask("hm")
  _, other = ask("so")
  ids = lambda message, *tools: session.tree.with_ids([user("a"), message], tools)[1]
  assert ids(sent) is bare.reply
  assert ids(sent, LOOK) is got.reply
  assert ids(dataclasses.replace(sent, reasoning="so"), LOOK) is other.reply
  assert lost.reply.content == "yes"


def test_a_reply_in_parts_does_not_hide_what_comes_after_it():
  session = Session()
  reply, _ = session.ask([user("a")], calls(("look", {"x": 1}), ("look", {"x": 2})))
  results = [Message("tool", "r", tool_call_id=each.id) for each in reply.tool_calls]
  first, call = session.ask(
    [user("a"), reply, *results], Message("assistant", "yes"), tokens=spelled("yes")
  )
  session.ask([user("b")], Message("assistant", "yes"))
  parts = [dataclasses.replace(reply, tool_calls=(each,)) for each in reply.tool_calls]
  found = session.tree.with_ids([user("a"), parts[0], parts[1], *results, first])
  assert found[-1] is call.reply and len(found) == 5
