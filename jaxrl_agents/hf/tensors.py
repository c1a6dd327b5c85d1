"""The names of a checkpoint's tensors and their places in our parameters: one table for a policy.

Layer i of the trunk is "model.layers.{i}.", prediction module m is layer L + m. Parts that a policy
lacks have no names.

Alphabet: D width, N heads, G kv heads, R query heads of a kv head, H head dim, E experts, F ffw, V
vocab, L trunk layers.
"""

from __future__ import annotations

import dataclasses
from typing import Any

from jaxrl_agents.hf import layouts
from jaxrl_agents.hf.layouts import Layout
from jaxrl_agents.policy.config import PolicyConfig

EMBEDDING = "model.embed_tokens.weight"
HEAD = "lm_head.weight"
ALL = slice(None)


@dataclasses.dataclass(frozen=True)
class Place:
  """What part of our parameters a tensor is.

  Attributes:
    path: of the parameter, dotted, see params.table.
    shape: of the tensor in the checkpoint.
    layout: of its axes.
    index: the part of the parameter that it fills; of a stacked one the layer comes first.
    float32: the checkpoint keeps it in float32, whatever the others are in.
  """

  path: str
  shape: tuple[int, ...]
  layout: Layout = layouts.LINEAR
  index: tuple[Any, ...] = ()
  float32: bool = False


Places = dict[str, Place]


def table(cfg: PolicyConfig, *, fused_experts: bool, interleaved_rope: bool) -> Places:
  """{name: place} of every tensor of a checkpoint. Together they fill each parameter once, but for
  the selection bias of a router that has none in the checkpoint.

  Args:
    cfg: sizes.
    fused_experts: a tensor holds all experts of a layer (gpt-oss).
    interleaved_rope: rotary pairs are neighbours (DeepSeek-V3; "mla" only).
  """
  width, vocab = cfg.embed_dim, cfg.vocab_size
  places = {
    EMBEDDING: Place("embed", (vocab, width), layouts.PLAIN),
    "model.norm.weight": _norm("final_norm", width),
  }
  if not cfg.tie_embeddings:
    places[HEAD] = Place("head", (vocab, width))
  attention = _attention(cfg, interleaved_rope)
  dense = attention | _gated("ffw", "mlp", width, cfg.dense_ffw_dim)
  mixture = attention | (_fused_moe(cfg) if fused_experts else _moe(cfg))
  for layer in range(cfg.num_layers):
    if layer < cfg.num_dense_layers:
      places |= _at_layer(dense, layer, "dense_layers", layer)
    else:
      places |= _at_layer(mixture, layer, "moe_layers", layer - cfg.num_dense_layers)
  block = mixture if cfg.num_moe_layers else dense
  module = _module(width) | {
    name: dataclasses.replace(place, path=f"block.{place.path}") for name, place in block.items()
  }
  for depth in range(cfg.mtp_depth):
    places |= _at_layer(module, cfg.num_layers + depth, "mtp", depth)
  return places


def repeated(cfg: PolicyConfig) -> dict[str, str]:
  """{name: name of the tensor that it repeats}, where a checkpoint may hold one twice.

  Prediction modules bring the embedding and the head again; some tied checkpoints hold a head.
  """
  copies = {HEAD: EMBEDDING} if cfg.tie_embeddings else {}
  head = copies.get(HEAD, HEAD)
  for layer in range(cfg.num_layers, cfg.num_layers + cfg.mtp_depth):
    copies[f"model.layers.{layer}.embed_tokens.weight"] = EMBEDDING
    copies[f"model.layers.{layer}.shared_head.head.weight"] = head
  return copies


def _at_layer(parts: Places, layer: int, stack: str, place_in_stack: int) -> Places:
  return {
    f"model.layers.{layer}.{name}": dataclasses.replace(
      part, path=f"{stack}.{part.path}", index=(place_in_stack, *part.index)
    )
    for name, part in parts.items()
  }


def _norm(path: str, width: int) -> Place:
  return Place(path, (width,), layouts.PLAIN)


def _attention(cfg: PolicyConfig, interleaved_rope: bool) -> Places:
  return {
    "input_layernorm.weight": _norm("attention_norm", cfg.embed_dim),
    **(_mla(cfg, interleaved_rope) if cfg.attention == "mla" else _gqa(cfg)),
    "post_attention_layernorm.weight": _norm("ffw_norm", cfg.embed_dim),
  }


