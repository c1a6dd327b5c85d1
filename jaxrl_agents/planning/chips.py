"""Published numbers of each chip, against which a plan is measured."""

from __future__ import annotations

import dataclasses
import difflib

GIB = 2**30


@dataclasses.dataclass(frozen=True)
class Chip:
  """One accelerator, as its maker describes it.

  Attributes:
    flops_per_s: peak of bfloat16 products, dense.
    hbm_bytes: memory.
    hbm_bytes_per_s: its bandwidth.
    link_bytes_per_s: to neighbours, both directions of all links together.
    torus: links form a torus of so many dimensions; 0 for a switch that joins all chips evenly.
    max_chips: of one slice (a torus) or one node (a switch).
    devices: how many devices jax shows for it.
    hz: clock that XLA's estimated cycles are counted in: the peak by what its matrix units do in a
      cycle (2 * 128^2 or 2 * 256^2 each); 0 where nothing here compiles for it.
    unit: side of its matrix unit; 0 as for hz.
    platform: that a program is lowered for: "tpu", "cuda" or "cpu".
    source: where the numbers stand.
  """

  flops_per_s: float
  hbm_bytes: float
  hbm_bytes_per_s: float
  link_bytes_per_s: float
  torus: int
  max_chips: int
  devices: int
  hz: float
  unit: int
  platform: str
  source: str


_H100 = Chip(
  flops_per_s=989e12,
  hbm_bytes=80e9,
  hbm_bytes_per_s=3_350e9,
  link_bytes_per_s=900e9,
  torus=0,
  max_chips=8,
  devices=1,
  hz=0.0,
  unit=0,
  platform="cuda",
  source="https://www.nvidia.com/en-us/data-center/h100",
)

CHIPS = {
  "v5e": Chip(
    flops_per_s=197e12,
    hbm_bytes=16 * GIB,
    hbm_bytes_per_s=819e9,
    link_bytes_per_s=400e9,
    torus=2,
    max_chips=256,
    devices=1,
    hz=1.5e9,
    unit=128,
    platform="tpu",
    source="https://cloud.google.com/tpu/docs/v5e",
  ),
  "v5p": Chip(
    flops_per_s=459e12,
    hbm_bytes=95 * GIB,
    hbm_bytes_per_s=2_765e9,
    link_bytes_per_s=1_200e9,
    torus=3,
    max_chips=8_960,
    devices=1,
    hz=1.75e9,
    unit=128,
    platform="tpu",
    source="https://docs.cloud.google.com/tpu/docs/tpu7x",
  ),
  "v6e": Chip(
    flops_per_s=918e12,
    hbm_bytes=32 * GIB,
    hbm_bytes_per_s=1_638e9,
    link_bytes_per_s=800e9,
    torus=2,
    max_chips=256,
    devices=1,
    hz=1.75e9,
    unit=256,
    platform="tpu",
    source="https://docs.cloud.google.com/tpu/docs/tpu7x",
  ),
  "tpu7x": Chip(
    flops_per_s=2_307e12,
    hbm_bytes=192 * GIB,
    hbm_bytes_per_s=7_380e9,
    link_bytes_per_s=1_200e9,
    torus=3,
    max_chips=9_216,
    devices=2,
    hz=2.2e9,
    unit=256,
    platform="tpu",
    source="https://docs.cloud.google.com/tpu/docs/tpu7x",
  ),
  "h100": _H100,
  "h200": dataclasses.replace(
    _H100,
    hbm_bytes=141e9,
    hbm_bytes_per_s=4_800e9,
    source="https://www.nvidia.com/en-us/data-center/h200",
  ),
  "cpu": Chip(
    flops_per_s=0.35e12,
    hbm_bytes=12 * GIB,
    hbm_bytes_per_s=40e9,
    link_bytes_per_s=40e9,
    torus=0,
    max_chips=1_024,
    devices=1,
    hz=0.0,
    unit=0,
    platform="cpu",
    source="two cores: 344 GFLOP/s of float32 products at 2048^3, reads of 37 to 57 GB/s",
  ),
}
"""By the name that a topology begins with. Of "cpu" nothing is published: a place to try a plan."""


def chip(name: str) -> Chip:
  """The chip of that name. Raises ValueError with the nearest for another."""
  if name not in CHIPS:
    near = difflib.get_close_matches(name, CHIPS, n=1, cutoff=0.0)[0]
    raise ValueError(f"no chip {name!r}, did you mean {near!r}? There are {', '.join(CHIPS)}")
  return CHIPS[name]
