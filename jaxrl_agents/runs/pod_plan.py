"""Plans a run on chips that are not there; what scripts/plan_pod.py calls."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import jax

from jaxrl_agents.config import RunConfig
from jaxrl_agents.planning import layout, plan, report, topology
from jaxrl_agents.policy import params as params_lib
from jaxrl_agents.runs import rl, setup

PARTS = ("learner", "rollout")


def planned(
  config: RunConfig,
  learner_slice: str,
  learner_mesh: str = "",
  *,
  sampler_slice: str = "",
  sampler_mesh: str = "",
  parts: Sequence[str] = PARTS,
  usd_per_chip_hour: float = 0.0,
) -> dict[str, Any]:
  """The plan of a run, as JSON has it.

  Args:
    config: of the run.
    learner_slice: topology of the learner, e.g. "v5p:8x16x16".
    learner_mesh: "AXIS=SIZE,…", see layout.sizes.
    sampler_slice: topology of one sampler; "" for the learner's.
    sampler_mesh: as learner_mesh.
    parts: which of PARTS to compile.
    usd_per_chip_hour: price; 0 leaves costs out.

  Raises:
    ValueError: a topology, mesh or part that there is not, or that the run does not divide over.
  """
  unknown = [part for part in parts if part not in PARTS]
  if unknown:
    raise ValueError(f"no part {unknown[0]!r}; there are {' and '.join(PARTS)}")
  wanted = {"learner": (learner_slice, learner_mesh)}
  wanted["rollout"] = (sampler_slice or learner_slice, sampler_mesh)
  kinds = {part: topology.parse(wanted[part][0]) for part in parts}
  cfg = config.policy.model
  apart = config.sampler_mesh if config.sampler.slices else config.mesh
  meshes = {"learner": config.mesh, "rollout": apart}
  axes = {p: layout.sizes(wanted[p][1], cfg, kinds[p].num_devices, meshes[p]) for p in parts}
  shared = not (config.sampler.slices or sampler_slice or sampler_mesh)
  if shared and "rollout" in parts:  # the sampler has the devices of the learner, and their mesh
    axes["rollout"] = layout.sizes(learner_mesh, cfg, kinds["rollout"].num_devices, config.mesh)
  # CPU devices are made once, as many as the larger slice asks for.
  order = sorted(parts, key=lambda part: -kinds[part].num_devices)
  places = {
    part: plan.Slice(kinds[part], tuple(topology.devices(kinds[part])), axes[part])
    for part in order
  }
  found: dict[str, Any] = {"config": config.name, "model": plan.model(cfg)}
  if "learner" in parts:
    found["learner"] = plan.learner(
      abstract_params(config),
      cfg,
      config.learner,
      places["learner"],
      tx=rl.optimizer(config),
      objective=rl.objective(config),
      usd_per_chip_hour=usd_per_chip_hour,
      deltas=config.publish.kind == "delta",
    )
  if "rollout" in parts:
    found["rollout"] = plan.rollout(
      cfg,
      config.sampler,
      places["rollout"],
      context_tokens=config.agent_config.token_budget,
      dtype=config.policy.dtype,
      usd_per_chip_hour=usd_per_chip_hour,
    )
  if shared and set(parts) == set(PARTS):
    found["together"] = _together(found["learner"]["memory"], found["rollout"]["memory"])
  return found


def _together(learner: dict[str, Any], rollout: dict[str, Any]) -> dict[str, Any]:
  """Memory of a chip that holds both: the peak of one beside what the other one keeps."""
  kept = lambda memory, names: sum(memory["parts_bytes"].get(name, 0) for name in names)
  peak = max(
    learner["peak_bytes"] + kept(rollout, ("parameters", "cache")),
    rollout["peak_bytes"] + kept(learner, ("parameters", "optimizer", "reference", "published")),
  )
  capacity = learner["capacity_bytes"]
  return {"peak_bytes": peak, "capacity_bytes": capacity, "fits": peak <= capacity}


def abstract_params(config: RunConfig) -> Any:
  """Shapes and dtypes of what a run of the config trains: with adapters where it has them."""
  whole = params_lib.abstract(config.policy.model, config.policy.dtype)
  return jax.eval_shape(functools.partial(setup.with_adapters, config), whole)


def text(found: dict[str, Any]) -> str:
  """A plan for a reader."""
  return report.text(found)
