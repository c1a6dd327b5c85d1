"""Run configuration: frozen dataclasses, built by `configs/*.py:get_config()`, overridden by
`a.b=c`.

An option that does not exist, or that nothing would read, is an error that names the nearest one.
"""

from __future__ import annotations

import ast
import dataclasses
import difflib
import hashlib
import importlib.util
import json
import pathlib
import types
import typing
from collections.abc import Sequence
from typing import Any, Literal

from jaxrl_agents.policy.config import PolicyConfig


@dataclasses.dataclass(frozen=True)
class CorpusConfig:
  """Documents and tasks. `source`: "python" (this interpreter's library) or a folder."""

  source: str = "python"
  chunk_tokens: int = 64
  seed: int = 0
  dense: Literal["lsa", "minilm"] = "lsa"
  cache: str = "~/.cache/jaxrl_agents"


@dataclasses.dataclass(frozen=True)
class SearchConfig:
  """Limits of the search environment, in tokens of the policy's tokenizer (Context-1's numbers).

  `token_budget` bounds the whole context; past `threshold_tokens` (also the denominator of the
  usage line) a hint is shown; past threshold + spillage_fraction * (budget - threshold) every tool
  but prune_chunks is rejected. `short_ids` calls chunks by numbers of the task (envs.short_ids).
  Of the calls of one turn those beyond `max_calls` are refused.
  """

  token_budget: int = 32_268
  threshold_tokens: int = 16_384
  spillage_fraction: float = 0.5
  tool_output_tokens: int = 4_096
  reply_reserve_tokens: int = 512
  max_shown: int = 10
  grep_limit: int = 5
  fan_out: int = 25
  fused: int = 50
  dense_weight: float = 1.0
  read_chunks: int = 300
  max_turns: int = 128
  max_calls: int = 64
  max_new_tokens: int = 2_048
  max_documents: int = 30
  max_malformed_turns: int = 3
  short_ids: bool = False
  can_prune: bool = True
  show_hint: bool = True
  tool_deadline_s: float = 10.0
  system_prompt: str = ""


CODING_TOOLS = (
  "read_file",
  "edit_file",
  "write_file",
  "shell",
  "grep",
  "search_code",
  "fetch_page",
  "todo",
)


@dataclasses.dataclass(frozen=True)
class CodingConfig:
  """Tasks and limits of the coding environment, in tokens of the policy's tokenizer.

  Attributes:
    tasks: folder of a frozen set (scripts/make_coding_tasks.py).
    repo_kind, damage, min_level, max_level, max_file_characters: the slice of it that is played:
      "calls" are short functions in one file, "token" is damage of one token, levels are those of
      `data.coding_tasks` (0: one line; 3: 61 to 300 lines).
    tools: of CODING_TOOLS, what is offered.
    token_budget: of the whole context.
    context: what happens when a tool result brings the context to `trigger_fraction` of the budget:
      "summarize" (the policy writes what goes on, `max_summaries` times), "discard_all" (the tool
      history goes), "hide_results" (all but the last `keep_results` results go), "none".
    tool_output_tokens: most of one observation.
    command_s: what a shell command may take.
    snapshot_turns: turns between snapshots that a lost sandbox is brought back from; 0 for none.
    pages: JSON lines {"url", "title", "text"} that fetch_page reads; "" for none.
    backend: of the sandboxes.
  """

  tasks: str = ""
  repo_kind: Literal["any", "calls", "suite"] = "any"
  damage: Literal["any", "token"] = "any"
  min_level: int = 0
  max_level: int = 3
  max_file_characters: int = 400_000
  tools: tuple[str, ...] = CODING_TOOLS
  token_budget: int = 131_072
  context: Literal["summarize", "discard_all", "hide_results", "none"] = "summarize"
  trigger_fraction: float = 0.7
  max_summaries: int = 8
  summary_tokens: int = 4_096
  keep_results: int = 5
  tool_output_tokens: int = 8_192
  max_new_tokens: int = 8_192
  max_turns: int = 200
  max_calls: int = 16
  max_malformed_turns: int = 3
  search_results: int = 5
  chunk_tokens: int = 256
  command_s: float = 60.0
  grade_s: float = 300.0
  snapshot_turns: int = 1
  pages: str = ""
  backend: str = "namespaces"
  system_prompt: str = ""


