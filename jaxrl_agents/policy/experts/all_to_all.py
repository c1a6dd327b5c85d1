"""Dispatch of tokens to experts, on one device or on many: all-to-all there and back, none dropped.

Each device holds some of the rows and some of the experts. It sorts its (token, expert) pairs by
the device that holds the expert, and in a round sends C of them to every device, which runs its
experts on what came and sends the results back. Rounds go on until the last device has sent its
last pair: their number depends on the routing, the shapes do not.

C is SLACK times the pairs that one device would send to another if all experts were equally loaded,
so that a round holds SLACK N K rows of a device's N tokens: what the experts of one device compute
on that many tokens anyway, whatever the number of devices. One round is enough until some
device is sent SLACK times its share by another; room for the worst case in one round would take as
many times the memory as there are devices. A routing that sends everything to one device costs
(devices / SLACK) rounds, and loses nothing.

The first round keeps what its backward pass needs; later ones, which are rare, are computed again.

Alphabet: N tokens of a device, D width, E experts, K experts per token, F ffw, S expert shards, C
pairs that one device sends to another in a round.
"""

from __future__ import annotations

import functools
import math
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from jaxrl_agents.policy import sharding
from jaxrl_agents.policy.experts import grouped_matmul, local
from jaxrl_agents.policy.experts.gather_slots import Slots, collect, spread
from jaxrl_agents.policy.kernel_choice import LANES, Kind, platform, whole_lanes

SLACK = 1.25
AXIS = "expert"


def apply(
  experts: dict[str, Any],
  x: jax.Array,
  weight: jax.Array,
  choice: jax.Array,
  clamp: local.Clamp | None = None,
  *,
  kernels: Kind = "reference",
  rules: sharding.Rules = sharding.TRAIN_RULES,
) -> jax.Array:
  """The weighted sum of each token's experts, by the fastest exact way for that many tokens.

  A CPU puts some dozens of tokens into slots of experts; elsewhere few are cheapest on every
  expert. For many, blocks have a backward pass of their own, which writes less than the one that
  jax derives of a scan; `ragged_dot` is a masked product with every expert where XLA compiles for
  CPU. Accelerators have kernels for grouped products.

  Args:
    experts: gate_up [E, D, 2, F], or [E, D, 2 F] (sharding.served), down [E, F, D]; gate_up_bias
      [E, 2, F], or [E, 2 F], and down_bias [E, D] where experts have biases.
    x: [..., D].
    weight: [..., K].
    choice: int32 [..., K]; E for no expert (padding).
    clamp: of the activation; None: silu(gate) * up.
    kernels: for many tokens, see kernel_choice.kind.
    rules: how the experts lie on the mesh.

  Returns:
    [..., D].
  """
  num_tokens, is_alone = math.prod(x.shape[:-1]), jax.sharding.get_abstract_mesh().empty
  in_slots = is_alone and platform() == "cpu" and num_tokens <= local.SLOT_TOKENS
  few = in_slots or num_tokens <= local.DENSE_TOKENS
  if few or is_alone:
    function = local.slots if in_slots else local.dense if few else _local(kernels)
    return function(experts, _flat(x), _flat(weight), _flat(choice), clamp).reshape(x.shape)
  return _on_mesh(experts, x, weight, choice, clamp, kernels, rules)


def _local(kernels: Kind):
  """What computes many tokens on one device."""
  if kernels == "reference":
    return local.blocks
  return functools.partial(grouped_matmul.apply, kernels=kernels)


def _flat(x):
  return x.reshape(-1, x.shape[-1])


AXES = {
  "gate_up": ("expert", "expert_embed", None, "ffw"),
  "down": ("expert", "ffw", "expert_embed"),
  "gate_up_bias": ("expert", None, "ffw"),
  "down_bias": ("expert", None),
}
"""Logical axes of the arrays of one layer's experts, as in params.table."""


