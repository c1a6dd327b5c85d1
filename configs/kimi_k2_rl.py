"""Full-parameter reinforcement learning of Kimi K2 (1.03 T parameters) on Context-1's search task.

python scripts/import_hf.py --hf=Kimi-K2-Instruct --out=policies/kimi_k2
python scripts/plan_pod.py --config=configs/kimi_k2_rl.py --topology=v5p:4x8x8 \
  --sampler_topology=v5p:4x4x8 --sampler_mesh=expert=128

In bfloat16 with moments in 8 bits the learner takes 90 of 95 GiB of each of 256 chips of v5p, and
104 to 156 s for 16.8 million tokens (learner.group_size=16); a sampler takes 93 GiB of each of 128
while weights are swapped, and decodes 18,100 to 19,700 tokens/s in 2,048 contexts, half full
(planned, not run).

Sizes are those of https://huggingface.co/moonshotai/Kimi-K2-Instruct/blob/main/config.json.
"""

import math

from jaxrl_agents import config
from jaxrl_agents.policy.config import PolicyConfig

YARN_GAIN = 0.1 * math.log(32.0) + 1.0


def get_config() -> config.RunConfig:
  """Context-1's recipe and budgets (SearchConfig's defaults), one context a row.

  What differs from the recipe besides what configs/gpt_oss_20b_rl.py names:

  - all parameters are trained, to plan for a whole trillion of them, by AdamW with moments in 8
    bits, without which they would not fit;
  - the learning rate is 1e-6: 1e-5 is for adapters, which need about ten times that of all
    parameters.
  """
  return config.RunConfig(
    name="kimi_k2_rl",
    policy=config.PolicySection(
      init="policies/kimi_k2",
      tokenizer="policies/kimi_k2",
      dtype="bfloat16",
      model=PolicyConfig(
        vocab_size=163_840,
        embed_dim=7_168,
        num_layers=61,
        num_heads=64,
        attention="mla",
        q_lora_rank=1_536,
        kv_lora_rank=512,
        qk_nope_dim=128,
        qk_rope_dim=64,
        v_head_dim=128,
        num_dense_layers=1,
        dense_ffw_dim=18_432,
        num_experts=384,
        experts_per_token=8,
        expert_ffw_dim=2_048,
        num_shared_experts=1,
        router="sigmoid",
        route_scale=2.827,
        rope_theta=50_000.0,
        rope_factor=32.0,
        rope_original_tokens=4_096,
        rope_beta_fast=1.0,
        rope_beta_slow=1.0,
        score_gain=YARN_GAIN**2,
      ),
    ),
    corpus=config.CorpusConfig(chunk_tokens=512),
    sampler=config.SamplerConfig(
      slots=2_048, page_tokens=64, num_pages=524_288, prefill_tokens=2_048
    ),
    mesh=config.MeshConfig(fsdp=2, expert=16, context=8),
    workers=config.WorkersConfig(processes=64, episodes=2_048, stall_s=900.0),
    learner=config.LearnerConfig(
      steps=300,
      groups_per_step=128,
      group_size=8,
      substeps=4,
      loss="cispo",
      loss_options={"low": 0.0, "high": 5.0},
      lr=1e-6,
      optimizer="adamw8bit",
      row_tokens=32_768,
      rows_per_microbatch=32,
      remat="attention",
      canary_bound=0.3,
      mtp_weight=0.0,
      level_weights_early=(0.5, 0.3, 0.15, 0.05),
      level_weights_late=(0.1, 0.25, 0.35, 0.3),
      save_every=10,
    ),
    sft=config.SftConfig(lr=1e-6, rows_per_step=32),
    eval=config.EvalConfig(temperature=1.0, top_p=0.9),
  )
