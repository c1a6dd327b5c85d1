"""Makes the plan of a run: compiles its steps for a topology and adds up what they need."""

from __future__ import annotations

import dataclasses
import types
from typing import Any

import jax
import optax

from jaxrl_agents.config import LearnerConfig, SamplerConfig
from jaxrl_agents.learner.train_step import Objective
from jaxrl_agents.planning import advice, compiling, flops, kernels, layout, programs, timing
from jaxrl_agents.planning.compiling import Compiled
from jaxrl_agents.planning.programs import Program
from jaxrl_agents.planning.timing import Time
from jaxrl_agents.planning.topology import Topology
from jaxrl_agents.policy import head, sharding
from jaxrl_agents.policy import params as params_lib
from jaxrl_agents.policy.attention import causal, layer, paged
from jaxrl_agents.policy.config import PolicyConfig
from jaxrl_agents.policy.experts import all_to_all, local, moe

SWAP = "a swap of weights"
"""When a sampler's memory is at its peak, where that is in no program."""
LISTED = 6
"""Files and collectives of a program that the report names: those that take the most time."""


@dataclasses.dataclass(frozen=True)
class Slice:
  """Where a part of the run would live: topology, its devices, and the mesh's axis sizes."""

  topology: Topology
  devices: tuple[Any, ...]
  axes: dict[str, int]

  @property
  def mesh(self) -> jax.sharding.Mesh:
    """The mesh of the devices.

    Raises:
      ValueError: the torus cannot be cut into these axes.
    """
    try:
      return sharding.make_mesh(**self.axes, devices=self.devices)
    except NotImplementedError as error:
      raise ValueError(
        f"the torus of {self.topology.name} has no axes {layout.describe(self.axes)}: each must be "
        "a product of whole sides; choose other sizes or other sides"
      ) from error


def learner(
  params: Any,
  cfg: PolicyConfig,
  section: LearnerConfig,
  place: Slice,
  *,
  tx: optax.GradientTransformation,
  objective: Objective,
  usd_per_chip_hour: float,
  deltas: bool = False,
) -> dict[str, Any]:
  """The plan of one optimizer step on `params`, see programs.learner.

  Raises:
    ValueError: the run does not divide over the mesh.
  """
  mesh = place.mesh
  parts = programs.learner(
    params, cfg, section, tx=tx, objective=objective, mesh=mesh, deltas=deltas
  )
  held = {
    "parameters": programs.bytes_per_device(parts.state.policy),
    "optimizer": programs.bytes_per_device(parts.state.opt_state),
    "gradients": held_gradients(parts),
    "batch": programs.bytes_per_device(parts.batch),
  }
  if parts.reference:
    held["reference"] = parts.reference
  if parts.published:
    held["published"] = parts.published
  expected = learner_loops(cfg, section, place)
  built = [compile_one(p, place, mesh, expected) for p in parts.programs]
  runs = {"gradients": parts.microbatches, "add": parts.microbatches - 1, "apply": 1}
  tokens = parts.microbatches * section.rows_per_microbatch * section.row_lengths[-1]
  drafting = objective.mtp_weight > 0
  per_token = flops.train_flops_per_token(cfg, section.row_lengths[-1], drafting=drafting)
  computed = flops.train_flops_per_token(
    cfg, section.row_lengths[-1], drafting=drafting, remat=objective.remat != "none"
  )
  chips = place.topology.num_chips
  times = [
    timing.of(
      each,
      place.topology,
      flops=computed * tokens / parts.microbatches / chips if each.name == "gradients" else 0.0,
      hbm_bytes=(each.arguments_bytes + each.results_bytes) * place.topology.chip.devices,
      expected=kernels_of_learner(cfg, place),
    )
    for each in built
  ]
  return summed(
    place,
    built,
    times,
    runs,
    held,
    tokens=tokens,
    flops_per_token=per_token,
    dtype=programs.dtype_of(parts.state.policy.params),
    usd_per_chip_hour=usd_per_chip_hour,
  )


