"""LangGraph's prebuilt agent with langchain-openai, over /v1/chat/completions, with a tool."""

import os

from langchain_core.tools import tool
from langchain_openai import ChatOpenAI
from langgraph.prebuilt import create_react_agent


@tool
def add(a: int, b: int) -> int:
  """Adds two numbers."""
  return a + b


model = ChatOpenAI(model="policy", base_url=os.environ["OPENAI_BASE_URL"])
adder = create_react_agent(model, [add], prompt="Add with the tool.")
print(adder.invoke({"messages": [("user", "What is 2 + 3?")]})["messages"][-1].content)
