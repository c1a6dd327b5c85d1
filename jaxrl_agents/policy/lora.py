"""Low-rank adapters: W + gain A B in the place of a matrix W that stays as it is.

(LoRA, https://arxiv.org/abs/2106.09685.) An `Adapted` stands in the tree of parameters where its
matrix stood, stacked as it was; every layer merges its own before it runs, so that the network is
the same function of merged weights whoever computes it, and samplers are given `merged` trees. What
is trained, and has gradients and moments, is `trained(params)`: the adapters where there are any,
else all parameters.

Alphabet: L layers, E experts.
"""

from __future__ import annotations

import difflib
import string
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
from flax import struct
from jax.ad_checkpoint import checkpoint_name
from jax.sharding import Mesh, NamedSharding

from jaxrl_agents.policy import params as params_lib
from jaxrl_agents.policy import sharding
from jaxrl_agents.policy.config import PolicyConfig
from jaxrl_agents.policy.params import ParamSpec

STACKS = ("layers", "expert")
"""Logical axes along which each matrix has an adapter of its own."""

MERGED = "merged"
"""Name of merged weights; the backward pass merges again instead of keeping them."""


@struct.dataclass
class Adapted:
  """A matrix and its adapter.

  Attributes:
    weight: [*stack, *inputs, *outputs], frozen.
    a: float32 [*stack, *inputs, rank].
    b: float32 [*stack, rank, *outputs].
    gain: alpha / rank.
  """

  weight: Any
  a: Any
  b: Any
  gain: float = struct.field(pytree_node=False)


def adapt(
  params: dict[str, Any],
  cfg: PolicyConfig,
  key: jax.Array,
  *,
  rank: int,
  alpha: float,
  targets: Sequence[str],
) -> dict[str, Any]:
  """`params` with new adapters, which change nothing yet: a is drawn, b is zero.

  Args:
    params: stacked layers, without adapters.
    cfg: sizes.
    key: of the draws.
    rank: inner width of every adapter.
    alpha: its output counts alpha / rank times.
    targets: names of matrices inside layers, or ends of their dotted paths: "qkv" is that of all
      layers, "down" that of experts, shared experts and dense layers, "experts.down" of experts.

  Raises:
    ValueError: the rank is not positive, or a target names nothing; the message says the nearest.
  """
  if rank < 1:
    raise ValueError(f"rank={rank} of adapters; set it to 1 or more")
  chosen = select(cfg, targets)

  def place(path, leaf, spec):
    name = _dotted(path)
    if name not in chosen:
      return leaf
    specs = adapter_specs(spec, rank)
    a, b = (s.init(jax.random.fold_in(key, chosen.index(name)), s.shape, s.dtype) for s in specs)
    return Adapted(leaf, a, b, alpha / rank)

  return jax.tree_util.tree_map_with_path(place, params, params_lib.table(cfg))


def select(cfg: PolicyConfig, targets: Sequence[str]) -> list[str]:
  """Dotted paths of the matrices that `targets` name, sorted.

  Raises:
    ValueError: a target names no matrix inside a layer, or there are no targets.
  """
  if not targets:
    raise ValueError("adapters without targets would train nothing; name a matrix, such as 'qkv'")
  table = jax.tree_util.tree_leaves_with_path(params_lib.table(cfg), is_leaf=params_lib.is_spec)
  # Outside layers nobody merges: "mtp.merge", the head.
  inside = [
    _dotted(path)
    for path, spec in table
    if spec.matrix and spec.axes[0] == "layers" and _dotted(path) != "mtp.merge"
  ]
  ends = {path.split(".", n)[-1] for path in inside for n in range(path.count(".") + 1)}
  for target in targets:
    if target not in ends:
      (near,) = difflib.get_close_matches(target, sorted(ends), n=1, cutoff=0.0)
      raise ValueError(f"no matrix {target!r} inside layers; did you mean {near!r}?")
  return sorted(path for path in inside if any(f".{path}".endswith(f".{t}") for t in targets))


