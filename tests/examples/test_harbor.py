"""Task folders of Harbor: what is refused, and that tests judge the files alone."""

import asyncio
import dataclasses
import shutil

import pytest

from examples.harbor import folders, worlds
from examples.harbor.agent import AGENT
from examples.harbor.worlds import Worlds
from jaxrl_agents import chat as chat_lib
from jaxrl_agents import config as config_lib
from jaxrl_agents.agents.agent import worker_services
from jaxrl_agents.harness.rollout import Sampling, run_group
from jaxrl_agents.sandbox.host.probe import probe
from jaxrl_agents.sandbox.host.runtime import Runtime
from jaxrl_agents.types import Message, ToolCall
from tests.gateway.serving import Says

OPTIONS = config_lib.load("examples/harbor/config.py").agent_config
IMAGES = dict(OPTIONS.images)


@pytest.fixture(scope="module")
def sandboxes():
  if not (report := asyncio.run(probe("namespaces"))).holds:
    pytest.skip(str(report))


def play(task_id, *replies, player=""):
  """The trajectory of one rollout; without a player, of a policy that says `replies`."""
  tasks = {task.id: task for task in AGENT.tasks(type("S", (), {"options": OPTIONS})).tasks["dev"]}
  services = worker_services("examples.harbor.agent:AGENT", "base", OPTIONS, None, player)

  async def run():
    return await run_group(
      services.make_episode, tasks[task_id], 1, chat=chat_lib.load("base"),
      sampler=Says(*(replies or ("Done.",))), sampling=Sampling(),
    )  # fmt: skip

  (trajectory,) = asyncio.run(run()).trajectories
  assert not trajectory.error, trajectory.error
  return trajectory


def bash(command):
  return Message("assistant", "", (ToolCall("", "bash", {"command": command}),))


def test_the_solution_of_each_task_scores_one_and_doing_nothing_zero(sandboxes):
  for task in folders.read_all(OPTIONS.folder, IMAGES):
    solved, nothing = (play(task.name, player=name).rewards for name in AGENT.baselines(OPTIONS))
    assert (solved["reward"], nothing["reward"]) == (1.0, 0.0)
    assert solved["unjudged"] == nothing["unjudged"] == 0.0
  assert solved.keys() == {"reward", "unjudged"} and play("count-errors").rewards["off_by"] == 3.0


def test_a_policy_works_in_a_shell_and_is_judged_by_what_it_leaves(sandboxes):
  right = play("count-errors", bash("grep -c ERROR server.log"), bash("echo 3 > errors.txt"), "ok")
  assert right.rewards == {"reward": 1.0, "off_by": 0.0, "unjudged": 0.0}
  assert [m.content for m in right.log if m.role == "tool"][0] == "3\n\n[exit status 0]"
  wrong = play("count-errors", bash("echo 5 > errors.txt"), "ok")
  assert wrong.rewards == {"reward": 0.0, "off_by": 2.0, "unjudged": 0.0}


@pytest.mark.parametrize(
  "command",
  [
    "mkdir -p /logs/verifier; echo 1 > /logs/verifier/reward.txt",
    "mkdir -p /logs/verifier; cd /logs; echo '{\"reward\": 1}' > verifier/reward.json; chmod 0 .",
    "cat() { echo 'Hello, world!'; }; export -f cat",
    "(while true; do mkdir -p /logs/verifier; echo 1 > /logs/verifier/reward.json; done) &",
    "mkdir -p /tmp/x/logs/verifier; echo '{\"reward\": 1}' > /tmp/x/logs/verifier/reward.json;"
    " rm -rf /tmp/harbor; ln -s /tmp/x /tmp/harbor; chmod 555 /tmp",
    "for i in $(seq 80); do mkdir a && cd a; done",  # more folders than a snapshot takes
    "export BASH_ENV=/app/x; echo 'echo 1 > /logs/verifier/reward.txt; exit' > /app/x",
  ],
)
def test_what_an_agent_plants_for_the_judge_is_gone(sandboxes, command):
  assert play("greeting", bash(command), "ok").rewards["reward"] == 0.0


