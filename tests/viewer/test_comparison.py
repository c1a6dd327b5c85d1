"""Runs side by side: the table by hand, the charts with the lines of each run."""

import dataclasses
import math
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
  evals = {"warm_start": entry, "trained": entry | {"reward": 0.75}, "heuristic": entry}
  summary = {"eval": evals, "paired_bootstrap": BOOTSTRAP} if finished else {}
  return Run(name, tuple(rows), summary, ())


def test_the_table_has_a_row_for_each_evaluation_and_gains_behind_the_trained():
  lines = comparison.table([run("a", [0, 1])]).splitlines()
  assert lines[2] == "| a | warm start | 0.500 | 0.250 | – | – | – | 3.000 |  |  |  |"
  assert lines[3].endswith("| 3.000 | +0.250 (+0.125) | -0.500 (-0.750) | – |")
  assert lines[4].startswith("| a | heuristic | 0.500 |")
  assert len({line.count("|") for line in lines}) == 1


def chart(drawing, title):
  """The axes of a title."""
  return next(axes for axes in drawing.axes if axes.get_title("left") == title)


def test_each_run_has_a_thin_line_of_its_steps_and_a_thick_one_of_their_means():
  runs = [run("<b>&", [0, 1, 2]), run("c", [2, 1]), run("d", [0, math.nan, 0])]
  drawing = comparison.figure(runs)
  lines = chart(drawing, "reward").lines
  assert [line.get_xydata().tolist() for line in lines] == [
    [[0, 0], [1, 1], [2, 2]],
    [[0, 1], [1, 1], [2, 1]],  # a mean of at most two steps to each side
    [[0, 2], [1, 1]],
    [[0, 1.5], [1, 1.5]],
    [[0, 0], [2, 0]],
    [[0, 0], [2, 0]],
  ]
  colours = [line.get_color() for line in lines]
  assert colours[0] == colours[1] != colours[2] == colours[3]
  assert [text.get_text() for text in drawing.legends[0].get_texts()] == ["<b>&", "c", "d"]


def test_held_out_means_go_from_a_hollow_to_a_full_dot_and_unfinished_runs_have_none():
  drawing = comparison.figure([run("a", [0, 1]), run("b", [0, 1], finished=False)])
  line, hollow, full, rival = chart(drawing, "held out: reward").lines
  assert list(line.get_xdata()) == [0.5, 0.75] and list(rival.get_xdata()) == [0.5]
  assert hollow.get_markerfacecolor() == "white" != full.get_markerfacecolor()
  assert not chart(drawing, "held out: trajectory recall").lines  # not in these summaries


def test_an_agent_outside_has_a_row_for_each_player_and_the_best_of_them_as_its_bar():
  rewards = {"warm_start": 0.25, "trained": 0.75, "base": 2.0, "random": 0.5, "halving": 1.0}
  evals = {name: {"reward": reward} for name, reward in rewards.items()}
  alone = {name: evals[name] for name in ("warm_start", "trained")}
  steps = ({"phase": "rl", "step": 0, "reward": 1.0},)
  config = {"agent": "examples.number_game.agent:AGENT"}
  run, without = (Run("n", steps, {"config": config, "eval": e}, ()) for e in (evals, alone))
  lines = comparison.table([run]).splitlines()
  assert [line.split(" | ")[1] for line in lines[2:]] == [name.replace("_", " ") for name in evals]
  title = "held out: reward"
  assert list(chart(comparison.figure([run]), title).lines[-1].get_xdata()) == [1.0]  # halving
  assert len(chart(comparison.figure([without]), title).lines) == 3  # a line and two dots


