"""Checks of a configuration that concern several sections: options that disagree or have no
effect.
"""

from __future__ import annotations

import dataclasses
import pathlib
import re
import shlex

from jaxrl_agents.config import import_path, judge, ranges
from jaxrl_agents.config.sections import (
  SFT_SOURCES,
  FleetConfig,
  LearnerConfig,
  MeshConfig,
  MonitorConfig,
  PublishConfig,
  RunConfig,
  SftConfig,
)

BFLOAT16_GAP = 0.1
"""Smallest bound on the gap of log-probabilities if sampler and learner compute in bfloat16."""


def validate(config: RunConfig) -> RunConfig:
  """Checks the options of several sections together; returns `config`.

  Raises:
    ValueError: two options disagree; the message names them and which to change.
  """
  learner, sampler = config.learner, config.sampler
  ranges.check(config, called={"agent_config": import_path.agent(config.agent).name})
  _check_contexts(config)
  import_path.agent(config.agent).check(config.agent_config, learner.steps, config.workers.stall_s)
  _check_warm_up(config.sft)
  if config.sft.mtp_steps and not config.policy.model.mtp_depth:
    raise ValueError(
      f"sft.mtp_steps={config.sft.mtp_steps} has no effect: policy.model.mtp_depth is 0; set "
      "sft.mtp_steps=0 or policy.model.mtp_depth=1"
    )
  if learner.groups_per_step % learner.substeps:
    raise ValueError(
      f"learner.groups_per_step={learner.groups_per_step} does not split into learner.substeps="
      f"{learner.substeps} equal parts; make it a multiple"
    )
  for name in ("level_weights_early", "level_weights_late"):
    if (weights := getattr(learner, name)) and not any(weights):
      raise ValueError(
        f"learner.{name}={weights} gives no level a weight; write one number for each level, such "
        "as 0.5,0.3,0.2, or () for all tasks equally often"
      )
  if (
    learner.level_switch != type(learner)().level_switch
    and learner.level_weights_early == learner.level_weights_late
  ):
    raise ValueError(
      f"learner.level_switch={learner.level_switch:g} has no effect: learner.level_weights_early "
      "and level_weights_late are the same; set them, or leave it out"
    )
  _check_schedule(learner)
  _check_mesh(config.mesh, learner)
  _check_rows_of_warm_up(config)
  _check_fleet(config)
  _check_evaluator(config)
  _check_eval(config)
  _check_publish(config)
  _check_tools(config)
  _check_toggle(config)
  _check_monitor(config.monitor)
  judge.check(config.judge, config.workers.stall_s)
  if learner.replay_threshold and not learner.router_replay:
    raise ValueError(
      f"learner.replay_threshold={learner.replay_threshold:g} has no effect with "
      "learner.router_replay=false; set it 0"
    )
  if learner.advantage and learner.advantage_std != "off":
    raise ValueError(
      f"learner.advantage_std={learner.advantage_std} has no effect with learner.advantage="
      f"{learner.advantage}, which makes the advantages; set learner.advantage_std=off"
    )
  if learner.group_size < 2:
    raise ValueError("learner.group_size must be at least 2: the baseline is the mean of the group")
  if sampler.draft_tokens and not config.policy.model.mtp_depth:
    raise ValueError(
      f"sampler.draft_tokens={sampler.draft_tokens} has no effect: policy.model.mtp_depth is 0; "
      "set sampler.draft_tokens=0 or policy.model.mtp_depth=1"
    )
  for name, section in (("sft", config.sft), ("learner", learner)):
    if config.lora.rank and (section.optimizer != "adamw" or section.qk_clip):
      raise ValueError(
        f"{name}.optimizer={section.optimizer} and {name}.qk_clip={section.qk_clip:g} are for full "
        f"parameters; with lora.rank={config.lora.rank} set {name}.optimizer=adamw and "
        f"{name}.qk_clip=0"
      )
  if config.policy.dtype == "bfloat16" and learner.canary_bound < BFLOAT16_GAP:
    raise ValueError(
      f"learner.canary_bound={learner.canary_bound:g} is below what rounding to "
      f"policy.dtype=bfloat16 alone makes of log-probabilities; set it to {BFLOAT16_GAP:g} or more"
    )
  return config


