"""Converts the config.json of each supported model family into a PolicyConfig.

A setting that changes what the network computes and that the policy does not support is an error
that names it. Rotary settings are read from `rope_parameters` or, in older files, from `rope_theta`
and `rope_scaling`.
"""

from __future__ import annotations

import difflib
import math
import pathlib
from collections.abc import Callable
from typing import Any, NamedTuple

from jaxrl_agents.hf import checkpoint_reader, tensors
from jaxrl_agents.policy.config import PolicyConfig

Settings = dict[str, Any]


class Wrapper(NamedTuple):
  """A model of images and text around one of FAMILIES, of which only the language is read.

  Attributes:
    language: what the names of its tensors begin with.
    left_out: what all others begin with.
  """

  language: str
  left_out: tuple[str, ...]


class Model(NamedTuple):
  """A checkpoint as its config.json describes it.

  Attributes:
    config: the whole of config.json, or of its text_config where that is wrapped.
    wrapper: what the language model is part of, if of anything.
    cfg: sizes and choices.
    places: where each tensor lies in our parameters.
    repeats: tensors that repeat another, see tensors.repeated.
    dtype: of the weights, "bfloat16" or "float32".
  """

  config: Settings
  wrapper: Wrapper | None
  cfg: PolicyConfig
  places: tensors.Places
  repeats: dict[str, str]
  dtype: str


def read(folder: str | pathlib.Path) -> Model:
  """The model of a folder with a config.json.

  Raises:
    ValueError: there is no config.json, or it describes something that the policy does not support.
  """
  file = pathlib.Path(folder) / "config.json"
  if not file.is_file():
    raise ValueError(f"no config.json in {folder}; name the folder of a Hugging Face checkpoint")
  config = checkpoint_reader.json_object(file)
  wrapper = WRAPPERS.get(config.get("model_type"))
  if wrapper:
    quantisation = {name: config[name] for name in ("quantization_config",) if name in config}
    config = quantisation | (config.get("text_config") or {})
  kind = config.get("model_type")
  if kind not in FAMILIES:
    known = (*FAMILIES, *WRAPPERS)
    near = difflib.get_close_matches(str(kind), known, 1)
    hint = f", nearest is {near[0]}" if near else ""
    raise ValueError(f"{file}: no model_type {kind!r}{hint}; there are {', '.join(known)}")
  try:
    cfg = FAMILIES[kind](config)
    dtype = _dtype(config)
  except ValueError as error:
    raise ValueError(f"{file}: {error}") from error
  places = tensors.table(
    cfg,
    fused_experts=kind == "gpt_oss",
    interleaved_rope=bool(config.get("rope_interleave", True)),
  )
  return Model(config, wrapper, cfg, places, tensors.repeated(cfg), dtype)


def qwen3(config: Settings) -> PolicyConfig:
  """Dense Qwen3 (https://arxiv.org/abs/2505.09388): grouped queries with normed heads."""
  _expect(config, hidden_act="silu", attention_bias=False, use_sliding_window=False)
  _expect_layers(config, "full_attention", every=1)
  layers = _size(config, "num_hidden_layers")
  return PolicyConfig(
    **_trunk(config),
    **_grouped(config),
    num_dense_layers=layers,
    dense_ffw_dim=_size(config, "intermediate_size"),
    qk_norm=True,
  )


def qwen3_moe(config: Settings) -> PolicyConfig:
  """Qwen3 with experts: softmax router, weights of the chosen sum to one."""
  _expect(config, hidden_act="silu", attention_bias=False, use_sliding_window=False)
  _expect(config, decoder_sparse_step=1)
  if not config.get("norm_topk_prob", False):  # false where it is left out
    raise ValueError("norm_topk_prob is false; the weights of the chosen experts must sum to one")
  dense = sorted(config.get("mlp_only_layers") or [])
  if dense != list(range(len(dense))):
    raise ValueError(f"mlp_only_layers is {dense}; only the first layers can be dense")
  return PolicyConfig(
    **_trunk(config),
    **_grouped(config),
    num_dense_layers=len(dense),
    dense_ffw_dim=_size(config, "intermediate_size") if dense else 0,
    num_experts=_size(config, "num_experts", "num_local_experts"),
    experts_per_token=_size(config, "num_experts_per_tok"),
    expert_ffw_dim=_size(config, "moe_intermediate_size"),
    router="softmax",
    qk_norm=True,
  )


