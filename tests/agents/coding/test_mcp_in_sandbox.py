"""A server in the sandbox of a coding episode works on the files of the episode."""

import importlib.util

import pytest

from jaxrl_agents.agents.coding import env as coding
from jaxrl_agents.agents.coding.scripted_edits import make_player
from jaxrl_agents.config import McpServer
from jaxrl_agents.harness.rollout import Sampling, run_episode
from jaxrl_agents.sandbox.host.runtime import Runtime
from jaxrl_agents.sandbox.host.sandboxes import Sandboxes
from tests.agents.coding.bench import CALL_TASK, DONE, MEND, results, run, services, turn
from tests.agents.coding.test_env import SHELL, played_from

pytestmark = [
  pytest.mark.slow,
  pytest.mark.skipif(
    not importlib.util.find_spec("mcp_server_git"), reason="needs the package mcp-server-git"
  ),
]
GIT = McpServer(
  "git",
  "python3",
  ("-m", "mcp_server_git"),
  sandboxed=True,
  packages=("mcp-server-git",),
  tools=("git_status", "git_add", "git_commit", "git_log"),
)
BEGIN = SHELL(
  "git init -q && git config user.name A && git config user.email a@example.org && "
  "git add -A && git commit -q -m 'The first step'"
)
AT = {"repo_path": "/work"}


@pytest.fixture(scope="module")
def listing():
  from jaxrl_agents.harness.mcp_tools import listing

  try:
    return listing.ask([GIT], [], Sandboxes(runtime=Runtime(packages=GIT.packages)))
  except ValueError as error:
    if "no sandbox" not in str(error):
      raise
    pytest.skip(str(error))


def equipped(env, listing):
  from jaxrl_agents.harness.mcp_tools.episodes import EnvWithMcpTools, Sessions

  return EnvWithMcpTools(env, Sessions(listing))


def test_a_policy_commits_its_repair_by_a_published_server_and_is_judged(listing):
  turns = [
    turn(BEGIN, ("git_git_status", AT), MEND, ("git_git_status", AT)),
    turn(
      ("git_git_add", {**AT, "files": ["main.py"]}),
      ("git_git_commit", {**AT, "message": "Mend it"}),
      ("git_git_log", {**AT, "max_count": 1}),
      SHELL("git log --format=%s"),
      ("git_git_log", {"repo_path": "/nowhere"}),
    ),
    DONE,
  ]

  async def body(workshop):
    await workshop.close()  # its sandboxes lack the packages
    shared = services(workshop)
    script = iter(turns)
    player = make_player(CALL_TASK, shared, lambda context: next(script))
    sampling = Sampling(max_new_tokens=shared.limits.max_new_tokens)
    env = equipped(player, listing)
    return await run_episode(env, shared.chat, player, task=CALL_TASK, sampling=sampling)

  trajectory = run(body)
  assert trajectory.error == ""
  _, clean, _, changed, _, _, log, shell, nowhere = results(trajectory)
  assert "nothing to commit" in clean and "modified:   main.py" in changed
  assert "Mend it" in log and "The first step" not in log
  assert shell == "Mend it\nThe first step"
  assert nowhere.startswith("Error: ")
  assert trajectory.rewards["solved"] == 1.0
  assert trajectory.rewards["broken_calls"] == 0.0


def test_a_sandbox_that_comes_back_repeats_the_calls_of_servers_in_it(listing):
  async def body(workshop):
    await workshop.close()
    inner = coding.make(CALL_TASK, services(workshop, snapshot_turns=4))
    env = equipped(inner, listing)
    await env.start()
    commit = [("git_git_add", {**AT, "files": ["."]}), ("git_git_commit", {**AT, "message": "B"})]
    await played_from(env, [turn(BEGIN), turn(MEND, *commit)], 0)
    await workshop.boxes.kill(inner.sandbox.number)
    shown = await played_from(env, [turn(("git_git_status", AT), SHELL("git log --format=%s"))], 2)
    ended = await env.step(DONE)
    verdict = inner._verdict
    await env.close()
    return shown[0], ended.stop, verdict.solved, inner.sandbox

  (status, log), stop, solved, box = run(body)
  assert "nothing to commit" in status and log == "B\nThe first step"
  assert (stop, solved, box) == ("answer", True, None)


def test_open_sandboxes_without_the_packages_of_a_server_are_an_error():
  async def body(workshop):
    with pytest.raises(ValueError, match="are open, without the packages mcp-server-git"):
      workshop.show(["mcp-server-git"])

  run(body)
