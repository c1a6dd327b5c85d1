"""The device programs of a run, with abstract arguments placed on a mesh: nothing is allocated.

They are the very functions that a run calls: `learner.train_step` and `sampler.steps`.

Alphabet: B rows, T time, L mixture layers, K experts per token, D width, Pm pages of a row.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import optax
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from jaxrl_agents.config import LearnerConfig, SamplerConfig
from jaxrl_agents.learner import packing, state, train_step
from jaxrl_agents.policy import lora, sharding
from jaxrl_agents.policy import params as params_lib
from jaxrl_agents.policy.attention import cache as cache_lib
from jaxrl_agents.policy.config import PolicyConfig
from jaxrl_agents.sampler import drafts, program_state, steps
from jaxrl_agents.sampler.pages import of_each_part


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
    reference: bytes per device of the fixed policy that the loss is measured against, or 0.
    published: bytes per device of the newest published version, which differences are from, or 0.
  """

  state: state.TrainState
  batch: packing.Batch
  programs: tuple[Program, ...]
  microbatches: int
  reference: int = 0
  published: int = 0


@dataclasses.dataclass(frozen=True)
class Sampler:
  """What the sampler holds, and its decode step.

  Attributes:
    params: abstract, as sharding.served gives them.
    state: abstract cache and drafting states.
    rows: abstract rows of a step.
    program: the decode step of all slots.
  """

  params: Any
  state: program_state.State
  rows: program_state.Rows
  program: Program


