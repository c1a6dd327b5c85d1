"""The page of a coding agent's run: sentence, table, curves, rewards of held-out episodes."""

import json

from jaxrl_agents.harness import group_files
from jaxrl_agents.runs import report_page
from jaxrl_agents.types import Group, Message, Task, ToolCall, Trajectory
from jaxrl_agents.viewer import curves, headline, inputs
from tests.viewer.test_report import Elements

CONFIG = {"agent": "coding"}
PARTS = {
  "solved": 1.0,
  "mended": 1.0,
  "kept": 1.0,
  "completed": 1.0,
  "broken_calls": 2.0,
  "open_todos": 0.0,
  "comment_thinking": 0.0,
  "shell_only": 0.0,
  "effort": 1.0,
}
LOG = (
  Message("user", "One test fails."),
  Message("assistant", "", (ToolCall("0", "shell", {"command": "python3 check.py"}),)),
  Message("tool", "1 of 3 fail", tool_call_id="0"),
  Message("assistant", "Done."),
)
GROUP = Group(
  Task("t", "coding", "One test fails.", {"level": 0, "repo": "r"}),
  (
    Trajectory("t", (), LOG, PARTS, "answer", {"reward": 0.9}),
    Trajectory("t", (), LOG, {}, "answer", error="the sandbox is gone"),
  ),
)
EVAL = {
  "warm_start": {"reward": 0.2, "solve_rate": 0.25, "turns": 9.0, "tasks": 28.0},
  "trained": {"reward": 0.4, "solve_rate": 0.5, "turns": 7.0, "tasks": 28.0},
  "no_summary": {"reward": 0.3, "solve_rate": 0.375, "turns": 5.0, "tasks": 28.0},
  "enumeration": {"reward": 0.5, "solve_rate": 0.625, "turns": 4.0, "tasks": 28.0},
  "expert": {"reward": 0.9, "solve_rate": 1.0, "turns": 3.0, "tasks": 28.0},
}
BOOTSTRAP = {
  "reward_gain": 0.2,
  "reward_gain_lower95": -0.1,
  "reward_gain_upper95": 0.5,
  "solved_gain": 0.25,
  "solved_gain_lower95": 0.125,
  "solved_gain_upper95": 0.375,
}
SUMMARY = {"config": CONFIG, "eval": EVAL, "paired_bootstrap": BOOTSTRAP}


def run(*rows):
  return inputs.Run("w", rows, SUMMARY, ())


def test_the_sentence_names_the_solve_rate_with_its_bound_and_that_of_enumeration():
  assert headline.sentence(run()).replace("\u00a0", " ") == (
    "Reinforcement learning raised the solve rate from 0.25 to 0.50 on 28 held-out tasks "
    "(+0.25, at least +0.12 with 95 % confidence), still below blind enumeration with as many "
    "edits at 0.62."
  )


def test_the_table_bounds_the_gain_of_what_is_solved_and_that_of_the_reward_apart():
  rows = {row.title: row for row in headline.table(run())}
  assert rows["Solved"].values == (0.25, 0.5, 0.375, 0.625, 1.0)
  assert (rows["Solved"].gain, rows["Solved"].lower95) == (0.25, 0.125)
  assert (rows["Reward"].gain, rows["Reward"].lower95) == (0.2, -0.1)
  assert rows["Turns"].gain == -2.0


def test_a_coding_agent_has_panels_of_its_own_in_reinforcement_learning_alone():
  rows = [
    {"phase": "rl", "step": 0, "solved": 0.5, "summaries": 1.0, "reward": 0.4},
    {"phase": "sft", "step": 0, "loss": 1.0},
  ]
  drawn = [[panel["title"] for panel in phase["panels"]] for phase in curves.phases(run(*rows))]
  assert drawn == [["Solved", "Summaries", "Reward"], ["Loss"]]


def test_the_page_of_a_folder_shows_the_episodes_and_no_bounds_of_a_search_context(tmp_path):
  group_files.save_groups(tmp_path / "trajectories/eval_trained.npz", [GROUP])
  (tmp_path / "summary.json").write_text(json.dumps(SUMMARY))
  text = report_page.write(tmp_path).read_text("utf-8")
  assert "is left out" not in text and "hybrid" not in text
  assert "No summaries</th>" in text
  told = json.loads(Elements(text).blocks["episodes-json"])
  assert told["limits"] == {}
  assert told["snapshots"][0]["groups"][0]["rollouts"][0]["reward"] == 0.9
