"""The train state, its optimizer, and where each of their arrays lives on a mesh.

Everything follows from the parameter table of the policy: which arrays are trained, which are
decayed, and how the moments of the optimizer are sharded.
"""

from __future__ import annotations

import math
from typing import Any, Literal

import jax
import jax.numpy as jnp
import optax
from flax import struct

from jaxrl_agents.learner import optimizers
from jaxrl_agents.policy import lora
from jaxrl_agents.policy import params as params_lib
from jaxrl_agents.policy.config import PolicyConfig


@struct.dataclass
class PolicyState:
  """What is published and what a sampler holds.

  Attributes:
    params: layers stacked, in float32, or in bfloat16 with a float32 master in the optimizer.
    version: int32 [], counts the optimizer steps that made them.
  """

  params: Any
  version: jax.Array


@struct.dataclass
class TrainState:
  """All that an optimizer step reads and writes.

  Attributes:
    policy: see PolicyState.
    opt_state: of the optimizer that made it.
    key: typed PRNG key [].
  """

  policy: PolicyState
  opt_state: Any
  key: jax.Array


def learning_rate_schedule(
  peak: float,
  *,
  schedule: Literal["constant", "cosine"] = "constant",
  warmup_steps: int = 0,
  total_steps: int = 0,
  final_fraction: float = 0.0,
) -> optax.ScalarOrSchedule:
  """A learning rate by the number of the step.

  Args:
    peak: the largest one.
    schedule: after the warmup, constant, or a cosine to `final_fraction` of the peak.
    warmup_steps: linear from 0.
    total_steps: of the cosine, warmup included.
    final_fraction: in [0, 1], of the cosine.

  Raises:
    ValueError: numbers that contradict each other.
  """
  if schedule == "constant":
    if total_steps or final_fraction:
      raise ValueError(
        f"total_steps={total_steps} and final_fraction={final_fraction} have no effect on a "
        "constant schedule; leave them 0 or choose schedule='cosine'"
      )
    return optax.linear_schedule(0.0, peak, warmup_steps) if warmup_steps else peak
  if schedule == "cosine":
    if total_steps <= warmup_steps:
      raise ValueError(
        f"total_steps={total_steps} leaves no step after warmup_steps={warmup_steps}; raise it"
      )
    end = peak * final_fraction
    return optax.warmup_cosine_decay_schedule(0.0, peak, warmup_steps, total_steps, end)
  raise ValueError(f"no schedule {schedule!r}; there are constant and cosine")


def make_optimizer(
  cfg: PolicyConfig,
  *,
  learning_rate: optax.ScalarOrSchedule,
  kind: Literal["adamw", "adamw8bit", "muon"] = "adamw",
  b1: float = 0.9,
  b2: float = 0.95,
  eps: float = 1e-8,
  weight_decay: float = 0.0,
  max_grad_norm: float = 1.0,
  trained: Literal["all", "mtp", "adapters"] = "all",
  qk_clip: float = 0.0,
  dtype: Any = jnp.float32,
) -> optax.GradientTransformationExtraArgs:
  """An optimizer behind a global-norm clip; the router's selection bias never moves.

  Weights are decayed; norms, biases and sinks are not (`ParamSpec.decayed`). The selection bias
  chooses experts without a gradient: moving it would make learner and sampler route differently.

  Args:
    cfg: of the policy; its table says what is trainable.
    learning_rate: a number, or one of each step (`learning_rate_schedule`).
    kind: AdamW for all, with the moments of projections and of the embedding in eight bits, or
      Muon for projections, beside AdamW for embedding, head, router and all that is no matrix.
    b1: decay of the first moment.
    b2: decay of the second moment.
    eps: added to its root.
    weight_decay: decoupled, times the learning rate.
    max_grad_norm: global norm that gradients are scaled down to.
    trained: "all", "mtp": the prediction modules alone, the trunk frozen, or "adapters" (AdamW
      that decays all of them; they are float32).
    qk_clip: bound of attention scores, see optimizers.qk_clip; 0 for none.
    dtype: of the parameters; float32 copies of all others are kept, see optimizers.float32_master.

  Raises:
    ValueError: numbers that contradict each other.
  """
  if trained == "mtp" and not cfg.mtp_depth:
    raise ValueError("trained='mtp' but the policy has no prediction module; set mtp_depth >= 1")
  if kind not in ("adamw", *SPECIAL):
    raise ValueError(f"no optimizer {kind!r}; there are adamw, {', '.join(SPECIAL)}")
  if trained == "adapters":
    if kind != "adamw" or qk_clip:
      raise ValueError(f"adapters are trained by adamw without QK-clip; not {kind}, {qk_clip=}")
    adamw = optax.adamw(learning_rate, b1=b1, b2=b2, eps=eps, weight_decay=weight_decay)
    return optax.chain(optax.clip_by_global_norm(max_grad_norm), adamw)
  labels = jax.tree.map(lambda t: "trained" if t else "frozen", params_lib.trainable(cfg))
  if trained == "mtp":
    frozen = lambda tree: jax.tree.map(lambda _: "frozen", tree)
    labels = {name: tree if name == "mtp" else frozen(tree) for name, tree in labels.items()}
  decayed = params_lib.map_table(lambda spec: spec.decayed, cfg)
  adamw = optax.adamw(learning_rate, b1=b1, b2=b2, eps=eps, weight_decay=weight_decay, mask=decayed)
  tx = adamw
  if kind != "adamw":
    scale = SPECIAL[kind](cfg, b1, b2, eps)
    decay = optax.add_decayed_weights(weight_decay)
    special = optax.chain(scale, decay, optax.scale_by_learning_rate(learning_rate))
    named = lambda spec: "special" if _is_special(spec, kind) else "plain"
    tx = optax.partition({"special": special, "plain": adamw}, params_lib.map_table(named, cfg))
  if qk_clip:
    tx = optax.chain(tx, optimizers.qk_clip(cfg, qk_clip))
  if jnp.dtype(dtype) != jnp.float32:
    tx = optimizers.float32_master(tx)
  return optax.chain(
    optax.clip_by_global_norm(max_grad_norm),
    optax.partition({"trained": tx, "frozen": optax.set_to_zero()}, labels),
  )


