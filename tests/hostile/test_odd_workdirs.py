"""Folders and files of a run that are not as a run left them: errors that say what to do."""

import itertools
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import threading
import time

import numpy as np
import pytest

from jaxrl_agents import file_digests
from jaxrl_agents.harness import group_files
from jaxrl_agents.learner import checkpoint
from jaxrl_agents.runs import report_page, resumption, rl, weight_files
from jaxrl_agents.runs.workdir import Workdir
from jaxrl_agents.viewer import comparison, inputs
from tests.harness.test_group_files import group
from tests.learner.test_checkpoint import make
from tests.runs.small_run import CFG, CONFIG

ROOT = pathlib.Path(__file__).parents[2]
STRANGER = 65_534


def test_a_workdir_that_is_a_file_or_lies_in_one_is_refused(tmp_path):
  (tmp_path / "file").write_text("")
  for path in ("file", "file/below"):
    with pytest.raises(ValueError, match="is a file, or lies in one; --workdir must name a folder"):
      Workdir(tmp_path / path)


def test_a_loop_of_links_and_a_name_with_a_null_byte_are_refused(tmp_path):
  (tmp_path / "a").symlink_to(tmp_path / "b")
  (tmp_path / "b").symlink_to(tmp_path / "a")
  for path in (tmp_path / "a", tmp_path / "x\0y", tmp_path / ("n" * 300)):
    with pytest.raises(ValueError, match="cannot be made: .*; choose another --workdir"):
      Workdir(path)


def test_a_link_to_a_workdir_is_the_workdir_even_if_it_dangles(tmp_path):
  (tmp_path / "link").symlink_to(tmp_path / "real")
  Workdir(tmp_path / "link").log("rl", 0, {})
  assert (tmp_path / "real" / "metrics.jsonl").exists()
  assert Workdir(tmp_path / "link").path == tmp_path / "real"


def as_a_stranger(code, *arguments):
  """Runs Python as another user, with the modules that are loaded before the change of user."""
  lines = [
    "import os, sys",
    "from jaxrl_agents.runs.workdir import Workdir",
    f"os.geteuid() or os.setuid({STRANGER})",
    "try:",
    f"  {code}",
    "except (ValueError, OSError) as error:",
    "  print(error)",
  ]
  command = [sys.executable, "-c", "\n".join(lines), *map(str, arguments)]
  environment = {**os.environ, "PYTHONPATH": str(ROOT), "JAX_PLATFORMS": "cpu"}
  return subprocess.run(command, env=environment, capture_output=True, text=True, cwd="/").stdout


@pytest.mark.parametrize("mode", [0o555, 0o500, 0o000])
def test_a_workdir_that_is_read_only_or_of_another_user_is_refused(mode):
  with tempfile.TemporaryDirectory() as place:
    os.chmod(place, 0o755)
    folder = pathlib.Path(place, "run")
    Workdir(folder)
    folder.chmod(mode)
    try:
      said = as_a_stranger("Workdir(sys.argv[1])", folder)
    finally:
      folder.chmod(0o755)
  assert "choose another --workdir" in said
  assert "may not be written to by this user; change its mode" in said or mode == 0


def test_a_second_run_in_a_workdir_is_refused_and_a_dead_one_is_not_in_the_way(tmp_path):
  workdir = Workdir(tmp_path)
  code = f"w = Workdir({str(tmp_path)!r}); h = w.held(); h.__enter__(); print('in', flush=True)"
  process = subprocess.Popen(
    [sys.executable, "-c", f"from jaxrl_agents.runs.workdir import Workdir; {code}; input()"],
    env={**os.environ, "PYTHONPATH": str(ROOT), "JAX_PLATFORMS": "cpu"},
    stdin=subprocess.PIPE,
    stdout=subprocess.PIPE,
    text=True,
  )
  try:
    assert process.stdout.readline() == "in\n"
    with pytest.raises(ValueError, match=rf"another run \(process {process.pid} on .*stop it, or"):
      with workdir.held(wait_s=0.2):
        pass
    threading.Timer(0.5, process.kill).start()
    with workdir.held(wait_s=10.0):
      assert f"process {os.getpid()}" in (tmp_path / ".lock").read_text()
  finally:
    process.kill()
    process.communicate()
  with workdir.held(wait_s=0.0):
    pass


def test_checkpoints_that_were_deleted_are_missed_aloud(tmp_path, capfd):
  workdir = Workdir(tmp_path)
  for step in range(3):
    workdir.log("rl", step, {})
  resumption.check_goes_on(CONFIG, workdir, 0)
  assert "the 3 steps in metrics.jsonl are trained again from the start" in capfd.readouterr().err


def test_metrics_that_lost_steps_are_missed_aloud(tmp_path, capfd):
  workdir = Workdir(tmp_path)
  workdir.log("rl", 2, {})
  workdir.drop_metrics_from("rl", 3)
  assert "metrics.jsonl has no line for 2 of the first 3 steps of rl" in capfd.readouterr().err


