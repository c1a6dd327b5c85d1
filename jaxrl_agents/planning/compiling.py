"""Compiles a program for devices that this machine does not have, and reads its requirements.

XLA for TPU cannot return the text of every program that it compiles (jaxlib 0.10.2 fails on its
asynchronous copies), so it is configured to write it into a folder. The estimated cycles are in the
last file that it writes.
"""

from __future__ import annotations

import dataclasses
import pathlib
import re
import tempfile
import time
from collections.abc import Callable
from typing import Any

import jax
from jax.sharding import Mesh

from jaxrl_agents.planning import hlo
from jaxrl_agents.planning.programs import Program
from jaxrl_agents.planning.topology import Topology

UNITS = {"": 1, "K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40}
Expected = Callable[[str, float], float]


@dataclasses.dataclass(frozen=True)
class Compiled:
  """What a compiler says of one program, per device.

  Attributes:
    name: of the program.
    arguments_bytes: of all arguments.
    results_bytes: of results that are not written over donated arguments.
    temporary_bytes: that it needs besides; where it does not fit, what it would need.
    beside_bytes: see Program.beside.
    fits: whether the compiler found room for it by itself.
    cost: of a run; None where it was not compiled to the end.
    lower_s: seconds to trace and lower it.
    compile_s: seconds to compile it.
  """

  name: str
  arguments_bytes: int
  results_bytes: int
  temporary_bytes: int
  beside_bytes: int
  fits: bool
  cost: hlo.Cost | None
  lower_s: float
  compile_s: float

  @property
  def peak_bytes(self) -> int:
    """Memory in use while it runs."""
    return self.arguments_bytes + self.results_bytes + self.temporary_bytes + self.beside_bytes


def compiled(
  program: Program,
  mesh: Mesh,
  topology: Topology,
  *,
  arguments_bytes: int,
  expected: Expected,
) -> Compiled:
  """Lowers and compiles a program.

  Args:
    program: what to compile.
    mesh: of its arguments; ambient while it is traced.
    topology: that the mesh's devices are of.
    arguments_bytes: used where it does not fit and the compiler tells one sum only.
    expected: lengths of loops, see hlo.cost.
  """
  began = time.monotonic()
  with jax.set_mesh(mesh):
    if topology.chip.platform == "cuda":  # no compiler here, but what it would get can be made
      program.function.trace(*program.arguments).lower(lowering_platforms=("cuda",))
    lowered = program.function.lower(*program.arguments)
  lower_s = time.monotonic() - began
  kept: dict[str, Any] = {"name": program.name, "beside_bytes": program.beside, "lower_s": lower_s}
  began = time.monotonic()
  try:
    executable, text = _compile(lowered, topology)
  except jax.errors.JaxRuntimeError as error:
    needed = needed_bytes(str(error))
    if needed is None:
      raise
    return Compiled(
      **kept,
      arguments_bytes=arguments_bytes,
      results_bytes=0,
      temporary_bytes=max(needed - arguments_bytes, 0),
      fits=False,
      cost=None,
      compile_s=time.monotonic() - began,
    )
  stats = executable.memory_analysis()
  return Compiled(
    **kept,
    arguments_bytes=stats.argument_size_in_bytes,
    results_bytes=stats.output_size_in_bytes - stats.alias_size_in_bytes,
    temporary_bytes=stats.temp_size_in_bytes + stats.generated_code_size_in_bytes,
    fits=True,
    cost=hlo.cost(text, expected),
    compile_s=time.monotonic() - began,
  )


def needed_bytes(message: str) -> int | None:
  """What XLA wrote that a program needs in all, where it does not fit; None for another error."""
  if "RESOURCE_EXHAUSTED" not in message:
    return None
  for pattern in (r"Used ([\d.]+)([KMGT]?) of", r"\(([\d.]+)([KMGT]?)\) exceeds"):
    found = re.search(pattern, message)
    if found:
      return int(float(found[1]) * UNITS[found[2]])
  return None


def _compile(lowered, topology: Topology):
  if topology.chip.platform != "tpu":
    executable = lowered.compile()
    return executable, executable.as_text()
  with tempfile.TemporaryDirectory() as folder:
    executable = lowered.compile(compiler_options={"xla_dump_to": folder})
    written = sorted(pathlib.Path(folder).glob("*.after_codegen.txt"))
    return executable, written[-1].read_text("utf-8")
