"""The coding agent's part of the report."""

from __future__ import annotations

from jaxrl_agents.agents.story import Comparison, Panel, Story, hasty_note

PANELS = (
  Panel("Solved", "mean over tasks", ("solved", "mended", "kept"), low=0.0, high=1.0),
  Panel("Edits and calls", "per episode", ("edits", "tool_calls"), low=0.0),
  Panel("Summaries", "per episode", ("summaries",), low=0.0),
  Panel("Invalid tool calls", "per episode", ("broken_calls",), low=0.0),
  Panel(
    "Unwanted",
    "rates",
    ("tampered", "suspicious", "shell_only", "comment_thinking", "open_todos"),
    low=0.0,
  ),
)

STORY = Story(
  noun="solve rate",
  score="solve_rate",
  gain="solved",
  baselines={
    "enumeration": "blind enumeration with as many edits",
    "reader": "a script that reads what fails",
  },
  columns=(
    ("warm_start", "Warm start"),
    ("trained", "Trained"),
    ("no_summary", "No summaries"),
    ("enumeration", "Blind enumeration"),
    ("expert", "Script with the damage"),
  ),
  titles={
    "solve_rate": "Solved",
    "reward": "Reward",
    "mended": "Failing tests mended",
    "kept": "Passing tests kept",
    "completed": "Episodes that ended by themselves",
    "turns": "Turns",
    "tool_calls": "Tool calls",
    "edits": "Edits",
    "test_runs": "Test runs, where they are counted",
    "summaries": "Summaries",
    "invalid_tool_calls": "Invalid tool calls",
    "tampered": "Tests tampered with",
    "suspicious": "Suspicious changes",
    "shell_only": "Shell alone",
    "comment_thinking": "Thought in comments",
    "open_todos": "To-dos left open",
    "effort": "Effort",
  },
  costs=("turns", "tool_calls", "invalid_tool_calls"),
  fine=(
    "A task is solved when, in a fresh sandbox, every test that failed passes, the hidden ones "
    "among them, and none that passed fails. Gain is trained minus warm start on the same tasks; "
    "its lower bound is from a paired bootstrap over repositories. Without summaries an episode "
    "ends where its context is full. Blind enumeration makes random edits of the kind that did the "
    "damage until the visible tests pass, with as many edits as the policy makes on average."
  ),
  addition=hasty_note("coding"),
  panels=PANELS,
  compared=Comparison(
    evaluations=(
      "base",
      "warm_start",
      "trained",
      "no_summary",
      "do_nothing",
      "enumeration_16",
      "reader",
      "expert",
      "enumeration",
    ),
    rivals=("enumeration", "reader"),
    columns=("reward", "solve_rate", "summaries", "invalid_tool_calls", "edits", "turns"),
    gains=("reward_gain", "solved_gain", "no_summary_solved_gain", "enumeration_solved_gain"),
    held_out=("reward", "solve_rate", "turns"),
    curves=(
      ("reward", "reward"),
      ("solved", "solved"),
      ("edits", "edits"),
      ("turns", "turns"),
      ("summaries", "summaries"),
      ("broken_calls", "broken calls"),
    ),
  ),
)
