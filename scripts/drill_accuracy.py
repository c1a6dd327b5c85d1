"""How well a policy does held-out drills of hops and of next steps: a base judged in a minute.

    python scripts/drill_accuracy.py --config=configs/search_base_cpu.py --checkpoint=W

Of each kind of trained turn the share whose whole reply is right, each token given those before it;
of hops, with made-up names and with names as they stand, also the share whose name begins with the
right token. A drill of several turns counts once for each.
"""

from __future__ import annotations

import collections
import json
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from absl import flags

from jaxrl_agents.agents.search import hop_drills, step_drills, tools
from jaxrl_agents.config import RunConfig
from jaxrl_agents.policy import transformer
from jaxrl_agents.policy.attention import layer
from jaxrl_agents.runs import config_flags, entry_point, evaluation, setup

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
    name_at: index in the reply of the first token of a name.
  """

  tokens: np.ndarray
  start: int
  stop: int
  kind: str
  name_at: int | None = None


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
  """Drills of the tasks of a split, half of them of hops."""
  tasks, setting = setup.open_tasks(config), setup.setting(config)
  fusion = tools.fusion_of(config.agent_config)
  search = lambda query: [h.chunk for h in tasks.index.search(query, limit=4, settings=fusion)]
  text = lambda chunk_id: tasks.index.chunk(chunk_id).text
  given = (tasks.tasks[_SPLIT.value], text, search, setting.chat)
  shared: dict[str, Any] = {"count": -(-_DRILLS.value // 2), "seed": config.seed + 1}
  made = []
  for each in hop_drills.hop_drills(*given, **shared):
    tokens, kind = np.concatenate([each.prompt, each.reply]), "hop"
    kind += ", made-up names" if each.renamed else ""
    made.append(Drill(tokens, len(each.prompt), len(tokens), kind, each.name_at))
  for tokens, trained in step_drills.step_drills(*given, config.agent_config, **shared):
    edges = np.flatnonzero(np.diff(trained, prepend=False, append=False)).tolist()
    for start, stop in zip(edges[::2], edges[1::2], strict=True):
      calls = setting.chat.parse(tokens[start:stop]).tool_calls
      kind = "answer" if not calls else "prune and search" if len(calls) > 1 else "search"
      made.append(Drill(tokens[:stop], start, stop, kind))
  return sorted(made, key=lambda drill: drill.stop)


def accuracy(
  config: RunConfig, params: dict[str, Any], drills: Sequence[Drill]
) -> dict[str, dict[str, float]]:
  """{kind: {"turns": number, "whole_reply": share, and of hops "first_token": share}}."""
  cfg = config.policy.model

  @jax.jit
  def best(tokens: jax.Array) -> jax.Array:
    hidden = transformer.forward(params, tokens, cfg, rows=layer.one_sequence(tokens)).hidden
    return jnp.argmax(transformer.logits(params, hidden, cfg), axis=-1)

  whole: dict[str, list[bool]] = collections.defaultdict(list)
  first: dict[str, list[bool]] = collections.defaultdict(list)
  for start in range(0, len(drills), ROWS):
    batch = drills[start : start + ROWS]
    longest = max(drill.stop for drill in batch)
    tokens = np.zeros((ROWS, -(-longest // 64) * 64), np.int32)  # few lengths, few programs
    for row, drill in zip(tokens, batch, strict=False):
      row[: drill.stop] = drill.tokens
    for row, drill in zip(np.asarray(best(tokens)), batch, strict=False):
      right = row[drill.start - 1 : drill.stop - 1] == drill.tokens[drill.start :]
      whole[drill.kind].append(bool(right.all()))
      if drill.name_at is not None:
        first[drill.kind].append(bool(right[drill.name_at]))
  return {
    kind: {"turns": len(each), "whole_reply": float(np.mean(each))}
    | ({"first_token": float(np.mean(first[kind]))} if kind in first else {})
    for kind, each in sorted(whole.items())
  }


if __name__ == "__main__":
  entry_point.run(main)
