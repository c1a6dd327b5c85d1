"""The time of a compiled program on a chip: XLA's cycles, or a roofline, and its collectives.

A chip of a torus sends both ways along each dimension. A collective over g devices uses the
dimensions that its group spans; bytes of an all-to-all travel a quarter of a ring on average and
occupy the links of every hop (the arithmetic of https://jax-ml.github.io/scaling-book/sharding).
Behind a switch, all links serve every collective. Sides are assumed to be rings, although short
ones of some chips are not.

XLA estimates nothing for gathers and layout copies: they are assumed to move their bytes at the
memory's bandwidth. It estimates nothing for kernels either: they are assumed to reach KERNEL_SHARE
of the peak on the products that they compute (planning.kernels).
"""

from __future__ import annotations

import dataclasses
import itertools
import math

from jaxrl_agents.planning import kernels
from jaxrl_agents.planning.compiling import Compiled
from jaxrl_agents.planning.hlo import Collective
from jaxrl_agents.planning.topology import Topology

KERNEL_SHARE = 0.6
"""An assumption: nothing here can measure it."""


@dataclasses.dataclass(frozen=True)
class Time:
  """Seconds of one run.

  Attributes:
    compute_s: of everything but collectives.
    collective_s: of collectives.
    compute_by_file: share of the first, by file; empty where XLA makes no estimate.
    collective_by_file: of the second, by `name`.
  """

  compute_s: float
  collective_s: float
  compute_by_file: dict[str, float]
  collective_by_file: dict[str, float]

  @property
  def serial_s(self) -> float:
    """Where nothing overlaps."""
    return self.compute_s + self.collective_s

  @property
  def overlapped_s(self) -> float:
    """Where all that can overlap does."""
    return max(self.compute_s, self.collective_s)


def of(
  program: Compiled,
  topology: Topology,
  *,
  flops: float,
  hbm_bytes: float,
  expected: kernels.Expected,
) -> Time:
  """The time of a program.

  Args:
    program: compiled.
    topology: that it runs on.
    flops: of each chip, for the roofline where XLA estimates no cycles.
    hbm_bytes: that each chip reads and writes, likewise.
    expected: of its kernels, where XLA does estimate cycles.
  """
  chip = topology.chip
  moved: dict[str, float] = {}
  cost = program.cost
  for collective in cost.collectives if cost else ():
    moved[name(collective)] = moved.get(name(collective), 0.0) + seconds(collective, topology)
  if chip.hz and cost and cost.cycles:
    by_file = {file: count / chip.hz for file, count in cost.cycles.items()}
    for file, size in cost.moved.items():
      by_file[file] = by_file.get(file, 0.0) + size * chip.devices / chip.hbm_bytes_per_s
    for each in cost.kernels:
      work = kernels.flops(each, expected, chip.unit) * chip.devices
      kind = "kernel " + each.name.partition(".")[0]
      by_file[kind] = by_file.get(kind, 0.0) + work / (KERNEL_SHARE * chip.flops_per_s)
    return Time(sum(by_file.values()), sum(moved.values()), by_file, moved)
  roofline = max(flops / chip.flops_per_s, hbm_bytes / chip.hbm_bytes_per_s)
  return Time(roofline, sum(moved.values()), {}, moved)


def name(collective: Collective) -> str:
  """How the report calls it: "kind over devices, file"."""
  return f"{collective.kind} over {collective.group}, {collective.file}"


def seconds(collective: Collective, topology: Topology) -> float:
  """Seconds of all runs of a collective that has the links to itself."""
  chip = topology.chip
  one_way = chip.link_bytes_per_s / 2 / chip.devices
  if not chip.torus:
    return collective.moved_bytes / one_way
  longest, dimensions = _spanned(collective.group / chip.devices, topology.sides)
  of_a_dimension = one_way / chip.torus
  if "all-to-all" in collective.kind:
    return collective.moved_bytes * max(longest / 4, 1.0) / of_a_dimension
  return collective.moved_bytes / (of_a_dimension * dimensions)


def _spanned(group: float, sides: tuple[int, ...]) -> tuple[int, int]:
  """The longest side that a group of chips spans, and over how many dimensions.

  A group that is a product of sides lies along these; another along as many, longest first, as it
  takes to hold it.
  """
  for number in range(1, len(sides) + 1):
    for some in itertools.combinations(sides, number):
      if math.prod(some) == group:
        return max(some), number
  reached, dimensions = 1, 0
  for side in sorted(sides, reverse=True):
    if reached >= group and dimensions:
      break
    reached, dimensions = reached * side, dimensions + 1
  return max(sides), dimensions
