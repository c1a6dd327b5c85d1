"""Which implementation computes experts and attention: decided here, and nowhere else.

(How much of something is done at a time on a platform stands where it is done.)

Everything has a plain reference, which runs everywhere and is what CPU uses. On an accelerator:

                 tpu                                     gpu
  experts        grouped products (megablox)             our own grouped products in Triton
  rows           splash attention                        flash attention in Triton, without sinks
                                                         and windows, where time is whole
  others, trees  our own flash attention, likewise where time is a multiple of 128
  cache          ragged paged attention, without sinks   our own in Triton, MLA's too, up to 16
                 and windows, heads a multiple of 128    new tokens a row, widths powers of two
                 wide, in whole tiles

What is not in the table goes to the reference: on TPU MLA's latents in the cache and narrow heads
there (for few queries without taking entries apart, `packed_entries`), on GPU a prefill, a handful
of tokens (`experts.dense`, which reads every weight once and no more), the largest scores that
QK-clip asks for. YaRN and MLA's scale are no matter of these kernels: queries come to them scaled.
"""

from __future__ import annotations

import math
from typing import Any, Literal

import jax
import jax.numpy as jnp

from jaxrl_agents.policy.config import PolicyConfig

Kind = Literal["reference", "tpu", "gpu"]
RowsKernel = Literal["reference", "splash", "flash", "tree_flash"]
LANES = 128

FEW_QUERIES = 16
"""New tokens of a row up to which a step is one of decoding, whose time is that of reading keys."""


def whole_lanes(size: int) -> int:
  """A size filled up to a multiple of LANES."""
  return -(-size // LANES) * LANES


def tile_side(length: int, most: int) -> int:
  """The largest power of two up to `most` that divides `length`."""
  return min(length & -length, most)


def kind(cfg: PolicyConfig) -> Kind:
  """The kernels of `cfg.kernels`; for "auto" those of `platform`."""
  if cfg.kernels != "auto":
    return cfg.kernels
  by_platform: dict[str, Kind] = {"tpu": "tpu", "gpu": "gpu"}
  return by_platform.get(platform(), "reference")


def platform() -> str:
  """What is being compiled for: the ambient mesh's devices, without a mesh jax's own.

  A mesh may be of devices that are not there (planning), whatever this machine has.
  """
  device = jax.sharding.get_abstract_mesh().abstract_device
  return jax.default_backend() if device is None else device.platform


def for_rows(
  kernels: Kind, queries: int, keys: int, *, sinks: bool, windows: bool, forks: bool
) -> RowsKernel:
  """What attends rows with so many queries and keys (fewer queries where time is split).

  Where a kernel of jax can, it does: others have tuned those.
  """
  if kernels == "reference" or queries % LANES or keys % LANES:
    return "reference"
  if forks or (kernels == "gpu" and (sinks or windows or queries != keys)):
    return "tree_flash"
  return "splash" if kernels == "tpu" else "flash"


def for_cache(cfg: PolicyConfig, dtype: Any, head_ways: int, queries: int) -> Kind:
  """What attends a cache of keys and values of that type, their heads split over so many devices,
  with so many new tokens of a row.

  The kernel of TPUs reads keys and values of one token as whole tiles: as many numbers of 32 bits
  as there are rows in a tile, or a part or multiple of them.
  """
  if kind(cfg) == "gpu":
    few = queries <= FEW_QUERIES and all(map(_power_of_two, _cached_widths(cfg)))
    return "gpu" if few else "reference"
  if cfg.attention == "mla":
    return "reference"
  rows = [n // head_ways for n in (cfg.num_heads, 2 * cfg.num_kv_heads)]
  packed = 4 // jnp.dtype(dtype).itemsize
  whole = all(n % packed == 0 and (n // packed in (1, 2, 4) or n // packed % 8 == 0) for n in rows)
  if kind(cfg) != "tpu" or cfg.sinks or cfg.window_tokens or cfg.head_dim % LANES or not whole:
    return "reference"
  return "tpu"


def latent_entry(cfg: PolicyConfig) -> int:
  """Width of an entry of MLA's cache, which is filled up where it is wider than a TPU's lanes."""
  return cfg.cache_width if cfg.cache_width <= LANES else whole_lanes(cfg.cache_width)


def _cached_widths(cfg: PolicyConfig) -> tuple[int, ...]:
  """Widths of parts of keys that are read at once: a head, or a latent and what is beside it."""
  if cfg.attention == "mla":
    return cfg.kv_lora_rank, latent_entry(cfg) - cfg.kv_lora_rank
  return (cfg.head_dim,)


def _power_of_two(width: int) -> bool:
  """One that a product of Triton takes: at least 16."""
  return width >= 16 and width & (width - 1) == 0


def packed_entries(cfg: PolicyConfig) -> bool:
  """Whether cached heads lie side by side and are best not taken apart: paged.attend_packed."""
  return platform() != "cpu" and cfg.head_dim % LANES != 0


def decodes_in_slots() -> bool:
  """Whether a sampler decodes from slots (`attention.slot_cache`), not pages: on one CPU device."""
  return platform() == "cpu" and math.prod(jax.sharding.get_abstract_mesh().shape.values()) == 1