def learner(
  params: Any,
  cfg: PolicyConfig,
  section: LearnerConfig,
  *,
  tx: optax.GradientTransformation,
  objective: train_step.Objective,
  mesh: Mesh,
  deltas: bool = False,
) -> Learner:
  """The programs of `train_step.update` on a mesh.

  A rollout is taken to fill a row, as one does that uses its whole context.

  Args:
    params: tree of jax.ShapeDtypeStruct, layers stacked, with adapters where those are trained.
    cfg: sizes.
    section: rows of a step.
    tx: optimizer of the parameters.
    objective: of the step.
    mesh: of the learner's slice.
    deltas: whether versions are published as differences.

  Raises:
    ValueError: rows or parameters do not divide over the mesh.
  """
  abstract = jax.eval_shape(lambda p: state.make_state(p, tx, jax.random.key(0)), params)
  places = state.shardings_of(abstract, tx, lora.shardings(cfg, params, mesh), mesh)
  placed = _placed(abstract, places)
  batch = abstract_batch(cfg, section, mesh, objective)
  rollouts = section.groups_per_step // section.substeps * section.group_size
  microbatches = -(-rollouts // section.rows_per_microbatch)
  with jax.set_mesh(mesh):
    one = jax.eval_shape(train_step.gradients, placed.policy.params, batch, cfg, objective)
  grads = train_step.Gradients(
    jax.tree.map(_like, one.grads, lora.trained(placed.policy.params)),
    *jax.tree.map(lambda x: _on(mesh, x.shape, x.dtype), (one.sums, one.maxima)),
  )
  merged = params_lib.abstract(cfg, dtype_of(params))
  whole = bytes_per_device(_placed(merged, sharding.shardings(cfg, mesh)))
  reference = whole if objective.needs_reference else 0
  published = whole if deltas else 0
  kept = reference + published
  peaks = grads.maxima.get("attention_score_max")
  optimizer = bytes_per_device((placed.opt_state, placed.key))
  total = bytes_per_device(grads) if microbatches > 1 else 0
  params_bytes = bytes_per_device(placed.policy)
  programs = [
    Program(
      "gradients",
      train_step.gradients,
      (placed.policy.params, batch, cfg, objective),
      beside=optimizer + total + kept,
    ),
    Program("apply", train_step.apply, (placed, grads.grads, tx, peaks), beside=kept),
  ]
  if microbatches > 1:
    beside = optimizer + params_bytes + kept
    programs.insert(1, Program("add", train_step.add, (grads, grads), beside=beside))
  return Learner(placed, batch, tuple(programs), microbatches, reference, published)


def abstract_batch(
  cfg: PolicyConfig, section: LearnerConfig, mesh: Mesh, objective: train_step.Objective
) -> packing.Batch:
  """One microbatch as `packing.pack` makes it and `train_step.place_batch` places it, with the
  log-probabilities that the objective reads.

  Raises:
    ValueError: rows or time do not divide over the mesh.
  """
  shape = (section.rows_per_microbatch, section.row_lengths[-1])
  train_step.check_divides(shape, mesh)
  split = sharding.spec(("batch", "time"), sharding.TRAIN_RULES)
  field = lambda dtype, *more: _on(mesh, (*shape, *more), dtype, split)
  ints = ("tokens", "depths", "ends", "targets", "rollout_ids", "versions")
  floats = ("behaviour_logprobs", "advantages", "weights")
  routing = None
  if cfg.num_moe_layers and section.router_replay:
    routing = field(jnp.uint16, cfg.num_moe_layers, cfg.experts_per_token)
  return packing.Batch(
    **{name: field(jnp.int32) for name in ints},
    **{name: field(jnp.float32) for name in floats},
    loss_mask=field(jnp.bool),
    routing=routing,
    reference_logprobs=field(jnp.float32) if objective.needs_reference else None,
    proximal_logprobs=field(jnp.float32) if objective.loss.proximal else None,
    sources=field(jnp.int32) if section.share_prefixes else None,
  )


def sampler(
  cfg: PolicyConfig,
  section: SamplerConfig,
  mesh: Mesh,
  *,
  context_tokens: int,
  dtype: Any,
) -> Sampler:
  """The decode program of a `sampler.engine.Engine` on a mesh.

  Args:
    cfg: sizes.
    section: slots and cache.
    mesh: of the sampler's slice.
    context_tokens: longest sequence.
    dtype: of parameters and cache.

  Raises:
    ValueError: parameters do not divide over the mesh, or a part of the cache holds no context.
  """
  drafters = steps.Drafters(section.draft_tokens, section.lookup_tokens)
  parts, max_tokens = sharding.ways("batch", mesh), context_tokens + drafters.most
  slots_of_part, pages_of_part = of_each_part(
    slots=section.slots,
    num_pages=section.num_pages,
    parts=parts,
    page_tokens=section.page_tokens,
    max_tokens=max_tokens,
  )
  places = sharding.served_shardings(cfg, mesh)
  sharding.shardings(cfg, mesh, sharding.SERVE_RULES)  # refuses what does not divide
  with jax.set_mesh(mesh):
    stored = jax.eval_shape(sharding.served, params_lib.abstract(cfg, dtype))
  params = _placed(stored, places)
  rows_in_all = parts * slots_of_part
  used = program_state.used_config(cfg, drafters.modules)
  pages = (used.num_cache_layers, parts * pages_of_part, section.page_tokens)
  split = sharding.spec(cache_lib.axes(cfg), sharding.SERVE_RULES)
  held = program_state.State(
    cache=cache_lib.PagedCache(_on(mesh, (*pages, *cache_lib.entry_shape(cfg)), dtype, split)),
    hidden=_on(mesh, (rows_in_all, used.mtp_depth, cfg.embed_dim), dtype),
  )
  max_pages = -(-max_tokens // section.page_tokens)
  context = max_tokens if drafters.lookup else 0
  empty = program_state.empty_rows(rows_in_all, 1, max_pages, context)
  rows = jax.tree.map(lambda x: _on(mesh, x.shape, x.dtype), empty)
  slots = _on(mesh, (rows_in_all,), jnp.int32)

  def decode(*arguments):  # as the engine's program
    most = steps.DECODE_STEPS
    sampled = steps.decode(*arguments, cfg=used, drafters=drafters, max_steps=most)
    return program_state.laid_out(*sampled, cfg)

  limits = (_on(mesh, (), jnp.int32),) * 2
  worth = steps.Worth(_on(mesh, (drafts.KINDS,), jnp.float32), _on(mesh, (), jnp.float32))
  arguments = params, held, rows, slots, *limits, worth
  program = Program("decode", jax.jit(decode, donate_argnums=1), arguments)
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


def _on(mesh: Mesh, shape: tuple[int, ...], dtype: Any, split: Any = None) -> Any:
  """An abstract array on a mesh, whole on every device unless it is split."""
  placed = NamedSharding(mesh, PartitionSpec() if split is None else split)
  return jax.ShapeDtypeStruct(shape, dtype, sharding=placed)


def _placed(abstract: Any, shardings: Any) -> Any:
  """A tree of abstract arrays with the sharding of each."""
  place = lambda x, to: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=to)
  return jax.tree.map(place, abstract, shardings)


def _like(x: Any, placed: Any) -> jax.ShapeDtypeStruct:
  return jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=placed.sharding)
