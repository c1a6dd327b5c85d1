"""Which rollouts of a teacher become demonstrations: the filter before Context-1's SFT warm-up.

Source: Chroma, "Context-1", https://www.trychroma.com/research/context-1, the section on SFT. The
report names six rules and few of their numbers; a number that is ours says so.
"""

from __future__ import annotations

import collections
import dataclasses
import hashlib
from collections.abc import Iterable, Mapping

from jaxrl_agents.types import Group, Trajectory

MIN_TRAJECTORY_RECALL = 0.5
"""Trajectory recall above which a rollout explored well."""

MIN_OUTPUT_RECALL = 0.4
"""Output recall above which it concluded well."""

MAX_RECALL_GAP = 0.4
"""Trajectory recall less output recall above which it explored well and concluded badly; ours."""

MAX_ZERO_RECALL_SHARE = 0.05
"""Share of negative examples in all that is kept."""

SUCCESS_OUTPUT_RECALL = 0.8
"""Output recall from which a rollout is a success, of which a query keeps one; ours."""

DECISIONS = (
  "malformed_dropped",
  "concluded_badly_dropped",
  "good_kept",
  "lower_recall_kept",
  "lower_recall_dropped",
  "zero_recall_kept",
  "zero_recall_dropped",
  "repeated_success_dropped",
)
"""What can happen to a rollout. Each is counted under exactly one of these."""


@dataclasses.dataclass(frozen=True)
class Filtered:
  """What the filter let through.

  Attributes:
    kept: the rollouts to train on, in the order of the input.
    counts: number of rollouts under each of `DECISIONS`; they add up to the rollouts read.
  """

  kept: tuple[Trajectory, ...]
  counts: Mapping[str, int]


@dataclasses.dataclass(frozen=True)
class _Rollout:
  trajectory: Trajectory
  query: str
  place: int  # among all rollouts of this query, from 0


def keep_for_sft(groups: Iterable[Group], *, seed: int) -> Filtered:
  """Applies the six rules of Context-1's SFT filter.

  With tr = `trajectory_recall` (gold facts ever shown) and or = `output_recall` (gold facts in the
  answer), the first rule that fits decides; their order is ours:

  1. malformed, that is errored, without an answer, or with a call that cannot be parsed: dropped;
  2. "explored well, concluded badly", tr > MIN_TRAJECTORY_RECALL and tr - or > MAX_RECALL_GAP:
     dropped;
  3. tr > MIN_TRAJECTORY_RECALL and or > MIN_OUTPUT_RECALL: kept;
  4. tr = 0: a negative example, one a query, at most MAX_ZERO_RECALL_SHARE of all that is kept;
  5. lower recall: kept with probability clip(0.5 tr / 0.5 + 0.5 or / 0.4, 0, 1)^2, where the two
     denominators are the bounds of rule 3 (the schedule is ours; the report: "diminishing");
  6. of the kept rollouts of one query with or >= SUCCESS_OUTPUT_RECALL, only the one with the
     fewest turns stays, the first among equals.

  A query is the text of `Task.prompt`: one prompt in two groups is one query. Each draw is a
  function of (seed, query, place among its rollouts): more queries change no earlier draw.

  Raises:
    ValueError: a finished rollout lacks the reward part "trajectory_recall" or "output_recall".
  """
  rollouts = _flatten(groups)
  decisions = []
  for rollout in rollouts:
    if _is_malformed(rollout.trajectory):
      decisions.append("malformed_dropped")
      continue
    tr, out = (_recall(rollout, name) for name in ("trajectory_recall", "output_recall"))
    if tr > MIN_TRAJECTORY_RECALL and tr - out > MAX_RECALL_GAP:
      decisions.append("concluded_badly_dropped")
    elif tr > MIN_TRAJECTORY_RECALL and out > MIN_OUTPUT_RECALL:
      decisions.append("good_kept")
    elif tr == 0:
      decisions.append("zero_recall_dropped")
    else:
      nearness = 0.5 * tr / MIN_TRAJECTORY_RECALL + 0.5 * out / MIN_OUTPUT_RECALL
      keep = _draw(seed, rollout) < min(max(nearness, 0.0), 1.0) ** 2
      decisions.append("lower_recall_kept" if keep else "lower_recall_dropped")
  for i in _repeated_successes(rollouts, decisions):
    decisions[i] = "repeated_success_dropped"
  for i in _negative_examples(rollouts, decisions, seed):
    decisions[i] = "zero_recall_kept"
  counts = collections.Counter(decisions)
  kept = zip(rollouts, decisions, strict=True)
  return Filtered(
    kept=tuple(rollout.trajectory for rollout, decision in kept if decision.endswith("_kept")),
    counts={decision: counts[decision] for decision in DECISIONS},
  )


def _flatten(groups: Iterable[Group]) -> list[_Rollout]:
  rollouts = []
  seen: collections.Counter[str] = collections.Counter()
  for group in groups:
    query = group.task.prompt
    for trajectory in group.trajectories:
      rollouts.append(_Rollout(trajectory, query, seen[query]))
      seen[query] += 1
  return rollouts


def _is_malformed(trajectory: Trajectory) -> bool:
  calls = (call for message in trajectory.log for call in message.tool_calls)
  return bool(trajectory.error or trajectory.stop != "answer" or any(call.error for call in calls))


def _recall(rollout: _Rollout, name: str) -> float:
  rewards = rollout.trajectory.rewards
  if name not in rewards:
    raise ValueError(
      f"a rollout of task {rollout.trajectory.task_id!r} has no reward part {name!r}, only"
      f" {sorted(rewards)}; the SFT filter reads rollouts of the search environment"
    )
  return rewards[name]


def _draw(seed: int, rollout: _Rollout) -> float:
  """A number in [0, 1) that depends on nothing but its arguments."""
  digest = hashlib.sha256(f"{seed}\0{rollout.query}\0{rollout.place}".encode()).digest()
  return int.from_bytes(digest[:6], "big") / 2**48


def _turns(trajectory: Trajectory) -> int:
  return sum(message.role == "assistant" for message in trajectory.log)


def _repeated_successes(rollouts: list[_Rollout], decisions: list[str]) -> list[int]:
  """Places of the kept successes that a sibling with no more turns stands for."""
  by_query: dict[str, list[int]] = collections.defaultdict(list)
  for i, rollout in enumerate(rollouts):
    kept = decisions[i].endswith("_kept")
    if kept and _recall(rollout, "output_recall") >= SUCCESS_OUTPUT_RECALL:
      by_query[rollout.query].append(i)
  repeated: list[int] = []
  for places in by_query.values():
    shortest = min(places, key=lambda i: _turns(rollouts[i].trajectory))
    repeated.extend(i for i in places if i != shortest)
  return repeated


def _negative_examples(rollouts: list[_Rollout], decisions: list[str], seed: int) -> list[int]:
  """Places of the n zero-recall rollouts to keep: n <= MAX_ZERO_RECALL_SHARE * (positives + n)."""
  positives = sum(decision.endswith("_kept") for decision in decisions)
  drawn: dict[str, tuple[float, int]] = {}  # the lowest draw of each query
  for i, rollout in enumerate(rollouts):
    if decisions[i] == "zero_recall_dropped":
      draw = (_draw(seed, rollout), i)
      drawn[rollout.query] = min(draw, drawn.get(rollout.query, draw))
  limit = 0
  most = lambda kept: MAX_ZERO_RECALL_SHARE * (positives + kept)
  while limit < len(drawn) and limit + 1 <= most(limit + 1):
    limit += 1
  return [i for _, i in sorted(drawn.values())[:limit]]
