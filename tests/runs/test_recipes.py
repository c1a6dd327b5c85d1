"""Warm-up and reinforcement learning of the recipes in little: from their configs to the page."""

import math
import pathlib
import shutil
import sysconfig

import pytest

from tests.runs.whole_run import run

pytestmark = pytest.mark.slow

LIBRARY = pathlib.Path(sysconfig.get_paths()["stdlib"])


@pytest.fixture
def library(tmp_path, monkeypatch):
  """A folder of modules, and a cache of its own."""
  monkeypatch.setenv("JAXRL_CACHE", str(tmp_path / "cache"))
  folder = tmp_path / "library"
  for package in ("email", "http", "urllib", "logging"):
    shutil.copytree(
      LIBRARY / package, folder / package, ignore=shutil.ignore_patterns("__pycache__")
    )
  for module in ("calendar", "colorsys", "locale", "posixpath", "statistics", "string", "textwrap"):
    shutil.copy(LIBRARY / f"{module}.py", folder)
  return folder


def test_a_swarm_is_warmed_up_trained_and_compared_with_a_single_agent(library, tmp_path):
  summary, rows, html = run(
    "configs/swarm_cpu.py",
    tmp_path,
    "learner.level_weights_early=(1,1,1,1)",
    f"corpus.source={library}",
    "sft.rates=(1,0,0,1)",
    "sft.drills=8",
    "swarm.budget_share=0.4",
  )
  assert {
    "base",
    "warm_start",
    "trained",
    "single_agent",
    "single_agent_unhurried",
    "expert",
  } <= set(summary["eval"])
  for name in ("item_f1", "row_f1", "success", "critical_steps", "total_steps", "serial_rate"):
    assert math.isfinite(summary["eval"]["trained"][name])
  assert summary["eval"]["single_agent"]["width"] == 0.0
  assert "critical_steps_ratio_by_kind" in summary and "ungated" in rows["rl"]
  assert "reward_gain_lower95" in summary["paired_bootstrap"]
  assert "Table: |" in html and "is left out" not in html
  saved = [f for f in (tmp_path / "run" / "checkpoints").rglob("*") if f.is_file()]
  assert any(b"length_budgets" in file.read_bytes() for file in saved)


def test_a_coding_agent_is_warmed_up_trained_and_compared_with_one_without_summaries(
  library, tmp_path
):
  summary, rows, html = run(
    "configs/coding_cpu.py",
    tmp_path,
    "learner.level_weights_early=(1,1,1,1)",
    f"coding.sources=('{library}',)",
    "coding.tasks_per_repo=3",
    "sft.rates=(1,0,0,1)",
    "sft.drills=8",
  )
  assert {"warm_start", "trained", "no_summary", "enumeration", "do_nothing"} <= set(
    summary["eval"]
  )
  assert "trained_minus_enumeration_lower95" in summary["paired_bootstrap"]
  for name in ("solve_rate", "summaries", "invalid_tool_calls", "turns"):
    assert math.isfinite(summary["eval"]["trained"][name])
  assert "ungated" in rows["rl"] and rows["rl"]["solved"] <= 1.0
  assert "solved_gain_lower95" in summary["paired_bootstrap"]
  assert "python3 check.py" in html and "is left out" not in html
