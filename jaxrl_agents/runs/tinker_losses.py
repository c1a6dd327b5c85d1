"""The losses of Tinker's API: what each reads of a request, and how the learner computes it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from jaxrl_agents.config import RunConfig
from jaxrl_agents.gateway.tinker.messages import Datum
from jaxrl_agents.learner import explicit_targets, losses
from jaxrl_agents.learner.explicit_targets import ExplicitTargets
from jaxrl_agents.learner.train_step import Objective
from jaxrl_agents.policy.config import PolicyConfig

_BOUNDS = {"clip_low_threshold": 0.8, "clip_high_threshold": 1.2}  # absolute ones, of the ratio

OPTIONS = {"ppo": _BOUNDS, "cispo": _BOUNDS, "dro": {"beta": 0.05}}
"""{loss: its options, with their defaults}; the others have none."""

INPUTS = {
  "cross_entropy": ("target_tokens", "weights"),
  "importance_sampling": ("target_tokens", "logprobs", "advantages"),
  "ppo": ("target_tokens", "logprobs", "advantages"),
  "cispo": ("target_tokens", "logprobs", "advantages"),
  "dro": ("target_tokens", "logprobs", "advantages"),
}
"""What each loss reads of a sequence. Weights are 1 where they are left out."""


def objective(loss: str, options: Mapping[str, float | str], config: RunConfig) -> Objective:
  """What a request minimises: a sum over its tokens, of log-probabilities at temperature 1.

  Raises:
    ValueError: there is no such loss, or it has no such option.
  """
  if loss not in INPUTS:
    raise ValueError(f"the loss {loss!r} is not supported; there are {', '.join(INPUTS)}")
  defaults = OPTIONS.get(loss, {})
  if wrong := set(options) - set(defaults):
    known = ", ".join(defaults) or "none"
    raise ValueError(f"{loss} has no option {sorted(wrong)[0]!r}; its options: {known}")
  if loss == "cross_entropy":
    return scoring(config)
  numbers = {name: float(options.get(name, default)) for name, default in defaults.items()}
  chosen = losses.LOSSES["ppo_clip" if loss == "ppo" else loss]
  if loss in ("ppo", "cispo"):
    low, high = numbers.values()
    absolute = {"low": low, "high": high}
    numbers = {"epsilon_low": 1 - low, "epsilon_high": high - 1} if loss == "ppo" else absolute
  return Objective("rl", loss=chosen.set(numbers), remat=config.learner.remat)


def scoring(config: RunConfig) -> Objective:
  """How log-probabilities are computed, whatever the loss: raw, at temperature 1."""
  return Objective("sft", remat=config.learner.remat)


def given(datum: Datum, index: int, loss: str, cfg: PolicyConfig) -> ExplicitTargets:
  """A sequence of a request as the packer takes it.

  Raises:
    ValueError: an input is missing, not read by the loss, or has another length than the tokens.
  """
  n, inputs = len(datum.tokens), dict(datum.inputs)
  where = f"data[{index}]"
  if wrong := set(inputs) - set(INPUTS[loss]):
    raise ValueError(f"{where}: {loss} does not read {sorted(wrong)[0]!r}; leave it out")
  if "weights" in INPUTS[loss]:
    inputs.setdefault("weights", np.ones(n, np.float32))
  for name in INPUTS[loss]:
    if name not in inputs:
      raise ValueError(f"{where}: {loss} needs {name!r}")
    if inputs[name].shape != (n,):
      raise ValueError(
        f"{where}: {name} has shape {list(inputs[name].shape)} and the input {n} tokens; send one "
        "number for each"
      )
    if not np.isfinite(inputs[name]).all():
      raise ValueError(f"{where}: {name} has numbers that are not finite")
  ids = np.concatenate([datum.tokens, inputs["target_tokens"]])
  if n and not 0 <= ids.min() <= ids.max() < cfg.vocab_size:
    raise ValueError(f"{where}: ids from {ids.min()} to {ids.max()}; they go to {cfg.vocab_size}")
  zeros = np.zeros(n, np.float32)
  return ExplicitTargets(
    tokens=datum.tokens.astype(np.int32),
    targets=inputs["target_tokens"].astype(np.int32),
    weights=inputs.get("weights", zeros + 1).astype(np.float32),
    behaviour_logprobs=inputs.get("logprobs", zeros).astype(np.float32),
    advantages=inputs.get("advantages", zeros).astype(np.float32),
  )


def packed(data: Sequence[ExplicitTargets], config: RunConfig) -> list[Any]:
  """Microbatches of the shapes of the config."""
  *shorter, longest = config.learner.row_lengths
  return explicit_targets.pack(
    data,
    row_tokens=longest,
    rows_per_microbatch=config.learner.rows_per_microbatch,
    shorter_row_tokens=shorter,
  )
