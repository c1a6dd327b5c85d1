"""A run is read as far as it got; what is missing or broken is said."""

import json

import pytest

from jaxrl_agents.types import Trajectory
from jaxrl_agents.viewer import curves, headline, inputs


def write_rows(folder, *lines):
  (folder / "metrics.jsonl").write_text("\n".join(lines) + "\n")


def row(phase, step, **numbers):
  return json.dumps({"phase": phase, "step": step, **numbers})


def test_a_folder_that_is_no_run_is_an_error_that_says_so(tmp_path):
  with pytest.raises(ValueError, match="is not the folder of a training run"):
    inputs.read_run(tmp_path)
  with pytest.raises(ValueError, match="no folder .*nowhere"):
    inputs.read_run(tmp_path / "nowhere")


def test_broken_lines_are_counted_and_the_rest_is_read(tmp_path):
  write_rows(tmp_path, row("rl", 0, reward=0.5), '{"phase": "rl", "st', "[1]", row("rl", 1))
  run = inputs.read_run(tmp_path)
  assert [r["step"] for r in run.rows] == [0, 1]
  assert any("2 unreadable line(s) left out (line 2, 3)" in p for p in run.problems)
  assert any("No summary.json yet" in p for p in run.problems)


def test_a_step_written_twice_by_a_resumed_run_counts_once_with_its_last_numbers(tmp_path):
  write_rows(tmp_path, row("rl", 0, reward=0.1), row("rl", 1, reward=9), row("rl", 1, reward=0.2))
  [phase] = curves.phases(inputs.read_run(tmp_path))
  assert phase["columns"]["reward"] == [0.1, 0.2]


def test_a_broken_summary_is_named(tmp_path):
  write_rows(tmp_path, row("rl", 0))
  (tmp_path / "summary.json").write_text('{"eval": ')
  assert any(
    "summary.json is damaged: it is no JSON" in p for p in inputs.read_run(tmp_path).problems
  )


def test_values_that_are_not_finite_are_gaps_and_unknown_scalars_are_kept(tmp_path):
  write_rows(tmp_path, row("rl", 0, reward=float("nan"), odd=1, note="x"), row("rl", 1, reward=1))
  [phase] = curves.phases(inputs.read_run(tmp_path))
  assert phase["columns"] == {"odd": [1.0, None], "reward": [None, 1.0]}
  assert [panel["keys"] for panel in phase["panels"]] == [["reward"]]
  assert [panel["keys"] for panel in phase["others"]] == [["odd"]]


def test_wall_clock_is_the_summary_s_and_that_of_phases_it_does_not_name(tmp_path):
  write_rows(tmp_path, row("sft", 0, time=100.0), row("sft", 1, time=130.0), row("rl", 0, time=500))
  run = inputs.read_run(tmp_path)
  assert curves.wall_clock(run) == [("Supervised warm-up", 30.0)]
  (tmp_path / "summary.json").write_text(json.dumps({"wall_s": {"learn": 60.0, "start": 0}}))
  assert curves.wall_clock(inputs.read_run(tmp_path)) == [
    ("Supervised warm-up", 30.0),
    ("Reinforcement learning", 60.0),
  ]
  (tmp_path / "summary.json").write_text(json.dumps({"wall_s": {"warm_up": 40.0, "learn": 60.0}}))
  assert curves.wall_clock(inputs.read_run(tmp_path)) == [
    ("Supervised warm-up", 40.0),
    ("Reinforcement learning", 60.0),
  ]


def test_of_a_series_of_steps_the_first_middle_and_last_are_shown_and_evaluations_all(tmp_path):
  names = [f"step_{i:06d}" for i in range(8, 13)]
  for name in (*names, "eval_trained", "eval_warm_start"):
    (tmp_path / f"{name}.npz").touch()
  (tmp_path / "notes.txt").touch()
  assert [(key, title) for key, title, _ in inputs.sample_files(tmp_path)] == [
    ("step_000008", "step 8"),
    ("step_000010", "step 10"),
    ("step_000012", "step 12"),
    ("eval_warm_start", "evaluation, warm start"),
    ("eval_trained", "evaluation, trained"),
  ]


def test_sampled_rollouts_keep_the_worst_and_the_best_in_their_order():
  def rollout(reward):
    return Trajectory("t", (), (), {}, "answer", {"reward": reward})

  rollouts = [rollout(r) for r in (0.3, 0.9, 0.1, 0.5, 0.7)]
  assert inputs.sample_rollouts(rollouts, 2) == [1, 2]
  assert inputs.sample_rollouts(rollouts, 3) == [1, 2, 3]
  assert inputs.sample_rollouts(rollouts, 9) == [0, 1, 2, 3, 4]


def summary(gain, lower, upper=None, **more):
  evaluation = {"warm_start": {"reward": 0.5}, "trained": {"reward": 0.5 + gain, "tasks": 40}}
  bootstrap = {"reward_gain": gain, "reward_gain_lower95": lower, "reward_gain_upper95": upper}
  run = inputs.Run("w", (), {"eval": evaluation | more, "paired_bootstrap": bootstrap}, ())
  return headline.sentence(run).replace("\u00a0", " ")