@dataclasses.dataclass(frozen=True)
class CodingRewardConfig:
  """Weights of a coding episode's reward (Composer 2 publishes the kinds of terms, no values).

  R = solved + progress * share of failing tests mended - behaviour - length * C_{k,q}(effort)

  Attributes:
    progress: of the share of tests that failed and pass now.
    broken_calls: each call that is malformed, refused or of an unknown tool; at most five count.
    open_todos: of the share of to-dos left open.
    comment_thinking, shell_only: where the behaviour is seen.
    length_k, length_q, length: of the nonlinear length penalty; `length` 0 leaves it out.
    length_of_solved_only: an episode that failed pays nothing for its length.
  """

  progress: float = 0.0
  broken_calls: float = 0.02
  open_todos: float = 0.05
  comment_thinking: float = 0.05
  shell_only: float = 0.05
  length_k: float = 1.0
  length_q: float = 1.0
  length: float = 0.05
  length_of_solved_only: bool = False


@dataclasses.dataclass(frozen=True, kw_only=True)
class PolicySection:
  """`init`: "base" (the shipped weights), a folder of exported or imported weights, "scratch"
  (random), or "copying" (random but for heads that quote from the context; see policy.mimetic).

  `tokenizer`: "base", or a folder with tokenizer.json, by which the chat format is recognised.

  `dtype`: of parameters and of what is computed, but for softmax, norms, routers and losses;
  bfloat16 parameters have a float32 master in the optimizer.
  """

  model: PolicyConfig
  init: str = "base"
  tokenizer: str = "base"
  dtype: Literal["float32", "bfloat16"] = "float32"


@dataclasses.dataclass(frozen=True)
class LoraConfig:
  """Low-rank adapters in place of full parameters, in warm-up and in reinforcement learning.

  `rank` 0 trains all parameters. `targets` are names of matrices inside layers, or the ends of
  their dotted paths (see policy.lora); their adapters count alpha / rank times.
  """

  rank: int = 0
  alpha: float = 32.0
  targets: tuple[str, ...] = ("qkv", "out")


@dataclasses.dataclass(frozen=True)
class SamplerConfig:
  """The generation engine. `slots` sequences decode at once; the cache has num_pages *
  page_tokens.

  `slices`: 0 for an engine on the learner's own devices; else so many samplers, on devices of their
  own (section `sampler_mesh`), join at workers.listen before a run begins (scripts/sampler.py).
  """

  slices: int = 0
  slots: int = 32
  page_tokens: int = 32
  num_pages: int = 2_048
  prefill_tokens: int = 256
  draft_tokens: int = 2
  temperature: float = 1.0
  top_p: float = 1.0


@dataclasses.dataclass(frozen=True)
class WorkersConfig:
  """Spawned processes that play `episodes` at once among them, in whole groups.

  `stall_s`: no progress for so long is an error.
  `listen`: "host:port" where workers of other machines join (scripts/worker.py), and samplers; ""
  for none.
  """

  listen: str = ""
  processes: int = 2
  episodes: int = 64
  stall_s: float = 120.0
  deterministic: bool = False


@dataclasses.dataclass(frozen=True)
class RewardConfig:
  """Weights of the reward parts and their floor (Context-1's reward; `beta` per epoch or phase)."""

  f_beta: float = 0.7
  trajectory_recall: float = 0.3
  answer_found: float = 1.0
  prune_penalty: float = 1.0
  turn_penalty: float = 1.0
  epsilon: float = 0.001
  betas: tuple[float, ...] = (4.0, 3.5, 3.0, 2.5, 2.0)


