"""The MCP tools of a run: asked for once, recorded in the workdir, the same when it is resumed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from jaxrl_agents.config import McpServer, RunConfig, import_path
from jaxrl_agents.harness import mcp_tools
from jaxrl_agents.runs.workdir import Workdir

if TYPE_CHECKING:  # the package mcp, an extra, is imported where a run has servers
  from jaxrl_agents.harness.mcp_tools.listing import Listing

_ASKED: dict[tuple[tuple[McpServer, ...], tuple[str, ...]], Listing] = {}


def listing(config: RunConfig) -> Listing:
  """What the servers of `tools.mcp` offer.

  The first call of a process asks the servers; later ones return the same.

  Raises:
    ValueError: the package mcp is missing, a server cannot be asked, or two tools have one name.
  """
  agent, servers = import_path.agent(config.agent), config.tools.mcp
  own = tuple(agent.own_tools(config.agent_config) or ())
  if (servers, own) not in _ASKED:
    boxes = None
    if sandboxed := [server for server in servers if server.sandboxed]:
      packages = sorted({name for server in sandboxed for name in server.packages})
      boxes = agent.sandboxes(config.agent_config, packages)
    _ASKED[servers, own] = _asked(servers, own, boxes)
  return _ASKED[servers, own]


def keep(config: RunConfig, workdir: Workdir) -> None:
  """Records the tools in the summary: "mcp" has their digest and names.

  Raises:
    ValueError: the run in the workdir began with others, or they cannot be asked for.
  """
  begun = workdir.read_summary().get("mcp")
  if not config.tools.mcp:
    if begun:
      raise ValueError(
        f"{workdir.path} holds a run with the MCP tools {', '.join(begun['tools'])}; set tools.mcp "
        "as it was, or choose another --workdir"
      )
    return
  found = listing(config)
  if not begun and any(workdir.trajectories.glob("eval_*.npz")):
    raise ValueError(
      f"{workdir.path} holds a run without MCP tools; remove tools.mcp, or choose another --workdir"
    )
  if begun and begun["digest"] != found.digest:
    raise ValueError(
      f"the MCP servers offer other tools ({', '.join(found.names)}) than those that the run in "
      f"{workdir.path} began with ({', '.join(begun['tools'])}), or describe them otherwise; use "
      "the versions of the servers from then, or choose another --workdir"
    )
  workdir.merge_summary({"mcp": {"digest": found.digest, "tools": found.names}})


def _asked(servers: Sequence[McpServer], own: Sequence[str], boxes: Any) -> Listing:
  mcp_tools.require()
  from jaxrl_agents.harness.mcp_tools import listing

  return listing.ask(servers, own, boxes)
