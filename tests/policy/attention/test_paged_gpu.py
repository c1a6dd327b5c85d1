"""Attention to the paged cache on GPU, interpreted, against the loop over pages."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl_agents.policy import params as params_lib
from jaxrl_agents.policy import transformer
from jaxrl_agents.policy.attention import cache, paged, paged_gpu
from tests.policy import tiny, triton_kernels

LAYERS, PAGES, SLOTS = 2, 10, 12
TABLE = jnp.asarray([[1, 2, 3, 4, 9], [5, 6, 0, 0, 0], [7, 8, 0, 0, 0]], jnp.int32)
CACHED = jnp.asarray([45, 17, 1], jnp.int32)
"""Tokens of each row in the cache; the last row gets no new one."""


@pytest.fixture(autouse=True)
def small_parts(monkeypatch):
  """Two parts of a row, the longest of which takes two rounds."""
  monkeypatch.setattr(paged_gpu, "KEYS", 16)
  monkeypatch.setattr(paged_gpu, "PART_KEYS", 32)


def draws(*shapes):
  rng = np.random.default_rng(0)
  return [jnp.asarray(rng.normal(size=shape), jnp.float32) for shape in shapes]


def planned(pages, queries):
  """The step, and how many of its queries are real in each row."""
  new = [queries, min(queries, 2), 0]
  return cache.plan_step(cache.PagedCache(pages), TABLE, CACHED, jnp.asarray(new), queries), new


def heads_of(entries):
  return entries[:, :, 0::2], entries[:, :, 1::2]


@pytest.mark.parametrize("window", [None, 20])
@pytest.mark.parametrize("sinks", [False, True])
@pytest.mark.parametrize("queries", [1, 6])
def test_parts_of_the_cache_give_together_what_the_loop_over_pages_gives(queries, sinks, window):
  groups, repeats, width = 2, 3, 16
  shapes = (3, queries, groups, repeats, width), (LAYERS, PAGES, SLOTS, 2 * groups, width)
  q, pages, scores = draws(*shapes, (groups, repeats))
  step, new = planned(pages, queries)
  more = scores if sinks else None, None if window is None else jnp.asarray(window)
  found = paged_gpu.attend(q, pages, 1, step, 0.3, *more, interpret=True)
  expected = paged.attend(q, pages, 1, step, heads_of, 0.3, *more)
  for row, real in enumerate(new):
    np.testing.assert_allclose(found[row, :real], expected[row, :real], atol=2e-6)
  np.testing.assert_array_equal(found[2], 0.0)
  side_by_side = pages.reshape(LAYERS, PAGES, SLOTS, -1)
  same = paged_gpu.attend(q, side_by_side, 1, step, 0.3, *more, interpret=True)
  np.testing.assert_array_equal(same, found)


@pytest.mark.parametrize("heads", [5, 40])
def test_latents_are_the_keys_of_all_heads_and_their_beginning_the_values(heads, monkeypatch):
  """Forty heads with two queries each are more than one program takes."""
  monkeypatch.setattr(paged_gpu, "MOST_QUERIES", 32)
  latent, beside, queries = 32, 16, 2
  shapes = (3, queries, 1, heads, latent + beside), (LAYERS, PAGES, SLOTS, latent + beside)
  q, pages = draws(*shapes)
  step, new = planned(pages, queries)
  split = lambda entries: (entries[:, :, None], entries[:, :, None, :latent])
  found = paged_gpu.attend(q, pages, 1, step, 0.3, latent_width=latent, interpret=True)
  expected = paged.attend(q, pages, 1, step, split, 0.3)
  for row, real in enumerate(new):
    np.testing.assert_allclose(found[row, :real], expected[row, :real], atol=2e-6)


FAMILIES = {
  "gqa": dataclasses.replace(tiny.GQA, kernels="gpu", head_dim=128),
  "sinks": dataclasses.replace(tiny.BIASED, kernels="gpu", head_dim=64),
  "mla": dataclasses.replace(tiny.MLA, kernels="gpu", kv_lora_rank=128, qk_rope_dim=16),
}


@pytest.mark.parametrize("family", FAMILIES)
def test_decoding_lowers_to_a_kernel_that_triton_accepts_and_a_prefill_to_the_loop(family):
  cfg = FAMILIES[family]
  like = jax.ShapeDtypeStruct
  pages = jax.eval_shape(lambda: cache.init(cfg, 9, 16, dtype=jnp.bfloat16))

  def kernels(queries):
    of_rows = like((4,), jnp.int32)
    lowered = (
      jax.jit(transformer.decode, static_argnames="cfg")
      .trace(
        params_lib.abstract(cfg),
        like((4, queries), jnp.int32),
        cfg,
        pages,
        page_table=like((4, 8), jnp.int32),
        lengths=of_rows,
        num_new=of_rows,
      )
      .lower(lowering_platforms=("cuda",))
    )
    return set(triton_kernels.verified(lowered))

  assert "paged_attention_parts" in kernels(1)
  assert "paged_attention_parts" not in kernels(64)


@pytest.mark.slow
@pytest.mark.parametrize("family", FAMILIES)
def test_decoding_with_the_kernel_equals_the_training_forward(family, monkeypatch):
  """A few tokens at first, then one by one; so few that experts are computed by plain code."""
  cfg, tokens = FAMILIES[family], 9
  interpreted = functools.partial(paged_gpu.attend, interpret=True)
  monkeypatch.setattr(paged_gpu, "attend", interpreted)
  params, ids = tiny.init(cfg), tiny.tokens(cfg, 2, tokens)
  whole = transformer.forward(params, ids, dataclasses.replace(cfg, kernels="reference"))
  held, start, found = cache.init(cfg, 7, 4), 0, []
  decode = jax.jit(transformer.decode, static_argnames="cfg")
  for count in (5, 1, 1, 1, 1):
    out, held = decode(
      params,
      ids[:, start : start + count],
      cfg,
      held,
      page_table=jnp.asarray([[3, 1, 5], [4, 6, 2]], jnp.int32),
      lengths=jnp.full(2, start, jnp.int32),
      num_new=jnp.full(2, count, jnp.int32),
    )
    found.append(out.hidden)
    start += count
  np.testing.assert_allclose(jnp.concatenate(found, axis=1), whole.hidden, atol=2e-5)
