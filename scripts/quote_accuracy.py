"""How well a search policy quotes, judged on episodes that the expert has played.

    python scripts/evaluate.py --config=configs/search_cpu.py --player=expert --split=test \
      --episodes=expert.npz
    python scripts/quote_accuracy.py --config=configs/search_cpu.py --episodes=expert.npz \
      --checkpoint=W

Each token is predicted given those before it. Of a name that a query takes from the hits of an
earlier search, the first token counts. Names are told apart by whether these hits define one name
or several; beside them stands how often the first definition of the first hit is the right one. Of
a clue, each token counts. The first one is told apart, and others by how many of the tokens before
them (up to three) stand together in the question more than once, with different tokens after them.
"""

from __future__ import annotations

import collections
import json
import pathlib
from collections.abc import Callable, Sequence

import numpy as np
from absl import flags

from jaxrl_agents.agents.search import quotes
from jaxrl_agents.chat import Chat
from jaxrl_agents.harness import group_files
from jaxrl_agents.runs import (
  agent_setting,
  config_flags,
  entry_point,
  evaluation,
  predictions,
  setup,
)
from jaxrl_agents.types import Group

_config = config_flags.define()
_EPISODES = flags.DEFINE_string("episodes", None, "written by scripts/evaluate.py", required=True)
_CHECKPOINT = flags.DEFINE_string(
  "checkpoint", "", "a workdir, a folder of weights, or a shipped policy; by default policy.init"
)


def main() -> None:
  """Reads the episodes, predicts their tokens, prints the shares."""
  config = _config()
  if config.agent != "search":
    raise ValueError(f"{config.name} is of the agent {config.agent}; take a config of search")
  chat = agent_setting.load_chat(config)
  if not pathlib.Path(_EPISODES.value).is_file():
    raise ValueError(
      f"--episodes={_EPISODES.value}: there is no such file; scripts/evaluate.py --player=expert "
      "--episodes=FILE writes one"
    )
  groups = group_files.load_groups(_EPISODES.value)
  setup.compilation_cache(config)
  with setup.devices(config):
    place = str(evaluation.newest_policy(_CHECKPOINT.value or config.policy.init))
    likeliest = predictions.likeliest(config.policy.model, setup.loaded(config, place))
    print(json.dumps(accuracy(groups, chat, likeliest), indent=2))


def accuracy(
  groups: Sequence[Group], chat: Chat, likeliest: Callable[[Sequence[np.ndarray]], list[np.ndarray]]
) -> dict[str, dict[str, float]]:
  """{kind: {"tokens": number, "right": share}}; `likeliest` is that of `runs.predictions`."""
  found: dict[str, list[bool]] = collections.defaultdict(list)
  for group in groups:
    for trajectory in group.trajectories:
      rows = [np.asarray(segment.tokens) for segment in trajectory.segments]
      predicted = [likeliest([row])[0] for row in rows]
      for index, quote in quotes.quotes(group.task, trajectory, chat):
        found[quote.kind].append(bool(predicted[index][quote.at] == rows[index][quote.at]))
        if quote.is_first is not None:
          found[f"{quote.kind}, first definition"].append(quote.is_first)
  share = lambda each: {"tokens": len(each), "right": float(np.mean(each))}
  return {kind: share(found[kind]) for kind in sorted(found)}


if __name__ == "__main__":
  entry_point.run(main)
