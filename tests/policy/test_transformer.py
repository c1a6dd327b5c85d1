import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl_agents.policy import kernel_choice, sharding, transformer
from jaxrl_agents.policy import params as params_lib
from jaxrl_agents.policy.attention import cache as cache_lib
from jaxrl_agents.policy.attention import layer, paged
from tests.policy import tiny
from tests.policy.attention.test_causal import largest

ROWS, LENGTH = 2, 23
PAGE_TOKENS, TABLE_PAGES = 4, 7
FAMILIES = {
  "gqa": tiny.GQA,
  "mla": tiny.MLA,
  "mla wider than a lane": dataclasses.replace(tiny.MLA, kv_lora_rank=130),
  "dense": tiny.DENSE,
}
PAGE_TABLE = jnp.asarray([[3, 1, 5, 7, 2, 9, 0], [4, 6, 8, 10, 11, 12, 0]], jnp.int32)

forward = jax.jit(transformer.forward, static_argnums=2, static_argnames="replay_threshold")
decode = jax.jit(transformer.decode, static_argnums=2)


def traced_anew():
  """`decode` without programs that were traced before something was replaced."""
  return jax.jit(lambda *args, **more: transformer.decode(*args, **more), static_argnums=2)


def decoded(params, tokens, cfg, steps, decode=decode):
  """Hidden states and routing of tokens fed in `steps` of (real tokens, padded width)."""
  cache = cache_lib.init(cfg, 13, PAGE_TOKENS)
  lengths = jnp.zeros(ROWS, jnp.int32)
  hidden, routing = [], []
  for real, width in steps:
    start = int(lengths[0])
    new = jnp.pad(tokens[:, start : start + real], ((0, 0), (0, width - real)))
    num_new = jnp.full(ROWS, real, jnp.int32)
    out, cache = decode(
      params, new, cfg, cache, page_table=PAGE_TABLE, lengths=lengths, num_new=num_new
    )
    hidden.append(out.hidden[:, :real])
    routing.append(out.routing[:, :real])
    lengths = lengths + real
  return jnp.concatenate(hidden, axis=1), jnp.concatenate(routing, axis=1), cache


@pytest.mark.parametrize("cfg", [tiny.GQA, tiny.DENSE], ids=["mixture", "dense"])
def test_forward_equals_plain_loops_over_heads_tokens_and_experts(cfg):
  params = tiny.init(cfg)
  ids = tiny.tokens(cfg, 1, 9)
  out = forward(params, ids, cfg)
  np.testing.assert_allclose(out.hidden[0], tiny.hidden(params, ids[0], cfg), atol=2e-5)


@pytest.mark.slow
@pytest.mark.parametrize("unstacked", [False, True], ids=["scanned", "unrolled"])
@pytest.mark.parametrize("cfg", FAMILIES.values(), ids=FAMILIES)
def test_prefill_in_chunks_and_single_tokens_equal_the_training_forward(cfg, unstacked):
  """For MLA this also compares the naive form (forward) with the absorbed one (decode)."""
  params = tiny.init(cfg)
  ids = tiny.tokens(cfg, ROWS, LENGTH)
  whole = forward(params, ids, cfg)
  layers = params_lib.unstack(params) if unstacked else params
  steps = [(8, 8), (5, 8)] + [(1, 1)] * 10
  hidden, routing, _ = decoded(layers, ids, cfg, steps)
  np.testing.assert_allclose(hidden, whole.hidden, atol=1e-5)
  np.testing.assert_array_equal(routing, whole.routing)


@pytest.mark.slow
def test_unrolled_layers_equal_scanned_ones():
  params = tiny.init(tiny.MLA)
  ids = tiny.tokens(tiny.MLA, ROWS, LENGTH)
  scanned = forward(params, ids, tiny.MLA)
  unrolled = forward(params_lib.unstack(params), ids, tiny.MLA)
  jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=1e-5), scanned, unrolled)


