"""Context-1's recipe for its own model: low-rank adapters of gpt-oss-20b learn to search.

python scripts/import_hf.py --hf=gpt-oss-20b --out=policies/gpt_oss_20b
python scripts/plan_pod.py --config=configs/gpt_oss_20b_rl.py --topology=v6e:8x8

With all parameters trained (lora.rank=0 learner.optimizer=adamw8bit), the learner takes 27 of 32
GiB of each of 64 chips of v6e, and 30 to 34 s for a substep of 8.4 million tokens. A sampler takes
21 GiB of each while weights are swapped, and decodes 34,300 to 35,100 tokens/s in 512 contexts,
half full (planned, not run).

Sizes are those of https://huggingface.co/openai/gpt-oss-20b/blob/main/config.json.
"""

import math

from jaxrl_agents import config
from jaxrl_agents.policy.config import PolicyConfig


def get_config() -> config.RunConfig:
  """The published recipe and budgets (SearchConfig's defaults), one context a row.

  Context-1's report leaves out the rank, the learning rate and CISPO's bound; they are those of
  https://github.com/pat-jj/harness-1, a relative of its code. The adapters' alpha and the matrices
  that they adapt are ours. It differs from the recipe in:

  - tasks: the published ones are not available. `corpus.source` is the standard library; name a
    task set of your own (docs/own-corpus.md).
  - top-p: rollouts are published at top-p 0.9. Here they are drawn from the whole distribution,
    whose log-probabilities the learner computes; evaluation uses 0.9.
  - search: vectors are of LSA or MiniLM, their scores are fused (search.fusion="ranks" fuses ranks,
    as published), and no reranker orders the fused hits.
  - warm-up: imitates a scripted demonstrator, since the traces of the larger model are not
    available. It can be left out: the system prompt explains the environment.
  - distillation to MXFP4 after training is left out: weights stay in bfloat16.
  """
  return config.RunConfig(
    name="gpt_oss_20b_rl",
    policy=config.PolicySection(
      init="policies/gpt_oss_20b",
      tokenizer="policies/gpt_oss_20b",
      dtype="bfloat16",
      model=PolicyConfig(
        vocab_size=201_088,
        embed_dim=2_880,
        num_layers=24,
        num_heads=64,
        num_kv_heads=8,
        head_dim=64,
        qk_norm=False,
        biases=True,
        sinks=True,
        window_tokens=128,
        full_attention_every=2,
        num_experts=32,
        experts_per_token=4,
        expert_ffw_dim=2_880,
        swiglu_limit=7.0,
        swiglu_alpha=1.702,
        router="softmax",
        norm_eps=1e-5,
        rope_theta=150_000.0,
        rope_factor=32.0,
        rope_original_tokens=4_096,
        rope_beta_fast=32.0,
        rope_beta_slow=1.0,
        rope_truncate=False,
        rope_gain=0.1 * math.log(32.0) + 1.0,
      ),
    ),
    corpus=config.CorpusConfig(chunk_tokens=512),
    mesh=config.MeshConfig(fsdp=2, expert=32),
    lora=config.LoraConfig(rank=32, alpha=32.0, targets=("qkv", "out", "gate_up", "down")),
    sampler=config.SamplerConfig(
      slots=512, page_tokens=64, num_pages=262_144, prefill_tokens=2_048
    ),
    workers=config.WorkersConfig(processes=32, episodes=512, stall_s=600.0),
    learner=config.LearnerConfig(
      steps=300,  # five epochs of 7,680 questions
      groups_per_step=128,
      group_size=8,
      substeps=4,
      loss="cispo",
      loss_options={"low": 0.0, "high": 5.0},
      lr=1e-5,
      row_tokens=32_768,
      rows_per_microbatch=64,
      remat="attention",
      canary_bound=0.3,
      mtp_weight=0.0,
      level_weights_early=(0.5, 0.3, 0.15, 0.05),
      level_weights_late=(0.1, 0.25, 0.35, 0.3),
      save_every=10,
    ),
    sft=config.SftConfig(lr=5e-6, rows_per_step=128, demonstration_share=0.3),
    eval=config.EvalConfig(temperature=1.0, top_p=0.9),
  )