def test_the_sentence_claims_no_more_than_the_bound_allows():
  assert summary(0.3, 0.2) == (
    "Reinforcement learning raised the reward from 0.50 to 0.80 on 40 held-out tasks "
    "(+0.30, at least +0.20 with 95 % confidence)."
  )
  assert "still below a script that searches for each clue at 0.90" in summary(
    0.3, 0.2, heuristic={"reward": 0.9}
  )
  both = summary(0.3, 0.2, heuristic={"reward": 0.6}, hops={"reward": 0.9})
  assert "still below a script that also follows names at 0.90" in both  # not above one at 0.60
  assert "level with a script that also follows names at 0.80" in summary(
    0.3, 0.2, hops={"reward": 0.8}
  )
  assert "no improvement is shown" in summary(0.3, -0.01)
  assert "lowered the reward from 0.50 to 0.40" in summary(-0.1, -0.2)
  assert "lowered the reward from 0.50 to 0.40" in summary(-0.1, -0.2, -0.01)
  assert summary(-0.1, -0.2, 0.05).endswith(
    "the upper 95 % bound of the gain is +0.05: no change is shown."
  )


def test_a_start_that_was_made_worse_on_purpose_is_told_with_the_gain():
  evaluation = {"warm_start": {"reward": 0.25}, "trained": {"reward": 0.5}}
  told = []
  for hasty in (0.0, 0.8):
    config = {"agent": "search", "search": {"hasty": hasty}}
    run = inputs.Run("w", (), {"eval": evaluation, "config": config}, ())
    told.append(headline.sentence(run).replace("\u00a0", " "))
  assert told[1].removeprefix(told[0]) == (
    " The warm start imitates a player that was made hasty in 80 % of its episodes (search.hasty), "
    "so at least a part of the gain undoes that."
  )


def test_a_section_sets_the_trained_policy_beside_every_other_player():
  rewards = {"trained": 0.75, "one_search": 0.25, "expert": 1.0}
  evaluation = {name: {"reward": reward} for name, reward in rewards.items()}
  bounds = {"": 0.5, "_lower95": 0.25, "_upper95": 0.625}
  bootstrap = {f"trained_minus_one_search{end}": value for end, value in bounds.items()}
  run = inputs.Run("w", (), {"eval": evaluation, "paired_bootstrap": bootstrap}, ())
  [section] = headline.beside(run)
  assert section.rows == (
    ("one search", "0.250", "+0.50", "+0.25 to +0.62"),
    ("trained", "0.750", "", ""),
    ("expert", "1.000", "", ""),
  )
  assert headline.beside(inputs.Run("w", (), {}, ())) == []


def test_a_run_without_an_evaluation_reports_its_progress():
  def sentence(*rows):
    return headline.sentence(inputs.Run("w", rows, {}, ()))

  steps = [{"phase": "rl", "step": i, "reward": float(i)} for i in range(20)]
  assert sentence() == "No training step is recorded yet."
  assert sentence({"phase": "sft", "step": 0}).startswith("1 steps of supervised warm-up")
  assert "training reward 2.00 over the first 5 steps, 17.00 over the last" in sentence(*steps)


def test_the_table_places_shares_on_an_axis_to_one_and_rewards_on_one_to_two():
  evaluation = {
    "warm_start": {"reward": 0.5, "reward_lower95": 0.4, "f1": 0.25, "tasks": 4},
    "trained": {"reward": 1.5, "reward_upper95": 1.6, "f1": 0.75, "tasks": 4, "failed": 2},
  }
  run = inputs.Run("w", (), {"eval": evaluation, "paired_bootstrap": {"f1_gain_lower95": 0.1}}, ())
  rows = {r.title: r for r in headline.table(run)}
  assert rows.keys() == {"Reward", "F1 of the output"}  # no row for counts and bounds
  assert rows["Reward"].positions == (25.0, 75.0, None, None, None)
  assert rows["F1 of the output"].positions == (25.0, 75.0, None, None, None)
  assert (rows["F1 of the output"].gain, rows["F1 of the output"].lower95) == (0.5, 0.1)
  assert headline.counts(run)[1] == (
    "Trained: 4 tasks, 2 failed rollouts (counted apart, not scored 0)."
  )


def test_runs_are_named_by_as_much_of_their_paths_as_tells_them_apart(tmp_path):
  assert inputs.names([tmp_path / "runs/0"]) == ["0"]
  assert inputs.names([tmp_path / "a/run", tmp_path / "b/run"]) == ["a/run", "b/run"]
  assert inputs.names([tmp_path / "a/x/run", tmp_path / "b/x/run", tmp_path / "b/y"]) == [
    "a/x/run",
    "b/x/run",
    f"{tmp_path.name}/b/y",
  ]
  assert inputs.names([tmp_path / "a/run", tmp_path / "b/../a/run"]) == ["run", "run"]
  assert inputs.names([]) == []
