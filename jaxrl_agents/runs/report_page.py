"""Writes the page of a run from what its folder holds."""

from __future__ import annotations

import dataclasses
import os
import pathlib
from collections.abc import Callable, Mapping
from typing import Any

from jaxrl_agents import chat
from jaxrl_agents.agents.coding import reward as coding
from jaxrl_agents.agents.search import reward as rules
from jaxrl_agents.agents.swarm import parl
from jaxrl_agents.config import CodingRewardConfig, ParlConfig, RewardConfig
from jaxrl_agents.harness import group_files
from jaxrl_agents.types import Group, Trajectory
from jaxrl_agents.viewer import formats, inputs, report, stories

_Total = Callable[[Mapping[str, float]], float]


def write(
  workdir: str | os.PathLike[str],
  *,
  out: str = "",
  tokenizer: str = "",
  max_bytes: int = report.MAX_BYTES,
) -> pathlib.Path:
  """Writes the page of the run in `workdir` and returns its path.

  Args:
    workdir: what a training run left: metrics.jsonl, summary.json, trajectories/*.npz.
    out: the page, by default report.html in `workdir`.
    tokenizer: as for `chat.load`; by default `policy.tokenizer` of the run's config, else "base".
    max_bytes: bound on the size of the page.

  Raises:
    ValueError: `workdir` is no folder of a run, the tokenizer cannot be read, or the page is too
      large.
  """
  folder = pathlib.Path(workdir)
  run = inputs.read_run(folder)
  problems = list(run.problems)
  snapshots = []
  for key, title, path in inputs.sample_files(folder / "trajectories"):
    try:
      groups = [
        with_rewards(group, run.summary.get("config")) for group in group_files.load_groups(path)
      ]
      snapshots.append(inputs.Snapshot(key, title, tuple(groups)))
    except (ValueError, KeyError, TypeError, OSError) as error:
      problems.append(f"trajectories/{path.name} is left out: {error}")
  run = dataclasses.replace(run, problems=tuple(problems))
  decode = chat.load(tokenizer or _own_tokenizer(run)).decode
  target = pathlib.Path(out) if out else folder / "report.html"
  target.write_text(report.render(run, snapshots, decode, max_bytes), encoding="utf-8")
  return target


def with_rewards(group: Group, options: Any) -> Group:
  """The group with "reward" among the metrics of finished rollouts, where the options tell it.

  Episodes of training carry the reward they were trained on. Those of an evaluation carry parts
  only, which are weighed as the evaluation does: by the last beta; of a swarm, performance alone.
  """
  if not isinstance(options, dict) or "reward.betas" not in options:
    return group
  total = _TOTALS[stories.env({"config": options})](options)

  def weighed(trajectory: Trajectory) -> Trajectory:
    if trajectory.error or "reward" in trajectory.metrics or "completed" not in trajectory.rewards:
      return trajectory
    metrics = {**trajectory.metrics, "reward": total(trajectory.rewards)}
    return dataclasses.replace(trajectory, metrics=metrics)

  return dataclasses.replace(group, trajectories=tuple(map(weighed, group.trajectories)))


def _swarm_total(options: Mapping[str, Any]) -> _Total:
  return lambda parts: parl.parl_total(parts, u=1.0, weights=ParlConfig())


def _search_total(options: Mapping[str, Any]) -> _Total:
  reward = RewardConfig(**_section(options, "reward", RewardConfig))
  return lambda parts: rules.search_total(parts, beta=reward.betas[-1], weights=reward)


def _coding_total(options: Mapping[str, Any]) -> _Total:
  weights = CodingRewardConfig(**_section(options, "coding_reward", CodingRewardConfig))
  return lambda parts: coding.coding_total(parts, weights=weights)


_TOTALS = {"search": _search_total, "swarm": _swarm_total, "coding": _coding_total}


def _section(options: Mapping[str, Any], name: str, section: type) -> dict[str, Any]:
  """The options of a section that it knows."""
  known = {f"{name}.{field.name}": field.name for field in dataclasses.fields(section)}
  return {known[option]: value for option, value in options.items() if option in known}


def _own_tokenizer(run: inputs.Run) -> str:
  config = run.summary.get("config")
  options = dict(formats.flatten(config)) if isinstance(config, dict) else {}
  return options.get("policy.tokenizer", "base")
