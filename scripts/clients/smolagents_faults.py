"""smolagents: streams, refusals, broken connections, the same call again."""

import os

from relay import Relay, fails
from smolagents import OpenAIModel, ToolCallingAgent, tool
from smolagents.utils import AgentGenerationError

relay = Relay(os.environ["OPENAI_BASE_URL"])


@tool
def add(a: int, b: int) -> int:
  """Adds two numbers.

  Args:
    a: one number.
    b: the other one.
  """
  return a + b


def adder(stream=False, retries=2, **options):
  """An agent, with or without streams and repetitions."""
  model = OpenAIModel(
    "policy",
    api_base=relay.url,
    api_key=os.environ["OPENAI_API_KEY"],
    client_kwargs={"max_retries": retries},
    **options,
  )
  return ToolCallingAgent([add], model, verbosity_level=0, stream_outputs=stream)


def asked(name):
  """The task of a run."""
  return f"What is 2 + 3, {name}?"


# As it is, and once more.
for _ in range(2):
  assert adder().run(asked("plain")) == "5"
# In pieces.
pieces = list(adder(stream=True).run(asked("streamed"), stream=True))
assert len(pieces) > 10 and pieces[-1].output == "5", pieces
# A field that the gateway does not have.
with fails(AgentGenerationError, "presence_penalty is not supported; leave it out"):
  adder(presence_penalty=1.0).run(asked("refused"))
# The connection breaks while the second reply is sampled, or in the middle of it: the library
# repeats its request, and marks it as a repetition.
for fault in ("lost", "cut"):
  relay.faults, relay.repetitions = ["", fault], []
  assert adder().run(asked(fault)) == "5"
  assert relay.repetitions == [False, False, True], relay.repetitions
# Without repetitions it is an error, and so is a stream that breaks.
for fault, stream in (("lost", False), ("cut", True)):
  relay.faults, relay.repetitions = ["", fault], []
  with fails(AgentGenerationError, "onnection"):
    adder(stream, retries=0).run(asked(f"{fault} {stream}"))
  assert adder(stream, retries=0).run(asked(f"{fault} {stream}")) == "5"
  assert relay.repetitions == [False] * 4, relay.repetitions
print("\n5")  # what is streamed is shown without an end of line
