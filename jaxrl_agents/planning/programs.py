"""The device programs of a run, with abstract arguments placed on a mesh: nothing is allocated.

They are the very functions that a run calls: `learner.train_step` and `sampler.steps`.

Alphabet: B rows, T time, L mixture layers, K experts per token, D width, Pm pages of a row.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import optax
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from jaxrl_agents.config import LearnerConfig, SamplerConfig
from jaxrl_agents.learner import checkpoint, packing, state, train_step
from jaxrl_agents.policy import cache as cache_lib
from jaxrl_agents.policy import params as params_lib
from jaxrl_agents.policy import sharding
from jaxrl_agents.policy.config import PolicyConfig
from jaxrl_agents.sampler import steps


@dataclasses.dataclass(frozen=True)
class Program:
  """A jitted function and what it is called with.

  Attributes:
    name: for the report.
    function: jitted.
    arguments: trees of jax.ShapeDtypeStruct with shardings, and static arguments as they are.
    beside: bytes per device that are alive while it runs and are not among its arguments.
  """

  name: str
  function: Any
  arguments: tuple[Any, ...]
  beside: int = 0


@dataclasses.dataclass(frozen=True)
class Learner:
  """What the learner holds, and the programs of one optimizer step.

  Attributes:
    state: abstract train state.
    batch: abstract microbatch.
    programs: gradients of a microbatch, their sum (with several), and the update.
    microbatches: of one optimizer step.
  """

  state: state.TrainState
  batch: packing.Batch
  programs: tuple[Program, ...]
  microbatches: int


@dataclasses.dataclass(frozen=True)
class Sampler:
  """What the sampler holds, and its decode step.

  Attributes:
    params: abstract, layers unstacked.
    state: abstract cache and drafting states.
    rows: abstract rows of a step.
    program: the decode step of all slots.
  """

  params: Any
  state: steps.State
  rows: steps.Rows
  program: Program


def learner(
  cfg: PolicyConfig,
  section: LearnerConfig,
  tx: optax.GradientTransformation,
  objective: train_step.Objective,
  mesh: Mesh,
) -> Learner:
  """The programs of `train_step.update` on a mesh.

  A rollout is taken to fill a row, as one does that uses its whole context.

  Raises:
    ValueError: rows or parameters do not divide over the mesh.
  """
  params = sharding.shardings(cfg, mesh)
  placed = checkpoint.with_shardings(
    state.abstract_state(cfg, tx), state.state_shardings(cfg, tx, params, mesh)
  )
  batch = abstract_batch(cfg, section, mesh)
  rollouts = section.groups_per_step // section.substeps * section.group_size
  microbatches = -(-rollouts // section.rows_per_microbatch)
  with jax.set_mesh(mesh):
    one = jax.eval_shape(train_step.gradients, placed.policy.params, batch, cfg, objective)
  grads = train_step.Gradients(
    jax.tree.map(_like, one.grads, placed.policy.params),
    *jax.tree.map(lambda x: _on(mesh, x.shape, x.dtype), (one.sums, one.maxima)),
  )
  optimizer = bytes_per_device((placed.opt_state, placed.key))
  total = bytes_per_device(grads) if microbatches > 1 else 0
  params_bytes = bytes_per_device(placed.policy)
  programs = [
    Program(
      "gradients",
      train_step.gradients,
      (placed.policy.params, batch, cfg, objective),
      beside=optimizer + total,
    ),
    Program("apply", train_step.apply, (placed, grads.grads, tx)),
  ]
  if microbatches > 1:
    beside = optimizer + params_bytes
    programs.insert(1, Program("add", train_step.add, (grads, grads), beside=beside))
  return Learner(placed, batch, tuple(programs), microbatches)


def abstract_batch(cfg: PolicyConfig, section: LearnerConfig, mesh: Mesh) -> packing.Batch:
  """One microbatch as `packing.pack` makes it and `train_step.place_batch` places it."""
  axes = sharding.TRAIN_RULES["batch"]
  ways = _ways(mesh, axes)
  rows = section.rows_per_microbatch
  if rows % ways:
    raise ValueError(
      f"learner.rows_per_microbatch={rows} does not split over the {ways} devices of {axes}; make "
      f"it a multiple of {ways}, or the mesh smaller there"
    )
  shape = (rows, section.row_tokens)
  field = lambda dtype, *more: _on(mesh, (*shape, *more), dtype, axes)
  ints = ("tokens", "targets", "positions", "segment_ids", "rollout_ids")
  floats = ("behaviour_logprobs", "advantages", "weights")
  routing = None
  if cfg.num_moe_layers and section.router_replay:
    routing = field(jnp.uint16, cfg.num_moe_layers, cfg.experts_per_token)
  return packing.Batch(
    **{name: field(jnp.int32) for name in ints},
    **{name: field(jnp.float32) for name in floats},
    loss_mask=field(jnp.bool),
    routing=routing,
  )


def sampler(
  cfg: PolicyConfig,
  section: SamplerConfig,
  mesh: Mesh,
  *,
  context_tokens: int,
  dtype: Any = jnp.float32,
) -> Sampler:
  """The decode step of a `sampler.engine.Engine` whose rows are split over a mesh.

  Args:
    cfg: sizes.
    section: slots and cache.
    mesh: of the sampler's slice.
    context_tokens: longest sequence.
    dtype: of parameters and cache; float32 as the engine holds them.

  Raises:
    ValueError: rows or parameters do not divide over the mesh.
  """
  axes = sharding.TRAIN_RULES["batch"]
  ways = _ways(mesh, axes)
  if section.slots % ways:
    raise ValueError(
      f"sampler.slots={section.slots} does not split over the {ways} devices of {axes}; make it a "
      f"multiple of {ways}, or the mesh smaller there"
    )
  placed = sharding.shardings(cfg, mesh, sharding.SERVE_RULES)
  stacked = jax.tree.map(
    lambda x, s: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=s),
    params_lib.abstract(cfg, dtype),
    placed,
  )
  params = _unstacked(stacked)
  drafts = section.draft_tokens
  pages = (cfg.num_cache_layers, section.num_pages, section.page_tokens, cfg.cache_width)
  hidden = (section.slots, drafts + 1 if drafts else 0, cfg.embed_dim)
  held = steps.State(
    cache=cache_lib.PagedCache(_on(mesh, pages, dtype)),
    hidden=_on(mesh, hidden, dtype, axes),
  )
  max_pages = -(-(context_tokens + drafts) // section.page_tokens)
  empty = jax.eval_shape(lambda: steps.empty_rows(section.slots, drafts + 1, max_pages))
  rows = jax.tree.map(lambda x: _on(mesh, x.shape, x.dtype, axes), empty)
  slots = _on(mesh, (section.slots,), jnp.int32, axes)
  decode = jax.jit(functools.partial(steps.decode, cfg=cfg), donate_argnums=1)
  program = Program("decode", decode, (params, held, rows, slots))
  return Sampler(params, held, rows, program)


def bytes_per_device(tree: Any) -> int:
  """Bytes of the abstract arrays of a tree on the device that holds most of them."""
  return sum(_shard_bytes(leaf) for leaf in jax.tree.leaves(tree))


def dtype_of(tree: Any) -> str:
  """The type of most of the numbers of a tree, e.g. "float32"."""
  counts: dict[str, int] = {}
  for leaf in jax.tree.leaves(tree):
    counts[str(leaf.dtype)] = counts.get(str(leaf.dtype), 0) + leaf.size
  return max(counts, key=lambda name: counts[name])


def _shard_bytes(leaf: jax.ShapeDtypeStruct) -> int:
  if jax.dtypes.issubdtype(leaf.dtype, jax.dtypes.prng_key):
    return 16
  shape = leaf.shape if leaf.sharding is None else leaf.sharding.shard_shape(leaf.shape)
  size = leaf.dtype.itemsize
  for side in shape:
    size *= side
  return size


def _ways(mesh: Mesh, axes: tuple[str, ...]) -> int:
  ways = 1
  for axis in axes:
    ways *= mesh.shape[axis]
  return ways


def _on(mesh: Mesh, shape: tuple[int, ...], dtype: Any, rows: tuple[str, ...] = ()) -> Any:
  """An abstract array on a mesh, its first axis split over `rows`."""
  spec = PartitionSpec(rows) if rows else PartitionSpec()
  return jax.ShapeDtypeStruct(shape, dtype, sharding=NamedSharding(mesh, spec))


def _like(x: Any, placed: Any) -> jax.ShapeDtypeStruct:
  return jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=placed.sharding)


def _unstacked(params: Any) -> Any:
  """Stacks of layers as tuples of layers, their shardings without the axis of layers."""

  def layer(x: jax.ShapeDtypeStruct) -> jax.ShapeDtypeStruct:
    placed = NamedSharding(x.sharding.mesh, PartitionSpec(*x.sharding.spec[1:]))
    return jax.ShapeDtypeStruct(x.shape[1:], x.dtype, sharding=placed)

  def layers(stack: Any) -> tuple[Any, ...]:
    one = jax.tree.map(layer, stack)
    return (one,) * jax.tree.leaves(stack)[0].shape[0]

  kinds: dict[str, Callable] = dict.fromkeys(params_lib.LAYER_KINDS, layers)
  return {name: kinds.get(name, lambda x: x)(value) for name, value in params.items()}
