"""A swarm's episode and run written down by hand: three stages, three assignments, one refused."""

import dataclasses

from jaxrl_agents.types import Message, Task, ToolCall, Trajectory
from jaxrl_agents.viewer import inputs

COLUMNS = ["name", "near"]


def row(name, near, chunk_id):
  return {"cells": {"name": name, "near": near}, "source": chunk_id, "chunk_ids": [chunk_id]}


TASK = Task(
  "t",
  "swarm",
  "Fill the table.",
  {
    "kind": "wide def",
    "max_steps": 12,
    "columns": COLUMNS,
    "keys": ["name"],
    "short_ids": {"1_0": "7", "2_0": "8", "3_0": "9", "4_0": "5"},
    "rows": [
      row("one", "stone", "1_0"),
      row("two", "river", "2_0"),
      row("three", "sand", "3_0"),
      row("four", "wood", "4_0"),
    ],
    "facts": [],
  },
)


def create(call_id, name):
  return ToolCall(call_id, "create_subagent", {"name": name, "system_prompt": "Look up."})


def assign(call_id, prompt, agent="a"):
  return ToolCall(call_id, "assign_task", {"agent": agent, "prompt": prompt})


def shown(*names):
  return "".join(f"\n# DOCUMENT ID: {name} (3 tokens) \ntext of {name}" for name in names)


def child(stage, call, steps, status="finished", *, names=(), error=""):
  searches = [
    (
      Message("assistant", "", (ToolCall(f"{i}.0", "search_corpus", {"query": "q"}),)),
      Message("tool", shown(*names), tool_call_id=f"{i}.0"),
    )
    for i in range(steps - 1)
  ]
  said = [Message("assistant", "| one |stone|")] if steps else []
  asked = (Message("system", "Look up."), Message("user", "one"))
  metrics = {"stage": float(stage), "call": float(call), "steps": float(steps), "wall_s": 0.5}
  log = (*asked, *(message for pair in searches for message in pair), *said)
  return Trajectory(f"t/{stage}.{call}", (), log, {}, status, metrics, error=error)


ANSWER = "| name | near |\n|One| stone|\n|two|lake|\n|six|x|"
LOG = (
  Message("user", "Fill the table.\n[Steps left: 12]"),
  Message(
    "assistant",
    "",
    (create("0.0", "a"), assign("0.1", "one"), assign("0.2", "x", "nobody"), assign("0.3", "two")),
  ),
  Message("tool", "Created", tool_call_id="0.0"),
  Message("tool", "| one |stone|", tool_call_id="0.1"),
  Message("tool", "Error: there is no sub-agent 'nobody'.", tool_call_id="0.2"),
  Message("tool", "[status: step_limit]\n[Steps left: 6]", tool_call_id="0.3"),
  Message("assistant", "", (assign("1.0", "three"), assign("1.1", "again"))),
  Message("tool", "| three |sand|", tool_call_id="1.0"),
  Message("tool", "[status: error]\n[Steps left: 3]", tool_call_id="1.1"),
  Message("assistant", ANSWER),
)
CHILDREN = (
  child(0, 1, 3, names=("7",)),
  child(0, 3, 5, "step_limit", names=("8",)),
  child(1, 0, 2, names=("9", "33")),
  child(1, 1, 0, "error", error="RuntimeError: gone"),
)
PARTS = {"performance": 0.5, "completed": 1.0, "width": 2.0, "finish_rate": 0.5}
EPISODE = Trajectory("t", (), LOG, PARTS, "answer", {"reward": 0.5}, children=CHILDREN)


def changed(**fields):
  return dataclasses.replace(EPISODE, **fields)


CONFIG = {
  "agent": "swarm",
  "learner.steps": 10,
  "swarm.parl.parallel": 0.2,
  "swarm.parl.finish": 0.1,
  "swarm.parl.anneal_end": 0.6,
}


def run(rows=(), **summary):
  return inputs.Run("w", tuple(rows), {"config": CONFIG, **summary}, ())
