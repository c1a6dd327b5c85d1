"""Topologies by name: the chips, how they are connected, and devices to compile for."""

from __future__ import annotations

import contextlib
import dataclasses
import importlib.util
import math
import os
import re
from typing import Any

import jax

from jaxrl_agents.planning.chips import Chip, chip

LIBTPU = "pip install -e '.[libtpu]'"


@dataclasses.dataclass(frozen=True)
class Topology:
  """Attributes: name as given ("v5p:8x16x16"), its chip, the sides of its torus (or a count)."""

  name: str
  chip: Chip
  sides: tuple[int, ...]

  @property
  def num_chips(self) -> int:
    """Chips of the slice."""
    return math.prod(self.sides)

  @property
  def num_devices(self) -> int:
    """Devices that jax shows for them."""
    return self.num_chips * self.chip.devices


def parse(name: str) -> Topology:
  """The topology of "CHIP:SIDExSIDE…" (TPU) or "CHIP:COUNT".

  Raises:
    ValueError: there is no such chip, or no slice of it has these sides.
  """
  family, colon, shape = name.partition(":")
  kind = chip(family)
  example = {0: f"{family}:8", 2: f"{family}:4x4", 3: f"{family}:4x4x8"}[kind.torus]
  if not colon or not re.fullmatch(r"[1-9]\d*(x[1-9]\d*)*", shape):
    raise ValueError(f"--topology={name!r} is not CHIP:SIDES; write for example {example}")
  sides = tuple(int(side) for side in shape.split("x"))
  if len(sides) != max(kind.torus, 1):
    raise ValueError(
      f"{family} slices have {max(kind.torus, 1)} sides, e.g. {example}; got {shape}"
    )
  if math.prod(sides) > kind.max_chips:
    raise ValueError(
      f"{name} has {math.prod(sides)} chips; {family} has at most {kind.max_chips} of them joined: "
      "choose smaller sides"
    )
  return Topology(name, kind, sides)


def compiles(topology: Topology) -> bool:
  """Whether a compiler for it is at hand; else programs are compiled for the CPU in its place."""
  return topology.chip.platform != "cuda"


def devices(topology: Topology) -> list[Any]:
  """Devices to compile for, as many as the topology has.

  Call it before anything else asks jax for devices: CPU devices are made once.

  Raises:
    ValueError: libtpu is not installed, or knows no such slice; or CPU devices were made before.
  """
  if topology.chip.platform == "tpu":
    return _tpu_devices(topology)
  return _cpu_devices(topology)


def _tpu_devices(topology: Topology) -> list[Any]:
  if importlib.util.find_spec("libtpu") is None:
    raise ValueError(
      f"--topology={topology.name} is compiled for by libtpu, which is not installed; {LIBTPU}, "
      "or try --topology=cpu:2"
    )
  # It looks for the TPU of this machine, and for a metadata server, before it compiles for another.
  os.environ.setdefault("TPU_SKIP_MDS_QUERY", "1")
  os.environ.setdefault("TPU_STDERR_LOG_LEVEL", "3")
  os.environ.setdefault("TPU_MIN_LOG_LEVEL", "3")
  os.environ.setdefault("ALLOW_MULTIPLE_LIBTPU_LOAD", "1")  # several plans at once
  from jax.experimental import topologies

  try:
    found = topologies.get_topology_desc(platform="tpu", topology_name=topology.name)
  except jax.errors.JaxRuntimeError as error:
    reason = str(error).partition("\n")[0]
    raise ValueError(f"libtpu has no slice {topology.name}: {reason}") from error
  return list(found.devices)


def _cpu_devices(topology: Topology) -> list[Any]:
  jax.config.update("jax_platforms", "cpu")
  with contextlib.suppress(RuntimeError):  # made already: enough of them will do
    jax.config.update("jax_num_cpu_devices", topology.num_devices)
  there = jax.devices("cpu")
  if len(there) < topology.num_devices:
    raise ValueError(
      f"{topology.name} needs {topology.num_devices} CPU devices, {len(there)} are there; set "
      f"XLA_FLAGS=--xla_force_host_platform_device_count={topology.num_devices} before jax starts"
    )
  return there[: topology.num_devices]
