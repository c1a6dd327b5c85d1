"""Episodes in worker processes call tools of MCP servers: ours for tests, and published ones."""

import importlib.util
import json
import subprocess
import sys
import time

import pytest

from examples.tool_use.agent import ShopTasks, ToolUseConfig
from jaxrl_agents.agents import agent as agent_lib
from jaxrl_agents.config import McpServer
from jaxrl_agents.harness.rollout import Sampling
from jaxrl_agents.harness.worker_pool import WorkerPool
from jaxrl_agents.harness.worker_process import Job
from jaxrl_agents.types import Task
from tests.harness.mcp_tools.servers import needs_mcp, odd

pytestmark = [needs_mcp, pytest.mark.slow]
AGENT = "tests.harness.mcp_tools.asking_agent:AGENT"
OPTIONS = ToolUseConfig(token_budget=2_000, max_turns=9, max_new_tokens=200)


def published(module):
  return pytest.mark.skipif(
    not importlib.util.find_spec(module), reason=f"needs the package {module.replace('_', '-')}"
  )


def played(tmp_path, servers, *calls, rollouts=1):
  """The trajectories of a task whose player makes `calls`, in one worker process."""
  from jaxrl_agents.harness.mcp_tools import listing

  shared = ShopTasks(tmp_path / "shops.sqlite").shared
  asked = listing.ask(servers, ["look"])
  spec = agent_lib.worker_spec(AGENT, "base", OPTIONS, shared, "asks", asked)
  facts = {"shop": 0, "shelves": ["a"], "right": "a", "calls": calls}
  job = Job("g", Task("t", "tool_use", "Ask.", facts), rollouts, Sampling(max_new_tokens=200))
  deadline = time.monotonic() + 60
  with WorkerPool(spec, 1) as pool:
    pool.submit(job)
    while time.monotonic() < deadline:
      for _, message in pool.poll(timeout_s=0.5):
        assert message[0] == "group", message
        return message[1].trajectories
  raise AssertionError("no group in 60 s")


def results(trajectory):
  return [message.content for message in trajectory.log if message.role == "tool"]


def test_each_episode_has_a_process_of_a_stateful_server_and_a_stateless_one_is_shared(tmp_path):
  servers = [odd("own"), odd("common", stateful=False)]
  calls = (("own_count", {}), ("own_count", {}), ("common_count", {}), ("own_die", {}))
  found = played(tmp_path, servers, *calls, ("own_count", {}), ("own_long", {}), rollouts=2)
  assert [t.error for t in found] == ["", ""]
  assert [t.log[-1].content for t in found] == ["jax: False"] * 2
  assert [results(t)[:2] for t in found] == [["1", "2"]] * 2
  assert sorted(results(t)[2] for t in found) == ["1", "2"]
  for texts in map(results, found):
    assert texts[3].startswith("Error: own_die failed: it ended with exit status 3")
    assert texts[4] == "1"  # of the server that took its place
    assert "characters left out]" in texts[5] and len(texts[5]) < 5_000


@published("mcp_server_time")
@published("mcp_server_git")
def test_published_servers_tell_the_time_and_the_log_of_a_repository(tmp_path):
  repository = tmp_path / "repository"
  author = ("-c", "user.name=A", "-c", "user.email=a@example.org")
  subprocess.run(["git", "init", "-q", repository], check=True)
  commit = ("commit", "-q", "--allow-empty", "-m", "The first step")
  subprocess.run(["git", *author, "-C", repository, *commit], check=True)
  clock = McpServer("time", sys.executable, ("-m", "mcp_server_time"), stateful=False)
  git = McpServer(
    "git",
    sys.executable,
    ("-m", "mcp_server_git", "--repository", str(repository)),
    tools=("git_log", "git_status"),
  )
  noon = {"source_timezone": "Asia/Tokyo", "time": "12:00", "target_timezone": "UTC"}
  (trajectory,) = played(
    tmp_path,
    [clock, git],
    ("time_convert_time", noon),
    ("time_convert_time", {**noon, "source_timezone": "Nowhere"}),
    ("git_git_log", {"repo_path": str(repository)}),
    ("git_git_status", {"repo_path": str(tmp_path)}),
  )
  assert trajectory.error == ""
  converted, nowhere, log, elsewhere = results(trajectory)
  told = json.loads(converted)
  assert told["target"]["datetime"].endswith("T03:00:00+00:00")
  assert told["time_difference"] == "-9.0h"
  assert nowhere.startswith("Error: ") and "Nowhere" in nowhere
  assert "The first step" in log
  assert elsewhere.startswith("Error: ")


def test_a_server_that_cannot_be_started_fails_the_episode_and_is_no_reward_of_0(tmp_path):
  marker = tmp_path / "asked once"
  code = f"import os, sys; os.path.exists({str(marker)!r}) and sys.exit('gone'); "
  code += (
    f"open({str(marker)!r}, 'w'); os.execv(sys.executable, [sys.executable, {odd().args[0]!r}])"
  )
  server = McpServer("odd", sys.executable, ("-c", code))
  (trajectory,) = played(tmp_path, [server], ("odd_count", {}))
  assert trajectory.error.startswith("EpisodeError: an MCP server cannot be used: it ended with")
  assert "gone" in trajectory.error and trajectory.rewards == {}
