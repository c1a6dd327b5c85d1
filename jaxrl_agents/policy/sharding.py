"""Which mesh axis carries which logical axis: one dict for training, one for serving.

Mesh axes: "data" (replicas), "fsdp" (rows, and parameters split along their width), "expert" (rows,
and experts), "tensor" (heads, ffw and vocabulary). Rows of a batch are split over the first three.
"""

from __future__ import annotations

from typing import Any

import jax
import numpy as np
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec

from jaxrl_agents.policy import params as params_lib
from jaxrl_agents.policy.config import PolicyConfig

MESH_AXES = ("data", "fsdp", "expert", "tensor")

Rules = dict[str, tuple[str, ...]]

TRAIN_RULES: Rules = {
  "batch": ("data", "fsdp", "expert"),
  "layers": (),
  "embed": ("fsdp",),
  "vocab": ("tensor",),
  "heads": ("tensor",),
  "kv_heads": ("tensor",),
  "ffw": ("tensor",),
  "expert": ("expert",),
}
"""Parameters and optimiser moments are split along their width too: gathered when they are used."""

SERVE_RULES: Rules = {**TRAIN_RULES, "embed": ()}
"""Decoding reads every weight for a few tokens: gathering them at each step would cost more."""


def make_mesh(
  *, data: int = 1, fsdp: int = 1, expert: int = 1, tensor: int = 1, devices: Any = None
) -> Mesh:
  """A mesh with Auto axes (jax.make_mesh defaults to Explicit ones): use with jax.set_mesh.

  Raises ValueError where the sizes do not multiply to the number of devices.
  """
  devices = jax.devices() if devices is None else devices
  sizes = (data, fsdp, expert, tensor)
  if int(np.prod(sizes)) != len(devices):
    raise ValueError(
      f"a mesh of {dict(zip(MESH_AXES, sizes, strict=True))} needs {int(np.prod(sizes))} devices, "
      f"{len(devices)} are there; change the sizes or pass that many devices"
    )
  return jax.make_mesh(
    sizes, MESH_AXES, axis_types=(AxisType.Auto,) * len(MESH_AXES), devices=devices
  )


def spec(axes: tuple[str | None, ...], rules: Rules) -> PartitionSpec:
  """The partition of an array with these logical axes. Raises KeyError for an unknown name."""
  return PartitionSpec(*(rules[axis] or None if axis else None for axis in axes))


def shardings(cfg: PolicyConfig, mesh: Mesh, rules: Rules = TRAIN_RULES) -> dict[str, Any]:
  """A tree of NamedSharding like the parameters; the optimiser's moments take the same.

  Raises ValueError where an axis does not divide by its mesh axes.
  """

  def place(entry: params_lib.ParamSpec) -> NamedSharding:
    for size, axis in zip(entry.shape, entry.axes, strict=True):
      ways = int(np.prod([mesh.shape[name] for name in rules[axis]])) if axis else 1
      if size % ways:
        raise ValueError(
          f'the axis "{axis}" of {size} does not divide over {rules[axis]} = {ways} devices; '
          f"change the size or the mesh {dict(mesh.shape)}"
        )
    return NamedSharding(mesh, spec(entry.axes, rules))

  return params_lib.map_table(place, cfg)


def constrain(x: jax.Array, *axes: str | None, rules: Rules = TRAIN_RULES) -> jax.Array:
  """x with its logical axes laid over the ambient mesh (jax.set_mesh); x itself without a mesh."""
  if jax.sharding.get_abstract_mesh().empty:
    return x
  return jax.lax.with_sharding_constraint(x, spec(axes, rules))