def _gqa(cfg: PolicyConfig) -> Places:
  width, head = cfg.embed_dim, cfg.head_dim
  queries = cfg.num_heads // cfg.num_kv_heads
  places = {}
  rows = {"q": (slice(queries), cfg.num_heads), "k": (queries, cfg.num_kv_heads)}
  rows["v"] = (queries + 1, cfg.num_kv_heads)
  for name, (row, heads) in rows.items():
    index = (ALL, ALL, row)
    places[f"self_attn.{name}_proj.weight"] = Place(
      "attention.qkv", (heads * head, width), index=index
    )
    if cfg.biases:
      places[f"self_attn.{name}_proj.bias"] = Place(
        "attention.qkv_bias", (heads * head,), layouts.PLAIN, index[1:]
      )
  places["self_attn.o_proj.weight"] = Place("attention.out", (width, cfg.num_heads * head))
  if cfg.biases:
    places["self_attn.o_proj.bias"] = Place("attention.out_bias", (width,), layouts.PLAIN)
  if cfg.qk_norm:
    places["self_attn.q_norm.weight"] = _norm("attention.q_norm", head)
    places["self_attn.k_norm.weight"] = _norm("attention.k_norm", head)
  if cfg.sinks:
    places["self_attn.sinks"] = Place("attention.sinks", (cfg.num_heads,), layouts.PLAIN)
  return places


def _mla(cfg: PolicyConfig, interleaved_rope: bool) -> Places:
  width, heads, rank = cfg.embed_dim, cfg.num_heads, cfg.kv_lora_rank
  rotated = layouts.interleaved(cfg.qk_rope_dim) if interleaved_rope else layouts.LINEAR
  q_rows = heads * (cfg.qk_nope_dim + cfg.qk_rope_dim)
  kv_rows = heads * (cfg.qk_nope_dim + cfg.v_head_dim)
  places = {
    "kv_a_proj_with_mqa.weight": Place(
      "attention.kv_down", (rank + cfg.qk_rope_dim, width), rotated
    ),
    "kv_a_layernorm.weight": _norm("attention.kv_norm", rank),
    "kv_b_proj.weight": Place("attention.kv_up", (kv_rows, rank)),
    "o_proj.weight": Place("attention.out", (width, heads * cfg.v_head_dim)),
  }
  if cfg.q_lora_rank:
    places |= {
      "q_a_proj.weight": Place("attention.q_down", (cfg.q_lora_rank, width)),
      "q_a_layernorm.weight": _norm("attention.q_norm", cfg.q_lora_rank),
      "q_b_proj.weight": Place("attention.q_up", (q_rows, cfg.q_lora_rank), rotated),
    }
  else:
    places["q_proj.weight"] = Place("attention.q", (q_rows, width), rotated)
  return {f"self_attn.{name}": place for name, place in places.items()}


def _gated(path: str, name: str, width: int, inner: int, index: tuple[int, ...] = ()) -> Places:
  """The three matrices of a gated network; `index` is its place in a stack of experts."""
  gate_up = lambda half: Place(f"{path}.gate_up", (inner, width), index=(*index, *([ALL, half])))
  return {
    f"{name}.gate_proj.weight": gate_up(0),
    f"{name}.up_proj.weight": gate_up(1),
    f"{name}.down_proj.weight": Place(f"{path}.down", (width, inner), index=index),
  }


def _moe(cfg: PolicyConfig) -> Places:
  """Experts one by one; DeepSeek's router has a selection bias, Qwen's has none."""
  width, inner = cfg.embed_dim, cfg.expert_ffw_dim
  places = {"mlp.gate.weight": Place("moe.router", (cfg.num_experts, width))}
  if cfg.router == "sigmoid":
    places["mlp.gate.e_score_correction_bias"] = Place(
      "moe.router_bias", (cfg.num_experts,), layouts.PLAIN, float32=True
    )
  for expert in range(cfg.num_experts):
    places |= _gated("moe.experts", f"mlp.experts.{expert}", width, inner, (expert,))
  if cfg.num_shared_experts:
    places |= _gated("moe.shared", "mlp.shared_experts", width, cfg.num_shared_experts * inner)
  return places


def _fused_moe(cfg: PolicyConfig) -> Places:
  """All experts of a layer in a tensor, [in, out] as ours."""
  experts, width, inner = cfg.num_experts, cfg.embed_dim, cfg.expert_ffw_dim
  pairs, plain = layouts.GATE_UP_PAIRS, layouts.PLAIN
  places = {
    "router.weight": Place("moe.router", (experts, width)),
    "router.bias": Place("moe.router_logit_bias", (experts,), plain),
    "experts.gate_up_proj": Place("moe.experts.gate_up", (experts, width, 2 * inner), pairs),
    "experts.gate_up_proj_bias": Place("moe.experts.gate_up_bias", (experts, 2 * inner), pairs),
    "experts.down_proj": Place("moe.experts.down", (experts, inner, width), plain),
    "experts.down_proj_bias": Place("moe.experts.down_bias", (experts, width), plain),
  }
  return {f"mlp.{name}": place for name, place in places.items()}


def _module(width: int) -> Places:
  """What a prediction module has beside its layer. Its projection reads [embedding; hidden]."""
  return {
    "enorm.weight": _norm("embed_norm", width),
    "hnorm.weight": _norm("hidden_norm", width),
    "eh_proj.weight": Place("merge", (width, 2 * width), layouts.HALVES_SWAPPED),
    "shared_head.norm.weight": _norm("final_norm", width),
  }
