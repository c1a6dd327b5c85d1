"""What a run may change when it goes on, and what would mix two runs."""

import json
import shutil

import pytest

from jaxrl_agents import chat, file_digests
from jaxrl_agents import config as config_lib
from jaxrl_agents.learner import segment_files
from jaxrl_agents.runs import demonstrations, resumption, rl
from jaxrl_agents.runs.workdir import Workdir
from tests.runs.small_run import CONFIG


def changed(*overrides):
  return config_lib.with_overrides(CONFIG, overrides)


@pytest.fixture
def begun(tmp_path):
  """A run of CONFIG that has evaluated its warm start."""
  workdir = Workdir(tmp_path / "run")
  workdir.merge_summary(rl.description(CONFIG))
  (workdir.trajectories / "eval_warm_start.npz").touch()
  return workdir


def test_the_same_config_goes_on_in_silence(begun, capsys):
  resumption.check_goes_on(CONFIG, begun, 1)
  assert capsys.readouterr().out == ""


@pytest.mark.parametrize(
  "override",
  ["eval.temperature=0.5", "sampler.temperature=0.5", "seed=7", "counting.max_turns=3"],
)
def test_other_options_of_what_is_evaluated_are_refused_by_name(begun, override):
  with pytest.raises(ValueError, match=rf"{override.partition('=')[0]}=.* -> .*another --workdir"):
    resumption.check_goes_on(changed(override), begun, 1)


def test_a_judge_may_move_but_not_come_or_go(begun):
  first, moved = (changed(f"judge.url=http://127.0.0.1:{port}/v1") for port in (9, 10))
  with pytest.raises(ValueError, match=r"judge\.url='' -> 'http"):
    resumption.check_goes_on(first, begun, 1)
  begun.merge_summary(rl.description(first))
  resumption.check_goes_on(moved, begun, 1)
  with pytest.raises(ValueError, match=r"judge\.url='http.* -> ''"):
    resumption.check_goes_on(CONFIG, begun, 1)


def with_policy(folder, *overrides):
  return changed(f"policy.init={folder}", f"policy.tokenizer={folder}", *overrides)


@pytest.fixture
def begun_from_files(tmp_path):
  """A run that began with a policy in a folder of its own, and that folder."""
  shutil.copytree(chat.ASSETS / "base", folder := tmp_path / "policy")
  file_digests.write(folder)
  config = with_policy(folder)
  workdir = Workdir(tmp_path / "run")
  resumption.begin_warm_up(config, workdir)
  workdir.merge_summary(rl.description(config))
  (workdir.trajectories / "eval_warm_start.npz").touch()
  return folder, workdir


def test_the_files_of_a_policy_may_be_moved(begun_from_files, capsys):
  folder, workdir = begun_from_files
  moved = folder.rename(folder.with_name("remounted"))
  resumption.check_warm_up(with_policy(moved), workdir)
  resumption.check_goes_on(with_policy(moved), workdir, 1)
  assert "resumed with changed options: policy.init=" in capsys.readouterr().out


def test_a_path_to_files_of_another_policy_is_refused(begun_from_files):
  folder, workdir = begun_from_files
  tokenizer = folder / "tokenizer.json"
  tokenizer.write_text(tokenizer.read_text() + "\n")
  moved = folder.rename(folder.with_name("remounted"))
  with pytest.raises(ValueError, match=r"another agent or chat format: policy\.tokenizer="):
    resumption.check_warm_up(with_policy(moved), workdir)
  file_digests.write(moved)
  with pytest.raises(ValueError, match=r"policy\.init=.*policy\.tokenizer="):
    resumption.check_goes_on(with_policy(moved), workdir, 1)


@pytest.fixture
def begun_outside(tmp_path):
  """A run of an agent behind a hook, and its config."""
  given = ["external.hook=http://node1:9/", "external.tasks=http://node1:9/tasks"]
  config = config_lib.load("examples/verifiers_env/config.py", given)
  workdir = Workdir(tmp_path / "run")
  workdir.merge_summary(rl.description(config) | {resumption.TASKS: "abc"})
  (workdir.trajectories / "eval_warm_start.npz").touch()
  return config, workdir


def test_an_agent_may_move_to_another_address_with_its_tasks(begun_outside, capsys):
  config, workdir = begun_outside
  moved = ["external.hook=http://node2:9/", "external.at_once=4", "external.host=0.0.0.0"]
  there = config_lib.with_overrides(config, [*moved, "external.tasks=http://node2:9/tasks"])
  resumption.check_goes_on(there, workdir, 1, "abc")
  assert "external.hook='http://node1:9/' -> 'http://node2:9/'" in capsys.readouterr().out
  for tasks in ("abd", ""):
    with pytest.raises(ValueError, match=r"external\.tasks=.*/tasks'; set them as they were"):
      resumption.check_goes_on(there, workdir, 1, tasks)
  other = config_lib.with_overrides(config, ["external.max_calls=3"])
  with pytest.raises(ValueError, match=r"external\.max_calls="):
    resumption.check_goes_on(other, workdir, 1, "abc")


