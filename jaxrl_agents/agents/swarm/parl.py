"""PARL, the reward of Kimi K2.5's agent swarm: measures of parallelism, and the total reward.

    r = lambda1(u) r_parallel + lambda2(u) r_finish + r_perf        u: share of training done

r_parallel rewards sub-agents that run at the same time (against serial collapse) and r_finish those
that finish (against spurious parallelism). Both are annealed to exactly 0. The parts are measured
once per episode and weighted later.

Source: Kimi K2.5, https://arxiv.org/abs/2602.02276 section 3. Closed forms, weights and schedule
were not published; those here are ours.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence

from jaxrl_agents.agents.swarm.config import ParlConfig

FINISHED = "finished"
STATUSES = (FINISHED, "step_limit", "token_limit", "empty", "error")
"""How an assignment can end. "finished" means a final message within the limits."""


@dataclasses.dataclass(frozen=True)
class Assigned:
  """One assignment that ran: how it ended, its model turns, and whether a fault ended it.

  `fault`: the infrastructure failed (a crash, a deadline), so that the assignment is not judged.
  """

  status: str
  steps: int
  fault: bool = False


@dataclasses.dataclass(frozen=True)
class Stage:
  """One turn of the orchestrator and the assignments that ran at once in it.

  `refused` assignments did not run, for example because of an unknown agent or a limit.
  """

  assigned: tuple[Assigned, ...] = ()
  refused: int = 0

  @property
  def critical_steps(self) -> int:
    """1 for the orchestrator plus the steps of the longest assignment."""
    return 1 + max((each.steps for each in self.assigned), default=0)


def critical_steps(stages: Sequence[Stage]) -> int:
  """`sum_t (1 + max_i S_sub,i)`: the steps that cannot run at the same time."""
  return sum(stage.critical_steps for stage in stages)


def total_steps(stages: Sequence[Stage]) -> int:
  """Model turns of orchestrator and sub-agents together."""
  return len(stages) + sum(each.steps for stage in stages for each in stage.assigned)


def swarm_parts(stages: Sequence[Stage]) -> dict[str, float]:
  """The measured parts of one episode.

  Returns:
    width: most assignments at once; assigned (calls of assign_task, refused ones included),
    finished, faults; critical_steps, total_steps; serial_rate (1 if width < 2), used_agents (1 if
    any task was assigned); a count of each status. Where tasks were assigned: "finish_rate",
    finished / assigned without those hit by a fault. Where assignments ran: "parallelism", the
    sum of all sub-agents' steps over the sum of the longest of each stage.
  """
  ran = [each for stage in stages for each in stage.assigned]
  asked = sum(len(stage.assigned) + stage.refused for stage in stages)
  faults = sum(each.fault for each in ran)
  finished = sum(each.status == FINISHED for each in ran)
  width = max((len(stage.assigned) for stage in stages), default=0)
  parts = {
    "width": float(width),
    "assigned": float(asked),
    "finished": float(finished),
    "faults": float(faults),
    "refused": float(sum(stage.refused for stage in stages)),
    "critical_steps": float(critical_steps(stages)),
    "total_steps": float(total_steps(stages)),
    "serial_rate": float(width < 2),
    "used_agents": float(asked > 0),
  }
  if asked > faults:
    parts["finish_rate"] = finished / (asked - faults)
  parts |= {
    f"sub_{status}": float(sum(each.status == status for each in ran))
    for status in STATUSES
    if status != FINISHED
  }
  longest = critical_steps(stages) - len(stages)
  if longest:
    parts["parallelism"] = sum(each.steps for each in ran) / longest
  return parts


def parallel_reward(width: float, target: int) -> float:
  """`min(width, W) / W`, and 0 below a width of 2: assignments one at a time are not rewarded."""
  return min(width, target) / target if width >= 2 else 0.0


def annealed(weight: float, u: float, end: float) -> float:
  """`weight (1 + cos(pi u / end)) / 2`, exactly 0 from `end` on; `u` is the share of training."""
  return 0.0 if u >= end else weight * 0.5 * (1.0 + math.cos(math.pi * u / end))


def parl_total(parts: Mapping[str, float], *, u: float, weights: ParlConfig) -> float:
  """The scalar reward: r_perf ("performance") and the annealed parts; r_perf alone for u >= end.

  r_finish is 0 if nothing was assigned. If faults ended all assignments, it has its greatest value,
  because the policy is not judged by faults.
  """
  finish = parts.get("finish_rate", 1.0 if parts.get("faults") else 0.0)
  return (
    parts["performance"]
    + annealed(weights.parallel, u, weights.anneal_end)
    * parallel_reward(parts["width"], weights.target_width)
    + annealed(weights.finish, u, weights.anneal_end) * finish
  )
