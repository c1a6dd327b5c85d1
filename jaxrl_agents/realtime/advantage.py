"""From joined calls to what the learner trains on: rewards, a baseline, weights of users.

There is one reply for each prompt, so no group gives a baseline. `b(x)` is a ridge regression of
the reward on what was known before the reply, fitted on earlier cycles alone: a baseline that had
seen the reward of its own reply would bias the gradient.
"""

from __future__ import annotations

import collections
import dataclasses
from collections.abc import Callable, Mapping, Sequence

import numpy as np

from jaxrl_agents.realtime.calls import LoggedCall
from jaxrl_agents.realtime.feedback import Joined, Kind

RIDGE = 1.0


@dataclasses.dataclass(frozen=True)
class Sample:
  """A call with its reward and advantage (weighted by its user)."""

  call: LoggedCall
  reward: float
  advantage: float = 0.0


@dataclasses.dataclass(frozen=True)
class Baseline:
  """b(x) = weights . (1, x): `names` are those of the features x.

  Attributes:
    names: of features; one that a call lacks is 0.
    weights: float64 [1 + number of features].
  """

  names: tuple[str, ...]
  weights: np.ndarray

  def __call__(self, features: Mapping[str, float]) -> float:
    """The reward that is expected."""
    return float(self.weights @ _row(features, self.names))


def fit(
  rows: Sequence[tuple[Mapping[str, float], float]],
  weights: np.ndarray | None = None,
  ridge: float = RIDGE,
) -> Baseline:
  """The ridge regression of rewards on features: w = (X' D X + ridge I_0)^-1 X' D r.

  D has the weights on its diagonal; I_0 is the identity without the intercept, which is not shrunk.
  It is solved for features and rewards without their weighted means, which gives the same `w`: a
  feature that is large and never changes could not be told from the intercept otherwise.

  Args:
    rows: (features, reward) of calls of earlier cycles.
    weights: of the rows, float64 [len(rows)]; None for 1 each.
    ridge: strength of the shrinkage, above 0.
  """
  names = tuple(sorted({name for features, _ in rows for name in features}))
  if not rows:
    return Baseline(names, np.zeros(1))
  x = np.stack([_row(features, names)[1:] for features, _ in rows])
  r = np.array([reward for _, reward in rows], np.float64)
  d = np.ones(len(r)) if weights is None else weights
  x_mean, r_mean = np.average(x, axis=0, weights=d), np.average(r, weights=d)
  x, r = x - x_mean, r - r_mean
  slopes = np.linalg.solve((x.T * d) @ x + ridge * np.eye(len(names)), (x.T * d) @ r)
  return Baseline(names, np.concatenate([[r_mean - slopes @ x_mean], slopes]))


def user_weights(users: Sequence[str]) -> np.ndarray:
  """1 / (calls of the user), scaled to a mean of 1, float64 [len(users)].

  Every user has the same weight, however many calls they make. So a share q of the users moves the
  weighted mean of rewards between `low` and `high` by at most q (high - low).
  """
  counts = collections.Counter(users)
  found = np.array([1.0 / counts[user] for user in users], np.float64)
  return found * len(found) / found.sum() if len(found) else found


def fresh(
  joined: Sequence[Joined],
  age: Callable[[int], int],
  *,
  quarantined: Sequence[int],
  max_age: int,
) -> tuple[list[Joined], dict[str, int]]:
  """The calls that may be trained, and how many of the others were dropped for what reason.

  Args:
    joined: calls whose windows are over.
    age: of a version, see `Deployment.age`.
    quarantined: versions that were rolled back: what they sampled is never trained.
    max_age: of the oldest token of a call.
  """
  kept, dropped = [], {"too_old": 0, "quarantined": 0, "empty": 0}
  for each in joined:
    versions = each.call.versions
    if not versions:
      dropped["empty"] += 1
    elif set(versions) & set(quarantined):
      dropped["quarantined"] += 1
    elif max(map(age, versions)) > max_age:
      dropped["too_old"] += 1
    else:
      kept.append(each)
  return kept, dropped


def samples(
  joined: Sequence[Joined], kinds: Mapping[str, Kind], baseline: Baseline, *, most_per_user: int
) -> tuple[list[Sample], dict[str, float]]:
  """What is trained: A = w_user (r - b(x)) / s, s the weighted root mean square of r - b(x).

  Args:
    joined: fresh calls.
    kinds: of events.
    baseline: fitted on earlier cycles.
    most_per_user: calls of one user at most, the first ones; the others are counted.

  Returns:
    (samples, metrics): "reward" and "residual" are weighted means, "over_cap" counts calls.
  """
  seen: collections.Counter[str] = collections.Counter()
  kept = []
  for each in joined:
    seen[each.call.user] += 1
    if seen[each.call.user] <= most_per_user:
      kept.append(each)
  weights = user_weights([each.call.user for each in kept])
  rewards = np.array([each.reward(kinds) for each in kept], np.float64)
  residual = rewards - np.array([baseline(each.call.features) for each in kept])
  scale = np.sqrt(np.mean(weights * residual**2)) if kept else 1.0
  advantages = weights * residual / max(scale, 1e-6)
  found = [
    Sample(each.call, float(r), float(a))
    for each, r, a in zip(kept, rewards, advantages, strict=True)
  ]
  metrics = {
    "calls": float(len(kept)),
    "users": float(len({each.call.user for each in kept})),
    "over_cap": float(len(joined) - len(kept)),
    "reward": float(np.mean(weights * rewards)) if kept else 0.0,
    "residual": float(np.mean(weights * residual)) if kept else 0.0,
  }
  return found, metrics


def _row(features: Mapping[str, float], names: Sequence[str]) -> np.ndarray:
  return np.array([1.0, *(features.get(name, 0.0) for name in names)], np.float64)
