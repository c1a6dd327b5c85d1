"""Reports each step of a run: metrics, and the progress bar."""

from __future__ import annotations

import collections
import dataclasses
from collections.abc import Mapping, Sequence

import numpy as np

from jaxrl_agents.agents import agreement, scores
from jaxrl_agents.config import RunConfig
from jaxrl_agents.learner.advantage import LEFT_OUT, SKIPPED
from jaxrl_agents.runs import agent_setting
from jaxrl_agents.runs.batches import Batches
from jaxrl_agents.runs.progress import Progress
from jaxrl_agents.runs.remote_states import RemoteStates
from jaxrl_agents.runs.rollout_workers import RolloutWorkers
from jaxrl_agents.runs.workdir import Workdir, peak_rss_mib, rss_mib
from jaxrl_agents.types import Group
from jaxrl_agents.weights import manifest as manifest_lib
from jaxrl_agents.weights import places

_REWARDS = ("reward", "verified_reward", "advantage", LEFT_OUT, SKIPPED)
"""Metrics of a rollout that stand in the row under names of their own."""


@dataclasses.dataclass
class Reporter:
  """Writes the metrics of each step and advances the progress bar.

  Attributes:
    stops: ways in which rollouts of this process ended so far; a step without one has a share of 0.
  """

  config: RunConfig
  workdir: Workdir
  workers: RolloutWorkers
  batches: Batches
  progress: Progress
  remote: RemoteStates
  stops: set[str] = dataclasses.field(default_factory=set)
  _sent_bytes: int = 0  # to a bucket, when it was last asked

  def __call__(self, step: int, metrics: dict[str, float], groups: list[Group]) -> None:
    """Reports one step."""
    engine = self.workers.take_stats()
    agent = agent_setting.agent(self.config)
    row = agreement.metrics(groups, agent.success)
    ended = stop_shares(groups)
    self.stops |= ended.keys()
    row |= of_rollouts(groups) | dict.fromkeys(sorted(self.stops), 0.0) | ended
    row |= metrics | self.batches.metrics()
    busy_s = sum(metrics[name] for name in ("learn_s", "publish_s", "save_s"))
    step_s = max(metrics["collect_s"] + busy_s, 1e-9)
    # Where rollouts are played ahead, sampling goes on while the learner learns.
    sampling_s = step_s if self.config.fleet.depth else metrics["collect_s"]
    idle_s = row.get("sampler_idle_s", step_s - sampling_s)
    if engine["drafted"]:
      row["draft_acceptance"] = engine["accepted"] / engine["drafted"]
    row |= {
      "accepted_draft_tokens": engine["accepted"],
      "prefix_hit_share": engine["prefix_hit_tokens"] / max(engine["prompt_tokens"], 1),
      "sampled_tokens": engine["tokens"],
      "sampler_tokens_per_s": engine["tokens"] / max(sampling_s, 1e-9),
      "sampler_idle_share": min(idle_s / step_s, 1.0),
      "learner_idle_share": metrics["collect_s"] / step_s,
      "pause_s": self.workers.take_pause_s(),
      "rss_mib": rss_mib(),
      "peak_rss_mib": peak_rss_mib(),
    }
    if metrics["optimizer_steps"]:
      row["publish_bytes"] = float(self._publish_bytes(int(metrics["version"])))
    row = beside(scores.summary(groups), row)
    self.workdir.log("rl", step, row)
    self.remote.tell(self.workers.places)
    shown = {name: row.get(name, 0.0) for name in ("reward", agent.headline)}
    self.progress.advance(**shown, tokens_per_s=row["sampler_tokens_per_s"])

  def _publish_bytes(self, version: int) -> int:
    """Bytes of the newest version that is there whole: the last one may still be written. Of a
    bucket, what this process has written to it since it was asked last.
    """
    folder = self.workdir.weights
    if isinstance(folder, places.Bucket):
      before, self._sent_bytes = self._sent_bytes, places.sent_bytes(folder)
      return self._sent_bytes - before
    both = (folder, manifest_lib.differences(folder))
    whole = [each for place in both for each in manifest_lib.versions(place)]
    there = [each for each in whole if each <= version]
    return manifest_lib.stored_bytes(folder, max(there)) if there else 0


def beside(parts: Mapping[str, float], row: Mapping[str, float]) -> dict[str, float]:
  """The row of a step with the parts of the reward. A part that has the name of another metric, as
  "loss", stands there as "reward_loss".
  """
  renamed = {f"reward_{name}" if name in row else name: value for name, value in parts.items()}
  return {**renamed, **row}


def of_rollouts(groups: Sequence[Group]) -> dict[str, float]:
  """What the finished rollouts measured beside their rewards, as `rollout_NAME`: means over the
  rollouts that have it, but the maximum of what begins with "longest".
  """
  values: dict[str, list[float]] = collections.defaultdict(list)
  for group in groups:
    for trajectory in group.trajectories:
      for name, value in () if trajectory.error else trajectory.metrics.items():
        if name not in _REWARDS:
          values[name].append(value)
  return {
    f"rollout_{name}": float(max(found) if name.startswith("longest") else np.mean(found))
    for name, found in sorted(values.items())
  }


def stop_shares(groups: Sequence[Group]) -> dict[str, float]:
  """The share of the finished rollouts that ended in each way, as `stop_NAME`."""
  stops = [each.stop for group in groups for each in group.trajectories if not each.error]
  counts = collections.Counter(stop for stop in stops if stop)
  return {f"stop_{name}": count / len(stops) for name, count in sorted(counts.items())}


def no_report(step: int, metrics: dict[str, float], groups: list[Group]) -> None:
  """The report of every process but the first: nothing."""
