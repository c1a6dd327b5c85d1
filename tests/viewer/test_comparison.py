"""Runs side by side: the table by hand, the curves as well-formed SVG with a line a run."""

import xml.etree.ElementTree as ET

import pytest

from jaxrl_agents.viewer import comparison
from jaxrl_agents.viewer.inputs import Run

BOOTSTRAP = {
  "reward_gain": 0.25,
  "reward_gain_lower95": 0.125,
  "output_recall_gain": -0.5,
  "output_recall_gain_lower95": -0.75,
}


def run(name, rewards, finished=True):
  rows = [{"phase": "rl", "step": i, "reward": r} for i, r in enumerate(rewards)]
  rows.append({"phase": "sft", "step": 99, "loss": 1.0})
  entry = {"reward": 0.5, "output_recall": 0.25, "turns": 3}
  evals = {"warm_start": entry, "trained": entry | {"reward": 0.75}, "one_shot_hybrid": entry}
  summary = {"eval": evals, "paired_bootstrap": BOOTSTRAP} if finished else {}
  return Run(name, tuple(rows), summary, ())


def test_the_table_has_a_row_for_each_evaluation_and_gains_behind_the_trained():
  lines = comparison.table([run("a", [0, 1])]).splitlines()
  assert lines[2] == "| a | warm start | 0.500 | 0.250 | – | – | – | 3.000 |  |  |"
  assert lines[3].endswith("| 3.000 | +0.250 (+0.125) | -0.500 (-0.750) |")
  assert lines[4].startswith("| a | one shot hybrid | 0.500 |")
  assert len({line.count("|") for line in lines}) == 1


def test_the_curves_are_an_svg_with_a_line_for_each_run_and_names_as_text():
  runs = [run("<b>&", [0, 1, 2]), run("c", [2, 1]), run("c", [0, 0])]
  root = ET.fromstring(comparison.svg(runs))
  space = "{http://www.w3.org/2000/svg}"
  texts = [text.text for text in root.iter(f"{space}text")]
  assert "<b>&" in texts and "c" in texts and "step 2" in texts
  lines = [line.get("points") for line in root.iter(f"{space}polyline")]
  assert lines[:2] == ["0.0,150.0 130.0,75.0 260.0,0.0", "0.0,75.0 130.0,75.0 260.0,75.0"]
  assert lines[2:4] == ["0.0,0.0 130.0,75.0", "0.0,37.5 130.0,37.5"]
  assert lines[4] == lines[5] == "0.0,150.0 130.0,150.0"


def test_held_out_means_go_from_a_hollow_to_a_full_dot_and_unfinished_runs_have_none():
  root = ET.fromstring(comparison.svg([run("a", [0, 1]), run("b", [0, 1], finished=False)]))
  dots = [(d.get("cx"), d.get("fill")) for d in root.iter("{http://www.w3.org/2000/svg}circle")]
  reward, recall = dots[:2], dots[2:4]
  assert reward == [("173.3", "white"), ("260.0", comparison.COLOURS[0])]  # 0.5 and 0.75 of 0.75
  assert recall == [("260.0", "white"), ("260.0", comparison.COLOURS[0])]
  assert len(dots) == 4  # no trajectory recall in these summaries


def test_runs_of_a_swarm_are_told_by_kind_of_task_and_not_beside_those_of_a_search():
  entry = {"reward": 0.5, "by_kind": {"wide": {"item_f1": 0.25}}}
  evals = dict.fromkeys(["warm_start", "trained", "single_agent"], entry)
  gains = BOOTSTRAP | {f"single_agent_performance_gain{b}": 0.5 for b in ("", "_lower95")}
  summary = {"config": {"agent": "swarm"}, "eval": evals, "paired_bootstrap": gains}
  swarm = Run("s", ({"phase": "rl", "step": 0, "serial_rate": 1.0},), summary, ())
  lines = comparison.table([swarm]).splitlines()
  assert lines[0].startswith("| run | weights | reward | wide item f1 | wide critical steps |")
  assert lines[3].startswith("| s | trained | 0.500 | 0.250 | – |")
  assert lines[3].endswith("| +0.250 (+0.125) | +0.500 (+0.500) |")
  assert "held out: wide item f1" in comparison.svg([swarm])
  with pytest.raises(ValueError, match="search, swarm"):
    comparison.table([swarm, run("a", [0])])


def test_an_unfinished_run_and_one_without_steps_are_named_errors():
  with pytest.raises(ValueError, match="a has no evaluation yet"):
    comparison.table([run("a", [0], finished=False)])
  with pytest.raises(ValueError, match="no run has a step"):
    comparison.svg([run("a", [])])
