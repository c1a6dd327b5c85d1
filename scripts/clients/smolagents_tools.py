"""smolagents' ToolCallingAgent: stop texts, tool_choice="required", a long system prompt."""

import os

from smolagents import OpenAIModel, ToolCallingAgent, tool


@tool
def add(a: int, b: int) -> int:
  """Adds two numbers.

  Args:
    a: one number.
    b: the other one.
  """
  return a + b


model = OpenAIModel(
  "policy", api_base=os.environ["OPENAI_BASE_URL"], api_key=os.environ["OPENAI_API_KEY"]
)
print(ToolCallingAgent([add], model, verbosity_level=0).run("What is 2 + 3?"))
