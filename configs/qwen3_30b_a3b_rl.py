"""Reinforcement learning of Qwen3-30B-A3B on Context-1's search task, on a node of eight H200.

python scripts/import_hf.py --hf=Qwen3-30B-A3B --out=policies/qwen3_30b_a3b
python scripts/plan_pod.py --config=configs/qwen3_30b_a3b_rl.py --topology=h200:8
scripts/gpu_pod.sh --dry_run --config=configs/qwen3_30b_a3b_rl.py --workdir=/shared/run

In bfloat16 with moments in 8 bits, learner (66 GiB) and sampler (25 GiB) share the 131 GiB of a
GPU, activations aside; in float32 they need 133.

Sizes are those of https://huggingface.co/Qwen/Qwen3-30B-A3B/blob/main/config.json.
"""

from jaxrl_agents import config
from jaxrl_agents.policy.config import PolicyConfig


def get_config() -> config.RunConfig:
  """Context-1's recipe and budgets (SearchConfig's defaults), one context a row.

  What differs from the recipe besides what configs/gpt_oss_20b_rl.py names:

  - all parameters are trained, since they fit a node, by AdamW with moments in 8 bits;
  - the learning rate is 2e-6: 1e-5 is for adapters, which need more than all parameters do.
  """
  return config.RunConfig(
    name="qwen3_30b_a3b_rl",
    policy=config.PolicySection(
      init="policies/qwen3_30b_a3b",
      tokenizer="policies/qwen3_30b_a3b",
      dtype="bfloat16",
      model=PolicyConfig(
        vocab_size=151_936,
        embed_dim=2_048,
        num_layers=48,
        num_heads=32,
        num_kv_heads=4,
        head_dim=128,
        qk_norm=True,
        num_experts=128,
        experts_per_token=8,
        expert_ffw_dim=768,
        router="softmax",
        rope_theta=1e6,
      ),
    ),
    corpus=config.CorpusConfig(chunk_tokens=512),
    sampler=config.SamplerConfig(slots=64, page_tokens=64, num_pages=12_288, prefill_tokens=2_048),
    mesh=config.MeshConfig(fsdp=2, expert=4),
    workers=config.WorkersConfig(processes=16, episodes=256, stall_s=600.0),
    learner=config.LearnerConfig(
      steps=300,
      groups_per_step=128,
      group_size=8,
      substeps=4,
      loss="cispo",
      loss_options={"low": 0.0, "high": 5.0},
      lr=2e-6,
      optimizer="adamw8bit",
      row_tokens=32_768,
      rows_per_microbatch=8,
      remat="layer",
      canary_bound=0.3,
      mtp_weight=0.0,
      level_weights_early=(0.5, 0.3, 0.15, 0.05),
      level_weights_late=(0.1, 0.25, 0.35, 0.3),
      save_every=10,
    ),
    eval=config.EvalConfig(temperature=1.0, top_p=0.9),
  )