def _on_mesh(experts, x, weight, choice, clamp, kernels, rules):
  """`_local` where experts and tokens are split over devices; tokens that are not yet, are here.

  Experts split along their width too are gathered here, so that in the backward pass their
  gradients are summed and cut in one (reduce-scatter), not summed whole on every device.
  """
  mesh, num_experts = jax.sharding.get_abstract_mesh(), experts["down"].shape[0]
  rows = sharding.spec(("batch", "time"), sharding.TRAIN_RULES)
  arrays = x, weight, choice
  ways = (sharding.ways(axis, mesh) for axis in ("batch", "time"))
  if x.ndim != 3 or any(size % n for size, n in zip(x.shape, ways, strict=False)):
    rows = sharding.spec(("batch",), sharding.TRAIN_RULES)
    more = -math.prod(x.shape[:-1]) % sharding.ways("batch", mesh)
    pad = lambda a, value: jnp.pad(_flat(a), ((0, more), (0, 0)), constant_values=value)
    arrays = pad(x, 0), pad(weight, 0), pad(choice, num_experts)

  def of_device(experts, x, weight, choice):
    experts = {name: _whole_width(name, array, rules) for name, array in experts.items()}
    if "down_bias" in experts:  # added by one of the devices that share an expert's width
      first = jax.lax.axis_index("tensor") == 0
      experts = experts | {"down_bias": jnp.where(first, experts["down_bias"], 0)}
    run = _local(kernels)
    if mesh.shape[AXIS] > 1:
      run = functools.partial(_exchanged, run=run)
    y = run(experts, *map(_flat, (x, weight, choice)), clamp)
    return jax.lax.psum(y.reshape(x.shape), "tensor")

  places = {name: sharding.spec(_axes(name, array), rules) for name, array in experts.items()}
  in_specs = places, rows, rows, rows
  y = jax.shard_map(of_device, in_specs=in_specs, out_specs=rows, check_vma=False)(experts, *arrays)
  return y if y.shape == x.shape else _flat(y)[: math.prod(x.shape[:-1])].reshape(x.shape)


def _axes(name: str, array: jax.Array) -> tuple[str | None, ...]:
  """Logical axes of an array of the experts; gate and up may be merged, see sharding.served."""
  axes = AXES[name]
  return axes if len(axes) == array.ndim else tuple(axis for axis in axes if axis)


def _whole_width(name: str, array: jax.Array, rules: sharding.Rules) -> jax.Array:
  """An array with its width gathered, where the rules split it, and gate and up merged before that:
  a TPU copies to merge them, and has less to copy before.
  """
  width, axes = "expert_embed", _axes(name, array)
  if name.startswith("gate_up") and None in axes:
    array = array.reshape(*array.shape[:-2], -1)
  if width not in axes or not rules[width]:
    return array
  return jax.lax.all_gather(array, rules[width], axis=axes.index(width), tiled=True)


def _exchanged(experts, x, weight, choice, clamp, *, run):
  """`run` on one device's tokens [N, D], with the experts of all devices of its row."""
  shards, held = jax.lax.axis_size(AXIS), experts["down"].shape[0]
  most = x.shape[0] * min(choice.shape[1], held)
  capacity = min(most, math.ceil(SLACK * choice.size / shards))
  queue = _queue(choice, held, shards, capacity)
  rounds = _rounds if capacity < most else functools.partial(_round, 0)
  width, few = x.shape[1], choice.size * x.shape[1] < experts["down"].size
  more = whole_lanes(width) - width
  if platform() != "tpu" or few or width <= LANES or not more:
    return rounds(experts, x, weight, queue, capacity, clamp, run)
  # It would turn the rows around before and after each exchange: they are filled up to whole lanes,
  # here and not where XLA would like to, when there are more of them; experts too.
  pad = lambda a, axis: jnp.pad(a, [(0, more if i == axis else 0) for i in range(a.ndim)])
  places = {"gate_up": 1, "down": 2, "down_bias": 1}  # of the width
  experts = experts | {n: pad(experts[n], i) for n, i in places.items() if n in experts}
  x = jax.lax.optimization_barrier(pad(x, 1))
  y = rounds(experts, x, weight, queue, capacity, clamp, run)
  return jax.lax.optimization_barrier(y)[:, :width]


