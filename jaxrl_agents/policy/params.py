"""The one table of parameters: shape, logical axes and initialiser of every array of a policy.

Initial values, shardings, checkpoint paths and published deltas all derive from `table`. Layers of
a kind are stacked on a leading axis "layers"; `unstack` gives the same tree with tuples of
per-layer dicts, for decoding (a static slice of a stacked array copies it at every step on CPU).

Alphabet: V vocab, D width, N heads, G kv heads, H head dim, E experts, F ffw, L layers, M modules.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from jaxrl_agents.policy.config import PolicyConfig

Params = dict[str, Any]
LAYER_KINDS = ("dense_layers", "moe_layers", "mtp")


class Matrix(NamedTuple):
  """Which axes of an array, counted from its end, a product with it sums over, and which it makes.

  All others are of a stack of matrices: layers, experts, heads or halves side by side.
  """

  inputs: tuple[int, ...]
  outputs: tuple[int, ...]


@dataclasses.dataclass(frozen=True)
class ParamSpec:
  """One array of the policy.

  Attributes:
    shape: its sizes.
    axes: a logical name for each axis (None: never sharded); see sharding.TRAIN_RULES.
    init: (key, shape, dtype) -> array.
    dtype: of the stored array.
    trainable: False for arrays that no gradient reaches (the router's selection bias).
    decayed: whether weight decay pulls it to zero: not norms, biases and sinks.
    matrix: the linear map that it is; None for the embedding, the router, and all that is not
      decayed.
  """

  shape: tuple[int, ...]
  axes: tuple[str | None, ...]
  init: Callable[..., jax.Array]
  dtype: Any = jnp.float32
  trainable: bool = True
  decayed: bool = True
  matrix: Matrix | None = None


def normal(std: float) -> Callable[..., jax.Array]:
  """Initialiser: independent normal draws of standard deviation `std`."""
  return lambda key, shape, dtype: (std * jax.random.normal(key, shape, jnp.float32)).astype(dtype)


def ones(key: jax.Array, shape: tuple[int, ...], dtype: Any) -> jax.Array:
  """Initialiser: ones, whatever the key."""
  return jnp.ones(shape, dtype)


def zeros(key: jax.Array, shape: tuple[int, ...], dtype: Any) -> jax.Array:
  """Initialiser: zeros, whatever the key."""
  return jnp.zeros(shape, dtype)


def table(cfg: PolicyConfig, dtype: Any = jnp.float32) -> dict[str, Any]:
  """The nested dict of ParamSpec that describes every array of a policy.

  The embedding has standard deviation 1, so that the residual stream starts at the scale of its
  norms; projections back into it are divided by sqrt(2 L) (GPT-2,
  https://cdn.openai.com/better-language-models/language_models_are_unsupervised_multitask_learners.pdf),
  so that L layers together add about as much variance as the embedding brings.

  Args:
    cfg: sizes.
    dtype: of all arrays but the router's, which stay float32.

  Returns:
    {"embed", "final_norm", "head" unless tied, "dense_layers", "moe_layers", "mtp" where present}.
  """
  specs: dict[str, Any] = {
    "embed": ParamSpec((cfg.vocab_size, cfg.embed_dim), ("vocab", "embed"), normal(1.0), dtype),
    "final_norm": _norm(cfg.embed_dim, dtype),
  }
  if not cfg.tie_embeddings:
    specs["head"] = _project(cfg.embed_dim, (cfg.vocab_size,), ("embed", "vocab"), dtype)
  if cfg.num_dense_layers:
    specs["dense_layers"] = _stack(_dense_layer(cfg, dtype), cfg.num_dense_layers)
  if cfg.num_moe_layers:
    specs["moe_layers"] = _stack(_moe_layer(cfg, dtype), cfg.num_moe_layers)
  if cfg.mtp_depth:
    module = {
      "hidden_norm": _norm(cfg.embed_dim, dtype),
      "embed_norm": _norm(cfg.embed_dim, dtype),
      "merge": _project(2 * cfg.embed_dim, (cfg.embed_dim,), ("embed", None), dtype),
      "final_norm": _norm(cfg.embed_dim, dtype),
      "block": _moe_layer(cfg, dtype) if cfg.num_moe_layers else _dense_layer(cfg, dtype),
    }
    specs["mtp"] = _stack(module, cfg.mtp_depth)
  return specs


def init(cfg: PolicyConfig, key: jax.Array, dtype: Any = jnp.float32) -> Params:
  """Draws a policy's parameters. Each array's key folds in its place in the sorted table."""
  leaves, tree = jax.tree.flatten(table(cfg, dtype), is_leaf=is_spec)
  drawn = [
    spec.init(jax.random.fold_in(key, place), spec.shape, spec.dtype)
    for place, spec in enumerate(leaves)
  ]
  return jax.tree.unflatten(tree, drawn)


def abstract(cfg: PolicyConfig, dtype: Any = jnp.float32) -> Params:
  """The tree of jax.ShapeDtypeStruct of `init`'s result: nothing is allocated."""
  return map_table(lambda spec: jax.ShapeDtypeStruct(spec.shape, spec.dtype), cfg, dtype)


def trainable(cfg: PolicyConfig) -> dict[str, Any]:
  """A tree of bools, False for the arrays that an optimiser (and its decay) must leave alone."""
  return map_table(lambda spec: spec.trainable, cfg)


def map_table(function: Callable, cfg: PolicyConfig, dtype: Any = jnp.float32) -> dict[str, Any]:
  """A tree like the parameters with `function(spec)` in each place."""
  return jax.tree.map(function, table(cfg, dtype), is_leaf=is_spec)


def is_spec(node: Any) -> bool:
  """Whether a node of the table is a leaf."""
  return isinstance(node, ParamSpec)


def count(cfg: PolicyConfig) -> int:
  """How many numbers a policy has."""
  return sum(math.prod(leaf.shape) for leaf in jax.tree.leaves(abstract(cfg)))


def unstack(params: Params) -> Params:
  """The same tree with each stack of layers as a tuple of per-layer dicts (copies once)."""
  return {
    name: _unstack_layers(value) if name in LAYER_KINDS else value for name, value in params.items()
  }


def _unstack_layers(stacked: Any) -> tuple[Any, ...]:
  if isinstance(stacked, tuple):
    return stacked
  num_layers = jax.tree.leaves(stacked)[0].shape[0]
  return tuple(_layer(stacked, i) for i in range(num_layers))


def _layer(stacked: Any, i: int) -> Any:
  return jax.tree.map(lambda leaf: leaf[i], stacked)


def _stack(layer: dict[str, Any], num_layers: int) -> dict[str, Any]:
  """The specs of `num_layers` equal layers: one more leading axis."""
  return jax.tree.map(
    lambda spec: dataclasses.replace(
      spec, shape=(num_layers, *spec.shape), axes=("layers", *spec.axes)
    ),
    layer,
    is_leaf=is_spec,
  )


def _norm(width: int, dtype: Any) -> ParamSpec:
  return ParamSpec((width,), (None,), ones, dtype, decayed=False)


def _bias(shape: tuple[int, ...], axes: tuple, dtype: Any) -> ParamSpec:
  """What is added to a projection, or a sink: zero at first."""
  return ParamSpec(shape, axes, zeros, dtype, decayed=False)


def _project(
  fan_in: int,
  out: tuple[int, ...],
  axes: tuple,
  dtype: Any,
  gain: float = 1.0,
  *,
  side_by_side: int = 0,
) -> ParamSpec:
  """A projection [fan_in, *out] that keeps the scale of its input (times `gain`).

  The first `side_by_side` axes of `out` count matrices.
  """
  matrix = Matrix((-len(out) - 1,), tuple(range(side_by_side - len(out), 0)))
  return ParamSpec((fan_in, *out), axes, normal(gain * fan_in**-0.5), dtype, matrix=matrix)


def _project_back(heads: tuple[int, ...], embed: int, axes: tuple, dtype: Any, gain: float):
  """The projection [*heads, embed] of all heads into the residual stream."""
  std = gain * math.prod(heads) ** -0.5
  matrix = Matrix(tuple(range(-len(heads) - 1, -1)), (-1,))
  return ParamSpec((*heads, embed), axes, normal(std), dtype, matrix=matrix)


def _residual_gain(cfg: PolicyConfig) -> float:
  return (2 * cfg.num_layers) ** -0.5


def _attention_block(cfg: PolicyConfig, dtype: Any) -> dict[str, Any]:
  attention = _mla(cfg, dtype) if cfg.attention == "mla" else _gqa(cfg, dtype)
  return {
    "attention_norm": _norm(cfg.embed_dim, dtype),
    "attention": attention,
    "ffw_norm": _norm(cfg.embed_dim, dtype),
  }


def _dense_layer(cfg: PolicyConfig, dtype: Any) -> dict[str, Any]:
  return {**_attention_block(cfg, dtype), "ffw": _ffw(cfg, cfg.dense_ffw_dim, dtype)}


def _moe_layer(cfg: PolicyConfig, dtype: Any) -> dict[str, Any]:
  return {**_attention_block(cfg, dtype), "moe": _moe(cfg, dtype)}


def _gqa(cfg: PolicyConfig, dtype: Any) -> dict[str, ParamSpec]:
  """Queries, keys and values of a kv head side by side: one product, one axis to shard."""
  per_group = cfg.num_heads // cfg.num_kv_heads
  qkv_shape = (cfg.num_kv_heads, per_group + 2, cfg.head_dim)
  heads = (cfg.num_kv_heads, per_group, cfg.head_dim)
  specs = {
    "qkv": _project(
      cfg.embed_dim, qkv_shape, ("embed", "kv_heads", None, None), dtype, side_by_side=2
    ),
    "out": _project_back(
      heads, cfg.embed_dim, ("kv_heads", None, None, "embed"), dtype, _residual_gain(cfg)
    ),
  }
  if cfg.biases:
    specs |= {
      "qkv_bias": _bias(qkv_shape, ("kv_heads", None, None), dtype),
      "out_bias": _bias((cfg.embed_dim,), (None,), dtype),
    }
  if cfg.sinks:
    specs["sinks"] = _bias((cfg.num_kv_heads, per_group), ("kv_heads", None), dtype)
  if cfg.qk_norm:
    specs |= {"q_norm": _norm(cfg.head_dim, dtype), "k_norm": _norm(cfg.head_dim, dtype)}
  return specs


def _mla(cfg: PolicyConfig, dtype: Any) -> dict[str, ParamSpec]:
  heads, embed, rank = cfg.num_heads, cfg.embed_dim, cfg.kv_lora_rank
  q_shape = (heads, cfg.qk_nope_dim + cfg.qk_rope_dim)
  kv_shape = (heads, cfg.qk_nope_dim + cfg.v_head_dim)
  specs = {
    "kv_down": _project(embed, (rank + cfg.qk_rope_dim,), ("embed", None), dtype),
    "kv_norm": _norm(rank, dtype),
    "kv_up": _project(rank, kv_shape, ("latent", "heads", None), dtype),
    "out": _project_back(
      (heads, cfg.v_head_dim), embed, ("heads", None, "embed"), dtype, _residual_gain(cfg)
    ),
  }
  if not cfg.q_lora_rank:
    return specs | {"q": _project(embed, q_shape, ("embed", "heads", None), dtype)}
  return specs | {
    "q_down": _project(embed, (cfg.q_lora_rank,), ("embed", None), dtype),
    "q_norm": _norm(cfg.q_lora_rank, dtype),
    "q_up": _project(cfg.q_lora_rank, q_shape, ("latent", "heads", None), dtype),
  }


def _ffw(cfg: PolicyConfig, width: int, dtype: Any) -> dict[str, ParamSpec]:
  """A gated network: gate and up projections side by side, then down."""
  return {
    "gate_up": _project(cfg.embed_dim, (2, width), ("embed", None, "ffw"), dtype, side_by_side=1),
    "down": _project(width, (cfg.embed_dim,), ("ffw", "embed"), dtype, _residual_gain(cfg)),
  }


def _moe(cfg: PolicyConfig, dtype: Any) -> dict[str, Any]:
  ffw = _ffw(cfg, cfg.expert_ffw_dim, dtype)
  if cfg.biases:
    ffw |= {
      "gate_up_bias": _bias((2, cfg.expert_ffw_dim), (None, "ffw"), dtype),
      "down_bias": _bias((cfg.embed_dim,), (None,), dtype),
    }
  width = {"embed": "expert_embed"}
  experts = jax.tree.map(
    lambda spec: dataclasses.replace(
      spec,
      shape=(cfg.num_experts, *spec.shape),
      axes=("expert", *(width.get(axis, axis) for axis in spec.axes)),
    ),
    ffw,
    is_leaf=is_spec,
  )
  router = _project(cfg.embed_dim, (cfg.num_experts,), ("embed", None), jnp.float32)
  specs = {
    "router": dataclasses.replace(router, matrix=None),
    "router_bias": dataclasses.replace(
      _bias((cfg.num_experts,), (None,), jnp.float32), trainable=False
    ),
    "experts": experts,
  }
  if cfg.biases:
    specs["router_logit_bias"] = _bias((cfg.num_experts,), (None,), jnp.float32)
  if cfg.num_shared_experts:
    specs["shared"] = _ffw(cfg, cfg.num_shared_experts * cfg.expert_ffw_dim, dtype)
  return specs
