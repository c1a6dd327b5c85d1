"""The split of a module or document: a fixed hash of its name."""

from __future__ import annotations

import hashlib
from typing import get_args

from jaxrl_agents.types import Split

SPLITS: tuple[Split, ...] = get_args(Split)

SHARES = {"train": 0.72, "dev": 0.10, "test": 0.18}
"""Expected share of groups (modules, documents) in each split."""


def split_of(group: str) -> Split:
  """The split of a module or document. It depends on the name alone, so it is the same for every
  seed.
  """
  draw = int(hashlib.sha256(group.encode()).hexdigest()[:8], 16) / 2**32
  if draw < SHARES["test"]:
    return "test"
  return "dev" if draw < SHARES["test"] + SHARES["dev"] else "train"
