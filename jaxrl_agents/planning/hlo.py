"""Reads the text of a compiled program: how often each computation runs, what it moves, how long.

`cost_analysis` counts the body of a loop once. Here a loop counts as often as it runs: its length
is read from its condition or, if it depends on the data, given by the caller. Collectives are
listed with their bytes and groups. For every other instruction, the cycles that XLA for TPU
estimates are added up. XLA estimates none for kernels, which are listed too, and none for gathers,
layout copies and sorts, for which the bytes they read and write are added up.
"""

from __future__ import annotations

import dataclasses
import math
import re
from collections import defaultdict
from collections.abc import Callable, Iterable

from jaxrl_agents.planning.kernels import Kernel

COLLECTIVES = (
  "all-gather",
  "all-reduce",
  "reduce-scatter",
  "all-to-all",
  "ragged-all-to-all",
  "collective-permute",
  "collective-broadcast",
)
BYTES = {
  "pred": 1,
  "s8": 1,
  "u8": 1,
  "f8e4m3fn": 1,
  "f8e5m2": 1,
  "s16": 2,
  "u16": 2,
  "f16": 2,
  "bf16": 2,
  "s32": 4,
  "u32": 4,
  "f32": 4,
  "s64": 8,
  "u64": 8,
  "f64": 8,
}

ELSEWHERE = "elsewhere"
"""The file of what XLA made itself: copies, transfers and loops without a frame."""

_COMPUTATION = re.compile(r"^(ENTRY )?%?([\w.\-]+) \(.*\) -> .*\{$")
_INSTRUCTION = re.compile(r"^\s+(?:ROOT )?%?([\w.\-]+) = (.*?) ([a-z][a-z0-9\-]*)\((.*)$")
_SHAPE = re.compile(r"\b([a-z]\w*)\[([\d,]*)\]")
_CALLED = re.compile(
  r"(?:condition|body|to_apply|calls|branch_computations|true_computation|"
  r"false_computation|called_computations)=(\{[^}]*\}|%?[\w.\-]+)"
)
_UNESTIMATED = ("fusion", "reshape", "sort")
_IN_PLACE = '"aliasing_operands":{"lists":[{'
_CYCLES = re.compile(r'"estimated_cycles":"(\d+)"')
_UNKNOWN = 2**62
"""As many estimated cycles and more mean that XLA knows none: kernels of ours have 2^63 - 1."""
_TRIPS = re.compile(r'"known_trip_count":\{"n":"(\d+)"\}')
_OPERANDS = re.compile(r"operand_layout_constraints=\{((?:[^{}]|\{[^}]*\})*)\}")
_FRAME = re.compile(r"stack_frame_id=(\d+)")


@dataclasses.dataclass(frozen=True)
class Collective:
  """One collective of a program.

  Attributes:
    kind: of COLLECTIVES.
    bytes: of the larger of what goes in and what comes out, on one device.
    group: devices that take part.
    file: of the code that asked for it.
    times: how often it runs.
  """

  kind: str
  bytes: int
  group: int
  file: str
  times: float

  @property
  def moved_bytes(self) -> float:
    """Bytes that each device sends, all runs together, by the best ring or pairwise algorithm."""
    share = (self.group - 1) / self.group
    factor = {"all-reduce": 2 * share, "collective-permute": 1.0, "collective-broadcast": 1.0}
    return self.times * self.bytes * factor.get(self.kind, share)


@dataclasses.dataclass(frozen=True)
class Cost:
  """What one run of a program takes on each device.

  Attributes:
    cycles: XLA's estimate for all but collectives, by the file of the code that asked for them;
      empty where XLA makes none.
    moved: bytes that instructions without an estimate read and write, likewise.
    collectives: each with how often it runs.
    guessed: "file:function" of each loop whose length depends on the data, and how long it was
      taken to be.
    kernels: calls of kernels, each with how often it runs.
  """

  cycles: dict[str, float]
  moved: dict[str, float]
  collectives: tuple[Collective, ...]
  guessed: dict[str, float]
  kernels: tuple[Kernel, ...] = ()


