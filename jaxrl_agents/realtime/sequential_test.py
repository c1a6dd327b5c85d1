"""Whether the candidate is worse than the stable policy, asked after every session.

A test of fixed size that is looked at many times raises a false alarm sooner or later. Confidence
sequences hold at all times at once. Source: Waudby-Smith, Arbour, Sinha, Kennedy and Ramdas,
"Time-uniform central limit theory and asymptotic confidence sequences", eq. 9 and 11
(https://arxiv.org/abs/2103.06476).
"""

from __future__ import annotations

import dataclasses
import math

MIN_CANARY = 30
"""Sessions of the canary before which its interval, which holds asymptotically, is not used."""

TUNED_FOR = 300
"""Sessions at which the interval is tightest."""


def half_width(n: int, deviation: float, alpha: float) -> float:
  """Half the width of a (1 - alpha) confidence sequence for a mean after `n` values.

  deviation * sqrt(2 (n rho^2 + 1) / (n^2 rho^2) * ln(sqrt(n rho^2 + 1) / alpha)) with
  rho^2 = (-2 ln alpha + ln(-2 ln alpha + 1)) / TUNED_FOR. Infinite for n = 0.
  """
  if not n:
    return math.inf
  spread = -2 * math.log(alpha)
  rho2 = (spread + math.log(spread + 1)) / TUNED_FOR
  grown = n * rho2 + 1
  return deviation * math.sqrt(2 * grown / (n * n * rho2) * math.log(math.sqrt(grown) / alpha))


@dataclasses.dataclass
class Mean:
  """Running mean and deviation (population) of values, by Welford's method."""

  n: int = 0
  mean: float = 0.0
  _squares: float = 0.0

  def add(self, value: float) -> None:
    """Adds a value."""
    self.n += 1
    before = value - self.mean
    self.mean += before / self.n
    self._squares += before * (value - self.mean)

  @property
  def deviation(self) -> float:
    """sqrt of the mean squared distance from the mean."""
    return math.sqrt(self._squares / self.n) if self.n else 0.0


class Comparison:
  """Rewards of the sessions of both arms, in the order in which they became known. Nothing is said
  before MIN_CANARY sessions of the canary.

  Invariant: once `worse` is True it stays so, since the candidate is then withdrawn.

  Args:
    alpha: probability of ever calling a candidate worse that is not; each arm's interval has half.
  """

  def __init__(self, alpha: float = 0.05):
    if not 0 < alpha < 1:
      raise ValueError(f"alpha={alpha} is a probability; choose one between 0 and 1, such as 0.05")
    self._alpha = alpha / 2
    self.stable, self.canary = Mean(), Mean()
    self.worse = False

  def add(self, reward: float, *, canary: bool) -> bool:
    """Adds the reward of a session; returns `worse`: the interval of the canary lies below that of
    the stable arm."""
    (self.canary if canary else self.stable).add(reward)
    if self.canary.n >= MIN_CANARY and self.stable.n:
      self.worse = self.worse or self.interval(True)[1] < self.interval(False)[0]
    return self.worse

  def interval(self, canary: bool) -> tuple[float, float]:
    """The confidence sequence of an arm now; infinitely wide without values.

    If the candidate is not worse, both arms vary alike: a canary without any feedback so far has a
    deviation of 0, and is not known exactly for that.
    """
    arm = self.canary if canary else self.stable
    deviation = max(self.canary.deviation, self.stable.deviation) if canary else arm.deviation
    half = half_width(arm.n, deviation, self._alpha)
    return arm.mean - half, arm.mean + half
