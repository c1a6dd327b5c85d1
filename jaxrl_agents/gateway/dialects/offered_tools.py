"""The tools of a request of the responses dialect: functions, tools with a text, namespaces."""

from __future__ import annotations

import dataclasses

from jaxrl_agents.gateway.requests import Fields, Refusal, tool_spec
from jaxrl_agents.types import ToolSpec

CUSTOM = "custom"
"""Type of a tool whose input is a text in the place of JSON."""

BETWEEN = "__"
"""Between the namespace of a tool and its name, where the policy reads and writes it."""

CUSTOM_SCHEMA = {
  "type": "object",
  "properties": {"input": {"type": "string"}},
  "required": ["input"],
}


def joint(namespace: str, name: str) -> str:
  """The name by which the policy knows a tool."""
  return f"{namespace}{BETWEEN}{name}" if namespace else name


class Offer:
  """The tools of a request, as they are found in it.

  Attributes:
    tools: that the policy may call.
    namespaces: of these tools, by name; "" for a tool in none.
    left_out: what of it changes nothing.
  """

  def __init__(self) -> None:
    self.tools: list[ToolSpec] = []
    self.namespaces: dict[str, str] = {}
    self.left_out: list[str] = []

  def add(self, fields: Fields, path: str, namespace: str = "") -> None:
    """Adds the tools of an object's array `tools`, which stands at `path` of the request."""
    for i, item in enumerate(fields.take("tools", list, [])):
      tool = fields.inside(item, f"{path}[{i}]")
      kind = tool.take("type", str, "function")
      if kind == "namespace" and not namespace:
        if tool.take("description", str, ""):
          self.left_out.append("descriptions of namespaces")
        self.add(tool, tool.named("tools"), tool.need("name", str))
      elif kind == "function":
        self._add(tool_spec(tool, "parameters"), namespace, path)
      elif kind == CUSTOM:
        if (tool.take("format", dict, {})).get("type", "text") != "text":
          self.left_out.append("grammars of custom tools")
        name, description = tool.need("name", str), tool.take("description", str, "")
        self._add(ToolSpec(name, description, CUSTOM_SCHEMA), namespace, path)
      else:
        self.left_out.append(f"tools of type {kind}")

  def _add(self, tool: ToolSpec, namespace: str, path: str) -> None:
    tool = dataclasses.replace(tool, name=joint(namespace, tool.name))
    if self.namespaces.setdefault(tool.name, namespace) != namespace:
      raise Refusal(400, f"two tools are called {tool.name!r}; rename one of them", param=path)
    self.tools.append(tool)