def test_packed_segments_do_not_see_each_other_nor_padding():
  cfg = tiny.GQA
  params = tiny.init(cfg)
  ids = tiny.tokens(cfg, ROWS, LENGTH)
  first, second = 9, 11
  packed = jnp.concatenate([ids[0, :first], ids[1, :second], jnp.zeros(3, jnp.int32)])[None]
  ends = jnp.asarray([[first] * first + [first + second] * second + [0] * 3], jnp.int32)
  depths = jnp.concatenate([jnp.arange(first), jnp.arange(second), jnp.zeros(3, jnp.int32)])[None]
  together = forward(params, packed, cfg, rows=layer.Rows(ends, depths))
  alone = forward(params, ids, cfg)
  np.testing.assert_allclose(together.hidden[0, :first], alone.hidden[0, :first], atol=1e-5)
  np.testing.assert_allclose(
    together.hidden[0, first : first + second], alone.hidden[1, :second], atol=1e-5
  )
  np.testing.assert_array_equal(together.expert_load.sum(axis=-1), 2.0 * (first + second))


def test_padding_of_a_step_is_written_to_the_scratch_page_only():
  cfg = tiny.GQA
  params = params_lib.unstack(tiny.init(cfg))
  ids = tiny.tokens(cfg, ROWS, LENGTH)
  _, _, exact = decoded(params, ids, cfg, [(5, 5)])
  _, _, padded = decoded(params, ids, cfg, [(5, 8)])
  np.testing.assert_allclose(padded.pages[:, 1:], exact.pages[:, 1:], atol=1e-6)
  layers = cfg.num_layers
  written = np.abs(np.asarray(exact.pages[:layers])).sum(axis=(0, 2, 3)) > 0
  assert np.flatnonzero(written).tolist() == [1, 3, 4, 6]
  assert np.abs(np.asarray(padded.pages[:layers, 0])).sum() > 0


@pytest.mark.slow
def test_pages_are_read_as_many_at_a_time_as_are_worth_a_round(monkeypatch):
  params, ids = tiny.init(tiny.BIASED), tiny.tokens(tiny.BIASED, ROWS, LENGTH)
  steps = [(8, 8), (5, 8)] + [(1, 1)] * 10
  expected, *_ = decoded(params, ids, tiny.BIASED, steps)
  monkeypatch.setattr(paged, "pages_of_round", lambda queries, *_: 5 if queries > 1 else 3)
  found, *_ = decoded(params, ids, tiny.BIASED, steps, traced_anew())
  np.testing.assert_allclose(found, expected, atol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["biased", *FAMILIES])
def test_decoding_as_on_an_accelerator_equals_the_training_forward(monkeypatch, name):
  """Parameters as samplers hold them there, entries not taken apart, whole tables in a round."""
  cfg = dataclasses.replace((FAMILIES | {"biased": tiny.BIASED})[name], kernels="reference")
  params = tiny.init(cfg)
  ids = tiny.tokens(cfg, ROWS, LENGTH)
  whole = forward(params, ids, cfg)
  packed = []
  attend_packed = paged.attend_packed
  monkeypatch.setattr(
    paged, "attend_packed", lambda *args: packed.append(args) or attend_packed(*args)
  )
  monkeypatch.setattr(kernel_choice, "platform", lambda: "gpu")
  held = sharding.served(params)
  if not cfg.tie_embeddings:
    assert held["embed"].shape == (cfg.vocab_size, 128)
  steps = [(8, 8), (5, 8)] + [(1, 1)] * 10
  hidden, routing, _ = decoded(held, ids, cfg, steps, traced_anew())
  np.testing.assert_allclose(hidden, whole.hidden, atol=1e-5)
  np.testing.assert_array_equal(routing, whole.routing)
  assert bool(packed) == (cfg.attention != "mla")


