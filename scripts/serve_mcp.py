"""Serves the tools of an agent to any MCP client, over standard input and output.

python scripts/serve_mcp.py --config=configs/search_cpu.py             search, grep and read
python scripts/serve_mcp.py --config=configs/coding_cpu.py --task=ID    edits and shell in a sandbox

A client starts this command itself. Needs the extra mcp. The first start of a config makes its
corpus and index, which may take minutes; later ones read them from the cache.
"""

from absl import flags

from jaxrl_agents import config as config_lib
from jaxrl_agents.runs import entry_point, mcp_server

_CONFIG = flags.DEFINE_string("config", "configs/search_cpu.py", "a file with get_config()")
_SET = flags.DEFINE_multi_string("set", [], "section.option=value; may be given again")
_TASK = flags.DEFINE_string(
  "task",
  "",
  "id of the task whose repository the coding tools work on, or whose short chunk ids those of "
  "search use",
)


def main() -> None:
  """Loads the config and serves until the client ends."""
  mcp_server.serve(config_lib.load(_CONFIG.value, _SET.value), _TASK.value)


if __name__ == "__main__":
  entry_point.run(main)