def test_a_clock_that_goes_backwards_changes_neither_the_order_nor_the_page(tmp_path, monkeypatch):
  workdir = Workdir(tmp_path)
  backwards = itertools.count(1_000_000, -3_600)
  monkeypatch.setattr(time, "time", lambda: float(next(backwards)))
  for step in range(3):
    workdir.log("rl", step, {"reward": step})
  assert [line["reward"] for line in workdir.lines()] == [0, 1, 2]
  assert report_page.write(tmp_path).exists()


def test_fields_of_a_later_version_do_not_stop_an_earlier_one(tmp_path):
  workdir = Workdir(tmp_path)
  line = {"phase": "rl", "step": 0, "later": {"deep": [1]}, "reward": 0.5}
  workdir.metrics.write_text(json.dumps(file_digests.with_digest(line)) + "\n")
  assert workdir.lines() == [line]
  workdir.merge_summary(rl.description(CONFIG) | {"later": [1, 2]})
  group_files.save_groups(workdir.trajectories / "eval_warm_start.npz", [group()])
  resumption.check_goes_on(CONFIG, workdir, 1)
  assert report_page.write(tmp_path).exists()


def test_sizes_with_an_unknown_field_are_refused_by_name(tmp_path):
  weight_files.save_sizes(CFG, tmp_path)
  sizes = tmp_path / "policy.json"
  sizes.write_text(sizes.read_text().replace("{", '{"future_option": 3,', 1))
  with pytest.raises(
    ValueError, match="policy.json does not hold .*future_option.*write the folder"
  ):
    weight_files.load_sizes(tmp_path)


@pytest.mark.slow
def test_foreign_files_among_the_checkpoints_are_left_alone(tmp_path):
  with checkpoint.open_manager(tmp_path / "rl") as manager:
    checkpoint.save(manager, 1, make(), {"step": 1}, keep=1)
  (tmp_path / "rl" / "notes.txt").write_text("mine")
  (tmp_path / "rl" / "old").mkdir()
  (tmp_path / "rl" / "7").write_text("a file, not a step")
  with checkpoint.open_manager(tmp_path / "rl") as manager:
    assert checkpoint.restore(manager, make())[2] == 1
    checkpoint.save(manager, 2, make(), {"step": 2}, keep=1)
  assert (tmp_path / "rl" / "notes.txt").read_text() == "mine"


@pytest.mark.slow
def test_a_checkpoint_of_another_size_is_refused_with_the_first_difference(tmp_path):
  with checkpoint.open_manager(tmp_path / "rl") as manager:
    checkpoint.save(manager, 1, make(width=4), {}, keep=1)
    with pytest.raises(
      ValueError, match=r"float32\[5, 4\] at .* but float32\[5, 6\] in this policy"
    ):
      checkpoint.restore(manager, make(width=6))


def test_a_pickle_in_the_place_of_groups_is_not_loaded(tmp_path):
  path = tmp_path / "g.npz"
  np.savez(path, index=np.array([{"format": 2}], dtype=object))
  with pytest.raises(ValueError, match="damaged, or not a file of groups .*allow_pickle"):
    group_files.load_groups(path)


@pytest.mark.slow
def test_a_huge_file_of_metrics_is_read_line_by_line(tmp_path):
  workdir = Workdir(tmp_path)
  line = json.dumps({"phase": "rl", "step": 0, "text": "x" * 2_000}) + "\n"
  with workdir.metrics.open("w") as file:
    for _ in range(40):
      file.write(line * 500)  # 40 MB
    file.write(line.replace('"step": 0', '"step": 1'))
  assert [row["step"] for row in inputs.read_run(tmp_path).rows] == [0, 1]


@pytest.mark.parametrize(
  "summary",
  [
    [], 3, {"eval": []}, {"eval": {"trained": None}}, {"eval": {"trained": {"reward": 10**400}}},
    {"config": 3}, {"config": {"agent": 7}}, {"paired_bootstrap": "x", "eval": {"trained": {}}},
    {"eval": {"trained": {"reward": "\ud800"}}}, {"wall_s": {"learn": -1}},
  ],
)  # fmt: skip
def test_a_summary_of_odd_values_gives_a_page_and_a_table_or_one_error(tmp_path, summary):
  workdir = Workdir(tmp_path)
  workdir.log("rl", 0, {"reward": 0.5})
  workdir.summary.write_text(json.dumps(summary))
  assert report_page.write(tmp_path).exists()
  runs = [inputs.read_run(tmp_path)]
  try:
    assert comparison.table(runs).startswith("| run |")
  except ValueError as error:
    assert "has no evaluation yet" in str(error)


def test_odd_options_in_a_summary_do_not_pass_for_the_options_of_a_run(tmp_path):
  workdir = Workdir(tmp_path)
  group_files.save_groups(workdir.trajectories / "eval_warm_start.npz", [group()])
  workdir.summary.write_text(json.dumps({"config": 3}))
  with pytest.raises(ValueError, match="summary.json does not say with which options"):
    resumption.check_goes_on(CONFIG, workdir, 1)


def test_the_page_of_a_run_whose_files_are_folders_names_them(tmp_path):
  workdir = Workdir(tmp_path)
  workdir.log("rl", 0, {"reward": 0.5})
  (workdir.trajectories / "eval_trained.npz").mkdir()
  report_page.write(tmp_path)
  assert "eval_trained.npz is left out" in workdir.report.read_text()