@dataclasses.dataclass(frozen=True)
class SwarmConfig:
  """Limits of the agent swarm. The tools that look into the corpus, and the context of the
  orchestrator (`token_budget`), are those of SearchConfig, without pruning.

  Attributes:
    sub_policy: name of the frozen policy that plays sub-agents (Limits.policy); "" is the policy in
      training itself.
    sub_init: folder of its weights, of any size; "": those that training starts from.
    alone: the orchestrator has the tools of the corpus alone, and no sub-agents.
    stretch: factor of the tasks' budgets of critical steps.
    max_turns: of the orchestrator, whatever its task's budget of critical steps.
    sub_max_turns: of a sub-agent; what is left of the critical steps may be less.
    sub_token_budget: of the context of a sub-agent.
    sub_max_new_tokens: of one turn of a sub-agent.
    sub_temperature: at which sub-agents are sampled.
    sub_deadline_s: after which a sub-agent is given up.
    message_tokens: of what a sub-agent returns; the rest is cut.
    max_agents: that an episode may create.
    max_assignments_per_turn: that run at once; more are refused.
    max_assignments: of an episode.
  """

  sub_policy: str = "frozen"
  sub_init: str = ""
  alone: bool = False
  stretch: float = 1.0
  max_turns: int = 15
  sub_max_turns: int = 100
  sub_token_budget: int = 32_268
  sub_max_new_tokens: int = 2_048
  sub_temperature: float = 1.0
  sub_deadline_s: float = 600.0
  message_tokens: int = 512
  max_agents: int = 16
  max_assignments_per_turn: int = 16
  max_assignments: int = 64


@dataclasses.dataclass(frozen=True)
class ParlConfig:
  """Weights of PARL's auxiliary rewards at the start; cosine to 0 at `anneal_end` of the steps.

  `target_width`: assignments at once beyond which r_parallel does not grow. All ours: Kimi K2.5
  published no numbers.
  """

  parallel: float = 0.1
  finish: float = 0.1
  anneal_end: float = 0.6
  target_width: int = 4


Optimizer = Literal["adamw", "adamw8bit", "muon"]

SFT_SOURCES = ("demonstrations", "practice", "copies", "drills")


@dataclasses.dataclass(frozen=True)
class SftConfig:
  """Warm-up on demonstrations of the scripted expert, read through a seqio mixture of four sources.

  A source of rate 0 is neither made nor read. `copies` are drills of a repeated random string (a
  small network learns to quote from them first); they end after `copy_phase` of the steps.
  `drills` are short exercises in quoting the right ids of a result (`envs.search_drills`).

  Attributes:
    schedule: of the learning rate after the warm-up.
    demonstration_tasks: tasks of the train split, played `rollouts_per_task` times and filtered.
    hasty: probability that the expert, in an episode, asks for one clue alone and answers: what
      reinforcement learning is to unlearn.
    serial: of a swarm, probability that the orchestrator of an episode does everything itself.
    max_children: of a swarm, sub-agents of an episode that are imitated beside their orchestrator.
    practice_tasks: simpler tasks of single clues, played once and not filtered.
    rates: of demonstrations, practice, copies and drills in the mixture.
    beside: files of other configs, whose sources join the mixture, at a rate of `beside_rates`
      for those of each: for a policy that is to be the base of all of them.
    balance_rate: step of the routers' selection biases towards equal load of the experts.
    mtp_weight: of the self-distillation of the draft module beside the cross-entropy.
    mtp_steps: further steps at the end that distil the draft module alone, the trunk frozen.
    optimizer: AdamW, the same with moments in eight bits, or Muon (learner.optimizers).
    qk_clip: heads whose attention scores exceed it are scaled down after a step; 0 for none.
  """

  steps: int = 100
  lr: float = 3e-4
  schedule: Literal["constant", "cosine"] = "cosine"
  warmup_steps: int = 10
  rows_per_step: int = 16
  weight_decay: float = 0.0
  demonstration_tasks: int = 400
  rollouts_per_task: int = 2
  hasty: float = 0.3
  serial: float = 0.7
  max_children: int = 2
  practice_tasks: int = 0
  copy_segments: int = 0
  reading_drills: int = 0
  optimizer: Optimizer = "adamw"
  qk_clip: float = 0.0
  rates: tuple[float, ...] = (1.0, 0.0, 0.0, 0.0)
  beside: tuple[str, ...] = ()
  beside_rates: tuple[float, ...] = ()
  copy_phase: float = 0.4
  balance_rate: float = 1e-3
  mtp_weight: float = 0.0
  mtp_steps: int = 0
  save_every: int = 50


