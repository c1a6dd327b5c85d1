"""What the page says of an evaluation in each environment: columns, names of metrics, baselines."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from jaxrl_agents.viewer.formats import flatten, mapping, number


@dataclasses.dataclass(frozen=True)
class Story:
  """How the page speaks of the runs of one environment.

  Attributes:
    noun: what is trained for, in the sentence.
    score: the metric that it is.
    gain: what its gain is told as.
    baseline: (evaluation, words) that the trained policy is measured against in the sentence.
    columns: (evaluation, title) of the table, the warm start and the trained policy first.
    titles: {metric: title} in the order of the rows.
    of_sub_agents: metrics that mean nothing where "width" is 0.
    closed: metrics without a title are left out of the table.
    costs: metrics of which less is better: the upper bound of their gain is told.
    kinds: (kind, title) of tasks that have rows of their own.
    kind_metrics: the metrics of those rows.
    bound: heads the bounds of the gains.
    fine: what a reader of the table must know.
  """

  noun: str
  score: str
  baseline: tuple[str, str]
  columns: tuple[tuple[str, str], ...]
  titles: Mapping[str, str]
  of_sub_agents: tuple[str, ...] = ()
  closed: bool = False
  costs: tuple[str, ...] = ()
  gain: str = "reward"
  kinds: tuple[tuple[str, str], ...] = ()
  kind_metrics: tuple[str, ...] = ()
  bound: str = "lower 95 %"
  fine: str = ""


SEARCH = Story(
  noun="reward",
  score="reward",
  baseline=("one_shot_hybrid", "one-shot hybrid search"),
  columns=(
    ("warm_start", "Warm start"),
    ("trained", "Trained"),
    ("one_shot_hybrid", "One-shot hybrid"),
  ),
  titles={
    "reward": "Reward",
    "output_recall": "Output recall",
    "trajectory_recall": "Trajectory recall",
    "output_precision": "Output precision",
    "f1": "F1 of the output",
    "answer_found": "Answer found",
    "prune_accuracy": "Pruning accuracy",
    "turns": "Turns",
    "precision": "Precision of the output",
    "num_output": "Chunks listed",
    "tool_calls": "Tool calls",
    "completed": "Episodes that answered",
  },
  fine=(
    "Gain is trained minus warm start on the same tasks; its lower bound is from a paired "
    "bootstrap over tasks. One-shot hybrid is a single BM25 + dense search with the whole "
    "question, cut to as many chunks as the policy returned."
  ),
)

SWARM = Story(
  noun="performance",
  score="performance",
  baseline=("single_agent", "a single agent within the same critical steps"),
  columns=(
    ("warm_start", "Warm start"),
    ("trained", "Trained swarm"),
    ("single_agent", "Single agent"),
    ("single_agent_unhurried", "Single, unhurried"),
  ),
  titles={
    "performance": "Performance",
    "item_f1": "Item F1",
    "row_f1": "Row F1",
    "success": "Exactly right",
    "critical_steps": "Critical steps",
    "total_steps": "Total steps",
    "parallelism": "Parallelism",
    "width": "Sub-agents at once",
    "assigned": "Assignments",
    "finish_rate": "Finish rate",
    "serial_rate": "Serial rate",
    "turns": "Turns",
    "completed": "Answered",
    "wall_s": "Seconds an episode",
  },
  of_sub_agents=("parallelism", "finish_rate"),
  closed=True,
  costs=("critical_steps", "total_steps", "turns", "wall_s", "serial_rate"),
  kinds=(("wide", "Wide"), ("deep", "Deep"), ("narrow", "Narrow")),
  kind_metrics=(
    "performance",
    "critical_steps",
    "parallelism",
    "width",
    "finish_rate",
    "serial_rate",
  ),
  bound="95 % bound",
  fine=(
    "Performance is the item F1 of a table, and 1 or 0 for the answer to a question. Gain is "
    "trained minus warm start on the same tasks; bounds are from a paired bootstrap over tasks."
    " Critical steps: of each stage 1, and the steps of its longest assignment. Parallelism is "
    "the steps of sub-agents over those of the longest of each stage, where there are any; "
    "finish rate, the share of assignments that ended with a message; serial rate, of episodes "
    "without two sub-agents at once. The single agent has the trained weights and no sub-"
    "agents: within the same budget of critical steps, and, unhurried, with as many as looking "
    "everything up alone takes."
  ),
)

CODING = Story(
  noun="solve rate",
  score="solve_rate",
  gain="solved",
  baseline=("no_summary", "the same policy without summaries"),
  columns=(("warm_start", "Warm start"), ("trained", "Trained"), ("no_summary", "No summaries")),
  titles={
    "solve_rate": "Solved",
    "reward": "Reward",
    "mended": "Failing tests mended",
    "kept": "Passing tests kept",
    "completed": "Episodes that ended by themselves",
    "turns": "Turns",
    "tool_calls": "Tool calls",
    "edits": "Edits",
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
    "ends where its context is full."
  ),
)

STORIES: Mapping[str, Story] = {"search": SEARCH, "swarm": SWARM, "coding": CODING}


def of(summary: Mapping[str, Any]) -> Story:
  """That of the run's environment; of the search, where its config names none."""
  return STORIES[env(summary)]


def env(summary: Mapping[str, Any]) -> str:
  """The run's environment, "search" where its config does not tell one of `STORIES`."""
  named = dict(flatten(mapping(summary.get("config")))).get("env", "")
  return named if named in STORIES else "search"


def steps_saved(summary: Mapping[str, Any]) -> str:
  """What a single agent with enough steps takes, as a sentence; "" where it was not evaluated."""
  ratio = number(summary.get("critical_steps_ratio"))
  if ratio is None:
    return ""
  saved = "" if ratio > 1 else ": none are saved"
  alone, swarm = (
    _long_tasks(mapping(mapping(summary.get("eval")).get(name)))
    for name in ("single_agent_unhurried", "trained")
  )
  kinds, reached = "wide and deep", ""
  if alone and swarm:
    kinds = " and ".join(swarm)
    reached = f" and reaches {_mean(alone):.2f}, the swarm {_mean(swarm):.2f}"
  return (
    f"On {kinds} tasks a single agent that has enough steps takes "
    f"{ratio:.1f}\u00a0times as many critical steps{saved}{reached}."
  )


def _long_tasks(evaluation: Mapping[str, Any]) -> dict[str, tuple[float, float]]:
  """(performance, tasks) of wide and deep tasks, of those that were evaluated."""
  by_kind = mapping(evaluation.get("by_kind"))
  found = {}
  for kind in ("wide", "deep"):
    entry = mapping(by_kind.get(kind))
    performance, tasks = number(entry.get("performance")), number(entry.get("tasks"))
    if performance is not None and tasks:
      found[kind] = (performance, tasks)
  return found


def _mean(entries: Mapping[str, tuple[float, float]]) -> float:
  return sum(p * n for p, n in entries.values()) / sum(n for _, n in entries.values())
