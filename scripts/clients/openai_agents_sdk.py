"""The OpenAI Agents SDK, over /v1/responses, with a tool."""

import os

import agents
import openai

agents.set_tracing_disabled(True)


@agents.function_tool
def add(a: int, b: int) -> int:
  """Adds two numbers."""
  return a + b


model = agents.OpenAIResponsesModel(
  "policy", openai.AsyncOpenAI(base_url=os.environ["OPENAI_BASE_URL"])
)
adder = agents.Agent("adder", instructions="Add with the tool.", tools=[add], model=model)
print(agents.Runner.run_sync(adder, "What is 2 + 3?").final_output)
