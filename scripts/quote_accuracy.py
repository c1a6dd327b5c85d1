"""How well a search policy quotes, judged on episodes that the expert has played.

    python scripts/evaluate.py --config=configs/search_cpu.py --player=expert --split=test \
      --episodes=expert.npz
    python scripts/quote_accuracy.py --config=configs/search_cpu.py --episodes=expert.npz \
      --checkpoint=W

Each token is predicted given those before it. Of the names that queries take from hits, the first
token counts; they are told apart by how many names the hits define that they are from. Beside them
stands how often the first definition of the first hit is the right name. Of the words of clues,
tokens are told apart by how many tokens before them (one, two or three) stand in the question with
several continuations.
"""

from __future__ import annotations

import collections
import json
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from absl import flags

from jaxrl_agents.agents.search import quotes
from jaxrl_agents.chat import Chat
from jaxrl_agents.config import RunConfig
from jaxrl_agents.harness import group_files
from jaxrl_agents.policy import transformer
from jaxrl_agents.policy.attention import layer
from jaxrl_agents.runs import agent_setting, config_flags, entry_point, evaluation, setup
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
  groups = group_files.load_groups(_EPISODES.value)
  setup.compilation_cache(config)
  with setup.devices(config):
    place = str(evaluation.newest_policy(_CHECKPOINT.value or config.policy.init))
    right = predictor(config, setup.loaded(config, place))
    print(json.dumps(accuracy(groups, chat, right), indent=2))


def accuracy(
  groups: Sequence[Group], chat: Chat, right: Callable[[np.ndarray], np.ndarray]
) -> dict[str, dict[str, float]]:
  """{kind: {"tokens": number, "right": share}}; `right` says of each token of a segment whether it
  was predicted.
  """
  found: dict[str, list[bool]] = collections.defaultdict(list)
  for group in groups:
    done: set[int] = set()
    for segment in (segment for each in group.trajectories for segment in each.segments):
      tokens = np.asarray(segment.tokens)
      predicted = right(tokens)
      for quote in quotes.quotes(group, tokens, chat, done):
        found[quote.kind].append(bool(predicted[quote.at]))
        if quote.is_first is not None:
          found[f"{quote.kind}, first definition"].append(quote.is_first)
  share = lambda each: {"tokens": len(each), "right": float(np.mean(each))}
  return {kind: share(found[kind]) for kind in sorted(found)}


def predictor(config: RunConfig, params: dict[str, Any]) -> Callable[[np.ndarray], np.ndarray]:
  """A function of the tokens of a segment: which of them the policy gives the highest probability,
  bool [T].
  """
  cfg = config.policy.model

  @jax.jit
  def best(tokens: jax.Array) -> jax.Array:
    hidden = transformer.forward(params, tokens, cfg, rows=layer.one_sequence(tokens)).hidden
    return jnp.argmax(transformer.logits(params, hidden, cfg), axis=-1)

  def right(tokens: np.ndarray) -> np.ndarray:
    row = np.zeros((1, -(-len(tokens) // 128) * 128), np.int32)  # few lengths, few programs
    row[0, : len(tokens)] = tokens
    found = np.asarray(best(row))[0, : len(tokens) - 1]
    return np.concatenate([[False], found == tokens[1:]])

  return right


if __name__ == "__main__":
  entry_point.run(main)