def _check_contexts(config: RunConfig) -> None:
  learner, sampler = config.learner, config.sampler
  budget, section = config.agent_config.token_budget, import_path.agent(config.agent).name
  own = "token_budget" in {field.name for field in dataclasses.fields(config.agent_config)}
  lowered = f"{section}.token_budget" if own else f"the budgets of the section {section}"
  for option, tokens in _row_options(learner):
    if max(tokens, default=budget) < budget:
      raise ValueError(
        f"learner.{option}={max(tokens)} cannot hold a context of {budget} tokens; raise "
        f"learner.{option} or lower {lowered}"
      )
  split = set(dataclasses.asdict(config.mesh).values()) == {1} and not sampler.slices
  engines = sampler.engines if split else 1
  if sampler.num_pages // engines * sampler.page_tokens < 2 * budget:
    share = f"sampler.num_pages={sampler.num_pages}"
    share += f" / engines={engines}" if engines > 1 else ""
    raise ValueError(
      f"{share} x page_tokens={sampler.page_tokens} holds less than two contexts of {budget} "
      "tokens; raise sampler.num_pages" + (" or lower sampler.engines" if engines > 1 else "")
    )


def _check_warm_up(sft: SftConfig) -> None:
  if len(sft.rates) != len(SFT_SOURCES):
    raise ValueError(
      f"sft.rates={sft.rates} must be {len(SFT_SOURCES)} numbers, one each for "
      f"{', '.join(SFT_SOURCES)}"
    )
  if len(sft.beside) != len(sft.beside_rates):
    raise ValueError(
      f"sft.beside={sft.beside} and sft.beside_rates={sft.beside_rates} must be of "
      "one length: a rate for each config"
    )
  for entry in sft.beside:
    try:
      parts = shlex.split(entry)
    except ValueError as error:
      raise ValueError(f"sft.beside={sft.beside}: {entry!r} has {str(error).lower()}") from None
    if not parts:
      raise ValueError(f"sft.beside={sft.beside}: an entry is empty; name the file of a config")
  if sft.schedule == "cosine" and 0 < sft.steps <= sft.warmup_steps:
    raise ValueError(
      f"sft.steps={sft.steps} leaves no step after sft.warmup_steps={sft.warmup_steps}; raise the "
      "first or lower the second"
    )


def _check_schedule(learner: LearnerConfig) -> None:
  updates = learner.steps * learner.substeps
  if learner.schedule == "cosine" and 0 < updates <= learner.warmup_steps:
    raise ValueError(
      f"learner.steps={learner.steps} times learner.substeps={learner.substeps} leaves no update "
      f"after learner.warmup_steps={learner.warmup_steps}; raise the first or lower the last"
    )


def _check_publish(config: RunConfig) -> None:
  publish, dtype = config.publish, config.policy.dtype
  if publish.kind == "delta" and dtype != "bfloat16":
    raise ValueError(
      f"publish.kind=delta does not go with policy.dtype={dtype}: in float32 every weight changes "
      "at every step, so differences are no shorter; set policy.dtype=bfloat16 (its optimizer "
      "keeps a float32 master) and learner.canary_bound, or publish.kind=full"
    )
  if publish.folder and not re.fullmatch(r"/.*|(gs|s3)://[^/]+/[^?#]+", publish.folder):
    raise ValueError(
      f"publish.folder={ranges.shown(publish.folder)} must be the absolute path of a folder that "
      "all processes of the run see, or gs://BUCKET/FOLDER or s3://BUCKET/FOLDER"
    )
  if publish.kind == "full" and publish.anchor_every != PublishConfig.anchor_every:
    raise ValueError(
      f"publish.anchor_every={publish.anchor_every} has no effect with publish.kind=full, where "
      "every version is complete; set publish.kind=delta"
    )


