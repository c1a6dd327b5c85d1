"""What a run leaves is whole lines and whole files, and a resumed run overwrites its own tail."""

import dataclasses
import errno
import json
import math
import os

import jax
import numpy as np
import pytest

from jaxrl_agents.full_disk import FullDiskError
from jaxrl_agents.policy import params as params_lib
from jaxrl_agents.policy.config import PolicyConfig
from jaxrl_agents.runs import setup, weight_files
from jaxrl_agents.runs.workdir import Workdir, peak_rss_mib, rss_mib
from tests.runs import small_run

CFG = PolicyConfig(
  vocab_size=11,
  embed_dim=4,
  num_layers=1,
  num_heads=1,
  num_kv_heads=1,
  head_dim=4,
  num_dense_layers=1,
  dense_ffw_dim=4,
)


def full(*_, **__):
  raise OSError(errno.ENOSPC, "No space left on device")


def test_a_number_that_is_not_finite_is_null_in_the_metrics(tmp_path):
  workdir = Workdir(tmp_path / "w")
  workdir.log("rl", 0, {"loss": math.nan, "reward": 1.5})
  line = json.loads(workdir.metrics.read_text())
  assert (line["phase"], line["step"], line["loss"], line["reward"]) == ("rl", 0, None, 1.5)


def test_a_line_cut_off_by_a_crash_is_left_out(tmp_path):
  workdir = Workdir(tmp_path)
  workdir.log("rl", 0, {"reward": 1.0})
  with workdir.metrics.open("a") as file:
    file.write('{"phase": "rl", "st')
  assert [line["step"] for line in workdir.lines()] == [0]


def refused(*_, **__):
  raise OSError(errno.EMFILE, "Too many open files")  # what gcsfuse says


@pytest.mark.parametrize("kept", [(), ("metrics.jsonl",)])
def test_a_disk_that_cannot_rename_folders_is_refused_before_anything_is_left_there(
  tmp_path, monkeypatch, kept
):
  for name in kept:
    (tmp_path / name).touch()
  monkeypatch.setattr(os, "rename", refused)
  with pytest.raises(ValueError, match="cannot rename folders .*; a bucket needs a hierarchical"):
    Workdir(tmp_path)
  assert [path.name for path in tmp_path.iterdir()] == list(kept)


def test_a_disk_without_hard_links_is_refused_for_an_evaluator_alone(tmp_path, monkeypatch):
  workdir = Workdir(tmp_path)
  before = sorted(tmp_path.iterdir())
  workdir.check_hard_links()
  monkeypatch.setattr(os, "link", refused)
  with pytest.raises(ValueError, match="no hard links .* or set evaluator.every=0"):
    workdir.check_hard_links()
  assert sorted(tmp_path.iterdir()) == before == sorted(Workdir(tmp_path).path.iterdir())


def test_a_full_disk_is_named_as_such(tmp_path, monkeypatch):
  monkeypatch.setattr(os, "rename", full)
  with pytest.raises(FullDiskError, match="Free some space there"):
    Workdir(tmp_path)


def test_a_resumed_run_drops_only_its_own_later_lines(tmp_path):
  workdir = Workdir(tmp_path)
  for phase, step in (("sft", 5), ("rl", 0), ("rl", 1), ("rl", 2)):
    workdir.log(phase, step, {})
  workdir.drop_metrics_from("rl", 1)
  assert [(line["phase"], line["step"]) for line in workdir.lines()] == [("sft", 5), ("rl", 0)]


def test_the_summary_is_merged_section_by_section(tmp_path):
  workdir = Workdir(tmp_path)
  workdir.merge_summary({"eval": {"warm_start": 1}, "seed": 0})
  assert workdir.merge_summary({"eval": {"trained": 2}}) == {
    "eval": {"warm_start": 1, "trained": 2},
    "seed": 0,
  }


def test_exported_weights_come_back_bitwise(tmp_path):
  params = params_lib.init(CFG, jax.random.key(0))
  weight_files.save(params, CFG, tmp_path)
  loaded = weight_files.load(str(tmp_path), CFG)
  assert jax.tree.structure(loaded) == jax.tree.structure(params)
  for a, b in zip(jax.tree.leaves(loaded), jax.tree.leaves(params), strict=True):
    assert np.asarray(a).tobytes() == np.asarray(b).tobytes()


def test_weights_of_another_shape_are_refused_by_the_name_of_the_parameter(tmp_path):
  weight_files.save(params_lib.init(CFG, jax.random.key(0)), CFG, tmp_path)
  wider = dataclasses.replace(CFG, dense_ffw_dim=8)
  with pytest.raises(ValueError, match=r"ffw.*asks for .*set policy.model as in"):
    weight_files.load(str(tmp_path), wider)
  with pytest.raises(ValueError, match="policy.init=scratch"):
    weight_files.load(str(tmp_path / "nowhere"), CFG)


def test_a_policy_that_is_not_there_is_refused_before_tasks_are_made(tmp_path):
  policy = dataclasses.replace(small_run.CONFIG.policy, init="serch_base")
  config = dataclasses.replace(small_run.CONFIG, policy=policy)  # its agent raises for tasks
  message = r"no policy\.safetensors in serch_base; .* \(base, search_base, swarm_base\)"
  with pytest.raises(ValueError, match=message), setup.opened(config, Workdir(tmp_path)):
    pass


def test_the_peak_of_memory_has_what_was_freed_since():
  before = rss_mib()
  held = np.ones(64 << 20)  # 512 MiB
  assert rss_mib() > before + 500
  del held
  assert rss_mib() < before + 100 and peak_rss_mib() > before + 500
