"""Tiny checkpoints of every family, as their config.json on the hub describes the large ones."""

import functools
import json
import typing
import zlib

import jax
import jax.numpy as jnp
import numpy as np

from jaxrl_agents.hf import families, files
from jaxrl_agents.policy import transformer
from jaxrl_agents.policy.attention import cache as cache_lib

PAGE_TOKENS, PAGES = 4, 9

forward = jax.jit(transformer.forward, static_argnums=2)
decode = jax.jit(transformer.decode, static_argnums=2)

_QWEN = {
  "vocab_size": 61,
  "hidden_size": 32,
  "num_attention_heads": 4,
  "num_key_value_heads": 2,
  "head_dim": 8,
  "hidden_act": "silu",
  "attention_bias": False,
  "rms_norm_eps": 1e-6,
  "rope_theta": 1_000_000.0,
  "max_position_embeddings": 256,
  "intermediate_size": 40,
  "use_sliding_window": False,
}
QWEN3 = _QWEN | {"model_type": "qwen3", "num_hidden_layers": 3, "tie_word_embeddings": True}
QWEN3_MOE = _QWEN | {
  "model_type": "qwen3_moe",
  "num_hidden_layers": 3,
  "mlp_only_layers": [0],
  "moe_intermediate_size": 12,
  "num_experts": 6,
  "num_experts_per_tok": 2,
  "norm_topk_prob": True,
  "decoder_sparse_step": 1,
  "tie_word_embeddings": False,
}
DEEPSEEK = {
  "model_type": "deepseek_v3",
  "vocab_size": 61,
  "hidden_size": 32,
  "num_hidden_layers": 3,
  "num_attention_heads": 4,
  "num_key_value_heads": 4,
  "q_lora_rank": 20,
  "kv_lora_rank": 16,
  "qk_nope_head_dim": 8,
  "qk_rope_head_dim": 8,
  "v_head_dim": 6,
  "hidden_act": "silu",
  "attention_bias": False,
  "rms_norm_eps": 1e-5,
  "rope_theta": 10_000.0,
  "rope_scaling": {
    "type": "yarn",
    "factor": 40,
    "beta_fast": 32,
    "beta_slow": 1,
    "mscale": 0.7,
    "mscale_all_dim": 1.0,
    "original_max_position_embeddings": 256,
  },
  "max_position_embeddings": 4096,
  "intermediate_size": 40,
  "first_k_dense_replace": 1,
  "moe_layer_freq": 1,
  "moe_intermediate_size": 12,
  "n_routed_experts": 8,
  "n_shared_experts": 2,
  "num_experts_per_tok": 3,
  "n_group": 4,
  "topk_group": 2,
  "scoring_func": "sigmoid",
  "topk_method": "noaux_tc",
  "norm_topk_prob": True,
  "routed_scaling_factor": 2.5,
  "num_nextn_predict_layers": 1,
  "tie_word_embeddings": False,
}
KIMI = DEEPSEEK | {
  "model_type": "kimi_k2",
  "q_lora_rank": None,
  "rope_scaling": DEEPSEEK["rope_scaling"] | {"beta_fast": 1.0, "mscale": 1.0, "factor": 32.0},
  "n_group": 1,
  "topk_group": 1,
  "num_nextn_predict_layers": 0,
}
GPT_OSS = {
  "model_type": "gpt_oss",
  "vocab_size": 61,
  "hidden_size": 32,
  "num_hidden_layers": 4,
  "num_attention_heads": 4,
  "num_key_value_heads": 2,
  "head_dim": 8,
  "hidden_act": "silu",
  "attention_bias": True,
  "rms_norm_eps": 1e-5,
  "rope_theta": 150_000.0,
  "rope_scaling": {
    "rope_type": "yarn",
    "factor": 32.0,
    "beta_fast": 32.0,
    "beta_slow": 1.0,
    "truncate": False,
    "original_max_position_embeddings": 256,
  },
  "max_position_embeddings": 4096,
  "sliding_window": 6,
  "layer_types": ["sliding_attention", "full_attention"] * 2,
  "intermediate_size": 32,
  "num_local_experts": 4,
  "num_experts_per_tok": 2,
  "swiglu_limit": 7.0,
  "tie_word_embeddings": False,
}
CONFIGS = {config["model_type"]: config for config in (QWEN3, QWEN3_MOE, DEEPSEEK, KIMI, GPT_OSS)}


def write_config(folder, config):
  folder.mkdir(parents=True, exist_ok=True)
  (folder / "config.json").write_text(json.dumps(config))
  return folder


