"""Our own tools over MCP, called by the client of the package mcp; a run that is given tools."""

import asyncio
import dataclasses
import importlib.util
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
import sysconfig

import pytest

from jaxrl_agents import config as config_lib
from jaxrl_agents.agents.coding.tasks import task_set
from jaxrl_agents.config import McpServer, mcp_servers
from jaxrl_agents.runs import mcp_tools
from jaxrl_agents.runs.workdir import Workdir
from jaxrl_agents.types import Task
from tests.agents.coding.judge.benches import CALL_FACTS, CALLS
from tests.harness.mcp_tools.servers import needs_mcp, odd

ROOT = pathlib.Path(__file__).parents[2]
pytestmark = [needs_mcp, pytest.mark.slow]


def asked(cache, arguments, *calls):
  """(names of the tools, [(text, whether it is an error)] of the calls) of a server of ours."""
  from mcp import Client, StdioServerParameters

  path = os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
  server = StdioServerParameters(
    command=sys.executable,
    args=[str(ROOT / "scripts/serve_mcp.py"), *arguments],
    env={"PYTHONPATH": path, "JAXRL_CACHE": str(cache)},
  )

  async def play():
    async with asyncio.timeout(120), Client(server) as client:
      listed = await client.list_tools()
      found = [await client.call_tool(name, arguments) for name, arguments in calls]
      texts = [(each.content[0].text, each.is_error) for each in found]
      return [tool.name for tool in listed.tools], texts

  return asyncio.run(play())


def test_a_corpus_is_searched_grepped_and_read_by_any_client(tmp_path):
  library = pathlib.Path(sysconfig.get_paths()["stdlib"])
  for name in ("json", "logging"):
    shutil.copytree(library / name, tmp_path / "source" / name)
  arguments = [
    f"--config={ROOT / 'configs/search_cpu.py'}",
    *("--set", f"corpus.source={tmp_path / 'source'}"),
  ]
  names, texts = asked(
    tmp_path / "cache",
    arguments,
    ("search_corpus", {"query": "decode a JSON document"}),
    ("search_corpus", {"query": "decode a JSON document"}),
    ("grep_corpus", {"pattern": "class RotatingFileHandler"}),
    ("grep_corpus", {"pattern": "(["}),
    ("read_document", {"doc_id": "none"}),
  )
  assert names == ["search_corpus", "grep_corpus", "read_document"]
  (first, failed), (again, _), (line, _), bad, missing = texts
  ids = lambda text: {each.split()[3] for each in text.splitlines() if "DOCUMENT ID" in each}
  assert not failed and ids(first) and not ids(first) & ids(again)
  assert "class RotatingFileHandler" in line
  assert bad[1] and "invalid pattern" in bad[0]
  assert missing[1] and missing[0].startswith("Error: there is no document 'none'.")


def test_the_coding_tools_work_on_the_repository_of_a_task_in_a_sandbox(tmp_path):
  facts = {"kind": "flip compare", **CALL_FACTS}
  task = Task("clamp", "coding", "Mend main.py.", facts, "train")
  made = task_set.CodingSet({CALLS.id: CALLS}, {"train": [task], "dev": [], "test": []}, {})
  task_set.save(made, tmp_path / "set")
  options = [
    f"--config={ROOT / 'configs/coding_cpu.py'}",
    *("--set", f"coding.tasks={tmp_path / 'set'}"),
  ]
  mend = {"path": "main.py", "old": "if value > low", "new": "if value < low"}
  names, texts = asked(
    tmp_path,
    [*options, "--task=clamp"],
    ("shell", {"command": "python3 check.py"}),
    ("edit_file", mend),
    ("shell", {"command": "python3 check.py; ls /root /home"}),
    ("read_file", {"path": "nowhere.py"}),
  )
  assert names == ["read_file", "edit_file", "undo_edit", "shell"]
  assert "2 of 4 fail" in texts[0][0] and not texts[0][1]
  assert texts[1] == ("Edited main.py, line 2.", False)
  assert "0 of 4 fail" in texts[2][0] and "No such file" in texts[2][0]
  assert texts[3][1]
  command = [sys.executable, str(ROOT / "scripts/serve_mcp.py"), *options]
  for more, expected in (
    ((), "name one by --task (tasks of this config are clamp"),
    (("--task=x",), "there is no task 'x'; there are clamp"),
  ):
    done = subprocess.run(
      [*command, *more], stdin=subprocess.DEVNULL, capture_output=True, text=True, cwd=ROOT
    )
    assert done.returncode == 2 and expected in done.stderr and not done.stdout


@pytest.mark.skipif(
  not importlib.util.find_spec("mcp_server_time"), reason="needs the package mcp-server-time"
)
def test_the_lines_of_the_guide_do_what_it_says(tmp_path):
  text = (ROOT / "docs/own-tools.md").read_text("utf-8").partition("## Tools of MCP servers")[2]
  (shell, *_), (python, *_), (listed, *_) = (
    re.findall(rf"```{kind}\n(.*?)```", text, re.DOTALL) for kind in ("bash", "python", "json")
  )
  example = (ROOT / "examples/tool_use/env.py").read_text("utf-8")
  assert all(line in example for line in python.splitlines()[1:])
  (corpus,) = mcp_servers.read(listed)
  assert (ROOT / corpus.args[0]).is_file()
  bin_folder = pathlib.Path(sys.executable).parent
  done = subprocess.run(
    ["bash", "-ec", shell.partition("\n")[2]],  # without `pip install`
    env=os.environ
    | {
      "PATH": f"{bin_folder}{os.pathsep}{os.environ['PATH']}",
      "JAXRL_CACHE": str(tmp_path),
      "PYTHONPATH": str(ROOT),
    },
    capture_output=True,
    text=True,
    cwd=ROOT,
    timeout=200,
  )
  assert done.returncode == 0, done.stderr
  found = json.loads(done.stdout[done.stdout.index("{") :])
  assert found["policy"]["right"] == 1.0 and found["policy"]["failed"] == 0.0


def test_a_run_records_its_tools_and_goes_on_only_with_the_same(tmp_path):
  base = config_lib.load(str(ROOT / "configs/search_cpu.py"))
  workdir = Workdir(tmp_path / "W")
  mcp_tools.keep(base, workdir)
  assert "mcp" not in workdir.read_summary()
  with_tools = lambda *servers: dataclasses.replace(base, tools=config_lib.ToolsConfig(servers))
  mcp_tools.keep(with_tools(odd(tools=("echo", "count"))), workdir)
  kept = workdir.read_summary()["mcp"]
  assert kept["tools"] == ["odd_count", "odd_echo"] and len(kept["digest"]) == 64
  mcp_tools.keep(with_tools(odd(tools=("echo", "count"), deadline_s=9.0)), workdir)
  with pytest.raises(ValueError, match="offer other tools .odd_echo. than those"):
    mcp_tools.keep(with_tools(odd(tools=("echo",))), workdir)
  with pytest.raises(ValueError, match="holds a run with the MCP tools odd_count, odd_echo"):
    mcp_tools.keep(base, workdir)
  other = Workdir(tmp_path / "other")
  (other.trajectories / "eval_warm_start.npz").touch()
  with pytest.raises(ValueError, match="holds a run without MCP tools; remove tools.mcp"):
    mcp_tools.keep(with_tools(McpServer("odd", odd().command, odd().args)), other)
