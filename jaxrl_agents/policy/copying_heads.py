"""Initial weights with the heads that quoting from the context takes.

A network that is trained for minutes spends most of them finding out how to look up what followed
an earlier occurrence of a token (Olsson et al. 2022, https://arxiv.org/abs/2209.11895). Here some
heads begin as that look-up and everything else as usual, in the spirit of mimetic initialisation
(Trockman and Kolter 2023, https://arxiv.org/abs/2305.09828). One token is too short a key: what
followed the last "the" is rarely what follows this one. So the key is made of three tokens:

  layer 0   three heads attend to the token 1, 2 and 3 places back and write P e(t - k) into
            coordinates of the residual stream that no embedding uses
  layer 1   matching heads score place s at place t by
              sum over j = 0, 1, 2 of WEIGHTS[j] <P e(t - j), P e(s - 1 - j)>
            and write the embedding e(s) of what they found, COPY times

so that three tokens alike beat two, and two beat one. P is a random projection onto M dimensions.
All weights stay free to move. Only grouped-query attention without query-key norms, and only
networks with tied embeddings, where what is written is what is predicted.

Alphabet: D width, G kv heads, R query heads of a kv head, H head dim, M dimensions of a key.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxrl_agents.policy.config import PolicyConfig

BACK = 3
"""Tokens of a key."""

SHARED = 0.5
"""The coordinate that all embeddings share, over the length of the rest: what a positional head
keys on.
"""

SHARPNESS = 30.0
"""Logit of the token that a positional head looks for; others have less by how far they are off."""

POSITIONAL_PAIRS = (0, 1, 2, 3, 4, 5, 6)
"""The fastest rotary pairs: they tell neighbours apart. Content is matched in the slowest ones."""

WEIGHTS = (1.0, 0.8, 0.6)
"""How much each token of the key counts in a match, the last one first."""

MATCH = 20.0
"""Logit of a match of the last token alone."""

COPY = 3.0
"""Length of what a matching head writes, over that of an embedding."""

COPYING_GROUPS = 2
"""Kv heads that match: each writes other coordinates of the embedding."""

ALIKE = 0.85
"""Correlation of the embeddings of ids that begin alike."""


def with_copying_heads(
  params: dict[str, Any], cfg: PolicyConfig, key: jax.Array, *, alike: Sequence[int] = ()
) -> dict[str, Any]:
  """`params` (stacked, as `params.init` draws them) with copying heads in layers 0 and 1.

  The embeddings begin in the first D - 3 M coordinates, all of one length, the first coordinate
  shared by all of them.

  Args:
    params: of the policy.
    cfg: its sizes.
    key: of the random maps.
    alike: ids after which the same kind of token follows, say the marks before a document's id:
      their embeddings begin alike, so that what followed one of them is looked up at another.

  Raises:
    ValueError: the policy has query-key norms, latent attention, untied embeddings, dense layers,
      fewer than three layers or heads, or a single kv head.
  """
  plain = cfg.attention == "gqa" and not cfg.qk_norm and cfg.tie_embeddings
  large = cfg.num_layers >= 3 and cfg.num_heads >= BACK and cfg.num_kv_heads >= COPYING_GROUPS
  if not plain or cfg.num_dense_layers or not large:
    raise ValueError(
      "copying heads need attention='gqa', qk_norm=False, tie_embeddings=True, num_kv_heads >= 2, "
      "num_heads >= 3, three layers or more and no dense ones; change policy.model or set "
      "policy.init=scratch"
    )
  projection_key, *group_keys = jax.random.split(key, 1 + COPYING_GROUPS + 1)
  embed = _embeddings(params["embed"], cfg, alike)
  reader = jnp.zeros((cfg.embed_dim, _key_dim(cfg)))
  reader = reader.at[1 : _code_end(cfg)].set(
    _isometry(projection_key, _code_end(cfg) - 1, _key_dim(cfg))
  )
  attention = params["moe_layers"]["attention"]
  qkv, out = _positional_heads(attention["qkv"], attention["out"], cfg, reader)
  basis = _isometry(group_keys[-1], _code_end(cfg) - 1, _code_end(cfg) - 1)
  for group in range(COPYING_GROUPS):
    part = basis[:, group * cfg.head_dim : (group + 1) * cfg.head_dim]
    qkv, out = _matching_head(qkv, out, cfg, group, reader, part, group_keys[group])
  layers = {**params["moe_layers"], "attention": {**attention, "qkv": qkv, "out": out}}
  return {**params, "embed": embed, "moe_layers": layers}


def _key_dim(cfg: PolicyConfig) -> int:
  """M: three keys take at most half of the width, and one at most half of a head."""
  return min(cfg.head_dim // 2, cfg.embed_dim // (2 * BACK))


def _code_end(cfg: PolicyConfig) -> int:
  """Coordinates that embeddings begin in, the shared one included."""
  return cfg.embed_dim - BACK * _key_dim(cfg)


def _isometry(key: jax.Array, rows: int, columns: int) -> jax.Array:
  """A random [rows, columns] with orthonormal columns, or rows where these are fewer."""
  tall, wide = max(rows, columns), min(rows, columns)
  q, _ = jnp.linalg.qr(jax.random.normal(key, (tall, wide)))
  return q if rows >= columns else q.T


def _embeddings(embed: jax.Array, cfg: PolicyConfig, alike: Sequence[int]) -> jax.Array:
  """The embeddings [V, D] moved into the first coordinates, each with length sqrt(D) there."""
  code = embed[:, 1 : _code_end(cfg)]
  if len(alike):
    ids = jnp.asarray(alike)
    code = code.at[ids].set(ALIKE * code[ids[0]] + (1 - ALIKE**2) ** 0.5 * code[ids])
  length = cfg.embed_dim**0.5
  code = length * code / jnp.linalg.norm(code, axis=1, keepdims=True)
  made = jnp.zeros_like(embed).at[:, 0].set(SHARED * length)
  return made.at[:, 1 : _code_end(cfg)].set(code.astype(embed.dtype))


def _positional_heads(
  qkv: jax.Array, out: jax.Array, cfg: PolicyConfig, reader: jax.Array
) -> tuple[jax.Array, jax.Array]:
  """Makes the first three heads of layer 0 carry P e(t - 1), P e(t - 2), P e(t - 3) to t."""
  h, m = cfg.head_dim, _key_dim(cfg)
  per_group = cfg.num_heads // cfg.num_kv_heads
  pairs = np.array(POSITIONAL_PAIRS)
  pairs = pairs[pairs < h // 4]
  frequencies = cfg.rope_theta ** (-pairs * 2 / h)
  # RMSNorm leaves SHARED / sqrt(1 + SHARED^2) of sqrt(D) in the first coordinate: this makes it 1.
  to_one = (1 + SHARED**2) ** 0.5 / SHARED * cfg.embed_dim**-0.5
  gain = to_one * (SHARPNESS * h**0.5 / len(pairs)) ** 0.5
  facing = jnp.zeros((cfg.embed_dim, h)).at[0, pairs].set(gain)
  for head in range(BACK):
    group, query = divmod(head, per_group)
    back = head + 1  # the query is turned this many steps back
    turned = jnp.zeros((cfg.embed_dim, h)).at[0, pairs].set(gain * np.cos(frequencies * back))
    turned = turned.at[0, pairs + h // 2].set(-gain * np.sin(frequencies * back))
    qkv = qkv.at[0, :, group, query].set(turned)
    qkv = qkv.at[0, :, group, per_group].set(facing)
    value = jnp.zeros((cfg.embed_dim, h)).at[:, :m].set(reader)
    qkv = qkv.at[0, :, group, per_group + 1].set(value)
    slot = _code_end(cfg) + head * m + jnp.arange(m)
    out = out.at[0, group, query].set(jnp.zeros((h, cfg.embed_dim)).at[jnp.arange(m), slot].set(1))
  return qkv, out


def _matching_head(
  qkv: jax.Array,
  out: jax.Array,
  cfg: PolicyConfig,
  group: int,
  reader: jax.Array,
  basis: jax.Array,
  key: jax.Array,
) -> tuple[jax.Array, jax.Array]:
  """Makes the heads of a group of layer 1 look the last three tokens up and write what followed.

  `basis` [D' - 1, C]: the coordinates of the embedding that this group writes.
  """
  d, h, m = cfg.embed_dim, cfg.head_dim, _key_dim(cfg)
  per_group = cfg.num_heads // cfg.num_kv_heads
  end = _code_end(cfg)
  slow = _slow_columns(cfg)
  query, keys = jnp.zeros((d, h)), jnp.zeros((d, h))
  for j, each in enumerate(jax.random.split(key, BACK)):
    into = _isometry(each, m, len(slow))
    slot = lambda number: slice(end + number * m, end + (number + 1) * m)
    read = reader if j == 0 else jnp.zeros((d, m)).at[slot(j - 1)].set(jnp.eye(m))
    query = query.at[:, slow].add(WEIGHTS[j] * read @ into)
    keys = keys.at[slot(j), slow].add(into)
  # The projection of a normalised embedding has a squared length of about D M / (D' (1 + SHARED^2))
  # here, and the sum of query and key counts it once for the last token.
  squared = d * m / (end - 1) / (1 + SHARED**2)
  gain = (MATCH * h**0.5 / squared) ** 0.5
  qkv = qkv.at[1, :, group, :per_group].set(gain * query[:, None])
  qkv = qkv.at[1, :, group, per_group].set(gain * keys)
  width = basis.shape[1]
  value = jnp.zeros((d, h)).at[1:end, :width].set(basis)
  qkv = qkv.at[1, :, group, per_group + 1].set(value)
  written = COPY * (1 + SHARED**2) ** 0.5 / per_group * value.T
  return qkv, out.at[1, group].set(written)


def _slow_columns(cfg: PolicyConfig) -> np.ndarray:
  """The columns of the slower half of a head's rotary pairs: they hardly turn over a context."""
  half = cfg.head_dim // 2
  slow = np.arange(half // 2, half)
  return np.concatenate([slow, slow + half])
