"""What the report says of the search agent."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from jaxrl_agents.agents.story import Comparison, Panel, Story, hasty_note


def limits(options: Mapping[str, Any], section: str = "search") -> dict[str, int]:
  """Tokens of context: soft, hard and budget; {} where the section lacks them.

  Above hard = soft + int(spillage_fraction * (budget - soft)) the policy can only prune or answer.
  """
  try:
    soft = int(options[f"{section}.threshold_tokens"])
    budget = int(options[f"{section}.token_budget"])
    spillage = float(options[f"{section}.spillage_fraction"])
  except (KeyError, ValueError):
    return {}
  return {"soft": soft, "hard": soft + int(spillage * (budget - soft)), "budget": budget}


PANELS = (
  Panel(
    "Retrieval",
    "mean over tasks",
    ("output_recall", "trajectory_recall", "precision", "f1", "answer_found"),
    low=0.0,
    high=1.0,
  ),
  Panel("Pruning accuracy", "share of pruned chunks not gold", ("prune_accuracy",), high=1.0),
  Panel(
    "Penalties",
    "subtracted from the reward",
    ("prune_penalty", "repeat_penalty", "turn_penalty"),
    low=0.0,
  ),
)

STORY = Story(
  noun="reward",
  score="reward",
  baselines={
    "heuristic": "a script that searches for each clue",
    "hops": "a script that also follows names",
  },
  columns=(
    ("warm_start", "Warm start"),
    ("trained", "Trained"),
    ("heuristic", "Script without gold"),
    ("hops", "… that follows names"),
    ("expert", "Script with gold"),
  ),
  titles={
    "reward": "Reward",
    "output_recall": "Output recall",
    "trajectory_recall": "Trajectory recall",
    "f1": "F1 of the output",
    "answer_found": "Answer found",
    "prune_accuracy": "Pruning accuracy",
    "turns": "Turns",
    "precision": "Precision of the output",
    "repeated_output": "Marks that repeat a document",
    "num_output": "Chunks listed",
    "tool_calls": "Tool calls",
    "verbatim_queries": "Queries that quote the question",
    "completed": "Episodes that answered",
  },
  fine=(
    "Gain is trained minus warm start on the same tasks; its lower bound is from a paired "
    "bootstrap over tasks. The script without gold searches for each clue of the question and "
    "lists the first hits; the one beside it also searches with names that stand in the hits. The "
    'script with gold knows which chunks to list, once a search has shown them. "Warm start all '
    'shown" is what the warm start would earn if each answer listed all that its searches showed.'
  ),
  limits=limits,
  addition=hasty_note("search"),
  panels=PANELS,
  compared=Comparison(
    evaluations=(
      "base",
      "warm_start",
      "warm_start_all_shown",
      "trained",
      "expert",
      "guesser",
      "one_search",
      "heuristic",
      "hops",
    ),
    columns=("reward", "output_recall", "trajectory_recall", "precision", "completed", "turns"),
    rivals=("heuristic", "hops"),
    gains=("reward_gain", "output_recall_gain", "trained_minus_heuristic"),
    held_out=("reward", "output_recall", "trajectory_recall"),
    curves=(
      ("reward", "reward"),
      ("output_recall", "output recall"),
      ("trajectory_recall", "trajectory recall"),
      ("turns", "turns"),
      ("tool_calls", "tool calls"),
      ("completed", "completed"),
    ),
  ),
)