def draw(shape, seed):
  """Small numbers that bfloat16 holds exactly."""
  return (np.random.default_rng(seed).integers(-128, 128, shape) / 256).astype(np.float32)


def write(folder, config):
  """A folder with random bfloat16 weights in two shards without an index; returns its tensors."""
  model = families.read(write_config(folder, config | {"dtype": "bfloat16"}))
  arrays = {}
  for seed, (name, place) in enumerate(model.places.items()):
    dtype = np.float32 if place.float32 else files.DTYPES["BF16"]
    arrays[name] = draw(place.shape, seed).astype(dtype)
  for name, original in model.repeats.items():
    if name != "lm_head.weight":
      arrays[name] = arrays[original]
  write_shards(folder, arrays)
  return arrays


def write_shards(folder, arrays):
  names = list(arrays)
  for shard, part in enumerate((names[::2], names[1::2])):
    write_file(folder / f"model-{shard}.safetensors", {name: arrays[name] for name in part})


def write_file(file, arrays):
  views = files.create(file, {name: (x.shape, x.dtype) for name, x in arrays.items()})
  for name, view in views.items():
    view[...] = arrays[name]


def shapes(folder):
  """{name: shape} of the tensors in a checkpoint's folder."""
  found = {}
  for file in sorted(folder.glob("*.safetensors")):
    with open(file, "rb") as opened:
      header = json.loads(opened.read(int.from_bytes(opened.read(8), "little")))
    found |= {name: tuple(e["shape"]) for name, e in header.items() if name != "__metadata__"}
  return found


def golden_weight(name, shape):
  """A float32 tensor that follows from its name, with scores and logits around 1.

  RandomState draws the same numbers in every version of numpy.
  """
  draw = np.random.RandomState(zlib.crc32(name.encode())).standard_normal(shape)
  if "norm" in name:
    draw = 1 + 0.2 * draw
  elif len(shape) == 1 or name.endswith("_bias"):
    draw = 0.3 * draw
  elif "embed" not in name:
    draw = 1.4 * shape[-1] ** -0.5 * draw
  return draw.astype(np.float32)


class Golden(typing.NamedTuple):
  """What `transformers` computes for a model: scripts/make_hf_golden.py.

  config: of config.json. shapes: {name: shape} of the tensors. tokens: int [B, T]. logits: float32
  [B, T, V]. replies: int [B, N], greedy, to the first tokens that `logits` leave room for.
  """

  config: dict
  shapes: dict
  tokens: np.ndarray
  logits: np.ndarray
  replies: np.ndarray

  def save(self, file, made_with):
    text = json.dumps({"config": self.config, "shapes": self.shapes, "made_with": made_with})
    arrays = {"tokens": self.tokens, "logits": self.logits, "replies": self.replies}
    np.savez_compressed(file, index=np.frombuffer(text.encode(), np.uint8), **arrays)
    return file

  @classmethod
  def load(cls, file):
    with np.load(file) as stored:
      index = json.loads(stored["index"].tobytes())
      arrays = (stored[name] for name in ("tokens", "logits", "replies"))
      return cls(index["config"], index["shapes"], *arrays)


def logits(params, tokens, cfg):
  """Of every position, from one full pass: [B, T, V]."""
  output = forward(params, jnp.asarray(tokens), cfg)
  return transformer.logits(params, output.hidden, cfg)


def paged(params, cfg, rows):
  """A function of (new tokens [B, Q]) that feeds them to the paged cache and returns logits."""
  state = {"cache": cache_lib.init(cfg, 1 + rows * PAGES, PAGE_TOKENS), "length": 0}
  table = np.arange(1, 1 + rows * PAGES, dtype=np.int32).reshape(PAGES, rows).T

  def feed(tokens):
    whole = functools.partial(jnp.full, rows, dtype=jnp.int32)
    output, state["cache"] = decode(
      params,
      jnp.asarray(tokens, jnp.int32),
      cfg,
      state["cache"],
      page_table=jnp.asarray(table),
      lengths=whole(state["length"]),
      num_new=whole(tokens.shape[1]),
    )
    state["length"] += tokens.shape[1]
    return transformer.logits(params, output.hidden, cfg)

  return feed


def greedy(params, prompt, cfg, count):
  """The most likely next `count` tokens, one after the other, by the paged cache: [B, count]."""
  feed = paged(params, cfg, len(prompt))
  scores, replies = feed(prompt)[:, -1:], []
  for _ in range(count):
    replies.append(np.asarray(jnp.argmax(scores, axis=-1)))
    scores = feed(replies[-1])
  return np.concatenate(replies, axis=1)
