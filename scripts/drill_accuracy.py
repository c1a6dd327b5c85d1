"""How often a policy quotes the right name in held-out drills of hops: a base judged in a minute.

    python scripts/drill_accuracy.py --config=configs/base_cpu.py --checkpoint=W

Of drills with made-up names and of those with names as they stand: the share whose name begins with
the right token, and the share whose whole reply is right, each token given those before it.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from absl import flags

from jaxrl_agents.agents.search import hop_drills, tools
from jaxrl_agents.config import RunConfig
from jaxrl_agents.policy import transformer
from jaxrl_agents.policy.attention import layer
from jaxrl_agents.runs import config_flags, entry_point, evaluation, setup

ROWS = 8
"""Drills that are scored at once."""

_config = config_flags.define()
_CHECKPOINT = flags.DEFINE_string(
  "checkpoint", "base", "a workdir, a folder of exported weights, or 'base'"
)
_SPLIT = flags.DEFINE_enum("split", "dev", ["train", "dev", "test"], "whose tasks")
_DRILLS = flags.DEFINE_integer("drills", 400, "how many", lower_bound=1)


def main() -> None:
  """Makes the drills, scores them, prints the shares."""
  config = _config()
  setup.compilation_cache(config)
  with setup.devices(config):
    drills = held_out(config)
    params = setup.loaded(config, str(evaluation.newest_policy(_CHECKPOINT.value)))
    print(json.dumps(accuracy(config, params, drills), indent=2))


def held_out(config: RunConfig) -> list[hop_drills.HopDrill]:
  """Drills of the tasks of a split, with names as they stand and made-up ones."""
  tasks, setting = setup.open_tasks(config), setup.setting(config)
  fusion = tools.fusion_of(config.agent_config)
  search = lambda query: [h.chunk for h in tasks.index.search(query, limit=4, settings=fusion)]
  text = lambda chunk_id: tasks.index.chunk(chunk_id).text
  split, count = tasks.tasks[_SPLIT.value], _DRILLS.value
  made = hop_drills.hop_drills(split, text, search, setting.chat, count=count, seed=config.seed + 1)
  return sorted(made, key=lambda drill: len(drill.prompt) + len(drill.reply))


def accuracy(
  config: RunConfig, params: dict[str, Any], drills: Sequence[hop_drills.HopDrill]
) -> dict[str, dict[str, float]]:
  """{kind of drill: {"drills": how many, "first_token": share, "whole_query": share}}."""
  cfg = config.policy.model

  @jax.jit
  def best(tokens: jax.Array) -> jax.Array:
    hidden = transformer.forward(params, tokens, cfg, rows=layer.one_sequence(tokens)).hidden
    return jnp.argmax(transformer.logits(params, hidden, cfg), axis=-1)

  found: dict[str, list[tuple[bool, bool]]] = {"made-up names": [], "real names": []}
  for start in range(0, len(drills), ROWS):
    batch = drills[start : start + ROWS]
    longest = max(len(drill.prompt) + len(drill.reply) for drill in batch)
    tokens = np.zeros((ROWS, -(-longest // 64) * 64), np.int32)  # few lengths, few programs
    for row, drill in zip(tokens, batch, strict=False):
      row[: len(drill.prompt) + len(drill.reply)] = np.concatenate([drill.prompt, drill.reply])
    for row, drill in zip(np.asarray(best(tokens)), batch, strict=False):
      before = len(drill.prompt) - 1
      right = row[before : before + len(drill.reply)] == drill.reply
      kind = "made-up names" if drill.renamed else "real names"
      found[kind].append((bool(right[drill.name_at]), bool(right.all())))
  return {
    kind: {
      "drills": len(each),
      "first_token": float(np.mean([first for first, _ in each])),
      "whole_query": float(np.mean([whole for _, whole in each])),
    }
    for kind, each in found.items()
    if each
  }


if __name__ == "__main__":
  entry_point.run(main)
