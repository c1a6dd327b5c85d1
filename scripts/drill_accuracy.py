"""How well a policy does held-out drills of its agent, judged in a minute or two.

    python scripts/drill_accuracy.py --config=configs/search_base_cpu.py --checkpoint=W
    python scripts/drill_accuracy.py --config=configs/swarm_tables_cpu.py
    python scripts/drill_accuracy.py --config=configs/coding_base_cpu.py

Of each kind of trained turn the share whose whole reply is right, each token given those before it.
Of hops, with made-up names and with names as they stand, also the share whose name begins with the
right token. Of rows of tables also the share of numbers, names, sources and values whose tokens are
all right, and of replies that end where they should. Of repairs of code also the share whose first
edit names the right place, by its first token and whole, and whose replacement is right after that.
A drill of several turns counts once for each.
"""

from __future__ import annotations

import collections
import json
import re
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, cast

import numpy as np
from absl import flags

from jaxrl_agents.agents.agent import Setting
from jaxrl_agents.agents.coding import drills as coding_drills
from jaxrl_agents.agents.coding.tasks import damaged_functions, make_tasks
from jaxrl_agents.agents.search import hop_drills, step_drills, tools
from jaxrl_agents.agents.search import view as search_view
from jaxrl_agents.agents.search.corpus_tasks import CorpusTasks
from jaxrl_agents.agents.swarm import table_drills, tables, view
from jaxrl_agents.agents.swarm.config import SwarmConfig
from jaxrl_agents.config import RunConfig
from jaxrl_agents.corpus import documents
from jaxrl_agents.runs import (
  agent_setting,
  config_flags,
  entry_point,
  evaluation,
  predictions,
  setup,
)
from jaxrl_agents.types import Split

HEADER = re.compile(r"\| name \|(?:[\w ]+\|)+")
"""The header of a table in a prompt."""
FIRST_EDIT = re.compile(
  r'(?:"old": "((?:[^"\\]|\\.)*)"|"first": (\d+(?:, "last": \d+)?)), "new": "((?:[^"\\]|\\.)*)"}'
)
"""The old text or the numbers of the lines of the first edit in a reply, and the new text."""
ROWS = 8
"""Drills that are scored at once."""

_config = config_flags.define()
_CHECKPOINT = flags.DEFINE_string(
  "checkpoint", "", "a workdir, a folder of weights, or a shipped policy; by default policy.init"
)
_SPLIT = flags.DEFINE_enum("split", "dev", ["train", "dev", "test"], "whose tasks")
_DRILLS = flags.DEFINE_integer("drills", 400, "how many are made", lower_bound=1)


class Drill(NamedTuple):
  """A reply within its context.

  Attributes:
    tokens: of context and reply, int32 [T].
    start: of the reply, which ends before `stop`.
    parts: (what it is, indices in the reply of its tokens) of parts that are counted by themselves.
  """

  tokens: np.ndarray
  start: int
  stop: int
  kind: str
  parts: Sequence[tuple[str, Sequence[int]]] = ()


def main() -> None:
  """Makes the drills, scores them, prints the shares."""
  config = _config()
  setup.compilation_cache(config)
  with setup.devices(config):
    drills = held_out(config)
    params = setup.loaded(
      config, str(evaluation.newest_policy(_CHECKPOINT.value or config.policy.init))
    )
    print(json.dumps(accuracy(config, params, drills), indent=2))


def held_out(config: RunConfig) -> list[Drill]:
  """Drills of the tasks of a split, in order of their lengths.

  Raises:
    ValueError: there are no such drills for the agent or its options.
  """
  setting = agent_setting.setting(config)
  tasks: Any = None if config.agent == "coding" else agent_setting.open_tasks(config)
  if config.agent == "search":
    made = of_searches(config, tasks, setting)
  elif isinstance(config.agent_config, SwarmConfig) and config.agent_config.tables.max_rows:
    made = of_tables(config, tasks, setting)
  elif config.agent == "coding":
    made = of_repairs(config, setting)
  else:
    raise ValueError(
      f"{config.name} has no drills to be scored; take a config of the search agent, of the coding "
      "agent, or of a swarm with tables.max_rows, as configs/search_cpu.py, "
      "configs/coding_counted_cpu.py or configs/swarm_tables_cpu.py"
    )
  return sorted(made, key=lambda drill: drill.stop)


