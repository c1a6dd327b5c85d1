"""The OpenAI Agents SDK: streams, refusals, broken connections, the same call again.

Over /v1/responses and over /v1/chat/completions.
"""

import asyncio
import os

import agents
import openai
from relay import Relay, fails

agents.set_tracing_disabled(True)
relay = Relay(os.environ["OPENAI_BASE_URL"])


@agents.function_tool
def add(a: int, b: int) -> int:
  """Adds two numbers."""
  return a + b


def adder(dialect, retries=2, **settings):
  """An agent, with or without repetitions."""
  model = dialect("policy", openai.AsyncOpenAI(base_url=relay.url, max_retries=retries))
  asks = agents.ModelSettings(**settings)
  return agents.Agent("adder", instructions="Add.", tools=[add], model=model, model_settings=asks)


async def answer(agent, question):
  """What the agent says last."""
  return (await agents.Runner.run(agent, question)).final_output


async def streamed(agent, question):
  """What the agent says last, and the number of events."""
  run, events = agents.Runner.run_streamed(agent, question), 0
  async for _ in run.stream_events():
    events += 1
  return run.final_output, events


async def play(dialect):
  """All runs in one dialect."""
  name = dialect.__name__
  asked = lambda kind: f"What is 2 + 3, {kind} by {name}?"
  # As it is, and once more.
  for _ in range(2):
    assert await answer(adder(dialect), asked("plain")) == "5"
  # In pieces.
  said, events = await streamed(adder(dialect), asked("streamed"))
  assert said == "5" and events > 10, (said, events)
  # A field that the gateway does not have.
  with fails(openai.BadRequestError, "top_logprobs is not supported; leave it out"):
    await answer(adder(dialect, top_logprobs=2), asked("refused"))
  # The connection breaks while the second reply is sampled, or in the middle of it: the library
  # repeats its request, and marks it as a repetition.
  for fault in ("lost", "cut"):
    relay.faults, relay.repetitions = ["", fault], []
    assert await answer(adder(dialect), asked(fault)) == "5"
    assert relay.repetitions == [False, False, True], relay.repetitions
  # The runner of the SDK repeats a request without a mark, which is another draw.
  relay.faults, relay.repetitions = ["", "lost"], []
  repeats = agents.ModelRetrySettings(max_retries=1, policy=agents.retry_policies.network_error())
  assert await answer(adder(dialect, retries=0, retry=repeats), asked("runner")) == "5"
  assert relay.repetitions == [False, False, False], relay.repetitions
  # Without repetitions it is an error, and so is a stream that breaks.
  for fault, run in (("lost", answer), ("cut", streamed)):
    relay.faults, relay.repetitions = ["", fault], []
    agent, question = adder(dialect, retries=0), asked(f"{fault} {run.__name__}")
    with fails(openai.APIConnectionError, "Connection error"):
      await run(agent, question)
    assert await answer(agent, question) == "5"
    assert relay.repetitions == [False] * 4, relay.repetitions


for dialect in (agents.OpenAIResponsesModel, agents.OpenAIChatCompletionsModel):
  asyncio.run(play(dialect))
print(5)