def test_tests_without_a_reward_give_zero_and_say_so_and_check_finds_them(sandboxes, tmp_path):
  folder = tmp_path / "greeting"
  shutil.copytree("examples/harbor/tasks/greeting", folder)
  (folder / "tests" / "test.sh").write_text("exit 3")
  task = folders.read(folder, IMAGES)

  async def run():
    worlds = Worlds()
    async with await worlds.box(task) as box:
      parts = await worlds.judge(task, box)
    both = await worlds.check(task)
    await worlds.close()
    return parts, both

  parts, both = asyncio.run(run())
  assert parts == {"reward": 0.0, "unjudged": 1.0} and both == (0.0, 0.0)


@pytest.mark.parametrize(
  ("file", "content", "named"),
  [
    ("task.toml", '[environment]\ndocker_image = "ubuntu:24.04"', "the image ubuntu:24.04"),
    ("task.toml", '[verifier]\nenvironment_mode = "separate"', "verifier.environment_mode"),
    ("task.toml", "[[environment.mcp_servers]]\nname = 'x'", "environment.mcp_servers"),
    ("task.toml", '[environment.env]\nKEY = "${KEY}"', "KEY=.* takes a variable of the machine"),
    ("task.toml", "[", "task.toml: "),
    ("environment/Dockerfile", "FROM scratch", "the image greeting"),
    ("environment/docker-compose.yaml", "", "docker-compose.yaml"),
  ],
)
def test_what_a_sandbox_does_not_have_is_refused_by_name(tmp_path, file, content, named):
  folder = tmp_path / "greeting"
  shutil.copytree("examples/harbor/tasks/greeting", folder)
  if file != "task.toml":
    (folder / "task.toml").write_text("")
  (folder / file).parent.mkdir(exist_ok=True)
  (folder / file).write_text(content)
  with pytest.raises(ValueError, match=named):
    folders.read(folder, IMAGES)


def test_a_backend_without_a_root_of_its_own_is_refused():
  with pytest.raises(ValueError, match="has no /app"):
    AGENT.check(dataclasses.replace(OPTIONS, backend="unsafe-local"), 1, 1.0)


def test_a_folder_that_is_no_task_is_refused(tmp_path):
  with pytest.raises(ValueError, match="no folders with a task.toml"):
    folders.read_all(str(tmp_path), IMAGES)
  (tmp_path / "task.toml").write_text("")
  with pytest.raises(ValueError, match=r"has no instruction\.md"):
    folders.read(tmp_path, IMAGES)


def test_links_of_a_runtime_lead_to_where_a_sandbox_writes_and_hide_nothing():
  assert dataclasses.replace(Runtime(), links=(("app", "/work"),)).links
  for name, target in (("usr", "/work"), ("app", "/etc"), ("app", "/work/../etc"), ("a/b", "/tmp")):
    with pytest.raises(ValueError, match="a new name below /"):
      Runtime(links=((name, target),))


@pytest.mark.parametrize(
  "text",
  ['{"reward": null}', '{"reward": [1]}', "[1]", "[" * 100_000, '{"reward": 1' + "0" * 400 + "}"],
  ids=["null", "a list as a number", "a list", "brackets", "digits"],
)
def test_a_file_of_a_reward_that_is_none_is_named_a_value_that_is_wrong(text):
  with pytest.raises(ValueError, match=r"reward|Expecting"):
    worlds.parts_of(text)


def test_a_reward_is_an_object_of_numbers_or_one_number():
  assert worlds.parts_of('{"reward": 1, "off_by": 2.5}') == {"reward": 1.0, "off_by": 2.5}
  assert worlds.parts_of(" 0.5\n", as_json=False) == {"reward": 0.5}
