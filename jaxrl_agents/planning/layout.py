"""How the devices of a slice are laid out as a mesh."""

from __future__ import annotations

import dataclasses
import math

from jaxrl_agents.config import MeshConfig
from jaxrl_agents.policy import sharding
from jaxrl_agents.policy.config import PolicyConfig


def sizes(text: str, cfg: PolicyConfig, num_devices: int, configured: MeshConfig) -> dict[str, int]:
  """Axis sizes of "fsdp=16,expert=4"; for "" those configured where they hold the devices, else
  those of `suggested`.

  Raises:
    ValueError: an unknown axis or one that is named twice, no number, or sizes that do not multiply
      to the devices.
  """
  if not text:
    axes = dataclasses.asdict(configured)
    if math.prod(axes.values()) == num_devices:
      return axes
    return suggested(cfg, num_devices)
  found = {}
  for part in text.split(","):
    axis, equals, size = part.partition("=")
    is_size = size.isascii() and size.isdigit() and int(size) > 0
    if axis not in sharding.MESH_AXES or not equals or not is_size:
      raise ValueError(
        f"{part!r} in the mesh {text!r} is not AXIS=SIZE; axes are {', '.join(sharding.MESH_AXES)}"
      )
    if axis in found:
      raise ValueError(f"the mesh {text!r} names {axis} twice; write one size for it")
    found[axis] = int(size)
  if math.prod(found.values()) != num_devices:
    raise ValueError(
      f"the mesh {text!r} has {math.prod(found.values())} places for {num_devices} devices; change "
      "a size so that they multiply to that"
    )
  return found


def suggested(cfg: PolicyConfig, num_devices: int) -> dict[str, int]:
  """As many ways over experts as divide them, the rest over the width of parameters.

  What is left over where the width does not divide further is replicated ("data").
  """
  expert = math.gcd(cfg.num_experts, num_devices, cfg.embed_dim) if cfg.num_moe_layers else 1
  fsdp = math.gcd(cfg.embed_dim // expert, num_devices // expert)
  return {"data": num_devices // expert // fsdp, "fsdp": fsdp, "expert": expert}


def describe(mesh_sizes: dict[str, int]) -> str:
  """The mesh as --mesh takes it, axes of one left out."""
  return ",".join(f"{axis}={size}" for axis, size in mesh_sizes.items() if size > 1) or "data=1"