def _is_special(spec: params_lib.ParamSpec, kind: str) -> bool:
  """Whether an array is updated by what `kind` names, and not by plain AdamW."""
  of_vocabulary = "vocab" in spec.axes
  if kind == "muon":
    return spec.matrix is not None and not of_vocabulary
  return spec.matrix is not None or of_vocabulary


def _scale_by_adam8bit(cfg, b1, b2, eps):
  del cfg
  return optimizers.scale_by_adam8bit(b1, b2, eps)


def _scale_by_muon(cfg, *_):
  return optimizers.scale_by_muon(params_lib.map_table(lambda spec: spec.matrix, cfg))


SPECIAL = {"adamw8bit": _scale_by_adam8bit, "muon": _scale_by_muon}
"""What scales the gradients of matrices, by the name of the optimizer."""


def make_state(params: Any, tx: optax.GradientTransformation, key: jax.Array) -> TrainState:
  """A state at version 0 with fresh moments, placed as `params` is."""
  policy = PolicyState(params, jnp.zeros((), jnp.int32))
  return TrainState(policy, tx.init(lora.trained(params)), key)


def init_state(
  cfg: PolicyConfig, tx: optax.GradientTransformation, key: jax.Array, dtype: Any = jnp.float32
) -> TrainState:
  """A state with freshly drawn parameters."""
  init_key, key = jax.random.split(key)
  return make_state(params_lib.init(cfg, init_key, dtype), tx, key)


def shardings_of(
  abstract: TrainState,
  tx: optax.GradientTransformation,
  param_shardings: Any,
  mesh: jax.sharding.Mesh,
) -> TrainState:
  """The sharding of every array of a train state.

  Moments are sharded as the parameters that they belong to, and scales of moments too, but along
  axes that they are too short for. This cannot be left to jit: under Auto axes `jit(tx.init)`
  replicates them.

  Args:
    abstract: the state, arrays or jax.ShapeDtypeStruct.
    tx: its optimizer.
    param_shardings: tree of shardings like the parameters (policy.sharding.shardings, or that of
      policy.lora).
    mesh: theirs.
  """
  replicated: Any = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec())
  is_frozen = lambda node: isinstance(node, optax.MaskedNode)
  opt_state = optax.tree_map_params(
    tx,
    lambda moment, sharding: moment if is_frozen(moment) else _fitting(moment.shape, sharding),
    abstract.opt_state,
    lora.trained(param_shardings),
    transform_non_params=lambda _: replicated,
    is_leaf=is_frozen,
  )
  return TrainState(PolicyState(param_shardings, replicated), opt_state, replicated)


def _fitting(
  shape: tuple[int, ...], sharding: jax.sharding.NamedSharding
) -> jax.sharding.NamedSharding:
  """`sharding` without the mesh axes of those axes of `shape` that do not divide by them."""
  mesh, names = sharding.mesh, (*sharding.spec, *[None] * (len(shape) - len(sharding.spec)))
  ways = lambda axes: math.prod(mesh.shape[a] for a in ((axes,) if isinstance(axes, str) else axes))
  kept = (a if a and n % ways(a) == 0 else None for n, a in zip(shape, names, strict=True))
  return jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec(*kept))