def of_searches(config: RunConfig, tasks: CorpusTasks, setting: Setting) -> list[Drill]:
  """Drills of the search agent, half of them of hops."""
  fusion = tools.fusion_of(config.agent_config)
  search = lambda query: [h.chunk for h in tasks.index.search(query, limit=4, settings=fusion)]
  text = lambda chunk_id: tasks.index.chunk(chunk_id).text
  given = (tasks.tasks[_SPLIT.value], text, search, setting.chat)
  shared: dict[str, Any] = {"count": -(-_DRILLS.value // 2), "seed": config.seed + 1}
  made = []
  generous = config.agent_config.generous
  for each in hop_drills.hop_drills(*given, generous=generous, **shared):
    tokens, kind = np.concatenate([each.prompt, each.reply]), "hop"
    kind += ", made-up names" if each.renamed else ""
    name = [("first_token", [each.name_at])]
    made.append(Drill(tokens, len(each.prompt), len(tokens), kind, name))
  for tokens, trained in step_drills.step_drills(*given, config.agent_config, **shared):
    edges = np.flatnonzero(np.diff(trained, prepend=False, append=False)).tolist()
    for start, stop in zip(edges[::2], edges[1::2], strict=True):
      calls = setting.chat.parse(tokens[start:stop]).tool_calls
      kind = "answer" if not calls else "prune and search" if len(calls) > 1 else "search"
      made.append(Drill(tokens[:stop], start, stop, kind))
  return made


def of_tables(config: RunConfig, tasks: CorpusTasks, setting: Setting) -> list[Drill]:
  """Drills of a swarm that fills in tables."""
  text = lambda chunk_id: tasks.index.chunk(chunk_id).text
  shared: dict[str, Any] = {"limits": config.agent_config, "count": _DRILLS.value}
  pairs = table_drills.role_drills(
    tasks.tasks[_SPLIT.value], text, setting.chat, seed=config.seed + 1, **shared
  )
  made = []
  for prompt, reply in pairs:
    tokens, asked = np.concatenate([prompt, reply]), setting.chat.decode(prompt)
    written = [setting.chat.decode([token]) for token in reply.tolist()]
    calls = setting.chat.parse(reply).tool_calls
    columns = [cell.strip() for cell in HEADER.findall(asked)[0].strip("|").split("|")]
    if calls:
      kind = "assignments" if calls[0].name == view.CREATE.name else "searches"
    elif "<|system|>" in asked:
      kind = "rows of a sub-agent"
    elif "names share" in asked:
      kind = "answer to a question"
    else:
      kind = "table, looked up alone" if search_view.MARK in asked else "table, from messages"
    parts = [] if calls else cells(written, columns)
    made.append(Drill(tokens, len(prompt), len(tokens), kind, parts))
  return made


def of_repairs(config: RunConfig, setting: Setting) -> list[Drill]:
  """Drills of the coding agent that repair damage of modules of the split."""
  options = config.agent_config
  code = (d for s in options.drill_sources or options.sources for d in documents.load(s))
  functions = damaged_functions.short_functions(
    code,
    split=cast(Split, _SPLIT.value),
    flips=options.damage in ("flip", "mixed"),
    lines=options.damage == "mixed",
  )
  damaged = damaged_functions.damaged(
    functions,
    count=_DRILLS.value,
    max_characters=options.max_file_characters,
    named=options.max_files > 1,
    seed=config.seed + 1,
  )
  made = []
  for seed, fault in enumerate(damaged):
    (edit, *others) = fault.edits
    of_lines = "\n" in edit["broken"] + edit["fixed"]
    kind = "two faults" if others else "whole lines" if of_lines else "within a line"
    given = ([fault], make_tasks.FAULTS, options, setting.chat)
    for prompt, reply in coding_drills.repair_drills(*given, seed=seed):
      tokens = np.concatenate([prompt, reply])
      written = [setting.chat.decode([token]) for token in reply.tolist()]
      made.append(Drill(tokens, len(prompt), len(tokens), kind, places(written)))
  return made


def places(written: Sequence[str]) -> list[tuple[str, list[int]]]:
  """(what, indices of its tokens) of the first edit in a reply, given the text of each token."""
  starts = np.cumsum([0, *map(len, written)])
  found = FIRST_EDIT.search("".join(written))
  if found is None:
    raise ValueError(f"the reply {''.join(written)!r} has no edit")

  def inside(group: int) -> list[int]:
    low, high = found.span(group)
    return [i for i in range(len(written)) if starts[i] < high and starts[i + 1] > low]

  place = inside(1) or inside(2)
  return [("first_token", place[:1]), ("place", place), ("replacement", inside(3))]


def cells(written: Sequence[str], columns: Sequence[str]) -> list[tuple[str, list[int]]]:
  """(number, name, source, value or end, indices of its tokens) of a reply with rows of a table.

  Args:
    written: the text of each token; the last one ends the reply.
    columns: of the table.
  """
  starts = np.cumsum([0, *map(len, written)])
  found = []
  for place, first, last in tables.cell_spans("".join(written[:-1])):
    column = columns[place] if place >= 0 else "number"
    what = column if column in ("number", "name", "source") else "value"
    inside = [i for i in range(len(written)) if starts[i] < last and starts[i + 1] > first]
    found.append((what, inside))
  return [*found, ("end", [len(written) - 1])]


def accuracy(
  config: RunConfig, params: dict[str, Any], drills: Sequence[Drill]
) -> dict[str, dict[str, float]]:
  """{kind: {"turns": number, "whole_reply": share, and of each kind of parts the share}}."""
  likeliest = predictions.likeliest(config.policy.model, params)
  found: dict[str, dict[str, list[bool]]] = {}
  for start in range(0, len(drills), ROWS):
    batch = drills[start : start + ROWS]
    for predicted, drill in zip(likeliest([d.tokens for d in batch]), batch, strict=True):
      right = (predicted == drill.tokens)[drill.start :]
      of_kind = found.setdefault(drill.kind, collections.defaultdict(list))
      for what, inside in (("whole_reply", range(len(right))), *drill.parts):
        of_kind[what].append(bool(right[list(inside)].all()))
  return {kind: _shares(of_kind) for kind, of_kind in sorted(found.items())}


def _shares(found: Mapping[str, Sequence[bool]]) -> dict[str, float]:
  shares = {what: float(np.mean(right)) for what, right in found.items()}
  return {"turns": len(found["whole_reply"]), **shares}


if __name__ == "__main__":
  entry_point.run(main)