def rollout(
  cfg: PolicyConfig,
  section: SamplerConfig,
  place: Slice,
  *,
  context_tokens: int,
  dtype: str,
  usd_per_chip_hour: float,
) -> dict[str, Any]:
  """The plan of one decode step of all slots, half of the longest context cached, and of a swap of
  weights, which takes as much memory again: for a complete version, or for differences from one (a
  repair of damaged differences takes it twice).

  Pairs are taken to be exchanged in two rounds: so few tokens never choose experts evenly.

  Raises:
    ValueError: the run does not divide over the mesh.
  """
  mesh = place.mesh
  parts = programs.sampler(cfg, section, mesh, context_tokens=context_tokens, dtype=dtype)
  held = {
    "parameters": programs.bytes_per_device(parts.params),
    "cache": programs.bytes_per_device(parts.state),
    "batch": programs.bytes_per_device(parts.rows),
  }
  queries = max(section.draft_tokens, section.lookup_tokens) + 1
  columns = parts.rows.page_table.shape[1]
  with jax.set_mesh(mesh):
    pages = paged.pages_of_round(queries, section.page_tokens, columns)
  rounds = rounds_of_cache(cfg, context_tokens // 2, pages * section.page_tokens)
  over_cache = files_of(layer, paged)
  expected = lambda loop, around: rounds if loop.partition(":")[0] in over_cache else 1.0
  built = compile_one(parts.program, place, mesh, expected)
  swap = 2 * held["parameters"] + held["cache"]
  per_token = flops.decode_flops_per_token(cfg, context_tokens / 2)
  chips = place.topology.num_chips
  time = timing.of(
    built,
    place.topology,
    flops=per_token * section.slots / chips,
    hbm_bytes=(held["parameters"] + held["cache"]) * place.topology.chip.devices,
    expected=kernels.Expected(filled=filled(place)),
  )
  return summed(
    place,
    [built],
    [time],
    {"decode": 1},
    held,
    tokens=section.slots,
    flops_per_token=per_token,
    dtype=programs.dtype_of(parts.params),
    usd_per_chip_hour=usd_per_chip_hour,
    swap_bytes=swap,
  )


def rounds_of_cache(cfg: PolicyConfig, position: int, keys: int) -> float:
  """Rounds, of so many keys, in which a query at a position sees the cache: the mean of layers."""
  full = position // keys + 1
  if not cfg.window_tokens:
    return full
  near = full - max(position - cfg.window_tokens + 1, 0) // keys
  windows = sum(cfg.has_window(i) for i in range(cfg.num_layers))
  return (windows * near + (cfg.num_layers - windows) * full) / cfg.num_layers


def model(cfg: PolicyConfig) -> dict[str, int]:
  """The size of the policy."""
  return {
    "parameters": params_lib.count(cfg),
    "active_parameters": flops.active_parameters(cfg),
  }


def held_gradients(parts: programs.Learner) -> int:
  """Bytes of gradients that are alive at once: with several microbatches the sum and one more."""
  one = programs.bytes_per_device(parts.programs[-1].arguments[1])
  return 2 * one if parts.microbatches > 1 else one


def learner_loops(cfg: PolicyConfig, section: LearnerConfig, place: Slice) -> compiling.Expected:
  """Lengths of the loops that depend on the data: tiles of keys, blocks of tokens of experts, and
  chunks of tokens that the head scores.

  Rows are full of loss tokens, and routing is even; each expert's last block is half full.
  """
  rows, row_tokens = section.rows_per_microbatch, section.row_lengths[-1]
  tokens = (
    rows * row_tokens // sharding.ways("batch", place.mesh) // sharding.ways("time", place.mesh)
  )
  with jax.set_mesh(place.mesh):
    chunks = -(-tokens // place.axes.get("tensor", 1) // head.chunk_tokens())
  held = cfg.num_experts / place.axes.get("expert", 1)
  blocks = tokens * cfg.experts_per_token / local.MAX_BLOCK_TOKENS + held / 2

  def expected(loop: str, around: float) -> float:
    file, _, function = loop.partition(":")
    if file in files_of(layer, causal):
      return tiles(cfg, around)
    if file in files_of(head):
      return chunks
    if file in files_of(all_to_all) and function == "_exchanged":
      return 0.0  # rounds after the first: none where routing is even
    return blocks if file in files_of(all_to_all, local, moe) else 1.0

  return expected


def files_of(*modules: types.ModuleType) -> set[str]:
  """Names of the modules' files, by which compiled programs name their loops."""
  return {f"{module.__name__.rpartition('.')[2]}.py" for module in modules}


def kernels_of_learner(cfg: PolicyConfig, place: Slice) -> kernels.Expected:
  """Full rows and even routing, as `learner_loops`."""
  windows = sum(cfg.has_window(i) for i in range(cfg.num_layers)) if cfg.window_tokens else 0
  # Where devices have parts of a row's queries, the last of them sees the most.
  parts = sharding.ways("time", place.mesh)
  heads = cfg.num_heads if cfg.attention == "mla" else cfg.num_kv_heads
  by_heads = heads // sharding.ways("heads", place.mesh) % parts == 0
  seen = 0.5 if by_heads else 1 - 0.5 / parts
  return kernels.Expected(filled(place), seen, windows / cfg.num_layers)


def filled(place: Slice) -> float:
  """Share of a round's slots that hold a pair where routing is even."""
  return 1 / all_to_all.SLACK if place.axes.get("expert", 1) > 1 else 1.0


def tiles(cfg: PolicyConfig, number: float) -> float:
  """Tiles of keys that one of `number` blocks of queries sees, on average over layers."""
  full = (number + 1) / 2
  if not cfg.window_tokens:
    return full
  near = min(full, 1 + cfg.window_tokens / causal.BLOCK)
  windows = sum(cfg.has_window(i) for i in range(cfg.num_layers))
  return (windows * near + (cfg.num_layers - windows) * full) / cfg.num_layers


def compile_one(
  program: Program, place: Slice, mesh: jax.sharding.Mesh, expected: compiling.Expected
) -> Compiled:
  """Compiles a program of the plan."""
  arrays = [a for a in program.arguments if not isinstance(a, PolicyConfig | Objective)]
  size = programs.bytes_per_device(
    [leaf for leaf in jax.tree.leaves(arrays) if isinstance(leaf, jax.ShapeDtypeStruct)]
  )
  return compiling.compiled(program, mesh, place.topology, arguments_bytes=size, expected=expected)


def summed(
  place: Slice,
  built: list[Compiled],
  times: list[Time],
  runs: dict[str, int],
  held: dict[str, int],
  *,
  tokens: int,
  flops_per_token: float,
  dtype: str,
  usd_per_chip_hour: float,
  swap_bytes: int = 0,
) -> dict[str, Any]:
  """One part of the plan, as JSON has it."""
  topology = place.topology
  chips = topology.num_chips
  step_s = {
    "overlapped": sum(runs[b.name] * t.overlapped_s for b, t in zip(built, times, strict=True)),
    "serial": sum(runs[b.name] * t.serial_s for b, t in zip(built, times, strict=True)),
  }
  work, peak = tokens * flops_per_token, topology.chip.flops_per_s
  estimated = bool(topology.chip.hz) and all(b.cost for b in built)
  found = {
    "topology": topology.name,
    "chips": chips,
    "mesh": layout.describe(place.axes),
    "parameter_dtype": dtype,
    "memory": memory(place, built, held, swap_bytes),
    "programs": [program(b, t, runs[b.name]) for b, t in zip(built, times, strict=True)],
    "compute_from": f"XLA's cycles; kernels {timing.KERNEL_SHARE:.0%} of peak"
    if estimated
    else "a roofline at peak",
    "tokens_per_step": tokens,
    "flops_per_token": flops_per_token,
    "flops_per_step": work,
    "step_s": step_s,
    "mfu": {k: flops.mfu(work, s, chips=chips, flops_per_s=peak) for k, s in step_s.items()},
    "tokens_per_s": {k: tokens / s for k, s in step_s.items()},
  }
  if usd_per_chip_hour:
    found["usd_per_chip_hour"] = usd_per_chip_hour
    found["usd_per_million_tokens"] = {
      k: chips * usd_per_chip_hour / 3600 * s / tokens * 1e6 for k, s in step_s.items()
    }
  return found | {"advice": advice.of(found)}


def memory(
  place: Slice, built: list[Compiled], held: dict[str, int], swap_bytes: int = 0
) -> dict[str, Any]:
  """Memory per chip: what is held by its kind, and the rest of the peak: activations of a program,
  or the next weights where a swap of them takes `swap_bytes`, and that is more.
  """
  devices = place.topology.chip.devices
  worst = max(built, key=lambda b: b.peak_bytes)
  peak, where = max((worst.peak_bytes, worst.name), (swap_bytes, SWAP))
  rest = max(peak - sum(held.values()), 0)
  others = "next weights" if where == SWAP else "activations"
  parts = {name: size * devices for name, size in (held | {others: rest}).items()}
  capacity = place.topology.chip.hbm_bytes
  return {
    "parts_bytes": parts,
    "peak_program": where,
    "peak_bytes": peak * devices,
    "capacity_bytes": capacity,
    "fits": all(b.fits for b in built) and peak * devices <= capacity,
  }


def program(built: Compiled, time: Time, runs: int) -> dict[str, Any]:
  """One compiled program of the plan, as JSON has it."""
  moved: dict[str, float] = {}
  for each in built.cost.collectives if built.cost else ():
    moved[timing.name(each)] = moved.get(timing.name(each), 0.0) + each.moved_bytes
  kinds = most(time.collective_by_file)
  return {
    "name": built.name,
    "runs": runs,
    "compute_s": time.compute_s,
    "collective_s": time.collective_s,
    "moved_bytes": sum(moved.values()),
    "collectives": {k: {"bytes": moved[k], "seconds": s} for k, s in kinds.items()},
    "compute_by_file": most(time.compute_by_file),
    "guessed_loops": built.cost.guessed if built.cost else {},
    "peak_bytes": built.peak_bytes,
    "temporary_bytes": built.temporary_bytes,
    "fits": built.fits,
    "lower_s": built.lower_s,
    "compile_s": built.compile_s,
  }


def most(seconds: dict[str, float]) -> dict[str, float]:
  """The entries that take the most time."""
  return dict(sorted(seconds.items(), key=lambda item: -item[1])[:LISTED])