def test_demonstrations_depend_on_what_an_agent_does_and_not_on_where(begun_outside):
  config, workdir = begun_outside
  made = workdir.demonstrations / "demonstrations"
  made.mkdir(parents=True)
  (made / segment_files.MANIFEST).touch()
  decides = lambda option: demonstrations.decides(f"external.{option}", config, workdir)
  assert not decides("hook") and decides("max_calls")


def test_changed_training_options_are_reported(begun, capsys):
  resumption.check_goes_on(changed("learner.steps=9", "mesh.fsdp=2", "corpus.cache=/mnt"), begun, 1)
  told = capsys.readouterr().out
  assert "corpus.cache=" in told and "learner.steps=4 -> 9, mesh.fsdp=1 -> 2" in told


def test_the_evaluation_of_a_warm_start_that_was_replaced_before_the_first_step_is_made_again(
  begun, capsys
):
  file = begun.trajectories / "eval_warm_start.npz"
  for start in ("abc", "abc"):
    resumption.forget_other_start(begun, start, first=0)
    assert file.exists() and capsys.readouterr().out == ""
  resumption.forget_other_start(begun, "abd", first=0)
  assert not file.exists() and "the warm start has changed" in capsys.readouterr().out


def test_before_the_first_evaluation_all_options_may_change(tmp_path):
  workdir = Workdir(tmp_path)
  workdir.merge_summary(rl.description(CONFIG))
  resumption.check_goes_on(changed("seed=7"), workdir, 0)


def test_options_that_an_older_version_did_not_have_are_no_difference():
  before = json.loads(json.dumps(config_lib.options(CONFIG)))
  del before["eval.temperature"]
  assert config_lib.changed(before | {"eval.gone": 1}, changed("eval.temperature=0.5")) == {}


@pytest.fixture
def warmed_up(tmp_path):
  """A folder with a warm-up of CONFIG."""
  workdir = Workdir(tmp_path / "run")
  resumption.begin_warm_up(CONFIG, workdir)
  return workdir


@pytest.mark.parametrize("path", ["configs/coding_cpu.py", "examples/number_game/config.py"])
def test_a_warm_up_of_another_agent_is_refused_before_and_in_reinforcement_learning(
  warmed_up, path
):
  other = config_lib.load(path)
  for refuses in (resumption.begin_warm_up, resumption.check_warm_up):
    with pytest.raises(
      ValueError, match="another agent or chat format: agent=.* another --workdir"
    ):
      refuses(other, warmed_up)
  assert resumption.check_warm_up(CONFIG, warmed_up) == []  # what is recorded is as it was


def test_a_warm_up_that_goes_on_reports_changed_options_once(warmed_up, capsys):
  resumption.begin_warm_up(changed("seed=7", "sft.steps=9"), warmed_up)
  assert "resumed with changed options: seed=1 -> 7, sft.steps=100 -> 9" in capsys.readouterr().out
  resumption.begin_warm_up(changed("seed=7", "sft.steps=9"), warmed_up)
  assert capsys.readouterr().out == ""


def test_reinforcement_learning_may_have_other_options_than_the_warm_up(warmed_up):
  assert len(resumption.check_warm_up(changed("seed=7", "learner.steps=9"), warmed_up)) == 2


def test_a_run_with_more_steps_behind_it_than_asked_for_is_refused(begun):
  rl.check_steps(changed("learner.steps=3"), begun, 3)  # it has ended
  with pytest.raises(ValueError, match="has 4 steps, and learner.steps=3; set learner.steps=4 or"):
    rl.check_steps(changed("learner.steps=3"), begun, 4)


def test_weights_of_a_policy_that_is_trained_further_are_not_left_as_the_newest(warmed_up):
  for folder in (warmed_up.warm_start, warmed_up.trained):
    folder.mkdir()
  resumption.forget_warm_start(CONFIG, warmed_up, CONFIG.sft.steps)
  assert warmed_up.warm_start.exists()  # the warm-up has ended
  resumption.forget_warm_start(CONFIG, warmed_up, CONFIG.sft.steps - 1)
  assert not warmed_up.warm_start.exists()
  warmed_up.merge_summary({"eval": {"trained": {"reward": 0.5}}, "config": {}})
  resumption.forget_results(warmed_up, 0, ())
  summary = warmed_up.read_summary()
  assert "eval" not in summary and "config" in summary
  assert warmed_up.trained.exists()  # without a checkpoint these are the only weights
  for _ in range(2):
    resumption.forget_results(warmed_up, 5, ())
    assert not warmed_up.trained.exists()
    before = warmed_up.path / "trained.before"
    assert before.exists()  # until there are new ones
  resumption.drop_set_aside(warmed_up.trained)
  assert not before.exists()


def test_a_warm_start_that_reinforcement_learning_began_from_is_not_replaced(warmed_up):
  resumption.check_warm_start_is_free(CONFIG, warmed_up, 1)
  (warmed_up.checkpoints / "rl" / "3").mkdir(parents=True)
  resumption.check_warm_start_is_free(CONFIG, warmed_up, CONFIG.sft.steps)  # it has ended
  with pytest.raises(ValueError, match=r"1 of sft.steps=100 are made.* another --workdir"):
    resumption.check_warm_start_is_free(CONFIG, warmed_up, 1)