def test_bars_are_sorted_and_whiskers_span_the_bounds_of_the_difference_to_the_trained_policy():
  one = run("a", [0])
  one.summary["eval"]["expert"] = {"reward": 1.5}
  gains = {"trained_minus_expert_lower95": -1.0, "trained_minus_expert_upper95": -0.5}
  summary = one.summary | {"paired_bootstrap": BOOTSTRAP | gains}
  [axes] = comparison.bars([dataclasses.replace(one, summary=summary)]).axes
  labels = [text.get_text() for text in axes.get_yticklabels()]
  assert labels[-2:] == ["trained", "expert"]
  assert [bar.get_width() for bar in axes.patches] == [0.5, 0.5, 0.75, 1.5]
  whisker = axes.lines[0]
  assert sorted(whisker.get_xdata()) == [1.25, 1.75]  # 0.75 + 0.5 and 0.75 + 1.0
  with pytest.raises(ValueError, match="b has no evaluation yet"):
    comparison.bars([one, run("b", [0], finished=False)])


def test_scores_by_size_are_means_over_runs_weighted_by_their_tasks_of_a_size():
  def sized(name, by_size):
    summary = {"config": {"agent": "swarm"}, "eval": {"trained": {"by_size": by_size}}}
    return Run(name, (), summary, ())

  small, large = {"item_f1": 0.5, "tasks": 3}, {"item_f1": 0.25, "tasks": 1}
  runs = [sized("a", {"1-4": small, "10-19": large}), sized("b", {"1-4": small | {"item_f1": 1.0}})]
  runs[1].summary["eval"]["trained"]["by_size"]["1-4"]["tasks"] = 1
  drawing = comparison.sizes(runs)
  first, second, mean = chart(drawing, "item F1").lines
  assert [line.get_xydata().tolist() for line in (first, second, mean)] == [
    [[0, 0.5], [1, 0.25]],
    [[0, 1.0]],
    [[0, (3 * 0.5 + 1.0) / 4], [1, 0.25]],
  ]
  labels = [text.get_text() for text in chart(drawing, "item F1").get_xticklabels()]
  assert labels == ["1-4", "10-19"]
  with pytest.raises(ValueError, match="no run has scores by size"):
    comparison.sizes([run("a", [0])])


def test_the_same_runs_give_the_same_svg_with_names_as_text(tmp_path):
  runs = [run("<b>&", [0, 1]), run("c", [1, 0])]
  for name in ("first", "second"):
    comparison.save_svg(runs, tmp_path / name)
  texts = [text.text for text in ET.parse(tmp_path / "first").iter() if text.text]
  assert "<b>&" in texts and "held out: reward" in texts
  assert (tmp_path / "first").read_bytes() == (tmp_path / "second").read_bytes()


def test_swarm_runs_are_compared_by_kind_of_task_and_not_with_search_runs():
  entry = {"reward": 0.5, "by_kind": {"wide": {"item_f1": 0.25}}}
  evals = dict.fromkeys(["warm_start", "trained", "single_agent"], entry)
  gains = BOOTSTRAP | {f"single_agent_performance_gain{b}": 0.5 for b in ("", "_lower95")}
  summary = {"config": {"agent": "swarm"}, "eval": evals, "paired_bootstrap": gains}
  swarm = Run("s", ({"phase": "rl", "step": 0, "serial_rate": 1.0},), summary, ())
  lines = comparison.table([swarm]).splitlines()
  assert lines[0].startswith("| run | weights | reward | wide item f1 | wide critical steps |")
  assert lines[3].startswith("| s | trained | 0.500 | 0.250 | – |")
  assert lines[3].endswith("| +0.250 (+0.125) | +0.500 (+0.500) |")
  assert chart(comparison.figure([swarm]), "held out: wide item f1")
  with pytest.raises(ValueError, match="search, swarm"):
    comparison.table([swarm, run("a", [0])])


def test_an_unfinished_run_and_one_without_steps_are_named_errors():
  with pytest.raises(ValueError, match="a has no evaluation yet"):
    comparison.table([run("a", [0], finished=False)])
  with pytest.raises(ValueError, match="no run has a step"):
    comparison.figure([run("a", [])])
