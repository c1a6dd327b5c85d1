"""LangGraph and langchain-openai: streams, refusals, broken connections, the same call again."""

import os

import openai
from langchain_core.exceptions import ContextOverflowError
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.prebuilt import create_react_agent
from relay import Relay, fails

relay = Relay(os.environ["OPENAI_BASE_URL"])


@tool
def add(a: int, b: int) -> int:
  """Adds two numbers."""
  return a + b


def adder(**options):
  """An agent that goes on where it was interrupted."""
  model = ChatOpenAI(model="policy", base_url=relay.url, **options)
  return create_react_agent(model, [add], prompt="Add.", checkpointer=InMemorySaver())


def asked(name):
  """The input and the thread of a run."""
  question = {"messages": [("user", f"What is 2 + 3, {name}?")]}
  return question, {"configurable": {"thread_id": name}}


def answer(state):
  """The last message."""
  return state["messages"][-1].content


# Once as it is, once more, and several at once.
for name in ("plain", "plain again"):
  question, thread = asked("plain")
  assert answer(adder().invoke(question, thread)) == "5", name
questions, threads = zip(asked("left"), asked("right"), strict=True)
assert [answer(each) for each in adder().batch(list(questions), list(threads))] == ["5", "5"]
# A stream of messages has the reply in pieces.
question, thread = asked("streamed")
pieces = list(adder().stream(question, thread, stream_mode="messages"))
assert len(pieces) > 3 and pieces[-1][0].content in ("", "5"), pieces
# A field that the gateway does not have, and a prompt that is too long.
refused = adder(presence_penalty=1.0)
with fails(openai.BadRequestError, "presence_penalty is not supported; leave it out"):
  refused.invoke(*asked("refused"))
with fails(ContextOverflowError, "prompt is too long: "):
  adder().invoke(*asked("word " * 20_000))
# The connection breaks while the second reply is sampled, or in the middle of it: the library
# repeats its request, and marks it as a repetition.
for fault in ("lost", "cut"):
  relay.faults, relay.repetitions = ["", fault], []
  assert answer(adder().invoke(*asked(fault))) == "5"
  assert relay.repetitions == [False, False, True], relay.repetitions
# Without repetitions it is an error, and so is a stream that breaks. The graph goes on from its
# last step, with an equal request that is another draw.
for fault, mode in (("lost", "values"), ("cut", "messages")):
  relay.faults, relay.repetitions = ["", fault], []
  (question, thread), broken = asked(f"{fault} {mode}"), adder(max_retries=0)
  with fails(openai.APIConnectionError, "Connection error"):
    list(broken.stream(question, thread, stream_mode=mode))
  assert answer(broken.invoke(None, thread)) == "5"
  assert relay.repetitions == [False, False, False], relay.repetitions
print(5)