@dataclasses.dataclass(frozen=True)
class LearnerConfig:
  """Reinforcement learning: `groups_per_step` tasks x `group_size` rollouts, `substeps` updates
  each. `optimizer` and `qk_clip` as in SftConfig.

  `single_epoch`: no task is trained twice, across restarts (Composer 2).
  `row_tokens`, `rows_per_microbatch` and `remat` (what is kept of a layer to differentiate it, see
  policy.transformer.REMAT) hold for the warm-up too.
  A checkpoint is written every `save_every` steps: so many are lost at most where a machine dies
  without a warning (learner.preemption).
  """

  loss: Literal["cispo", "grpo", "dr_grpo", "dapo", "gspo", "ppo_clip", "k25"] = "cispo"
  steps: int = 16
  groups_per_step: int = 16
  group_size: int = 8
  substeps: int = 4
  lr: float = 1e-4
  warmup_steps: int = 0
  weight_decay: float = 0.0
  optimizer: Optimizer = "adamw"
  qk_clip: float = 0.0
  max_grad_norm: float = 1.0
  advantage_std: bool = False
  clip_low: float = 0.0
  clip_high: float = 5.0
  row_tokens: int = 1_024
  rows_per_microbatch: int = 8
  remat: Literal["none", "layer", "attention", "projections"] = "none"
  router_replay: bool = True
  mtp_weight: float = 0.1
  canary_bound: float = 1e-4
  level_weights_early: tuple[float, ...] = (0.5, 0.3, 0.15, 0.05)
  level_weights_late: tuple[float, ...] = (0.1, 0.25, 0.35, 0.3)
  level_switch: float = 0.4
  single_epoch: bool = False
  save_every: int = 1
  keep_checkpoints: int = 2


@dataclasses.dataclass(frozen=True)
class MeshConfig:
  """Devices of a run, as factors of their number; all 1: the first device alone, without a mesh.

  `data`, `fsdp` and `expert` split the rows of a microbatch, `context` their time; `fsdp` also
  splits parameters and moments, `expert` the experts, `tensor` heads, ffw and vocabulary. A
  checkpoint restores under any mesh.
  """

  data: int = 1
  fsdp: int = 1
  expert: int = 1
  context: int = 1
  tensor: int = 1


@dataclasses.dataclass(frozen=True)
class EvalConfig:
  """Held-out evaluation: `tasks` of the split, `rollouts` each, paired bootstrap over tasks."""

  split: Literal["train", "dev", "test"] = "test"
  tasks: int = 200
  rollouts: int = 1
  bootstrap_resamples: int = 10_000


@dataclasses.dataclass(frozen=True, kw_only=True)
class RunConfig:
  """Everything a run depends on. Two runs of the same config and code are the same run."""

  name: str
  policy: PolicySection
  env: Literal["search", "swarm"] = "search"
  seed: int = 0
  corpus: CorpusConfig = CorpusConfig()
  search: SearchConfig = SearchConfig()
  coding: CodingConfig = CodingConfig()
  coding_reward: CodingRewardConfig = CodingRewardConfig()
  sampler: SamplerConfig = SamplerConfig()
  workers: WorkersConfig = WorkersConfig()
  reward: RewardConfig = RewardConfig()
  swarm: SwarmConfig = SwarmConfig()
  parl: ParlConfig = ParlConfig()
  lora: LoraConfig = LoraConfig()
  sft: SftConfig = SftConfig()
  learner: LearnerConfig = LearnerConfig()
  mesh: MeshConfig = MeshConfig()
  sampler_mesh: MeshConfig = MeshConfig()
  eval: EvalConfig = EvalConfig()


BFLOAT16_GAP = 0.1
"""Of log-probabilities of sampler and learner that both compute in bfloat16, at the least."""


def load(path: str, overrides: Sequence[str] = ()) -> RunConfig:
  """The config of a Python file's `get_config()`, with `section.option=value` overrides applied.

  Raises:
    ValueError: no such file, no `get_config`, or a bad override.
  """
  file = pathlib.Path(path)
  if not file.is_file():
    folder = file.parent if file.parent.is_dir() else pathlib.Path("configs")
    names = [str(p) for p in sorted(folder.glob("*.py"))]
    raise ValueError(f"no config at {path}; {_nearest(path, names)}")
  spec = importlib.util.spec_from_file_location(file.stem, file)
  if spec is None or spec.loader is None:
    raise ValueError(f"{path} is not a Python file; pass one that defines get_config()")
  module = importlib.util.module_from_spec(spec)
  spec.loader.exec_module(module)
  if not hasattr(module, "get_config"):
    raise ValueError(
      f"{path} defines no get_config(); a config is a function that returns a RunConfig"
    )
  return validate(with_overrides(module.get_config(), overrides))


