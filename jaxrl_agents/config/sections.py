"""The sections of a run's configuration, and the whole."""

from __future__ import annotations

import dataclasses
from typing import Literal

from jaxrl_agents.policy.config import PolicyConfig


@dataclasses.dataclass(frozen=True)
class CorpusConfig:
  """Documents and tasks. `source`: "python" (this interpreter's library), "package:NAME" (of one
  that is installed), or a folder.
  """

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
  but prune_chunks is rejected. `short_ids` calls chunks by numbers of the task
  (agents.search.short_ids). Of the calls of one turn those beyond `max_calls` are refused.
  `tool_latency_s` is the median of what each call waits beside its work, as for a service on a
  network: to see wall-clock with.
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
  tool_latency_s: float = 0.0
  system_prompt: str = ""


CODING_TOOLS = (
  "read_file",
  "edit_file",
  "undo_edit",
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
    tasks: folder of a frozen set (scripts/make_coding_tasks.py); "": short functions of `sources`
      (of each "python", "package:NAME" of one that is installed, or a folder), damaged when a run
      first needs them, at most `tasks_per_repo` times each.
    sources: also what drills are made of, but for functions that the set holds back.
    repo_kind, damage, min_level, max_level, max_file_characters: the slice of it that is played:
      "calls" are short functions in one file, "token" is damage of one token, "flip" one put
      for its counterpart ("<" for "<=", "and" for "or": `agents.coding.tasks.mutations.is_flip`),
      levels are those of `agents.coding.tasks.making` (0: one line; 3: 61 to 300 lines).
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
  sources: tuple[str, ...] = ("python",)
  tasks_per_repo: int = 6
  repo_kind: Literal["any", "calls", "suite"] = "any"
  damage: Literal["any", "token", "flip"] = "any"
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
    comment_thinking, shell_only: where the behaviour is seen. All four together cost at most 0.2.
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
  """`init`: "base" (the shipped weights), a folder of exported or imported weights, "scratch"
  (random), or "copying" (random but for heads that quote from the context; see
  policy.copying_heads).

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
  """The generation engine. `slots` sequences decode at once; the cache holds num_pages *
  page_tokens of them. On a mesh both are split with the rows, and a context must fit into one part.

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
    sub_init: folders of its weights, of any sizes, small to large for a curriculum; "" for those
      that training starts from. None: those alone.
    sub_until: shares of the training steps at which the next of `sub_init` takes over.
    alone: the orchestrator has the tools of the corpus alone, and no sub-agents.
    budget_share: the budget of critical steps of a wide or deep task, as a share of the steps that
      a single agent needs: the smaller, the larger the tasks.
    stretch: factor of the tasks' budgets of critical steps.
    max_turns: of the orchestrator, whatever its task's budget of critical steps.
    sub_max_turns: of a sub-agent; what is left of the critical steps may be less.
    sub_token_budget: of the context of a sub-agent.
    sub_max_new_tokens: of one turn of a sub-agent.
    sub_temperature: at which sub-agents are sampled.
    sub_deadline_s: after which a sub-agent is given up; below workers.stall_s, when the run is.
    message_tokens: of what a sub-agent returns; the rest is cut.
    max_agents: that an episode may create.
    max_assignments_per_turn: that run at once; more are refused.
    max_assignments: of an episode.
  """

  sub_policy: str = "frozen"
  sub_init: tuple[str, ...] = ()
  sub_until: tuple[float, ...] = ()
  alone: bool = False
  budget_share: float = 0.4
  stretch: float = 1.0
  max_turns: int = 15
  sub_max_turns: int = 100
  sub_token_budget: int = 32_268
  sub_max_new_tokens: int = 2_048
  sub_temperature: float = 1.0
  sub_deadline_s: float = 100.0
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


@dataclasses.dataclass(frozen=True)
class ToggleConfig:
  """Phases in which what is solved must be solved within a length (agents.toggle).

  Attributes:
    phase_steps: steps of each phase, limited and free in turn; 0: rewards are never gated.
    solved: mean of a group from which on its limit binds.
    percentile: of the lengths of right rollouts, which is the limit of a task.
  """

  phase_steps: int = 0
  solved: float = 0.875
  percentile: float = 90.0


Optimizer = Literal["adamw", "adamw8bit", "muon"]

SFT_SOURCES = ("demonstrations", "practice", "copies", "drills")


@dataclasses.dataclass(frozen=True)
class SftConfig:
  """Warm-up on demonstrations of the scripted expert, read through a seqio mixture of four sources.

  A source of rate 0 is neither made nor read. `copies` are drills of a repeated random string (a
  small network learns to quote from them first); they end after `copy_phase` of the steps.
  `drills` are short exercises, `reading_drills` of them: in quoting the right ids of a result
  (`agents.search.drills`), in each role of a swarm (`agents.swarm.drills`), in mending a line of a
  file (`agents.coding.drills`).

  Attributes:
    schedule: of the learning rate after the warm-up.
    demonstration_tasks: tasks of the train split, played `rollouts_per_task` times and filtered.
    hasty: probability that the expert, in an episode, asks for one clue alone and answers: what
      reinforcement learning is to unlearn.
    serial: of a swarm, probability that the orchestrator of an episode does everything itself.
    alone: of a swarm, probability that an episode is that of a single agent without the two tools,
      which has the steps and the context that it needs.
    demonstration_share: of the train split, what may be demonstrated, by whole repositories where
      there are any: the rest is new to reinforcement learning.
    max_children: of a swarm, sub-agents of an episode that are imitated beside their orchestrator.
    practice_tasks: simpler tasks of single clues, played once and not filtered.
    rates: of demonstrations, practice, copies and drills in the mixture.
    beside: files of other configs, each with overrides after it ("configs/swarm_cpu.py
      sft.alone=0.1"), whose sources join the mixture, at a rate of `beside_rates` for those of
      each: for a policy that is to be the base of all of them.
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
  demonstration_share: float = 1.0
  rollouts_per_task: int = 2
  hasty: float = 0.3
  serial: float = 0.7
  alone: float = 0.0
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
  `constant_tokens`: of a rollout, by which a loss with the constant normaliser (dr_grpo) divides
  beside the rollouts of a substep, those that drop out included; 0 for `row_tokens`.
  `kl`: how much each token's advantage loses for log(pi / pi_0), pi_0 being the policy that
  training starts from (k1; Composer 2); 0 for nothing.
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
  constant_tokens: int = 0
  kl: float = 0.0
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
  """Held-out evaluation: `tasks` of the split, `rollouts` each, paired bootstrap over tasks.

  `temperature`: at which the policy is sampled; negative for that of training.
  """

  split: Literal["train", "dev", "test"] = "test"
  tasks: int = 200
  rollouts: int = 1
  temperature: float = -1.0
  bootstrap_resamples: int = 10_000


@dataclasses.dataclass(frozen=True, kw_only=True)
class RunConfig:
  """Everything a run depends on. Two runs of the same config and code are the same run."""

  name: str
  policy: PolicySection
  env: Literal["search", "swarm", "coding"] = "search"
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
  toggle: ToggleConfig = ToggleConfig()
  lora: LoraConfig = LoraConfig()
  sft: SftConfig = SftConfig()
  learner: LearnerConfig = LearnerConfig()
  mesh: MeshConfig = MeshConfig()
  sampler_mesh: MeshConfig = MeshConfig()
  eval: EvalConfig = EvalConfig()


def limits(config: RunConfig) -> SearchConfig | CodingConfig:
  """The section that bounds the contexts of the policy in training."""
  return config.coding if config.env == "coding" else config.search