def _check_tools(config: RunConfig) -> None:
  names = [server.name for server in config.tools.mcp]
  twice = next((name for name in names if names.count(name) > 1), None)
  if twice:
    raise ValueError(f"tools.mcp has two servers called {twice!r}; rename one")
  for server in config.tools.mcp:
    ranges.check(server, f"tools.mcp.{server.name}.")
    longest_s = 2 * (server.start_s + server.deadline_s)
    if longest_s > config.workers.stall_s:
      raise ValueError(
        f"a call of the MCP server {server.name!r} may take 2 x (start_s={server.start_s:g} + "
        f"deadline_s={server.deadline_s:g}) = {longest_s:g} s, more than workers.stall_s="
        f"{config.workers.stall_s:g}; lower these or raise workers.stall_s"
      )
  agent = import_path.agent(config.agent)
  if config.tools.mcp and agent.own_tools(config.agent_config) is None:
    raise ValueError(
      f"tools.mcp has no effect with agent={config.agent}, whose episodes take no further tools; "
      "give its environment a method add_tools, and the agent own_tools (docs/own-tools.md)"
    )
  for server in config.tools.mcp:
    if server.sandboxed:
      try:
        boxes = agent.sandboxes(config.agent_config, server.packages)
      except ValueError as error:
        raise ValueError(f"tools.mcp.{server.name}: {error}") from error
      if boxes is None:
        raise ValueError(
          f"tools.mcp.{server.name} is sandboxed, and the episodes of agent={config.agent} have no "
          "sandbox; set sandboxed to false"
        )


def _check_toggle(config: RunConfig) -> None:
  toggle = config.toggle
  if toggle.phase_steps and not import_path.agent(config.agent).success:
    raise ValueError(
      f"toggle.phase_steps={toggle.phase_steps} has no effect with agent={config.agent}, whose "
      "rewards have no part that says that a rollout is right; set toggle.phase_steps=0"
    )


def _check_monitor(monitor: MonitorConfig) -> None:
  if not monitor.port and monitor.host != MonitorConfig().host:
    raise ValueError(
      f"monitor.host={ranges.shown(monitor.host)} has no effect with monitor.port=0; set "
      "monitor.port to the one that Prometheus scrapes"
    )


def _check_mesh(mesh: MeshConfig, learner: LearnerConfig) -> None:
  rows = mesh.data * mesh.fsdp * mesh.expert
  if learner.rows_per_microbatch % rows:
    raise ValueError(
      f"learner.rows_per_microbatch={learner.rows_per_microbatch} does not split over mesh.data x "
      f"fsdp x expert = {rows} devices; make it a multiple"
    )
  for option, lengths in _row_options(learner):
    for tokens in lengths:
      if tokens % mesh.context:
        raise ValueError(
          f"learner.{option}={tokens} does not split over mesh.context={mesh.context} "
          "devices; make it a multiple"
        )


def _check_rows_of_warm_up(config: RunConfig) -> None:
  """Refuses microbatches of the warm-up, of which the last may be smaller, that do not split."""
  sft, learner, mesh = config.sft, config.learner, config.mesh
  if not sft.steps + sft.mtp_steps:
    return
  last = sft.rows_per_step % learner.rows_per_microbatch or learner.rows_per_microbatch
  ways = mesh.data * mesh.fsdp * mesh.expert
  if learner.split_cores and set(dataclasses.asdict(mesh).values()) == {1}:
    ways = learner.rows_per_microbatch  # a machine may have as many cores
  if last % ways:
    raise ValueError(
      f"sft.rows_per_step={sft.rows_per_step} leaves a microbatch of {last} rows, which does not "
      f"split over up to {ways} devices; make it a multiple of learner.rows_per_microbatch="
      f"{learner.rows_per_microbatch}"
    )


def _row_options(learner: LearnerConfig) -> list[tuple[str, tuple[int, ...]]]:
  """The options that say how long rows are, with the lengths that each names."""
  return [
    ("row_tokens", (learner.row_tokens,)),
    ("rollout_row_tokens", learner.rollout_row_tokens),
  ]