def adapter_specs(spec: ParamSpec, rank: int) -> tuple[ParamSpec, ParamSpec]:
  """The specs of `a` and `b` of a matrix: sharded as it is, the rank not at all."""
  if spec.matrix is None:
    raise ValueError(f"an array of {spec.shape} is no matrix; adapters are for matrices")
  stack = sum(axis in STACKS for axis in spec.axes)
  middle = stack + len(spec.matrix.inputs)
  fan_in = 1
  for size in spec.shape[stack:middle]:
    fan_in *= size
  a = ParamSpec(
    (*spec.shape[:middle], rank), (*spec.axes[:middle], None), params_lib.normal(fan_in**-0.5)
  )
  b = ParamSpec(
    (*spec.shape[:stack], rank, *spec.shape[middle:]),
    (*spec.axes[:stack], None, *spec.axes[middle:]),
    params_lib.zeros,
  )
  return a, b


def merge(node: Adapted) -> jax.Array:
  """W + gain A B, computed in float32, in the dtype of W."""
  outputs = node.weight.ndim - node.a.ndim + 1
  inputs = node.weight.ndim - node.b.ndim + 1
  letters = string.ascii_lowercase[: node.weight.ndim]
  stack, last = letters[: len(letters) - inputs - outputs], letters[len(letters) - outputs :]
  product = jnp.einsum(
    f"{letters[: len(letters) - outputs]}z,{stack}z{last}->{letters}", node.a, node.b
  )
  wide = node.weight.astype(jnp.float32) + node.gain * product
  return checkpoint_name(wide.astype(node.weight.dtype), MERGED)


def merged(params: Any) -> Any:
  """The tree with every adapter merged into its matrix; the tree itself where there are none."""
  return jax.tree.map(
    lambda node: merge(node) if is_adapted(node) else node, params, is_leaf=is_adapted
  )


def has_adapters(params: Any) -> bool:
  """Whether any matrix of the tree is adapted."""
  return any(map(is_adapted, jax.tree.leaves(params, is_leaf=is_adapted)))


def is_adapted(node: Any) -> bool:
  """Whether a node of the tree is a matrix with its adapter."""
  return isinstance(node, Adapted)


def trained(params: Any) -> Any:
  """What an optimizer moves: {"a", "b"} in the place of adapted matrices and None in all others.

  Without adapters `params` itself.
  """
  if not has_adapters(params):
    return params
  parts = lambda node: {"a": node.a, "b": node.b} if is_adapted(node) else None
  return jax.tree.map(parts, params, is_leaf=is_adapted)


def with_trained(params: Any, parts: Any) -> Any:
  """`params` with `parts`, a tree such as `trained(params)`, in place of its own."""
  if not has_adapters(params):
    return parts
  put = lambda node, part: node.replace(**part) if is_adapted(node) else node
  return jax.tree.map(put, params, parts, is_leaf=is_adapted)


def trained_specs(cfg: PolicyConfig, params: Any) -> Any:
  """The tree of ParamSpec of `trained(params)`, stacked layers."""
  table = params_lib.table(cfg)
  if not has_adapters(params):
    return table

  def specs(node, spec):
    if not is_adapted(node):
      return None
    return dict(zip("ab", adapter_specs(spec, node.a.shape[-1]), strict=True))

  return jax.tree.map(specs, params, table, is_leaf=is_adapted)


def shardings(
  cfg: PolicyConfig, params: Any, mesh: Mesh, rules: sharding.Rules = sharding.TRAIN_RULES
) -> Any:
  """A tree of NamedSharding like `params`, adapters included (arrays or jax.ShapeDtypeStruct)."""
  place = lambda spec: NamedSharding(mesh, sharding.spec(spec.axes, rules))

  def of_node(node, spec, whole):
    if not is_adapted(node):
      return whole
    return node.replace(
      weight=whole,
      **dict(zip("ab", map(place, adapter_specs(spec, node.a.shape[-1])), strict=True)),
    )

  wholes = sharding.shardings(cfg, mesh, rules)
  return jax.tree.map(of_node, params, params_lib.table(cfg), wholes, is_leaf=is_adapted)


def _dotted(path: tuple[Any, ...]) -> str:
  return ".".join(str(entry.key) for entry in path)
