"""Rotary frequencies for contexts longer than those of pretraining (YaRN).

A pair that turns often over the original context keeps its frequency, one that hardly turns is
slowed down by the whole factor, those between by a linear mix
(https://arxiv.org/abs/2309.00071, section 3.2).
"""

from __future__ import annotations

import math

import numpy as np

from jaxrl_agents.policy.config import PolicyConfig


def frequencies(cfg: PolicyConfig) -> np.ndarray:
  """Angle per position of each rotary pair, float32 [rope_dim / 2], for rope_factor > 1."""
  pair = np.arange(cfg.rope_dim // 2)
  original = cfg.rope_theta ** (-2.0 * pair / cfg.rope_dim)
  first, last = _pair_that_turns(cfg, cfg.rope_beta_fast), _pair_that_turns(cfg, cfg.rope_beta_slow)
  if cfg.rope_truncate:
    first, last = math.floor(first), math.ceil(last)
  first, last = max(first, 0), min(last, cfg.rope_dim - 1)
  # Two equal ends are a step; the reference implementations keep it this wide.
  slowed = np.clip((pair - first) / (last - first if last != first else 1e-3), 0, 1)
  return (original * (1 - slowed + slowed / cfg.rope_factor)).astype(np.float32)


def _pair_that_turns(cfg: PolicyConfig, times: float) -> float:
  """The (fractional) pair that turns so many times over rope_original_tokens."""
  turned = cfg.rope_original_tokens / (times * 2 * math.pi)
  return cfg.rope_dim * math.log(turned) / (2 * math.log(cfg.rope_theta))