@pytest.mark.slow
@pytest.mark.parametrize("with_more", [False, True], ids=["plain", "sinks and a window"])
def test_entries_that_are_not_taken_apart_give_what_heads_of_their_own_give(with_more):
  rng = np.random.default_rng(0)
  make = lambda *shape: jnp.asarray(rng.normal(size=shape), jnp.float32)
  groups, repeats, width = 2, 3, 8
  pages, q = make(2, 13, PAGE_TOKENS, 2 * groups * width), make(ROWS, 2, groups, repeats, width)
  new = jnp.full(ROWS, 2, jnp.int32)
  step = cache_lib.plan_step(cache_lib.PagedCache(pages), PAGE_TABLE, jnp.asarray([21, 9]), new, 2)
  more = (make(groups, repeats), jnp.int32(7)) if with_more else (None, None)

  def split(entries):
    heads = entries.reshape(*entries.shape[:2], groups, 2, width)
    return heads[:, :, :, 0], heads[:, :, :, 1]

  expected = paged.attend(q, pages, 1, step, split, 0.3, *more)
  found = paged.attend_packed(q, pages, 1, step, 0.3, *more)
  np.testing.assert_allclose(found, expected, atol=1e-6)


def test_a_round_on_an_accelerator_holds_a_thousand_keys_or_a_quarter_of_a_million_scores(
  monkeypatch,
):
  assert [paged.pages_of_round(1, 64, columns) for columns in (1, 2, 100)] == [1, 2, 2]
  monkeypatch.setattr(paged.kernel_choice, "platform", lambda: "tpu")
  of = paged.pages_of_round
  assert [of(1, 64, 100), of(1, 16, 100), of(2_048, 64, 100), of(4, 1_024, 100)] == [16, 64, 2, 2]
  assert [of(1, 64, 5), of(1, 16, 63), of(4, 1_024, 1)] == [5, 63, 1]  # no more than there are


def test_a_row_without_new_tokens_leaves_its_pages_alone():
  cfg = tiny.MLA
  params = params_lib.unstack(tiny.init(cfg))
  ids = tiny.tokens(cfg, ROWS, LENGTH)
  _, _, cache = decoded(params, ids, cfg, [(8, 8)])
  before = np.asarray(cache.pages)
  _, cache = decode(
    params,
    ids[:, 8:9],
    cfg,
    cache,
    page_table=PAGE_TABLE,
    lengths=jnp.asarray([8, 8]),
    num_new=jnp.asarray([0, 1]),
  )
  changed = np.flatnonzero((np.asarray(cache.pages) != before).any(axis=(0, 2, 3)))
  assert set(changed.tolist()) <= {0, 8}  # scratch, and the third page of row 1


@pytest.mark.slow
def test_replaying_the_samplers_routing_gives_the_same_experts_and_logprobs():
  cfg = tiny.GQA
  params = tiny.init(cfg)
  ids = tiny.tokens(cfg, ROWS, LENGTH)
  targets = jnp.roll(ids, -1, axis=1)
  hidden, routing, _ = decoded(params_lib.unstack(params), ids, cfg, [(23, 23)])
  sampled, _ = transformer.token_logprobs(params, hidden, targets, cfg)
  routing = routing.at[:, -1].set(65535)  # the last token was never recorded
  for threshold in (0.0, 0.5):
    out = forward(params, ids, cfg, routing=routing, replay_threshold=threshold)
    np.testing.assert_array_equal(out.routing[:, :-1], routing[:, :-1])
    learned, _ = transformer.token_logprobs(params, out.hidden, targets, cfg)
    np.testing.assert_allclose(learned, sampled, atol=2e-5)


@pytest.mark.slow
def test_filtered_replay_mismatches_no_more_than_plain_replay_at_the_99th_percentile():
  """A sampler whose routers differ: plain replay forces experts that the learner finds absurd."""
  cfg = dataclasses.replace(tiny.GQA, num_layers=4, num_dense_layers=0, mtp_depth=0)
  params = tiny.init(cfg)
  ids = tiny.tokens(cfg, 8, 64)
  targets = jnp.roll(ids, -1, axis=1)
  native = forward(params, ids, cfg)
  base, _ = transformer.token_logprobs(params, native.hidden, targets, cfg)
  rng = np.random.default_rng(3)
  recorded = np.asarray(native.routing).copy()
  wrong = rng.random(recorded.shape[:3]) < 0.03
  recorded[wrong] = np.argsort(rng.random((wrong.sum(), cfg.num_experts)))[:, :2]

  def p99(threshold):
    out = forward(
      params,
      ids,
      cfg,
      routing=jnp.asarray(recorded),
      replay_threshold=threshold,
    )
    logprobs, _ = transformer.token_logprobs(params, out.hidden, targets, cfg)
    return np.percentile(np.abs(np.asarray(logprobs - base)), 99)

  assert 0 < p99(0.9) <= p99(0.0)


