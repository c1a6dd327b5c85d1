"""What a run tells of each step: metrics, and the progress bar."""

from __future__ import annotations

import dataclasses

from jaxrl_agents.agents import agreement, scores
from jaxrl_agents.config import RunConfig
from jaxrl_agents.runs import agent_setting
from jaxrl_agents.runs.batches import Batches
from jaxrl_agents.runs.progress import Progress
from jaxrl_agents.runs.remote_states import RemoteStates
from jaxrl_agents.runs.rollout_workers import RolloutWorkers
from jaxrl_agents.runs.workdir import Workdir, rss_mib
from jaxrl_agents.types import Group
from jaxrl_agents.weights import manifest as manifest_lib


@dataclasses.dataclass
class Reporter:
  """Writes the metrics of each step and advances the progress bar."""

  config: RunConfig
  workdir: Workdir
  players: RolloutWorkers
  batches: Batches
  progress: Progress
  remote: RemoteStates

  def __call__(self, step: int, metrics: dict[str, float], groups: list[Group]) -> None:
    """Reports one step."""
    engine = self.players.take_stats()
    agent = agent_setting.agent(self.config)
    row = scores.summary(groups) | agreement.metrics(groups, agent.success)
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
      "pause_s": self.players.take_pause_s(),
      "rss_mib": rss_mib(),
    }
    if metrics["optimizer_steps"]:
      row["publish_bytes"] = float(self._publish_bytes(int(metrics["version"])))
    self.workdir.log("rl", step, row)
    self.remote.tell(self.players.places)
    shown = {name: row.get(name, 0.0) for name in ("reward", agent.headline)}
    self.progress.advance(**shown, tokens_per_s=row["sampler_tokens_per_s"])

  def _publish_bytes(self, version: int) -> int:
    """Bytes of the newest version that is there whole: the last one may still be written."""
    folder = self.workdir.weights
    places = (folder, manifest_lib.differences(folder))
    whole = [each for place in places for each in manifest_lib.versions(place)]
    there = [each for each in whole if each <= version]
    return manifest_lib.stored_bytes(folder, max(there)) if there else 0


def no_report(step: int, metrics: dict[str, float], groups: list[Group]) -> None:
  """The report of every process but the first: nothing."""
