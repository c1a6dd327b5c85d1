"""The regression gate: new weights replace the old ones only if no suite may have become worse.

A suite blocks if the lower confidence bound of its gain is below the margin. Noise therefore blocks
too: a suite too small to rule out a regression does not pass. Source of the loop: Cursor,
"Improving Composer through real-time RL" (26 March 2026); its thresholds are not published, and
these are ours.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence

import numpy as np

from jaxrl_agents.agents.scores import Gain, TaskScores, paired_bootstrap

MIN_HISTORY = 5
GUARD_SIGMAS = 3.0


@dataclasses.dataclass(frozen=True)
class Suite:
  """Scores of both models on the tasks of one suite; higher is better.

  `margin`: the loss that is tolerated, in the unit of the scores (0.01 for one point of a share).
  """

  name: str
  candidate: TaskScores
  baseline: TaskScores
  margin: float = 0.01


@dataclasses.dataclass(frozen=True)
class Guard:
  """A rate that must not change in either direction, such as tool errors; `history` of accepted
  models. `standard_error` is that of `value`, measured on a sample; 0 if it is exact. A move by
  `tolerance` or less never blocks: on enough samples every update moves every rate significantly.
  One by more than `limit`, and three standard errors of `value`, blocks however much the history
  varies.
  """

  name: str
  history: Sequence[float]
  value: float
  standard_error: float = 0.0
  tolerance: float = 0.0
  limit: float = math.inf


@dataclasses.dataclass(frozen=True)
class Verdict:
  """The result of the gate. Invariant: `passed` exactly when `reasons` is empty.

  Attributes:
    reasons: why the candidate is blocked, a sentence each.
    gains: of every suite that could be compared.
    unchecked: guards with too little history to judge.
  """

  reasons: tuple[str, ...]
  gains: Mapping[str, Gain]
  unchecked: tuple[str, ...]

  @property
  def passed(self) -> bool:
    """Whether the candidate may replace the baseline."""
    return not self.reasons


def decide(
  suites: Sequence[Suite], guards: Sequence[Guard] = (), *, resamples: int = 10_000, seed: int = 0
) -> Verdict:
  """The verdict over all suites and guards.

  A suite blocks if the lower 95 % bound of the paired gain is below -margin, or if the candidate
  has no score on tasks that the baseline finished: failing on hard tasks must not improve the
  score. A guard blocks if it is more than 3 standard deviations from the mean of its history (the
  root of the variance of the history and the square of its own standard error) and by more than its
  tolerance, or by more than its limit and 3 of its standard errors, or not finite; with fewer than
  5 values of history it is listed as unchecked.

  Raises:
    ValueError: there is no suite, or a suite cannot be compared (see `paired_bootstrap`).
  """
  if not suites:
    raise ValueError("a gate without suites would pass everything; give at least one")
  reasons: list[str] = []
  found: dict[str, Gain] = {}
  for suite in suites:
    found[suite.name] = gain = paired_bootstrap(
      suite.candidate, suite.baseline, resamples=resamples, seed=seed
    )
    lost = set(suite.baseline) - set(suite.candidate)
    if lost:
      reasons.append(
        f"{suite.name}: {len(lost)} of {len(suite.baseline)} tasks, {min(lost)!r} for one, have a "
        "score from the baseline and none from the candidate; run them again or fix what fails"
      )
    if gain.lower95 < -suite.margin:
      reasons.append(
        f"{suite.name}: gain {gain.mean:+.4f} over {gain.tasks} tasks, lower 95 % bound "
        f"{gain.lower95:+.4f} is below -{suite.margin:g}"
      )
  for guard in guards:
    reasons += _guard_reasons(guard)
  unchecked = tuple(guard.name for guard in guards if len(guard.history) < MIN_HISTORY)
  return Verdict(tuple(reasons), found, unchecked)


def _guard_reasons(guard: Guard) -> list[str]:
  if not math.isfinite(guard.value):
    return [f"{guard.name}: {guard.value} is not finite"]
  if len(guard.history) < MIN_HISTORY:
    return []
  mean = float(np.mean(guard.history))
  deviation = math.hypot(float(np.std(guard.history, ddof=1)), guard.standard_error)
  # The second term is for rounding: equal values have a deviation of about 0.
  allowed = max(GUARD_SIGMAS * deviation + 1e-9 * abs(mean), guard.tolerance)
  limit = guard.limit + GUARD_SIGMAS * guard.standard_error
  if abs(guard.value - mean) > limit:
    return [
      f"{guard.name}: {guard.value:.4g} is more than {limit:.4g} from the mean of its history, "
      f"{mean:.4g}"
    ]
  if abs(guard.value - mean) <= allowed:
    return []
  return [
    f"{guard.name}: {guard.value:.4g} is more than {GUARD_SIGMAS:g} standard deviations "
    f"({deviation:.3g}) from the mean of its history, {mean:.4g}"
  ]
