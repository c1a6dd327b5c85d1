"""Reinforcement learning of Qwen3-4B on Context-1's search task, on eight H100 or 16 chips of v5e.

hf download Qwen/Qwen3-4B --local-dir policies/hf_qwen3_4b
python scripts/import_hf.py --hf=policies/hf_qwen3_4b --out=policies/qwen3_4b
python scripts/plan_pod.py --config=configs/qwen3_4b_rl.py --topology=h100:8
python scripts/plan_pod.py --config=configs/qwen3_4b_rl.py --topology=v5e:4x4 \\
  --set mesh.fsdp=2 --set mesh.context=2 --set mesh.tensor=4 \\
  --set learner.rows_per_microbatch=2 --set sampler.num_pages=3072
python scripts/train_rl.py --config=configs/qwen3_4b_rl.py --workdir=W

Learner and sampler together take 73.5 of the 74.5 GiB of an H100, of which 55 are what decoding
needs beside weights and cache as compiled for a CPU, and 15.1 of the 16 GiB of a chip of v5e with
the options above (planned, not run).

Sizes are those of https://huggingface.co/Qwen/Qwen3-4B/blob/main/config.json.
"""

import dataclasses
import pathlib

from jaxrl_agents import config
from jaxrl_agents.policy.config import PolicyConfig


def get_config() -> config.RunConfig:
  """configs/qwen3_30b_a3b_rl.py for a dense policy, in half of the pages."""
  recipe = config.load(str(pathlib.Path(__file__).parent / "qwen3_30b_a3b_rl.py"))
  model = PolicyConfig(
    vocab_size=151_936,
    embed_dim=2_560,
    num_layers=36,
    num_heads=32,
    num_kv_heads=8,
    head_dim=128,
    qk_norm=True,
    num_dense_layers=36,
    dense_ffw_dim=9_728,
    rope_theta=1e6,
    tie_embeddings=True,
    scale_tied_head=False,
  )
  return dataclasses.replace(
    recipe,
    name="qwen3_4b_rl",
    policy=dataclasses.replace(
      recipe.policy, init="policies/qwen3_4b", tokenizer="policies/qwen3_4b", model=model
    ),
    sampler=dataclasses.replace(recipe.sampler, num_pages=6_144),
    mesh=config.MeshConfig(fsdp=8),
  )