def with_overrides(config: RunConfig, overrides: Sequence[str]) -> RunConfig:
  """A copy of `config` with each "a.b=c" applied, c read as the type of the option it sets."""
  for override in overrides:
    path, equals, text = override.partition("=")
    if not equals:
      raise ValueError(f"override {override!r} has no '='; write --set section.option=value")
    config = _replaced(config, path.strip().split("."), text.strip(), path.strip())
  return config


def options(config: Any, prefix: str = "") -> dict[str, Any]:
  """Every option as {"section.option": value}, sections flattened."""
  flat: dict[str, Any] = {}
  for field in dataclasses.fields(config):
    value = getattr(config, field.name)
    if dataclasses.is_dataclass(value):
      flat |= options(value, f"{prefix}{field.name}.")
    else:
      flat[prefix + field.name] = value
  return flat


def sha256(config: RunConfig) -> str:
  """Digest of every option: equal for equal configs, whatever file they came from."""
  text = json.dumps(options(config), sort_keys=True, default=str)
  return hashlib.sha256(text.encode()).hexdigest()


def validate(config: RunConfig) -> RunConfig:
  """Checks what no single section can; returns `config`.

  Raises:
    ValueError: naming the two options that disagree and which to change.
  """
  search, learner, sampler = config.search, config.learner, config.sampler
  if learner.row_tokens < search.token_budget:
    raise ValueError(
      f"learner.row_tokens={learner.row_tokens} cannot hold a context of search.token_budget="
      f"{search.token_budget}; raise learner.row_tokens or lower search.token_budget"
    )
  if search.threshold_tokens >= search.token_budget:
    raise ValueError(
      f"search.threshold_tokens={search.threshold_tokens} must be below search.token_budget="
      f"{search.token_budget}"
    )
  if sampler.num_pages * sampler.page_tokens < 2 * search.token_budget:
    raise ValueError(
      f"sampler.num_pages={sampler.num_pages} x page_tokens={sampler.page_tokens} holds less than "
      f"two contexts of {search.token_budget} tokens; raise sampler.num_pages"
    )
  if len(config.sft.rates) != len(SFT_SOURCES):
    raise ValueError(
      f"sft.rates={config.sft.rates} must be {len(SFT_SOURCES)} numbers, one each for "
      f"{', '.join(SFT_SOURCES)}"
    )
  if len(config.sft.beside) != len(config.sft.beside_rates):
    raise ValueError(
      f"sft.beside={config.sft.beside} and sft.beside_rates={config.sft.beside_rates} must be of "
      "one length: a rate for each config"
    )
  if learner.groups_per_step % learner.substeps:
    raise ValueError(
      f"learner.groups_per_step={learner.groups_per_step} does not split into learner.substeps="
      f"{learner.substeps} equal parts; make it a multiple"
    )
  _check_mesh(config.mesh, learner)
  _check_fleet(config)
  _check_swarm(config)
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


def _check_swarm(config: RunConfig) -> None:
  swarm, parl = config.swarm, config.parl
  if config.env == "search":
    for name, default in (("swarm", SwarmConfig()), ("parl", ParlConfig())):
      if getattr(config, name) != default:
        raise ValueError(f"options of {name} have no effect with env=search; set env=swarm")
    return
  if config.search.can_prune:
    raise ValueError(
      "search.can_prune=True has no effect with env=swarm: contexts are split there, not pruned; "
      "set search.can_prune=False"
    )
  if not 0 < parl.anneal_end <= 1 or parl.target_width < 2:
    raise ValueError(
      f"parl.anneal_end={parl.anneal_end} must be in (0, 1] and parl.target_width="
      f"{parl.target_width} at least 2"
    )
  if swarm.sub_token_budget > config.search.token_budget:
    raise ValueError(
      f"swarm.sub_token_budget={swarm.sub_token_budget} is more than search.token_budget="
      f"{config.search.token_budget}, for which samplers and rows are made; lower it"
    )