class _Queue(NamedTuple):
  """One device's pairs in the order in which they are sent: by the device they go to.

  order: int32 [N K], pairs sorted by destination. expert: int32 [N K], of each pair (unsorted), its
  place on its device. first, count: int32 [S], each destination's part of `order`. place: int32
  [N, K], of each pair, d * N K + its place among those that go to d; out of range if it goes
  nowhere. rounds: until the last device is done.
  """

  order: jax.Array
  expert: jax.Array
  first: jax.Array
  count: jax.Array  # type: ignore[assignment]
  place: jax.Array
  rounds: jax.Array


def _queue(choice: jax.Array, held: int, shards: int, capacity: int) -> _Queue:
  flat = choice.reshape(-1)
  pairs = flat.shape[0]
  device = flat // held
  order = jnp.argsort(device, stable=True)
  count = jnp.bincount(device, length=shards + 1)[:shards]
  first = jnp.cumsum(count) - count
  sorted_device = jnp.minimum(device[order], shards - 1)
  rank = jnp.arange(pairs) - first[sorted_device]
  place = jnp.where(device[order] < shards, sorted_device * pairs + rank, shards * pairs)
  rounds = jax.lax.pmax(-(-jnp.max(count) // capacity), jax.sharding.get_abstract_mesh().axis_names)
  return _Queue(
    order=order,
    expert=flat % held,
    first=first,
    count=count,
    place=jnp.zeros_like(flat).at[order].set(place).reshape(choice.shape),
    rounds=rounds,
  )


def _slots(queue: _Queue, r: jax.Array | int, capacity: int) -> tuple[Slots, Slots]:
  """The slots of round `r`: of tokens, and of pairs."""
  tokens, choices = queue.place.shape
  pairs, shards = tokens * choices, queue.count.shape[0]
  rank = r * capacity + jnp.arange(capacity)
  taken = rank < queue.count[:, None]
  pair = queue.order[jnp.minimum(queue.first[:, None] + rank, pairs - 1)]
  pair = jnp.where(taken, pair, pairs).reshape(-1)
  device, rank = queue.place // pairs, queue.place % pairs - r * capacity
  here = (device < shards) & (rank >= 0) & (rank < capacity)
  slot = jnp.where(here, device * capacity + rank, shards * capacity)
  return Slots(pair // choices, slot), Slots(pair, slot.reshape(-1, 1))


def _round(r, experts, x, weight, queue, capacity, clamp, run):
  """What the pairs of round `r` add to this device's tokens, [N, D]."""
  held, pairs = experts["down"].shape[0], weight.size
  tokens, pair = _slots(queue, r, capacity)
  send = lambda a: jax.lax.all_to_all(a, AXIS, 0, 0, tiled=True)
  expert = jnp.where(pair.item < pairs, queue.expert[jnp.minimum(pair.item, pairs - 1)], held)
  rows = send(spread(x, tokens))
  row_weight = send(spread(weight.reshape(-1, 1), pair))
  y = run(experts, rows, row_weight, send(expert[:, None]), clamp)
  return collect(send(y), tokens)


@functools.partial(jax.custom_vjp, nondiff_argnums=(4, 5, 6))
def _rounds(experts, x, weight, queue, capacity, clamp, run):
  """The sum of all rounds.

  Its gradient is that of the first with those of the others added in place: zeros of the size of
  all experts, and their sum, would cost more than the experts themselves where XLA compiles for
  TPU.
  """
  return _rounds_forward(experts, x, weight, queue, capacity, clamp, run)[0]


def _rounds_forward(experts, x, weight, queue, capacity, clamp, run):
  inputs = experts, x, weight
  of_round = lambda r, experts, x, weight: _round(
    r, experts, x, weight, queue, capacity, clamp, run
  )
  y, vjp = jax.vjp(functools.partial(of_round, 0), *inputs)
  y = jax.lax.fori_loop(1, queue.rounds, lambda r, y: y + of_round(r, *inputs), y)
  return y, (vjp, inputs, queue)


def _rounds_backward(capacity, clamp, run, saved, d_y):
  first, inputs, queue = saved

  def more(r, gradients):
    _, vjp = jax.vjp(lambda e, x, w: _round(r, e, x, w, queue, capacity, clamp, run), *inputs)
    return jax.tree.map(jnp.add, gradients, vjp(d_y))

  return (*jax.lax.fori_loop(1, queue.rounds, more, first(d_y)), None)


_rounds.defvjp(_rounds_forward, _rounds_backward)