def deepseek_v3(config: Settings) -> PolicyConfig:
  """DeepSeek-V3 (https://arxiv.org/abs/2412.19437) and Kimi K2 (https://arxiv.org/abs/2507.20534).

  Beside the rotary factor, YaRN multiplies their scores by the square of `mscale_all_dim`'s factor.
  """
  _expect(config, hidden_act="silu", attention_bias=False, norm_topk_prob=True, moe_layer_freq=1)
  _expect(config, scoring_func="sigmoid", topk_method="noaux_tc")
  rope = _rope_settings(config)
  score_gain = _mscale(float(rope.get("factor", 1)), rope.get("mscale_all_dim") or 0.0) ** 2
  dense = _size(config, "first_k_dense_replace")
  return PolicyConfig(
    **_trunk(config),
    attention="mla",
    score_gain=score_gain,
    q_lora_rank=int(config.get("q_lora_rank") or 0),
    kv_lora_rank=_size(config, "kv_lora_rank"),
    qk_nope_dim=_size(config, "qk_nope_head_dim"),
    qk_rope_dim=_size(config, "qk_rope_head_dim"),
    v_head_dim=_size(config, "v_head_dim"),
    num_dense_layers=dense,
    dense_ffw_dim=_size(config, "intermediate_size") if dense else 0,
    num_experts=_size(config, "n_routed_experts", "num_local_experts"),
    experts_per_token=_size(config, "num_experts_per_tok"),
    expert_ffw_dim=_size(config, "moe_intermediate_size"),
    num_shared_experts=int(config.get("n_shared_experts") or 0),
    router="sigmoid",
    router_groups=_size(config, "n_group"),
    router_topk_groups=_size(config, "topk_group"),
    route_scale=float(_setting(config, "routed_scaling_factor")),
    mtp_depth=int(config.get("num_nextn_predict_layers") or 0),
  )


def gpt_oss(config: Settings) -> PolicyConfig:
  """gpt-oss (https://arxiv.org/abs/2508.10925): sinks, windows in every other layer, biases."""
  _expect(config, hidden_act="silu", attention_bias=True)
  _expect_layers(config, "full_attention", every=2)
  return PolicyConfig(
    **_trunk(config),
    **_grouped(config),
    qk_norm=False,
    biases=True,
    sinks=True,
    window_tokens=_size(config, "sliding_window"),
    full_attention_every=2,
    num_experts=_size(config, "num_local_experts", "num_experts"),
    experts_per_token=_size(config, "num_experts_per_tok", "experts_per_token"),
    expert_ffw_dim=_size(config, "intermediate_size"),
    swiglu_limit=float(config.get("swiglu_limit") or 7.0),
    swiglu_alpha=float(config.get("swiglu_alpha") or 1.702),
    router="softmax",
  )


FAMILIES: dict[str, Callable[[Settings], PolicyConfig]] = {
  "qwen3": qwen3,
  "qwen3_moe": qwen3_moe,
  "deepseek_v3": deepseek_v3,
  "kimi_k2": deepseek_v3,
  "gpt_oss": gpt_oss,
}

WRAPPERS: dict[Any, Wrapper] = {
  "kimi_k25": Wrapper("language_model.", ("vision_tower.", "mm_projector.")),
}
"""The language model of Kimi K2.5 (https://arxiv.org/abs/2602.02276) is a Kimi K2."""


