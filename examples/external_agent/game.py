"""An agent of another project, the OpenAI Agents SDK, as it is: it finds a number with a tool.

Nothing of the agent knows this package. It is told where its model is, and its tool counts.
"""

import contextlib
import functools
import logging
import random

import agents
import openai

from jaxrl_agents.types import Message, ToolCall

SIZE, GUESSES = 3, 2

agents.set_tracing_disabled(True)
logging.getLogger("openai.agents").setLevel(logging.CRITICAL)  # it tells of each reply cut short


@functools.cache
def connections():
  """HTTP connections that all rollouts of a process share."""
  return openai.DefaultAsyncHttpxClient()


async def play(task, base_url, api_key, folder):
  """One rollout: the SDK's own loop, until the policy answers without a call."""
  guesses = []

  @agents.function_tool
  def guess(number: int) -> str:
    """Guesses the number."""
    if task.facts["number"] in guesses or len(guesses) == GUESSES:
      return "over"
    guesses.append(number)
    if number == task.facts["number"]:
      return "right"
    return "higher" if number < task.facts["number"] else "lower"

  client = openai.AsyncOpenAI(base_url=base_url, api_key=api_key, http_client=connections())
  model = agents.OpenAIResponsesModel("policy", client)
  agent = agents.Agent("guesser", instructions=None, tools=[guess], model=model)
  # After too many turns, or a call of a tool that does not exist, what was guessed counts.
  with contextlib.suppress(agents.AgentsException):
    await agents.Runner.run(agent, task.prompt, max_turns=GUESSES + 2)
  return guesses


def tasks():
  """Every number, many times over."""
  rows = []
  for split, count in (("train", 400), ("dev", 20), ("test", 80)):
    for i in range(count * SIZE):
      prompt = f"Find a number from 1 to {SIZE}."
      rows.append({"id": f"{split} {i}", "prompt": prompt, "split": split, "number": 1 + i % SIZE})
  return rows


def reward(task, outcome, trajectory):
  """1 if the number was found."""
  guesses = outcome.result or []
  return {"reward": float(task.facts["number"] in guesses), "guesses": float(len(guesses))}


def _player(pick):
  """A player that guesses with `pick` of the numbers that are left, and ends when it is over."""

  def answer(task, messages, tools, seed):
    low, high, said = 1, SIZE, [m for m in messages if m.role in ("assistant", "tool")]
    for call, hint in zip(said[::2], said[1::2], strict=True):
      number = call.tool_calls[0].arguments["number"]
      if hint.content in ("right", "over"):
        return Message("assistant", "Done.")
      low, high = (number + 1, high) if hint.content == "higher" else (low, number - 1)
    if len(said) // 2 == GUESSES:
      return Message("assistant", "Done.")
    number = pick(low, high, random.Random(f"{seed} {task.id} {len(said)}"))
    return Message("assistant", "", (ToolCall("", "guess", {"number": number}),))

  return answer


careless = _player(lambda low, high, draw: draw.randint(1, SIZE))
halving = _player(lambda low, high, draw: (low + high) // 2)