@pytest.mark.slow
@pytest.mark.parametrize("length", [7, 24])
def test_token_logprobs_and_entropies_are_those_of_all_logits_at_once(length, monkeypatch):
  monkeypatch.setattr(transformer.head_lib, "CHUNK_TOKENS", 10)
  cfg, temperature = tiny.DENSE, 0.7
  params = tiny.init(cfg)
  targets = tiny.tokens(cfg, 2, length)
  hidden = jnp.asarray(np.random.default_rng(2).normal(size=(2, length, 16)), jnp.float32)

  def plain(params, hidden):
    logprobs = jax.nn.log_softmax(transformer.logits(params, hidden, cfg) / temperature)
    picked = jnp.take_along_axis(logprobs, targets[..., None], axis=-1)[..., 0]
    return picked, -jnp.sum(jnp.exp(logprobs) * logprobs, axis=-1)

  def chunked(params, hidden):
    return transformer.token_logprobs(params, hidden, targets, cfg, temperature)

  ramp = jnp.arange(2.0 * length).reshape(2, length) / length

  def both(function):
    def loss(params, hidden):
      logprobs, entropy = function(params, hidden)
      return jnp.sum(logprobs * ramp + entropy * ramp[::-1]), (logprobs, entropy)

    return jax.jit(jax.value_and_grad(loss, argnums=(0, 1), has_aux=True))(params, hidden)

  jax.tree.map(
    lambda a, b: np.testing.assert_allclose(a, b, rtol=2e-4, atol=2e-4), both(chunked), both(plain)
  )


def test_logits_of_a_tied_policy_start_at_the_scale_of_one():
  cfg = dataclasses.replace(tiny.DENSE, embed_dim=256, vocab_size=200)
  params = params_lib.init(cfg, jax.random.key(0))
  hidden = jnp.ones((1, 1, 256))
  assert 0.8 < float(jnp.std(transformer.logits(params, hidden, cfg))) < 1.2


def test_all_logits_of_a_batch_never_exist_at_once():
  cfg = dataclasses.replace(tiny.DENSE, vocab_size=4096)
  params = params_lib.abstract(cfg)
  hidden = jax.ShapeDtypeStruct((4, 1024, 16), jnp.float32)
  targets = jax.ShapeDtypeStruct((4, 1024), jnp.int32)

  def loss(params, hidden, targets):
    return transformer.token_logprobs(params, hidden, targets, cfg)[0].sum()

  jaxpr = jax.make_jaxpr(jax.grad(loss))(params, hidden, targets)
  assert largest(jaxpr.jaxpr) <= 512 * 4096


@pytest.mark.slow
def test_what_is_kept_of_layers_changes_memory_and_no_gradient():
  """Gradients within 1e-4; each needs more memory than the one before."""
  cfg = dataclasses.replace(tiny.DENSE, num_layers=6, num_dense_layers=6)
  params = tiny.init(cfg)
  ids = tiny.tokens(cfg, 1, 256)

  def compiled(remat):
    def loss(params):
      return jnp.sum(transformer.forward(params, ids, cfg, remat=remat).hidden)

    return jax.jit(jax.grad(loss)).lower(params).compile()

  programs = {remat: compiled(remat) for remat in transformer.REMAT}
  expected = programs["none"](params)
  for program in programs.values():
    jax.tree.map(
      lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-4), program(params), expected
    )
  size = {name: p.memory_analysis().temp_size_in_bytes for name, p in programs.items()}
  assert size["layer"] < size["attention"] < size["projections"] < size["none"], size
