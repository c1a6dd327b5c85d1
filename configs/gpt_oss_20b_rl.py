"""Reinforcement learning of gpt-oss-20b on Context-1's search task.

python scripts/import_hf.py --hf=gpt-oss-20b --out=policies/gpt_oss_20b
python scripts/plan_pod.py --config=configs/gpt_oss_20b_rl.py --topology=v6e:8x8

In bfloat16 with moments in 8 bits the learner takes 27 of 32 GiB of each of 64 chips of v6e, and
30 to 34 s for a step of 8.4 million tokens; a sampler takes 17 GiB of each, and decodes 35,100 to
35,900 tokens/s in 512 contexts, half full (planned, not run).

Sizes are those of https://huggingface.co/openai/gpt-oss-20b/blob/main/config.json.
"""

import math

from jaxrl_agents import config
from jaxrl_agents.policy.config import PolicyConfig


def get_config() -> config.RunConfig:
  """The published budgets of the search agent (SearchConfig's defaults), one context a row."""
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
    sampler=config.SamplerConfig(
      slots=512, page_tokens=64, num_pages=262_144, prefill_tokens=2_048
    ),
    workers=config.WorkersConfig(processes=32, episodes=512, stall_s=600.0),
    learner=config.LearnerConfig(
      steps=300,
      groups_per_step=64,
      group_size=16,
      substeps=4,
      lr=2e-6,
      optimizer="adamw8bit",
      row_tokens=32_768,
      rows_per_microbatch=64,
      remat="attention",
      canary_bound=0.3,
      mtp_weight=0.0,
      save_every=10,
    ),
  )
