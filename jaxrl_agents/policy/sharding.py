"""Which mesh axis carries which logical axis: one dict for training, one for serving.

Mesh axes: "data" (replicas), "fsdp" (rows, and parameters split along their width), "expert" (the
same, and experts), "context" (time, for long rows, and parameters as "fsdp"), "tensor" (heads, ffw
and vocabulary). Rows of a batch are split over the first three. The last axes join the nearest
devices: tensor exchanges most often.
"""

from __future__ import annotations

import math
from typing import Any

import jax
import jax.numpy as jnp
from jax.experimental import mesh_utils
from jax.sharding import AbstractMesh, AxisType, Mesh, NamedSharding, PartitionSpec

from jaxrl_agents.policy import kernel_choice
from jaxrl_agents.policy import params as params_lib
from jaxrl_agents.policy.config import PolicyConfig

MESH_AXES = ("data", "fsdp", "expert", "context", "tensor")

Rules = dict[str, tuple[str, ...]]

TRAIN_RULES: Rules = {
  "batch": ("data", "fsdp", "expert"),
  "time": ("context",),
  "layers": (),
  "embed": ("fsdp", "expert", "context"),
  "expert_embed": ("fsdp", "context"),
  "latent": ("fsdp", "context"),
  "vocab": ("tensor",),
  "heads": ("tensor",),
  "kv_heads": ("tensor",),
  "ffw": ("tensor",),
  "expert": ("expert",),
}
"""Parameters and optimiser moments are split along their width too, over devices that would hold
the same: gathered when they are used. What projects MLA's latents up is split along these.
"""

SERVE_RULES: Rules = {**TRAIN_RULES, "embed": (), "expert_embed": (), "latent": ()}
"""Decoding reads every weight for a few tokens: gathering them at each step would cost more."""


def make_mesh(
  *,
  data: int = 1,
  fsdp: int = 1,
  expert: int = 1,
  context: int = 1,
  tensor: int = 1,
  devices: Any = None,
) -> Mesh:
  """A mesh with Auto axes, neighbours on the devices' own network: use with jax.set_mesh.

  Raises ValueError where the sizes do not multiply to the number of devices.
  """
  devices = jax.devices() if devices is None else devices
  sizes = (data, fsdp, expert, context, tensor)
  if math.prod(sizes) != len(devices):
    raise ValueError(
      f"a mesh of {dict(zip(MESH_AXES, sizes, strict=True))} needs {math.prod(sizes)} devices, "
      f"{len(devices)} are there; change the sizes or pass that many devices"
    )
  # A torus of 4 x 4 x 4 has no 8 in a row: an axis may take a part of one of its own.
  grid = mesh_utils.create_device_mesh(sizes, devices, allow_split_physical_axes=True)
  return Mesh(grid, MESH_AXES, axis_types=(AxisType.Auto,) * len(MESH_AXES))


def spec(axes: tuple[str | None, ...], rules: Rules) -> PartitionSpec:
  """The partition of an array with these logical axes. Raises KeyError for an unknown name."""
  return PartitionSpec(*(rules[axis] or None if axis else None for axis in axes))


def shardings(cfg: PolicyConfig, mesh: Mesh, rules: Rules = TRAIN_RULES) -> dict[str, Any]:
  """A tree of NamedSharding like the parameters; the optimiser's moments take the same.

  Raises ValueError where an axis does not divide by its mesh axes.
  """

  def of_entry(entry: params_lib.ParamSpec) -> NamedSharding:
    for size, axis in zip(entry.shape, entry.axes, strict=True):
      if axis and size % ways(axis, mesh, rules):
        raise ValueError(
          f'the axis "{axis}" of {size} does not divide over {rules[axis]} = '
          f"{ways(axis, mesh, rules)} devices; change the size or the mesh {dict(mesh.shape)}"
        )
    return NamedSharding(mesh, spec(entry.axes, rules))

  return params_lib.map_table(of_entry, cfg)


def served(params: dict[str, Any]) -> dict[str, Any]:
  """Parameters as a sampler on the ambient mesh holds them: layers unstacked, and what a TPU would
  lay out anew in each step laid out once.

  An expert's gate and up are one matrix [E, D, 2 F], where no device has a part of their width;
  embeddings apart from the head are filled up to whole lanes on an accelerator.
  """
  held = params_lib.unstack(params)
  more = -params["embed"].shape[1] % kernel_choice.LANES
  if "head" in params and kernel_choice.platform() != "cpu" and more:
    held |= {"embed": jnp.pad(params["embed"], ((0, 0), (0, more)))}
  if ambient_ways("ffw") > 1:
    return held
  merge = lambda path, x: x.reshape(*x.shape[:-2], -1) if _is_gate_up(path) else x
  return jax.tree_util.tree_map_with_path(merge, held)


def served_shardings(cfg: PolicyConfig, mesh: Mesh) -> dict[str, Any]:
  """`shardings` of `served` parameters on a mesh."""
  merged = ways("ffw", mesh, SERVE_RULES) == 1

  def of_entry(path: Any, entry: params_lib.ParamSpec) -> NamedSharding:
    axes = entry.axes
    if merged and _is_gate_up(path):
      axes = *axes[:-2], axes[-1]
    unstacked = path[0].key in params_lib.LAYER_KINDS
    return NamedSharding(mesh, spec(axes[1:] if unstacked else axes, SERVE_RULES))

  table = params_lib.table(cfg)
  places = jax.tree_util.tree_map_with_path(of_entry, table, is_leaf=params_lib.is_spec)

  def layers(name: str) -> tuple[Any, ...]:
    stack = jax.tree.leaves(table[name], is_leaf=params_lib.is_spec)[0].shape[0]
    return (places[name],) * stack

  return {n: layers(n) if n in params_lib.LAYER_KINDS else places[n] for n in table}


def _is_gate_up(path: Any) -> bool:
  """Whether a path of the parameters leads to what gates experts."""
  keys = [getattr(key, "key", None) for key in path]
  return "experts" in keys and keys[-1] in ("gate_up", "gate_up_bias")


def ways(axis: str, mesh: Mesh | AbstractMesh, rules: Rules = TRAIN_RULES) -> int:
  """How many parts a logical axis is split into."""
  return math.prod(mesh.shape[name] for name in rules[axis])


def ambient_ways(axis: str) -> int:
  """`ways` of the ambient mesh; 1 without one."""
  mesh = jax.sharding.get_abstract_mesh()
  return 1 if mesh.empty else ways(axis, mesh)


def place(tree: Any, places: Any) -> Any:
  """Arrays of the host, equal in every process, or of devices, laid out by a tree of shardings."""

  def one(x: Any, sharding: NamedSharding) -> jax.Array:
    if isinstance(x, jax.Array):
      return jax.device_put(x, sharding)
    return jax.make_array_from_callback(x.shape, sharding, lambda index: x[index])

  return jax.tree.map(one, tree, places)


def replicated(tree: Any) -> Any:
  """The arrays of a tree whole on every device of the ambient mesh, for the host to read."""
  return jax.tree.map(lambda x: constrain(x, *(None,) * x.ndim), tree)


def constrain(x: jax.Array, *axes: str | None, rules: Rules = TRAIN_RULES) -> jax.Array:
  """x with its logical axes laid over the ambient mesh (jax.set_mesh); x itself without a mesh."""
  if jax.sharding.get_abstract_mesh().empty:
    return x
  return jax.lax.with_sharding_constraint(x, spec(axes, rules))