def _check_fleet(config: RunConfig) -> None:
  workers, slices, fleet = config.workers, config.sampler.slices, config.fleet
  for name in () if fleet.depth else ("ready_gib", "max_age", "too_old", "cache", "replay"):
    if getattr(fleet, name) != getattr(FleetConfig(), name):
      raise ValueError(
        f"fleet.{name} has no effect with fleet.depth=0, where playing and learning take turns; "
        "set fleet.depth=1"
      )
  host, _, port = fleet.address.rpartition(":")
  number = int(port) if port.isascii() and port.isdigit() and len(port) < 6 else -1
  is_address = fleet.address == "auto" or (bool(host) and 0 < number < 65536)
  if not is_address if fleet.backend == "ray" else fleet.address:
    raise ValueError(
      f"fleet.address={ranges.shown(fleet.address)} with fleet.backend={fleet.backend}: set "
      "fleet.backend=ray and fleet.address=HOST:PORT (or auto) for a Ray cluster, or neither"
    )
  if config.fleet.depth and workers.deterministic:
    raise ValueError(
      f"fleet.depth={config.fleet.depth} does not go with workers.deterministic=True: when weights "
      "change depends on the clock; set workers.deterministic=False (fleet.replay repeats such a "
      "run), or fleet.depth=0"
    )
  if config.fleet.depth and config.learner.loss == "importance_sampling":
    raise ValueError(
      f"learner.loss=importance_sampling does not go with fleet.depth={config.fleet.depth}: it "
      "does not clip the ratios of tokens that older weights sampled; set learner.loss=cispo, "
      "decoupled_ppo or another one with bounds, or fleet.depth=0"
    )
  if fleet.replay and fleet.backend != "local":
    raise ValueError(
      f"fleet.replay does not go with fleet.backend={fleet.backend}: nodes come and go as no "
      "record says; set fleet.backend=local"
    )
  if config.fleet.max_age <= config.fleet.depth:
    raise ValueError(
      f"fleet.max_age={config.fleet.max_age} must be more than fleet.depth={config.fleet.depth}: "
      "groups that are played as far ahead as they may be would count as too old"
    )
  if slices and fleet.backend != "ray":
    raise ValueError(
      f"sampler.slices={slices} are on nodes of a Ray cluster: set fleet.backend=ray and "
      "fleet.address=HOST:PORT, or sampler.slices=0"
    )
  _check_frozen_slices(config)
  if config.sampler.hosts > 1 and not slices:
    raise ValueError(
      f"sampler.hosts={config.sampler.hosts} has no effect with sampler.slices=0; set "
      "sampler.slices, or sampler.hosts=1"
    )
  if not slices and config.sampler_mesh != MeshConfig():
    raise ValueError(
      f"sampler_mesh={config.sampler_mesh} has no effect with sampler.slices=0, where the engine "
      "uses the devices of mesh; set sampler.slices"
    )


def _check_frozen_slices(config: RunConfig) -> None:
  slices, of_frozen = config.sampler.slices, config.sampler.frozen_slices
  if not of_frozen:
    return
  if of_frozen >= slices:
    raise ValueError(
      f"sampler.frozen_slices={of_frozen} of sampler.slices={slices} leaves none for the policy in "
      f"training; set sampler.slices={of_frozen + 1} or more, or sampler.frozen_slices=0"
    )
  frozen = import_path.agent(config.agent).frozen(config.agent_config, pathlib.Path())
  weights = sum(map(len, frozen.values()))
  if not weights:
    raise ValueError(
      f"sampler.frozen_slices={of_frozen} has no effect: with these options the agent "
      f"{config.agent} plays with no policy but the one in training; set sampler.frozen_slices=0"
    )
  if of_frozen < weights:
    raise ValueError(
      f"sampler.frozen_slices={of_frozen} are too few for the {weights} weights of "
      f"{', '.join(frozen)}: each needs a slice; raise it and sampler.slices"
    )


def _check_eval(config: RunConfig) -> None:
  if config.eval.threshold and config.eval.rollouts < 2:
    raise ValueError(
      f"eval.threshold={config.eval.threshold:g} has no effect with eval.rollouts="
      f"{config.eval.rollouts}: pass@k needs several rollouts of a task; set eval.rollouts=4, or "
      "eval.threshold=0"
    )


def _check_evaluator(config: RunConfig) -> None:
  evaluator, backend = config.evaluator, config.fleet.backend
  if not evaluator.on_node:
    return
  if not evaluator.every or backend != "ray":
    raise ValueError(
      f"evaluator.on_node=True with evaluator.every={evaluator.every} and fleet.backend={backend}: "
      "a node of a Ray cluster evaluates every so many steps; set evaluator.every, "
      "fleet.backend=ray and fleet.address=HOST:PORT, or evaluator.on_node=False"
    )
  if config.sampler.hosts > 1:
    raise ValueError(
      f"evaluator.on_node=True does not go with sampler.hosts={config.sampler.hosts}: it has one "
      "node for the mesh of sampler_mesh; set evaluator.on_node=False, and start "
      "scripts/evaluate.py --follow"
    )
