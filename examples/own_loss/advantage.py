"""Advantages of one's own: the place of a rollout in its group, however far the others are."""

import numpy as np


def ranks(rewards: np.ndarray) -> np.ndarray:
  """From -1 for the worst rollout of a group to 1 for the best, equal ones alike; [G]."""
  below = (rewards[:, None] > rewards).sum(axis=1)
  above = (rewards[:, None] < rewards).sum(axis=1)
  return (below - above) / (len(rewards) - 1)
