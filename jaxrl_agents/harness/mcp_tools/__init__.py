"""Tools of MCP servers in the episodes of any agent.

listing     asks each server for its tools, once per run, and freezes what it says
process     the standard input and output of a server that is a program of this machine
sandboxed   those of a server in the sandbox of an episode
written     counts what such servers write, and reads it as messages
connection  one connection to a server, held by a task of its own
session     calls within their deadline; replaces a connection that failed
results     what a server returned, as the text that a policy reads
episodes    gives the tools to an environment, and closes its own connections with it

https://modelcontextprotocol.io. The modules need the package `mcp`; this file does not.
"""

import importlib.metadata
import re

LEAST = (2, 3)


def require() -> None:
  """Checks that the package `mcp` is there, in a version with the interface that is used here.

  Raises:
    ValueError: it is not; says how to install it.
  """
  wanted = ".".join(map(str, LEAST))
  remedy = f"run: pip install 'mcp>={wanted},<{LEAST[0] + 1}' (the extra mcp of this package)"
  try:
    found = importlib.metadata.version("mcp")
  except importlib.metadata.PackageNotFoundError:
    raise ValueError(f"MCP needs the package mcp, which is not installed; {remedy}") from None
  numbers = tuple(map(int, re.findall(r"\d+", found)[:2]))
  if not LEAST <= numbers < (LEAST[0] + 1,):
    raise ValueError(f"MCP needs another version of the package mcp than {found}; {remedy}")
