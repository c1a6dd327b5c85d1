"""The sections of a run's configuration, and `RunConfig`, which holds them."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Annotated, Any, Literal

from jaxrl_agents.config import import_path
from jaxrl_agents.config.judge import JudgeConfig
from jaxrl_agents.config.mcp_servers import McpServer
from jaxrl_agents.config.ranges import (
  Count,
  Decay,
  NotNegative,
  Positive,
  Range,
  Share,
  ShareAboveZero,
  Whole,
)
from jaxrl_agents.policy.config import PolicyConfig


@dataclasses.dataclass(frozen=True)
class CorpusConfig:
  """Documents and tasks.

  Attributes:
    source: "python" (this interpreter's library), "package:NAME,NAME" (installed packages), or a
      folder.
    train_tasks: most tasks of the train split that the search agent makes, about; 0 for 4,000, or
      1,200 with hops.
  """

  source: str = "python"
  chunk_tokens: Count = 64
  seed: Whole = 0
  train_tasks: Whole = 0
  dense: Literal["lsa", "minilm"] = "lsa"
  cache: str = "~/.cache/jaxrl_agents"


BASE_MODEL = PolicyConfig(
  vocab_size=5_096,
  embed_dim=128,
  num_layers=4,
  num_heads=4,
  num_kv_heads=2,
  head_dim=32,
  num_experts=8,
  experts_per_token=2,
  expert_ffw_dim=128,
  num_shared_experts=1,
  mtp_depth=1,
  qk_norm=False,
  rope_theta=1e6,
  tie_embeddings=True,
)
"""Sizes of the shipped base policy, which the CPU recipes start from."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class PolicySection:
  """The policy and its tokenizer.

  Attributes:
    init: a shipped policy ("base"; "search_base" for the search agent; "swarm_base" for a swarm
      that fills in tables of every size), a folder of exported or imported weights, "scratch"
      (random), or "copying" (random except for heads that quote from the context; see
      policy.copying_heads).
    tokenizer: "base", or a folder with tokenizer.json, by which the chat format is recognised.
    dtype: of parameters and of the computation, except for softmax, norms, routers and losses;
      bfloat16 parameters have a float32 master in the optimizer.
    thinking: how much the prompts tell the policy to think: "model", as the model does untold;
      "on" or "off", which Qwen3, Kimi K2.5 and DeepSeek-V3.1 have; "low", "medium" or "high", which
      gpt-oss has.
  """

  model: PolicyConfig
  init: str = "base"
  tokenizer: str = "base"
  dtype: Literal["float32", "bfloat16"] = "float32"
  thinking: Literal["model", "on", "off", "low", "medium", "high"] = "model"


@dataclasses.dataclass(frozen=True)
class LoraConfig:
  """Low-rank adapters instead of full parameters, in warm-up and in reinforcement learning.

  Attributes:
    rank: rank of the adapters; 0 trains all parameters.
    alpha: the product of an adapter's factors is multiplied by alpha / rank.
    targets: names of matrices inside layers, or the ends of their dotted paths (see policy.lora).
  """

  rank: Whole = 0
  alpha: Positive = 32.0
  targets: tuple[str, ...] = ("qkv", "out")


@dataclasses.dataclass(frozen=True)
class SamplerConfig:
  """The generation engine.

  Attributes:
    slots: sequences that decode at once.
    engines: on a CPU, engines that sample at the same time, each on a core of its own with a share
      of slots and pages: within one device XLA leaves cores idle. At most as many as there are
      cores; one with slices, with a mesh, and in evaluators beside a run. They wait for one another
      where `workers.deterministic` or `fleet.depth` is set.
    num_pages, page_tokens: the cache holds num_pages * page_tokens tokens of these sequences. On a
      mesh, slots and pages are split with the rows, and a context must fit into one part.
    slices: 0 for an engine on the learner's own devices; otherwise the number of samplers on
      devices of their own (section `sampler_mesh`), on nodes of the Ray cluster of fleet.address.
    frozen_slices: how many of the slices, the last ones, sample the policies that are not trained,
      such as the sub-agents of a swarm; divided among their weights. 0: the learner's devices
      sample these policies, and the learner must be one process.
    hosts: nodes of each slice. Those of slice N offer the resource "sliceN" (ray start
      --resources='{"slice0": 1}').
    draft_tokens, lookup_tokens: tokens that the prediction modules and that prompt lookup draft in
      the steps where that is measured to be faster; 0 for none. Replies do not depend on it, but
      for rounding.
  """

  slices: Whole = 0
  frozen_slices: Whole = 0
  hosts: Count = 1
  slots: Count = 32
  engines: Count = 1
  page_tokens: Count = 32
  num_pages: Count = 2_048
  prefill_tokens: Count = 256
  draft_tokens: Whole = 0
  lookup_tokens: Whole = 0
  temperature: Positive = 1.0


@dataclasses.dataclass(frozen=True)
class WorkersConfig:
  """Worker processes that play `episodes` at once in total, in whole groups.

  Attributes:
    processes: with fleet.backend=ray on each node of the cluster that has so many CPUs.
    stall_s: seconds without progress that count as an error; where a turn of the agent may take
      longer (Agent.max_turn_s), as many seconds as that.
  """

  processes: Count = 2
  episodes: Count = 64
  stall_s: Positive = 120.0
  deterministic: bool = False


@dataclasses.dataclass(frozen=True)
class ToolsConfig:
  """Tools that every episode has beside those of its agent.

  Attributes:
    mcp: MCP servers, as a JSON object {name: {"command": ..., "args": [...]}} or the name of a file
      with one (config.mcp_servers). Needs the extra `mcp`.
  """

  mcp: tuple[McpServer, ...] = ()


@dataclasses.dataclass(frozen=True)
class FleetConfig:
  """Where rollout workers and samplers run, and how far playing runs ahead of learning.

  Attributes:
    backend: "local", all on this machine; or "ray", worker processes on the nodes of a Ray cluster
      (extra "ray"), and sampler slices if `sampler.slices` asks for them.
    address: of the cluster, "HOST:PORT" of its head node, or "auto" where a node of it was started.
    depth: batches that are played while the learner has one: a group begins if fewer than (depth +
      1) x learner.groups_per_step are in play, wait for the learner or are being learnt from. 0:
      playing and learning take turns, and all rollouts are of the newest weights. Several learner
      processes need `sampler.slices` for it.
    ready_gib: memory, GiB: a group beyond one batch begins only while the groups that wait for the
      learner and those in play, at the mean size of the last ones, take less. Most of it is the
      routing of long episodes (fleet.pacing).
    max_age: most publications of weights between the sampling of a token and the step that trains
      it.
    too_old: what becomes of older tokens: "mask", they have no loss, and their rollouts still count
      in the baseline of the group; or "drop", their group is not trained, and another is played.
    cache: whether sequences that are running when weights change "keep" the keys and values that
      older weights wrote, or "recompute" them.
    replay: folder of a run with the same options, which this run repeats bit by bit
      (fleet.schedule).
  """

  backend: Literal["local", "ray"] = "local"
  address: str = ""
  depth: Whole = 0
  ready_gib: Positive = 16.0
  max_age: Count = 4
  too_old: Literal["mask", "drop"] = "mask"
  cache: Literal["keep", "recompute"] = "keep"
  replay: str = ""


@dataclasses.dataclass(frozen=True)
class PublishConfig:
  """How new weights reach the samplers.

  Attributes:
    kind: "full": every version complete; or "delta": as differences from the one before
      (weights.streams), exact bit by bit, for which policy.dtype must be bfloat16.
    anchor_every: publications from one version that is complete as well to the next; differences
      that are damaged or missing are repaired from these.
    folder: where versions lie that samplers read: a folder of a disk that all share, or a place in
      a bucket, gs://BUCKET/FOLDER or s3://BUCKET/FOLDER (weights.places), of one run alone. "": in
      the folder of the run.
  """

  kind: Literal["full", "delta"] = "full"
  anchor_every: Count = 25
  folder: str = ""


@dataclasses.dataclass(frozen=True)
class ToggleConfig:
  """Phases in which solved tasks must be solved within a length (agents.toggle).

  Attributes:
    phase_steps: steps of each phase; limited and free phases alternate. 0: rewards are never gated.
    solved: mean reward of a group from which its length limit applies.
    percentile: percentile of the lengths of right rollouts, which becomes the limit of a task.
  """

  phase_steps: Whole = 0
  solved: ShareAboveZero = 0.875
  percentile: Annotated[float, Range(0, 100, above=True)] = 90.0


Optimizer = Literal["adamw", "adamw8bit", "muon"]

SFT_SOURCES = ("demonstrations", "practice", "copies", "drills")


@dataclasses.dataclass(frozen=True)
class SftConfig:
  """Warm-up on demonstrations of a scripted player, read through a seqio mixture of four sources.

  A source of rate 0 is neither made nor read. `copies` are drills of a repeated random string (a
  small network learns to quote from them first); they end after `copy_phase` of the steps. `drills`
  are short exercises: hops and next steps of a search (`agents.search.hop_drills`, `step_drills`),
  each role of a swarm (`agents.swarm.drills`), repairing a line of a file (`agents.coding.drills`).

  Attributes:
    schedule: of the learning rate after the warm-up steps.
    demonstration_tasks: tasks of the train split, played `rollouts_per_task` times and filtered.
    demonstration_share: share of the train split that may be demonstrated, in whole repositories if
      there are any; the rest is new to reinforcement learning.
    practice_tasks: tasks of unrelated clues, simpler than the others, played once and not filtered.
    drills: how many of these are made.
    rates: of demonstrations, practice, copies and drills in the mixture.
    beside: files of other configs, each with overrides after it ("configs/swarm_cpu.py
      swarm.single=0.1"). Their sources join the mixture, at the rates of `beside_rates`, for a
      policy that is to be the base of all of them.
    balance_rate: step of the selection biases of sigmoid routers towards equal load of the experts,
      where all parameters are trained.
    mtp_weight: weight of the self-distillation of the draft module beside the cross-entropy.
    mtp_steps: further steps at the end that distil the draft module alone, the trunk frozen.
    optimizer: AdamW, AdamW with moments in eight bits, or Muon (learner.optimizers).
    qk_clip: heads whose attention scores exceed it are scaled down after a step; 0 for none.
  """

  steps: Whole = 100
  lr: Positive = 3e-4
  schedule: Literal["constant", "cosine"] = "cosine"
  warmup_steps: Whole = 10
  rows_per_step: Count = 16
  weight_decay: NotNegative = 0.0
  demonstration_tasks: Whole = 400
  demonstration_share: ShareAboveZero = 1.0
  rollouts_per_task: Count = 2
  practice_tasks: Whole = 0
  copy_segments: Whole = 0
  drills: Whole = 0
  optimizer: Optimizer = "adamw"
  qk_clip: NotNegative = 0.0
  rates: tuple[NotNegative, ...] = (1.0, 0.0, 0.0, 0.0)
  beside: tuple[str, ...] = ()
  beside_rates: tuple[NotNegative, ...] = ()
  copy_phase: Share = 0.4
  balance_rate: NotNegative = 1e-3
  mtp_weight: NotNegative = 0.0
  mtp_steps: Whole = 0
  save_every: Count = 50


@dataclasses.dataclass(frozen=True)
class LearnerConfig:
  """Reinforcement learning: `groups_per_step` tasks x `group_size` rollouts, `substeps` updates
  each.

  Attributes:
    loss: cispo, grpo, dr_grpo, dapo, gspo, ppo_clip, k25, dro, decoupled_ppo, icepop,
      importance_sampling, or the import path "package.module:NAME" of a function like them, or of a
      `losses.PolicyLoss`.
    loss_options: keyword arguments of the loss that differ from their defaults, {"high": 3.0}; on
      the command line --set learner.loss_options.high=3.
    normaliser: the divisor of the sum over tokens (learner.packing); "published" takes the one
      published with the loss.
    advantage_std: whether advantages, R - mean(R) of a group, are divided by the standard deviation
      of the group: "on", "off", or "published", as they were published with the loss.
    advantage: the import path "package.module:NAME" of a function from the rewards of a group,
      float64 [G], to advantages [G]; "" for the above.
    constant_tokens: tokens of a rollout by which a loss with the constant normaliser (dr_grpo)
      divides, together with the rollouts of a substep, dropped ones included; 0 for `row_tokens`.
    router_replay: the learner uses the experts that the sampler chose, except those whose
      probability under the learner is below `replay_threshold` (see policy.experts.moe).
    level_weights_early, level_weights_late: how often tasks of level 0, 1, ... are drawn (their
      fact "level", learner.curriculum) before and after a share `level_switch` of the steps; the
      last number is that of all higher levels. Empty: all tasks equally often.
    resample_constant: most groups of a step that are replaced by further ones because all of their
      rewards are equal (DAPO's dynamic sampling); others stay in the batch and give no gradient.
      Scores of a step are those of the groups that stay. Replacements take tasks of later draws, so
      that a single epoch and the share of the draws at `level_switch` come sooner.
    schedule: of the learning rate after `warmup_steps` updates: constant, or a cosine to a tenth at
      the end, after `steps` times `substeps` updates; more steps for a resumed run stretch it.
    beta1, beta2: decays of the first and the second moment of gradients.
    truncated: what becomes of rollouts that a limit cut off (learner.loss_exclusions.is_truncated):
      "train"; "mask", they have no loss and stay in the baseline of their group (DAPO's overlong
      filtering); or "drop", they are in neither.
    single_epoch: no task is trained twice, across restarts (Composer 2).
    row_tokens, rows_per_microbatch: shape of a microbatch, for the warm-up too.
    rollout_row_tokens: lengths of the rows that rollouts are packed into, instead of `row_tokens`:
      a microbatch has the shortest that holds its fullest row. Memory is that of the longest. A
      program is compiled for each when it is first used, a second or two where it is cached. Empty
      for `row_tokens` alone.
    share_prefixes: whether what sequences of a step begin with in common is computed once (see
      learner.prefix_trees). Losses of whole rollouts (gspo) cannot be used then.
    split_cores: whether rows of a microbatch are split over this machine's cores, each a device of
      its own, for the warm-up too: within one device XLA leaves cores idle (for sampling see
      `sampler.engines`). Only on a CPU, where `mesh` is all 1.
    remat: what is kept of a layer for the backward pass (policy.transformer.REMAT), for the warm-up
      too.
    kl: factor of log(pi / pi_0) that is subtracted from each token's advantage, where pi_0 is the
      policy that training starts from (k1; Composer 2); 0 for none.
    entropy_bonus: factor of the entropy of the policy at each sampled token, in nats and at
      sampler.temperature, that is subtracted from the token's loss; 0 for none.
    save_every: steps between checkpoints, which is the most that a crash can lose
      (learner.preemption).
    optimizer, qk_clip: as in SftConfig.
  """

  loss: str = "cispo"
  loss_options: Mapping[str, float] = dataclasses.field(default_factory=dict)
  normaliser: Literal["published", "token_mean", "rollout_mean", "constant", "sum"] = "published"
  steps: Whole = 16
  groups_per_step: Count = 16
  group_size: Count = 8
  substeps: Count = 4
  resample_constant: Whole = 0
  truncated: Literal["train", "mask", "drop"] = "train"
  lr: Positive = 1e-4
  schedule: Literal["constant", "cosine"] = "constant"
  warmup_steps: Whole = 0
  beta1: Decay = 0.9
  beta2: Decay = 0.95
  weight_decay: NotNegative = 0.0
  optimizer: Optimizer = "adamw"
  qk_clip: NotNegative = 0.0
  max_grad_norm: Positive = 1.0
  advantage_std: Literal["published", "on", "off"] = "off"
  advantage: str = ""
  row_tokens: Count = 1_024
  rows_per_microbatch: Count = 8
  rollout_row_tokens: tuple[Count, ...] = ()
  share_prefixes: bool = False
  split_cores: bool = False
  remat: Literal["none", "layer", "attention", "projections"] = "none"
  router_replay: bool = True
  replay_threshold: Share = 0.0
  constant_tokens: Whole = 0
  kl: NotNegative = 0.0
  entropy_bonus: NotNegative = 0.0
  mtp_weight: NotNegative = 0.1
  canary_bound: Positive = 1e-4
  level_weights_early: tuple[NotNegative, ...] = ()
  level_weights_late: tuple[NotNegative, ...] = ()
  level_switch: Share = 0.4
  single_epoch: bool = False
  save_every: Count = 1
  keep_checkpoints: Count = 2

  @property
  def row_lengths(self) -> tuple[int, ...]:
    """Tokens of the rows that rollouts are packed into, the longest last."""
    return tuple(sorted(self.rollout_row_tokens)) or (self.row_tokens,)


@dataclasses.dataclass(frozen=True)
class MeshConfig:
  """The devices of a run, as factors of their number; all 1: the first device alone, without a
  mesh.

  `data`, `fsdp` and `expert` split the rows of a microbatch, `context` their time. `fsdp` also
  splits parameters and moments, `expert` the experts, and `tensor` heads, ffw and vocabulary. A
  checkpoint can be restored under any mesh.
  """

  data: Count = 1
  fsdp: Count = 1
  expert: Count = 1
  context: Count = 1
  tensor: Count = 1


@dataclasses.dataclass(frozen=True)
class EvalConfig:
  """Held-out evaluation: `tasks` of the split, `rollouts` each, bootstrap over tasks.

  Attributes:
    temperature: sampling temperature; negative for that of training.
    top_p: below 1, each token is sampled from the smallest set of likely ones with this share.
    threshold: a rollout is right, for pass@k, if its success (`Agent.success`; the reward of an
      agent without it) is at least this; 0: success must be 1, and without it there is no pass@k.
  """

  split: Literal["train", "dev", "test"] = "test"
  tasks: Count = 200
  rollouts: Count = 1
  temperature: float = -1.0
  top_p: ShareAboveZero = 1.0
  bootstrap_resamples: Count = 10_000
  threshold: NotNegative = 0.0


@dataclasses.dataclass(frozen=True)
class EvaluatorConfig:
  """A process that scores new versions of the weights on the dev split while training goes on.

  Attributes:
    every: steps of learning from one evaluation to the next at least; 0: the run starts none.
      scripts/evaluate.py --follow, anywhere, takes it too (0 there is 1).
    tasks, rollouts: of each evaluation; temperature and top_p are those of `eval`.
    on_node: whether the run starts it on a node of the Ray cluster that offers the resource
      "evaluator", with the accelerators of this node, on the mesh of `sampler_mesh`; else it is
      beside the learner and computes on the CPU.
    threads, nice: cores that it may use, with as many worker processes, and its priority (19 is the
      lowest), where the run starts it.
    deadline_s: a version whose tasks take longer has no score.
    idle_timeout_s: without a new version for so long it ends.
  """

  every: Whole = 0
  tasks: Count = 50
  rollouts: Count = 1
  on_node: bool = False
  threads: Count = 1
  nice: Annotated[int, Range(0, 19)] = 10
  deadline_s: Positive = 600.0
  idle_timeout_s: Positive = 3_600.0


@dataclasses.dataclass(frozen=True)
class MonitorConfig:
  """How a run shows itself, beside the files that it always leaves.

  Attributes:
    tensorboard: whether all metrics are written as event files of TensorBoard too (extra
      "tensorboard").
    listener: import path "package.module:NAME" of a function (config, folder of the run) -> context
      manager, whose value is called with each line of metrics: phase ("sft", "mtp", "rl", and
      "held_out" in the process of an evaluator), step, numbers, seconds since the epoch. What it
      raises ends the run. Empty: none.
    port: where the newest numbers are served for Prometheus (/metrics); 0: nowhere.
    host: address at which they are served, to whoever reaches it.
  """

  tensorboard: bool = False
  listener: str = ""
  host: str = "127.0.0.1"
  port: Annotated[int, Range(0, 65_535)] = 0


@dataclasses.dataclass(frozen=True, kw_only=True)
class RunConfig:
  """Everything that a run depends on. Two runs with the same config and code are the same run
  where `workers.deterministic` is set.

  Attributes:
    agent: "search", "swarm" or "coding", or the import path of another one, "package.module:NAME".
    agent_config: options of the agent, an instance of its `config` class; None stands for its
      defaults. In overrides and summaries the section has the agent's name.
  """

  name: str
  policy: PolicySection
  agent: str = "search"
  agent_config: Any = None
  seed: Whole = 0
  corpus: CorpusConfig = CorpusConfig()
  sampler: SamplerConfig = SamplerConfig()
  workers: WorkersConfig = WorkersConfig()
  tools: ToolsConfig = ToolsConfig()
  judge: JudgeConfig = JudgeConfig()
  fleet: FleetConfig = FleetConfig()
  publish: PublishConfig = PublishConfig()
  toggle: ToggleConfig = ToggleConfig()
  lora: LoraConfig = LoraConfig()
  sft: SftConfig = SftConfig()
  learner: LearnerConfig = LearnerConfig()
  mesh: MeshConfig = MeshConfig()
  sampler_mesh: MeshConfig = MeshConfig()
  eval: EvalConfig = EvalConfig()
  evaluator: EvaluatorConfig = EvaluatorConfig()
  monitor: MonitorConfig = MonitorConfig()

  def __post_init__(self):
    expected = import_path.agent(self.agent).config
    if self.agent_config is None:
      object.__setattr__(self, "agent_config", expected())
    elif not isinstance(self.agent_config, expected):
      raise ValueError(
        f"agent_config is a {type(self.agent_config).__name__}, but the options of agent="
        f"{self.agent} are a {expected.__name__}; pass one, or name the other agent"
      )