def _trunk(config: Settings) -> dict[str, Any]:
  tied = bool(config.get("tie_word_embeddings", False))
  return {
    "vocab_size": _size(config, "vocab_size"),
    "embed_dim": _size(config, "hidden_size"),
    "num_layers": _size(config, "num_hidden_layers"),
    "num_heads": _size(config, "num_attention_heads"),
    "norm_eps": float(_setting(config, "rms_norm_eps")),
    "tie_embeddings": tied,
    "scale_tied_head": not tied,
    **_rope(config),
  }


def _grouped(config: Settings) -> dict[str, Any]:
  return {
    "num_kv_heads": _size(config, "num_key_value_heads"),
    "head_dim": _size(config, "head_dim"),
  }


def _rope(config: Settings) -> dict[str, Any]:
  """The rotary numbers; of YaRN those of https://arxiv.org/abs/2309.00071, section 3.4."""
  rope = _rope_settings(config)
  kind = rope.get("rope_type", rope.get("type", "default"))
  theta = float(_setting(rope, "rope_theta"))
  _expect(rope, partial_rotary_factor=1.0)
  if kind == "default":
    return {"rope_theta": theta}
  if kind != "yarn":
    raise ValueError(f"rope_type is {kind!r}; the policy has default and yarn")
  factor = float(_setting(rope, "factor"))
  gain = rope.get("attention_factor")
  mscale, mscale_all = rope.get("mscale"), rope.get("mscale_all_dim")
  if gain is None and mscale and mscale_all:
    gain = _mscale(factor, mscale) / _mscale(factor, mscale_all)
  elif gain is None:
    gain = _mscale(factor, 1.0)
  return {
    "rope_theta": theta,
    "rope_factor": factor,
    "rope_original_tokens": _size(rope, "original_max_position_embeddings"),
    "rope_beta_fast": float(rope.get("beta_fast") or 32),
    "rope_beta_slow": float(rope.get("beta_slow") or 1),
    "rope_truncate": bool(rope.get("truncate", True)),
    "rope_gain": gain,
  }


def _rope_settings(config: Settings) -> Settings:
  rope = config.get("rope_parameters")
  if rope is not None:
    return rope
  return {"rope_theta": config.get("rope_theta"), **(config.get("rope_scaling") or {})}


def _mscale(factor: float, mscale: float) -> float:
  """1 + 0.1 mscale ln(factor): how much sharper attention to a longer context is."""
  return 1.0 if factor <= 1 else 0.1 * mscale * math.log(factor) + 1.0


def _dtype(config: Settings) -> str:
  dtype = config.get("dtype") or config.get("torch_dtype") or "bfloat16"
  if dtype not in ("bfloat16", "float32"):
    raise ValueError(f"dtype is {dtype!r}; weights are kept in bfloat16 or float32")
  return dtype


def _setting(config: Settings, *names: str) -> Any:
  """The value under the first of `names` that is set."""
  for name in names:
    if config.get(name) is not None:
      return config[name]
  raise ValueError(f"{' or '.join(names)} is not set")


def _size(config: Settings, *names: str) -> int:
  value = _setting(config, *names)
  if int(value) != value:
    raise ValueError(f"{names[0]} is {value!r}, which is no whole number")
  return int(value)


def _expect(config: Settings, **supported: Any) -> None:
  """Raises ValueError if a setting is present and differs from the supported value."""
  for name, value in supported.items():
    if config.get(name) is not None and config[name] != value:
      raise ValueError(f"{name} is {config[name]!r}; the policy computes {value!r} only")


def _expect_layers(config: Settings, last: str, every: int) -> None:
  """Raises where `layer_types` is not rounds of `every` layers whose last is of kind `last`."""
  kinds = config.get("layer_types") or []
  for layer, kind in enumerate(kinds):
    wanted = last if (layer + 1) % every == 0 else "sliding_attention"
    if kind != wanted:
      raise ValueError(f"layer_types has {kind!r} as layer {layer}; the policy has {wanted!r}")
