"""The agent swarm's part of the report."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from jaxrl_agents.agents.formats import mapping, number, signed
from jaxrl_agents.agents.search import story as search_story
from jaxrl_agents.agents.story import Comparison, Panel, Story
from jaxrl_agents.agents.swarm import parl


def steps_saved(summary: Mapping[str, Any]) -> str:
  """A sentence on the steps of a single agent without limits; "" if it was not evaluated."""
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
  """(performance, tasks) of the evaluated wide and deep tasks."""
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


def facts(summary: Mapping[str, Any]) -> list[tuple[str, str | None]]:
  """Comparison of the swarm with a single agent."""
  bootstrap = mapping(summary.get("paired_bootstrap"))
  gain = number(bootstrap.get("single_agent_performance_gain"))
  lower = number(bootstrap.get("single_agent_performance_gain_lower95"))
  over = None if gain is None or lower is None else f"{signed(gain)} (≥ {signed(lower)})"
  ratio = number(summary.get("critical_steps_ratio"))
  times = None if ratio is None else f"{ratio:.1f} ×"
  return [("over a single agent", over), ("critical steps, single agent to swarm", times)]


_PARALLEL, _FINISH = "parl/λ1, at once", "parl/λ2, finishing"


def annealed(options: Mapping[str, Any], steps: Sequence[int]) -> dict[str, list[float | None]]:
  """The weights of PARL's auxiliary rewards at each step."""
  total, end = max(int(options["learner.steps"]), 1), float(options["swarm.parl.anneal_end"])
  weights = {
    _PARALLEL: float(options["swarm.parl.parallel"]),
    _FINISH: float(options["swarm.parl.finish"]),
  }
  return {
    key: [float(f"{parl.annealed(weight, step / total, end):.6g}") for step in steps]
    for key, weight in weights.items()
  }


PANELS = (
  Panel(
    "Performance", "mean over tasks", ("performance", "item_f1", "row_f1", "success"), 0.0, 1.0
  ),
  Panel("Parallelism", "sub-agents' steps / the longest of each stage", ("parallelism",)),
  Panel("Width", "most sub-agents at once", ("width",), low=0.0),
  Panel("Steps", "per episode", ("critical_steps", "total_steps"), low=0.0),
  Panel("Serial and finishing", "shares", ("serial_rate", "finish_rate"), low=0.0, high=1.0),
  Panel("Spawned", "per episode", ("assigned", "finished", "refused", "agents"), low=0.0),
  Panel(
    "Sub-agents that did not finish",
    "per episode",
    ("sub_step_limit", "sub_token_limit", "sub_empty", "sub_error"),
    low=0.0,
  ),
  Panel("Weights of PARL", "annealed to 0", (_PARALLEL, _FINISH), low=0.0),
)

STORY = Story(
  noun="performance",
  score="performance",
  baselines={"single_agent": "a single agent within the same critical steps"},
  columns=(
    ("warm_start", "Warm start"),
    ("trained", "Trained swarm"),
    ("single_agent", "Single agent"),
    ("single_agent_unhurried", "Single, unhurried"),
    ("expert", "Ideal script"),
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
  addition=steps_saved,
  facts=facts,
  computed=annealed,
  limits=lambda options: search_story.limits(options, "swarm.search"),
  panels=PANELS,
  compared=Comparison(
    evaluations=(
      "base",
      "warm_start",
      "trained",
      "expert",
      "always_splits",
      "never_splits",
      "guesser",
      "single_agent_unhurried",
      "single_agent",
    ),
    columns=(
      "reward",
      "by_kind.wide.item_f1",
      "by_kind.wide.critical_steps",
      "by_kind.deep.success",
      "by_kind.narrow.item_f1",
      "by_kind.narrow.serial_rate",
      "parallelism",
      "finish_rate",
    ),
    gains=("reward_gain", "single_agent_performance_gain"),
    held_out=("reward", "by_kind.wide.item_f1", "by_kind.narrow.serial_rate"),
    curves=(
      ("reward", "reward"),
      ("performance", "performance"),
      ("critical_steps", "critical steps"),
      ("serial_rate", "serial rate"),
      ("width", "assignments at once"),
      ("finish_rate", "finish rate"),
    ),
    sizes=(
      ("item_f1", "item F1"),
      ("serial_rate", "serial share"),
      ("critical_steps", "critical steps"),
    ),
    sized=("warm_start", "trained", "single_agent", "single_agent_unhurried", "never_splits"),
  ),
)
