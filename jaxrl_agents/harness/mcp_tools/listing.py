"""The tools of a run's MCP servers, asked for once and the same for all its episodes."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import hashlib
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Protocol

from mcp.types import Tool as Offered

from jaxrl_agents.config import McpServer
from jaxrl_agents.harness import argument_check
from jaxrl_agents.harness.mcp_tools.connection import CannotConnect, opened
from jaxrl_agents.harness.mcp_tools.sandboxed import Sandbox
from jaxrl_agents.types import ToolSpec

MAX_NAME_CHARS = 64
"""Longest name of a tool that chat formats and other programs take."""


@dataclasses.dataclass(frozen=True)
class Listed:
  """A tool of a server.

  Attributes:
    name: as the server calls it.
    spec: as the policy is told of it, `<server>_<tool>`.
    repeatable: whether the server says that a call changes nothing, or nothing more when it is
      repeated: such a call is made again where a connection was lost.
  """

  name: str
  spec: ToolSpec
  repeatable: bool


@dataclasses.dataclass(frozen=True)
class Listing:
  """What the servers of a run offer: {name of the server: its tools}. It can be pickled."""

  servers: tuple[McpServer, ...]
  tools: Mapping[str, tuple[Listed, ...]]

  @property
  def names(self) -> list[str]:
    """The names of all tools, as the policy is told of them."""
    return [each.spec.name for listed in self.tools.values() for each in listed]

  @property
  def digest(self) -> str:
    """A digest of names, descriptions and schemas: of all that a policy is told of the tools."""
    return digest_of(each for listed in self.tools.values() for each in listed)


def digest_of(listed: Iterable[Listed]) -> str:
  """The sha256 of the tools, in whatever order they are given."""
  rows = sorted(
    json.dumps([each.spec.name, each.spec.description, each.spec.parameters], sort_keys=True)
    for each in listed
  )
  return hashlib.sha256("\n".join(rows).encode()).hexdigest()


def listed_tools(
  server: McpServer, offered: Sequence[Offered], *, checks: bool = True
) -> tuple[Listed, ...]:
  """The tools of `server` that its record chooses, in the order of their names.

  Args:
    checks: the schemas; without effect on a list that is compared with a checked one.

  Raises:
    ValueError: a name or a schema cannot be used, or a tool that the record names is missing.
  """
  known = [tool.name for tool in offered]
  missing = [name for name in server.tools if name not in known]
  if missing:
    raise ValueError(
      f"MCP server {server.name!r} has no tool {missing[0]!r}; it has {', '.join(known) or 'none'}"
    )
  chosen = [tool for tool in offered if not server.tools or tool.name in server.tools]
  ordered = sorted(chosen, key=lambda tool: tool.name)
  return tuple(_listed(server, tool, checks=checks) for tool in ordered)


class Sandboxes(Protocol):
  """Makes sandboxes while it is entered; see `sandbox.host.sandboxes`."""

  async def __aenter__(self) -> Any: ...

  async def __aexit__(self, *_: object) -> None: ...


def ask(
  servers: Sequence[McpServer], own: Sequence[str], boxes: Sandboxes | None = None
) -> Listing:
  """Starts each server, asks for its tools, and ends it again.

  Args:
    servers: of the run.
    own: names of the tools that the agent has already.
    boxes: where sandboxed servers are asked, in a sandbox without files.

  Raises:
    ValueError: a server cannot be asked, or two tools have one name; says which and why.
  """
  outside = [server for server in servers if not server.sandboxed]
  inside = [server for server in servers if server.sandboxed]
  found = asyncio.run(_ask_all(outside))
  if inside:
    found |= asyncio.run(_ask_inside(inside, boxes))
  return joined(servers, {server.name: found[server.name] for server in servers}, own)


def joined(
  servers: Sequence[McpServer], found: Mapping[str, tuple[Listed, ...]], own: Sequence[str]
) -> Listing:
  """The listing of the tools of all servers.

  Raises:
    ValueError: two tools have one name, or one has that of the agent's `own`.
  """
  owners = dict.fromkeys(own, "the agent itself")
  for server, listed in found.items():
    for each in listed:
      if each.spec.name in owners:
        raise ValueError(
          f"the tool {each.name!r} of the MCP server {server!r} would be called "
          f"{each.spec.name!r}, which {owners[each.spec.name]} has already; rename the server, or "
          "leave the tool out (tools)"
        )
      owners[each.spec.name] = f"the MCP server {server!r}"
  return Listing(tuple(servers), found)


async def _ask_inside(
  servers: Sequence[McpServer], boxes: Sandboxes | None
) -> dict[str, tuple[Listed, ...]]:
  if boxes is None:
    raise ValueError(f"there are no sandboxes for the MCP server {servers[0].name!r}")
  async with contextlib.AsyncExitStack() as stack:
    try:
      made = await stack.enter_async_context(boxes)
      box = await stack.enter_async_context(await made.create(await made.base({})))
    except Exception as error:  # whatever keeps this machine from making sandboxes
      raise ValueError(
        f"there is no sandbox for the MCP server {servers[0].name!r}: {error}"
      ) from error
    return await _ask_all(servers, box)


async def _ask_all(
  servers: Sequence[McpServer], box: Sandbox | None = None
) -> dict[str, tuple[Listed, ...]]:
  found = {}
  for server in servers:
    try:
      connection = await opened(server, box)
    except CannotConnect as error:
      raise ValueError(f"the MCP server {server.name!r} cannot be asked: {error}") from error
    try:
      found[server.name] = listed_tools(server, connection.tools)
    finally:
      await connection.close()
  return found


def _listed(server: McpServer, tool: Offered, *, checks: bool) -> Listed:
  name = re.sub(r"[^A-Za-z0-9_-]", "_", f"{server.name}_{tool.name}")
  where = f"the tool {tool.name!r} of the MCP server {server.name!r}"
  if len(name) > MAX_NAME_CHARS:
    raise ValueError(f"{where} would be called {name!r}; at most {MAX_NAME_CHARS} characters go")
  try:
    if checks:
      argument_check.check_schema(tool.input_schema)
  except Exception as error:  # whatever jsonschema finds in what another program wrote
    reason = argument_check.clipped(str(error).partition("\n")[0], 200)
    raise ValueError(f"{where} has a schema that cannot be used: {reason}") from error
  hints = tool.annotations
  repeatable = bool(hints and (hints.read_only_hint or hints.idempotent_hint))
  return Listed(tool.name, ToolSpec(name, tool.description or "", tool.input_schema), repeatable)
