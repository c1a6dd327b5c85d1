"""Evaluation of one checkpoint or several on the same tasks, with intervals and episodes."""

import json
import pathlib
import subprocess
import sys

import jax
import numpy as np
import pytest

from jaxrl_agents import config as config_lib
from jaxrl_agents.harness import group_files
from jaxrl_agents.policy import params as params_lib
from jaxrl_agents.runs import agent_setting, evaluation, weight_files
from tests import forced_devices
from tests.runs import whole_run
from tests.runs.test_several import free_port

pytestmark = pytest.mark.slow

ROOT = pathlib.Path(__file__).resolve().parents[2]
CONFIG = "examples/number_game/config.py"
OPTIONS = [*whole_run.SMALL, "sampler.slots=2", "eval.tasks=3", "eval.rollouts=4"]


@pytest.fixture(scope="module")
def policies(tmp_path_factory):
  """Folders of two policies that have learnt nothing."""
  cfg = config_lib.load(CONFIG, OPTIONS).policy.model
  folders = [tmp_path_factory.mktemp(name) for name in ("first", "second")]
  for seed, folder in enumerate(folders):
    weight_files.save(params_lib.init(cfg, jax.random.key(seed)), cfg, folder)
  return list(map(str, folders))


def start(*flags, options=()):
  sets = [f"--set={option}" for option in (*OPTIONS, *options)]
  return subprocess.Popen(
    [sys.executable, "scripts/evaluate.py", f"--config={CONFIG}", *sets, *flags],
    cwd=ROOT,
    env=forced_devices.environment(1),
    stdout=subprocess.PIPE,
    stderr=subprocess.PIPE,
    text=True,
  )


def rewards_of(file):
  """{task: mean reward} of a file of episodes."""
  return {
    group.task.id: np.mean([trajectory.reward for trajectory in group.trajectories])
    for group in group_files.load_groups(file)
  }


@pytest.mark.timeout(600)
def test_a_second_checkpoint_is_compared_with_the_first_and_the_episodes_of_both_are_kept(
  policies, tmp_path
):
  config = config_lib.load(CONFIG, [*OPTIONS, "eval.split=dev", "eval.threshold=0.5"])
  corpus = agent_setting.open_tasks(config)
  episodes = str(tmp_path / "played.npz")
  found = evaluation.evaluate(config, corpus, policies, episodes=episodes)
  assert (found["checkpoint"], found["split"]) == (policies[0], "dev")
  assert list(found["others"]) == policies[1:]
  first, second = (rewards_of(tmp_path / name) for name in ("played.npz", "played-2.npz"))
  assert len(first) == 3 and set(first) == set(second)
  policy, other = found["policy"], found["others"][policies[1]]
  assert policy["reward"] == pytest.approx(np.mean(list(first.values())))
  assert policy["reward_lower95"] <= policy["reward"] <= policy["reward_upper95"]
  assert policy["pass_at_1"] <= policy["pass_at_2"] <= policy["pass_at_4"] <= 1
  gain = np.mean([second[name] - first[name] for name in first])
  assert other["paired_bootstrap"]["reward_gain"] == pytest.approx(gain)
  assert other["policy"]["reward"] == pytest.approx(np.mean(list(second.values())))
  assert found["halving"]["pass_at_4"] >= found["halving"]["pass_at_1"] > 0


@pytest.mark.timeout(600)
def test_two_processes_evaluate_one_policy_and_the_first_alone_prints(policies, tmp_path):
  flags = [f"--checkpoint={policies[0]}", f"--coordinator=127.0.0.1:{free_port()}"]
  flags += ["--num_processes=2", f"--episodes={tmp_path / 'played.npz'}"]
  flags += [f"--json={tmp_path / 'scores.json'}", "--split=dev", "--threshold=0.5"]
  both = [start(*flags, f"--process_id={i}", options=["mesh.expert=2"]) for i in range(2)]
  try:
    printed, ended = zip(*(process.communicate(timeout=500) for process in both), strict=True)
  finally:
    for process in both:
      process.kill()
  assert [process.returncode for process in both] == [0, 0], "\n".join(ended)[-6000:]
  found = json.loads((tmp_path / "scores.json").read_text())
  assert json.dumps(found, indent=2) in printed[0] and "policy" not in printed[1]
  assert (found["split"], found["policy"]["rollouts"]) == ("dev", 12)
  rewards = rewards_of(tmp_path / "played.npz")
  assert found["policy"]["reward"] == pytest.approx(np.mean(list(rewards.values())))


@pytest.mark.parametrize(
  ("flags", "message"),
  [
    (("--checkpoint=base", "--checkpoint=base"), "--checkpoint=base is given twice"),
    (("--follow", "--split=dev", "--checkpoint=."), "--follow does not take --split"),
    (("--threshold=-1",), "eval.threshold=-1 must be at least 0"),
    (("--threshold=0.5", "--set=eval.rollouts=1"), "eval.threshold=0.5 has no effect"),
  ],
)
def test_flags_that_contradict_each_other_are_errors(flags, message):
  process = start(*flags)
  _, errors = process.communicate(timeout=200)
  assert process.returncode == 2 and message in errors


@pytest.mark.parametrize(
  ("flags", "cause"),
  [
    ((), "has not ended, so that its newest policy is a checkpoint; export that"),
    (("--json={run}",), "is a folder; name a file in it"),
  ],
)
def test_a_training_that_has_not_ended_and_a_folder_for_scores_are_refused(
  policies, tmp_path, flags, cause
):
  (tmp_path / "warm_start").symlink_to(policies[0])
  (tmp_path / "checkpoints" / "rl" / "3").mkdir(parents=True)
  process = start(f"--checkpoint={tmp_path}", *(flag.format(run=tmp_path) for flag in flags))
  _, errors = process.communicate(timeout=200)
  assert process.returncode == 2 and cause in errors
