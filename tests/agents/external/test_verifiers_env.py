"""Environments of verifiers behind the hook; needs an interpreter that has verifiers."""

import os
import pathlib
import re
import subprocess

import pytest

from jaxrl_agents import config as config_lib
from jaxrl_agents.agents.external.tasks import ExternalTasks
from jaxrl_agents.types import Task
from tests.agents.external.test_external import play, sampled

PYTHON = os.environ.get("JAXRL_VERIFIERS_PYTHON", "")
EXAMPLE = pathlib.Path(__file__).parents[3] / "examples" / "verifiers_env"
START_S = 120

pytestmark = pytest.mark.skipif(
  not PYTHON, reason="JAXRL_VERIFIERS_PYTHON names no interpreter with verifiers"
)
# A taskset whose second task cannot be judged, and whose third has no finite reward.
TASKSET = """
import verifiers.v1 as vf
__all__ = ["Mixed"]

class MixedTask(vf.Task):
  @vf.metric
  async def length(self, trace: vf.Trace) -> float:
    return len(trace.last_reply)

  @vf.reward(weight=0.5)
  async def said(self, trace: vf.Trace) -> float:
    if self.data.prompt == "raise":
      raise RuntimeError("the judge is away")
    return float("nan") if self.data.prompt == "nan" else 3.0

  @vf.reward
  async def base(self, trace: vf.Trace) -> float:
    return 0.25

class Mixed(vf.Taskset[MixedTask, vf.TasksetConfig]):
  def load(self):
    for i, prompt in enumerate(("fine", "raise", "nan")):
      yield MixedTask(vf.TaskData(prompt=prompt, system_prompt="Speak."), self.config.task)
"""


@pytest.fixture(scope="module")
def url(tmp_path_factory):
  folder = tmp_path_factory.mktemp("env")
  (folder / "mixed.py").write_text(TASKSET)
  (folder / "one_reply.py").write_text((EXAMPLE / "one_reply.py").read_text())
  (folder / "env.toml").write_text(
    (EXAMPLE / "divisors.toml").read_text().replace("divisors", "mixed")
  )
  argv = [PYTHON, str(EXAMPLE / "server.py"), f"--env={folder / 'env.toml'}", "--port=0"]
  kept = {name: os.environ[name] for name in ("PATH", "HOME") if name in os.environ}
  with open(folder / "errors", "wb") as errors:
    server = subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=errors, env=kept, text=True)
  try:
    line = server.stdout.readline()  # "3 tasks at http://..."
    assert line.startswith("3 tasks"), (folder / "errors").read_text()
    yield re.search(r"http://\S+", line)[0]
  finally:
    server.kill()
    server.wait()


def chosen(url):
  loaded = config_lib.load(str(EXAMPLE / "config.py")).agent_config
  return type(loaded)(
    **{**vars(loaded), "hook": f"{url}/", "tasks": f"{url}/tasks", "token_budget": 256}
  )


def tasks(url):
  return {
    task.prompt: task for split in ExternalTasks(f"{url}/tasks").tasks.values() for task in split
  }


@pytest.mark.timeout(START_S)
def test_rollouts_of_a_taskset_get_the_weighted_sum_its_parts_and_its_metrics(url):
  for trajectory in play(chosen(url), "well", task=tasks(url)["fine"]).trajectories:
    assert not trajectory.error and sampled(trajectory) == ["well<|end|>"]
    assert trajectory.rewards == {"reward": 1.75, "said": 3.0, "base": 0.25, "length": 4.0}
    assert [m.role for m in trajectory.log] == ["system", "user", "assistant"]


@pytest.mark.parametrize(
  ("prompt", "named"), [("raise", "the judge is away"), ("nan", "parts.said=nan")]
)
def test_a_task_that_cannot_be_judged_is_an_error_and_no_reward(url, prompt, named):
  (trajectory,) = play(chosen(url), task=tasks(url)[prompt], rollouts=1).trajectories
  assert named in trajectory.error and not trajectory.rewards


def test_a_server_that_has_other_tasks_refuses(url):
  other = Task("divisors 0", "external", "fine", {"index": 0})
  (trajectory,) = play(chosen(url), task=other, rollouts=1).trajectories
  assert "task 0 is 'mixed 0' here, not 'divisors 0'" in trajectory.error
