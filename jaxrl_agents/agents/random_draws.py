"""Random draws of scripted players: one stream for each seed and name, and mistakes at a rate."""

from __future__ import annotations

import hashlib
import random
from collections.abc import Sequence


def seeded(seed: int, name: str) -> random.Random:
  """A random stream that depends on nothing but its arguments."""
  digest = hashlib.blake2b(f"{seed}\0{name}".encode(), digest_size=8).digest()
  return random.Random(int.from_bytes(digest, "little"))


class Draws:
  """The random draws of one scripted player in one episode; `scale`, drawn from `scales`,
  multiplies the probability of mistakes.
  """

  def __init__(self, seed: int, name: str, scales: Sequence[float]):
    self.random = seeded(seed, name)
    self._scale = self.random.choice(scales)

  def errs(self, rate: float) -> bool:
    """Whether the player makes a mistake of this rate now."""
    return self.random.random() < self._scale * rate

  def happens(self, rate: float) -> bool:
    """Whether an event of this probability happens now."""
    return self.random.random() < rate