@dataclasses.dataclass
class Computation:
  """What one run of a computation asks for.

  Attributes:
    cycles: (file, cycles) of its instructions.
    moved: (file, bytes) of those without cycles.
    collectives: (kind, bytes, devices of a group, file).
    kernels: (name, shapes of operands, how many of them are integers).
    calls: computations that run as often as it does.
    loops: (body, condition, length where it is written down, "file:function").
    bound: of a condition, what the counter is compared with.
  """

  cycles: list[tuple[str, int]] = dataclasses.field(default_factory=list)
  moved: list[tuple[str, int]] = dataclasses.field(default_factory=list)
  collectives: list[tuple[str, int, int, str]] = dataclasses.field(default_factory=list)
  kernels: list[tuple[str, tuple[tuple[int, ...], ...], int]] = dataclasses.field(
    default_factory=list
  )
  calls: list[str] = dataclasses.field(default_factory=list)
  loops: list[tuple[str, str, int | None, str]] = dataclasses.field(default_factory=list)
  bound: int | None = None


def cost(text: str, expected: Callable[[str, float], float]) -> Cost:
  """The cost of the entry computation of a program.

  Args:
    text: `compiled.as_text()`, or what XLA dumps after its optimisations.
    expected: ("file:function" that a loop of unknown length stands in, length of the loop around
      it) -> how often it runs on average.
  """
  found, entry = computations(text)
  cycles: dict[str, float] = defaultdict(float)
  moved: dict[str, float] = defaultdict(float)
  collectives: list[Collective] = []
  kernels: list[Kernel] = []
  guessed: dict[str, float] = {}
  for name, times, place in runs(found, entry, expected):
    if place:
      guessed[place] = max(times, guessed.get(place, 0.0))
      continue
    for origin, count in found[name].cycles:
      cycles[origin] += times * count
    for origin, size in found[name].moved:
      moved[origin] += times * size
    collectives.extend(Collective(*each, times) for each in found[name].collectives)
    kernels.extend(Kernel(*each, times) for each in found[name].kernels)
  return Cost(dict(cycles), dict(moved), tuple(collectives), guessed, tuple(kernels))


def runs(
  computations: dict[str, Computation], entry: str, expected: Callable[[str, float], float]
) -> Iterable[tuple[str, float, str]]:
  """(computation, how often it runs, ""), and ("", length, place) for every loop guessed."""
  waiting = [(entry, 1.0, 1.0)]
  while waiting:
    name, times, around = waiting.pop()
    yield name, times, ""
    found = computations[name]
    waiting.extend((called, times, around) for called in found.calls)
    for body, condition, trips, place in found.loops:
      known = trips if trips is not None else computations[condition].bound
      length = expected(place, around) if known is None else known
      if known is None:
        yield "", length, place
      waiting.append((body, times * length, length))


def computations(text: str) -> tuple[dict[str, Computation], str]:
  """The computations of a program by name, and the name of the one that it begins with."""
  lines = text.splitlines()
  places = _places_of_frames(lines)
  found: dict[str, Computation] = defaultdict(Computation)
  entry, current = "", None
  constants: dict[str, int] = {}
  for line in lines:
    header = _COMPUTATION.match(line)
    if header:
      entry = header[2] if header[1] else entry
      current, constants = found[header[2]], {}
      continue
    parsed = _INSTRUCTION.match(line)
    if current is None or not parsed:
      continue
    name, shape, opcode, rest = parsed.groups()
    if opcode == "constant" and re.match(r"-?\d+\)", rest):
      constants[name] = int(rest.partition(")")[0])
    if opcode == "compare" and "direction=LT" in rest and line.lstrip().startswith("ROOT"):
      bounds = [constants[o] for o in re.findall(r"%([\w.\-]+)", rest) if o in constants]
      current.bound = bounds[0] if bounds else None
    if opcode == "custom-call" and '"tpu_custom_call"' in rest:
      current.kernels.append((name, *_operands(rest)))
    _add(current, shape, opcode, rest, places)
  return found, entry


