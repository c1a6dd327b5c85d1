"""An environment of verifiers before 0.4, with a tool, played with each of its clients."""

import asyncio
import os

import datasets
import verifiers as vf
from verifiers.types import ClientConfig

BASES = {
  "openai_chat_completions": os.environ["OPENAI_BASE_URL"],
  "openai_responses": os.environ["OPENAI_BASE_URL"],
  "anthropic_messages": os.environ["ANTHROPIC_BASE_URL"],
}


def add(a: int, b: int) -> int:
  """Adds two numbers."""
  return a + b


def number(completion) -> float:
  """The number that was said last."""
  return float(completion[-1]["content"]) if completion else 0.0


def environment(question):
  """One with a single task."""
  rows = datasets.Dataset.from_list([{"question": question}])
  return vf.ToolEnv(dataset=rows, tools=[add], rubric=vf.Rubric(funcs=[number]))


async def main():
  """Prints the rewards."""
  rewards = []
  for name, base in BASES.items():
    client = ClientConfig(client_type=name, api_base_url=base, api_key_var="OPENAI_API_KEY")
    for question in (f"What is 2 + 3, {name}?", "word " * 20_000):
      env = environment(question)
      (row,) = env.get_dataset()
      played = await env.run_rollout(row, client, "policy", {})
      if "word" in question:  # longer than the context
        assert played["stop_condition"] == "prompt_too_long", played
      else:
        rewards.append(played["reward"])
  print(*rewards)


asyncio.run(main())
