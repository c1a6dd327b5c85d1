"""A swarm's episode on a time axis of model turns: stages, lanes of sub-agents, critical path.

A stage is a turn of the orchestrator and the assignments that ran after it at once. The next stage
begins when the longest of them has ended. Everything is read from the trajectory: a turn is a reply
in the log, and a child's metrics hold its stage, its call and its steps.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from jaxrl_agents.agents.search import reward
from jaxrl_agents.agents.swarm import parl, tables
from jaxrl_agents.agents.swarm.parl import Assigned, Stage
from jaxrl_agents.types import Message, Task, Trajectory

Json = dict[str, Any]

_STEPS_LEFT = re.compile(r"\[Steps left: (\d+)")


def describe(trajectory: Trajectory, task: Task) -> Json:
  """The episode of an orchestrator.

  Returns:
    kind: of the task.
    budget: its critical steps, None if the first message does not state them.
    critical_steps, total_steps, width; parallelism, None without sub-agents.
    stages: {"start", "steps"}: from the orchestrator's turn to the end of the longest assignment.
    lanes: for each child, in order: {"stage", "call", "agent", "prompt", "start", "steps",
      "status", "fault", "critical", "wall_s"}; `start` is that of its first turn, and `critical`
      marks the first of the longest of a stage.
    rows: the expected rows of the table, see `rows`.
  """
  turns = [message for message in trajectory.log if message.role == "assistant"]
  by_stage: list[list[int]] = [[] for _ in turns]
  for i, child in enumerate(trajectory.children):
    by_stage[int(child.metrics["stage"])].append(i)
  steps = [int(child.metrics["steps"]) for child in trajectory.children]
  lanes: dict[int, Json] = {}
  stages, ran, start = [], [], 0
  for turn, members in zip(turns, by_stage, strict=True):
    longest = max(members, key=steps.__getitem__, default=None)
    for i in members:
      child = trajectory.children[i]
      lanes[i] = _lane(child, turn, start + 1) | {"critical": i == longest and steps[i] > 0}
    made = Stage(tuple(_assigned(trajectory.children[i]) for i in members))
    stages.append({"start": start, "steps": made.critical_steps})
    ran.append(made)
    start += made.critical_steps
  parts = parl.swarm_parts(ran)
  return {
    "kind": str(task.facts.get("kind", "")),
    "budget": _budget(trajectory),
    "critical_steps": start,
    "total_steps": int(parts["total_steps"]),
    "width": int(parts["width"]),
    "parallelism": parts.get("parallelism"),
    "stages": stages,
    "lanes": [lanes[i] for i in range(len(steps))],
    "rows": rows(trajectory, task),
  }


def rows(trajectory: Trajectory, task: Task) -> list[Json]:
  """The rows of the gold table compared with the answer.

  Returns:
    For each {"cells": {column: gold}, "found": {column: cell of the answer} or None if the answer
    lacks the row, "right": the columns whose cells are right, "seen": whether all its chunks were
    shown to any agent}. A question is answered with a name alone: "found" is None.
  """
  names = task.facts.get("short_ids", {})
  everybody = (trajectory, *trajectory.children)
  shown = {
    chunk_id
    for each in everybody
    for message in each.log
    if message.role == "tool"
    for chunk_id in reward.hit_ids(message.content)
  }
  answer = reward.final_answer(trajectory.log, trajectory.stop)
  columns, keys = task.facts.get("columns", ()), task.facts.get("keys", ())
  answered = {} if "truth" in task.facts else _answered(answer, columns, keys)
  told = []
  for row in task.facts.get("rows", ()):
    cells = {c: row["cells"].get(c, "") for c in columns}
    if "source" in cells:
      cells["source"] = names.get(row["source"], row["source"])
    found = answered.get(_key(cells, keys))
    chunks = {names.get(chunk_id, chunk_id) for chunk_id in row["chunk_ids"]}
    told.append(
      {
        "cells": cells,
        "found": found,
        "right": [c for c in columns if found and _same(found[c], cells[c])],
        "seen": chunks <= shown,
      }
    )
  return told


def _answered(
  answer: str, columns: Sequence[str], keys: Sequence[str]
) -> dict[tuple[str, ...], dict[str, str]]:
  """The rows of the answer's table by their keys, first of each; none if columns are wrong."""
  names, found = tables.parse(answer)
  if set(names) != {tables.normal(column) for column in columns}:
    return {}
  by_key: dict[tuple[str, ...], dict[str, str]] = {}
  for row in found:
    cells = {column: row[tables.normal(column)] for column in columns}
    by_key.setdefault(_key(cells, keys), cells)
  return by_key


def _key(cells: Mapping[str, str], keys: Sequence[str]) -> tuple[str, ...]:
  return tuple(tables.normal(cells[key]) for key in keys)


def _same(found: str, gold: str) -> bool:
  return tables.normal(found) == tables.normal(gold)


def _lane(child: Trajectory, turn: Message, start: int) -> Json:
  call = int(child.metrics["call"])
  asked = turn.tool_calls[call].arguments
  return {
    "stage": int(child.metrics["stage"]),
    "call": call,
    "agent": str(asked["agent"]),
    "prompt": str(asked["prompt"]),
    "start": start,
    "steps": int(child.metrics["steps"]),
    "status": child.stop or "error",
    "fault": bool(child.error),
    "wall_s": child.metrics.get("wall_s"),
  }


def _assigned(child: Trajectory) -> Assigned:
  return Assigned(child.stop, int(child.metrics["steps"]), fault=bool(child.error))


def _budget(trajectory: Trajectory) -> int | None:
  """The step budget at the end of the question."""
  for message in trajectory.log:
    if message.role == "user":
      found = _STEPS_LEFT.findall(message.content)
      return int(found[-1]) if found else None
  return None