def _check_mesh(mesh: MeshConfig, learner: LearnerConfig) -> None:
  if min(dataclasses.astuple(mesh)) < 1:
    raise ValueError(f"{mesh} has a factor below 1; 1 leaves an axis out")
  rows = mesh.data * mesh.fsdp * mesh.expert
  if learner.rows_per_microbatch % rows:
    raise ValueError(
      f"learner.rows_per_microbatch={learner.rows_per_microbatch} does not split over mesh.data x "
      f"fsdp x expert = {rows} devices; make it a multiple"
    )
  if learner.row_tokens % mesh.context:
    raise ValueError(
      f"learner.row_tokens={learner.row_tokens} does not split over mesh.context={mesh.context} "
      "devices; make it a multiple"
    )


def _check_fleet(config: RunConfig) -> None:
  workers, slices = config.workers, config.sampler.slices
  if workers.processes < 0 or slices < 0:
    raise ValueError(f"workers.processes={workers.processes} and sampler.slices={slices} count up")
  if not workers.listen and (slices or not workers.processes):
    raise ValueError(
      f"workers.processes={workers.processes} and sampler.slices={slices} wait for others to join: "
      "set workers.listen=HOST:PORT"
    )
  if not slices and config.sampler_mesh != MeshConfig():
    raise ValueError(
      f"sampler_mesh={config.sampler_mesh} has no effect with sampler.slices=0, where the engine "
      "uses the devices of mesh; set sampler.slices"
    )


def _replaced(section: Any, path: list[str], text: str, full: str) -> Any:
  names = [f.name for f in dataclasses.fields(section)]
  if path[0] not in names:
    parent = full[: len(full) - len(".".join(path))]
    raise ValueError(
      f"no option {full!r}; {_nearest(parent + path[0], [parent + n for n in names])}"
    )
  current = getattr(section, path[0])
  if len(path) > 1:
    if not dataclasses.is_dataclass(current):
      raise ValueError(f"option {full!r} goes deeper than {path[0]!r}, which holds a value")
    return dataclasses.replace(section, **{path[0]: _replaced(current, path[1:], text, full)})
  if dataclasses.is_dataclass(current):
    inner = [f"{full}.{f.name}" for f in dataclasses.fields(current)]
    raise ValueError(f"{full!r} is a section; set one of its options: {', '.join(inner)}")
  hint = typing.get_type_hints(type(section))[path[0]]
  return dataclasses.replace(section, **{path[0]: _value(hint, text, full)})


def _value(hint: Any, text: str, full: str) -> Any:
  """`text` read as the type `hint`: bool, int, float, str, a Literal, a tuple, or `X | None`."""
  origin = typing.get_origin(hint)
  if origin is Literal:
    choices = [str(c) for c in typing.get_args(hint)]
    if text not in choices:
      raise ValueError(
        f"{full}={text} is not one of {', '.join(choices)}; {_nearest(text, choices)}"
      )
    return text
  if origin in (typing.Union, types.UnionType):
    inner = [h for h in typing.get_args(hint) if h is not type(None)]
    return None if text == "None" else _value(inner[0], text, full)
  try:
    if hint is bool:
      return {"true": True, "false": False, "1": True, "0": False}[text.lower()]
    if origin is tuple:
      return tuple(typing.get_args(hint)[0](v) for v in ast.literal_eval(text))
    if hint in (int, float, str):
      return hint(text.replace("_", "") if hint is int else text)
  except (KeyError, ValueError, SyntaxError, TypeError) as error:
    name = getattr(hint, "__name__", str(hint))
    raise ValueError(f"{full}={text!r} cannot be read as {name}: {error}") from error
  raise ValueError(
    f"{full} cannot be set from the command line (type {hint}); edit the config file"
  )


def _nearest(name: str, names: Sequence[str]) -> str:
  close = difflib.get_close_matches(name, names, n=1, cutoff=0.0)
  return f"did you mean {close[0]!r}?" if close else "there are none"