def _add(current: Computation, shape: str, opcode: str, rest: str, places: dict[int, str]) -> None:
  frame = _FRAME.search(rest)
  place = places.get(int(frame[1]), ELSEWHERE) if frame else ELSEWHERE
  file = place.partition(":")[0]
  kind = opcode.removesuffix("-start")
  if kind in COLLECTIVES:
    size = _bytes(shape, started=opcode.endswith("-start"))
    if kind == "reduce-scatter":
      size *= _group(rest)
    current.collectives.append((kind, size, _group(rest), file))
    return
  cycles = _CYCLES.search(rest)
  if cycles and int(cycles[1]) < _UNKNOWN:
    current.cycles.append((file, int(cycles[1])))
  elif opcode in _UNESTIMATED and _IN_PLACE not in rest:
    current.moved.append((file, 2 * _bytes(shape)))
  if opcode == "while":
    called = dict(re.findall(r"(condition|body)=%?([\w.\-]+)", rest))
    trips = _TRIPS.search(rest)
    current.loops.append(
      (called["body"], called["condition"], int(trips[1]) if trips else None, place)
    )
  elif opcode in ("call", "conditional", "async-start"):
    for names in _CALLED.findall(rest):
      current.calls.extend(re.findall(r"[\w.\-]+", names))


def _operands(rest: str) -> tuple[tuple[tuple[int, ...], ...], int]:
  """Shapes of a kernel's operands, and how many of them, at the beginning, are integers."""
  found = _OPERANDS.search(rest)
  listed = _SHAPE.findall(found[1]) if found else []
  shapes = tuple(tuple(int(n) for n in dims.split(",") if n) for _, dims in listed)
  floats = [i for i, (kind, _) in enumerate(listed) if "f" in kind]
  return shapes, floats[0] if floats else len(listed)


def _bytes(shape: str, started: bool = False) -> int:
  """Bytes of a shape or tuple of shapes; of (operands, results, tokens) the results."""
  arrays = [
    (BYTES[t], [int(n) for n in dims.split(",") if n])
    for t, dims in _SHAPE.findall(shape)
    if t in BYTES
  ]
  arrays = [a for a in arrays if a[1]] if started else arrays
  sizes = [size * math.prod(dims) for size, dims in arrays]
  return sum(sizes[len(sizes) // 2 :]) if started and len(sizes) > 1 else sum(sizes)


def _group(rest: str) -> int:
  """Devices of a group, in the three ways in which replica groups are written."""
  iota = re.search(r"replica_groups=\[(\d+),(\d+)\]", rest)
  if iota:
    return int(iota[2])
  mesh = re.search(r"replica_groups=mesh\[([^\]]*)\] ?\{([^}]*)\}", rest)
  if mesh:
    sizes = dict(re.findall(r"'(\w+)'=(\d+)", mesh[1]))
    return math.prod(int(sizes[a]) for a in re.findall(r"'(\w+)'", mesh[2]) if a in sizes)
  listed = re.search(r"replica_groups=\{\{([\d,]*)\}", rest)
  return len(listed[1].split(",")) if listed else 2


def _places_of_frames(lines) -> dict[int, str]:
  """The innermost "file:function" of each stack frame, from the tables at the head of the text."""
  tables: dict[str, dict[int, str]] = defaultdict(dict)
  table = ""
  for line in lines:
    if line in ("FileNames", "FunctionNames", "FileLocations", "StackFrames"):
      table = line
    elif table and re.match(r"\d+ ", line):
      number, _, value = line.partition(" ")
      tables[table][int(number)] = value
    elif table and line.startswith(("%", "ENTRY")):
      break
  field = lambda name, value: int(re.findall(rf"{name}=(\d+)", value)[0])
  files = {n: v.strip('"').rpartition("/")[2] for n, v in tables["FileNames"].items()}
  functions = {n: v.strip('"').rpartition(".")[2] for n, v in tables["FunctionNames"].items()}
  places = {
    n: f"{files[field('file_name_id', v)]}:{functions[field('function_name_id', v)]}"
    for n, v in tables["FileLocations"].items()
  }
  return {n: places[field("file_location_id", v)] for n, v in tables["StackFrames"].items()}
