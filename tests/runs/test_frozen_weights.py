"""Frozen policies that take over from one another, and those that cannot."""

import dataclasses
import pathlib

import jax
import pytest

from jaxrl_agents import config as config_lib
from jaxrl_agents.policy import params as params_lib
from jaxrl_agents.runs import engines, evaluation, rollout_workers, weight_files
from tests.runs.small_run import CFG, CONFIG

START = pathlib.Path("start")


def test_a_small_policy_gives_way_to_the_one_that_training_starts_from():
  options = ["swarm.sub_init=('small','')", "swarm.sub_until=(0.5,)"]
  (stages,) = evaluation.frozen(config_lib.load("configs/swarm_cpu.py", options), START).values()
  assert [stage.folder for stage in stages] == ["small", START]
  in_play = [rollout_workers.frozen_at(stages, step / 4) for step in range(5)]
  assert in_play == [0, 0, 1, 1, 1]


def test_without_a_curriculum_the_policy_that_training_starts_from_plays_all_the_time():
  (stages,) = evaluation.frozen(config_lib.load("configs/swarm_cpu.py"), START).values()
  assert [stage.folder for stage in stages] == [START]
  assert {rollout_workers.frozen_at(stages, share) for share in (0.0, 0.5, 1.0)} == {0}


def test_the_last_slices_are_divided_in_turn_among_the_weights():
  assert [list(each) for each in rollout_workers.slices_of(7, 5, 2)] == [[2, 4, 6], [3, 5]]
  assert [list(each) for each in rollout_workers.slices_of(2, 1, 1)] == [[1]]


def test_other_machines_are_told_whole_paths_and_the_names_of_shipped_policies(monkeypatch):
  monkeypatch.chdir("/")
  monkeypatch.setenv("HOME", "/home/me")
  folders = ["swarm_base", "runs/a", "~/b", pathlib.Path("/c")]
  assert [rollout_workers.named(each) for each in folders] == [
    "swarm_base", "/runs/a", "/home/me/b", "/c"
  ]  # fmt: skip


@pytest.mark.slow
def test_sub_agents_may_be_of_another_size_but_not_of_another_vocabulary(tmp_path):
  for name, size in (("narrow", {"embed_dim": 4}), ("foreign", {"vocab_size": 320})):
    cfg = dataclasses.replace(CFG, **size)
    weight_files.save(
      params_lib.init(cfg, jax.random.key(0)), cfg, tmp_path / name, tokenizer="base"
    )
  engine = engines.frozen_engine(CONFIG, tmp_path / "narrow", 2)
  assert engine.version == 2
  with pytest.raises(ValueError, match="320 tokens .* must use policy.tokenizer"):
    engines.frozen_engine(CONFIG, tmp_path / "foreign", 0)


def test_an_exported_policy_names_the_weights_that_its_training_started_from(tmp_path):
  config = config_lib.load("configs/swarm_cpu.py")
  (tmp_path / "policy").mkdir()
  named = tmp_path / "policy" / evaluation.STARTED_FROM
  named.write_text("base\n")  # a shipped policy, which has no folder of the run
  assert evaluation.started_from(config, tmp_path / "policy") == pathlib.Path("base")
  named.write_text(f"{tmp_path}/run/warm_start\n")
  with pytest.raises(
    ValueError, match=r"started_from\.txt names .*/run/warm_start, where no weights"
  ):
    evaluation.started_from(config, tmp_path / "policy")
