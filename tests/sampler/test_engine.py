"""The engine against full forward passes, one-token passes, and itself in other batches."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.special

from jaxrl_agents.policy import params as params_lib
from jaxrl_agents.policy import transformer
from jaxrl_agents.policy.attention import cache as cache_lib
from jaxrl_agents.policy.config import PolicyConfig
from jaxrl_agents.sampler.engine import Engine
from jaxrl_agents.sampler.scheduler import PREFILLS_IN_A_ROW
from jaxrl_agents.sampler.sequence import Failure
from jaxrl_agents.types import NOT_ROUTED, SamplingLimits

CFG = PolicyConfig(
  vocab_size=40,
  embed_dim=16,
  num_layers=2,
  num_heads=2,
  num_kv_heads=1,
  head_dim=8,
  num_experts=4,
  experts_per_token=2,
  expert_ffw_dim=8,
  mtp_depth=1,
)
CONTEXT = 48
STOP = 1


def draw_params(seed):
  return params_lib.init(CFG, jax.random.key(seed))


PARAMS = draw_params(0)


DRAFTING = {"draft_tokens": 2, "lookup_tokens": 3, "draft_cost": -1.0}
"""Every step drafts, whatever it costs."""


def build(drafts=None, **changes):
  sizes = {
    "slots": 3,
    "page_tokens": 4,
    "num_pages": 22,  # less than three sequences of 48 tokens: some are preempted
    "max_context_tokens": CONTEXT,
    "prefill_tokens": 8,
    "prefill_rows": 2,
  }
  return Engine(CFG, PARAMS, version=0, **{**sizes, **(drafts or {}), **changes})


@pytest.fixture(scope="module", params=[{}, DRAFTING], ids=["plain", "drafts"])
def engine(request):
  engine = build(request.param)
  engine.warm_up()
  return engine


@pytest.fixture(autouse=True)
def no_page_leaks(request):
  yield
  if "engine" in request.fixturenames:
    (pool,) = request.getfixturevalue("engine")._scheduler.pools
    assert pool.num_available == pool.num_pages - 1


def play(engine, requests, between=lambda done: None):
  """Submits what `requests` hold and steps to the end; results in order of submission."""
  ids = [engine.submit(*request) for request in requests]
  results = {}
  while engine.num_unfinished:
    results.update(engine.step())
    between(results)
  return [results[i] for i in ids]


def prompts(count, seed=0, longest=24):
  rng = np.random.default_rng(seed)
  return [rng.integers(2, 40, rng.integers(1, longest)).astype(np.int32) for _ in range(count)]


def limits(seed=0, **changes):
  return dataclasses.replace(SamplingLimits(20, (STOP,), seed=seed), **changes)


@jax.jit
def full_pass(tokens):
  output = transformer.forward(PARAMS, tokens, CFG)
  return transformer.logits(PARAMS, output.hidden, CFG)[0], output.routing[0]


def reference(prompt, generation, temperature):
  """(logprobs of the reply, routing of all but the last token) from one full forward pass."""
  ids = np.concatenate([prompt, generation.tokens])
  scores, routing = full_pass(np.pad(ids, (0, CONTEXT - len(ids)))[None])
  logprobs = scipy.special.log_softmax(np.asarray(scores, np.float64) / temperature, axis=-1)
  picked = logprobs[np.arange(len(prompt) - 1, len(ids) - 1), generation.tokens]
  return picked, np.asarray(routing)[: len(ids) - 1]


@pytest.mark.slow
def test_logprobs_and_routing_equal_a_full_pass_through_reuse_chunks_and_preemption(engine):
  preempted, hits = engine.stats.preempted, engine.stats.prefix_hit_tokens
  ps = prompts(8, longest=30)
  ps += [ps[0], np.concatenate([ps[1], ps[2]])[:40]] * 2
  temperatures = [1.0, 0.6, 1.5] * 4
  requests = [
    (p, limits(i, temperature=t)) for i, (p, t) in enumerate(zip(ps, temperatures, strict=True))
  ]
  for (prompt, limit), generation in zip(requests, play(engine, requests), strict=True):
    logprobs, routing = reference(prompt, generation, limit.temperature)
    np.testing.assert_allclose(generation.logprobs, logprobs, atol=1e-5)
    assert np.array_equal(generation.routing[:-1], routing)
    assert (generation.routing[-1] == NOT_ROUTED).all()
    assert generation.versions.dtype == np.int32 and len(generation.versions) == len(logprobs)
  assert engine.stats.preempted > preempted and engine.stats.prefix_hit_tokens > hits


def test_greedy_replies_equal_the_most_likely_tokens_of_full_passes(engine):
  requests = [(p, limits(temperature=0.0)) for p in prompts(6, seed=1)]
  for (prompt, _), generation in zip(requests, play(engine, requests), strict=True):
    ids = np.concatenate([prompt, generation.tokens])
    scores, _ = full_pass(np.pad(ids, (0, CONTEXT - len(ids)))[None])
    assert np.array_equal(np.argmax(scores, -1)[len(prompt) - 1 : len(ids) - 1], generation.tokens)
    logprobs, _ = reference(prompt, generation, 1.0)
    np.testing.assert_allclose(generation.logprobs, logprobs, atol=1e-5)


def test_a_reply_does_not_depend_on_what_else_is_in_the_batch(engine):
  ps = prompts(7, seed=2)
  together = play(engine, [(p, limits(i)) for i, p in enumerate(ps)])
  for i in (0, 3, 6):
    (alone,) = play(engine, [(ps[i], limits(i))])
    assert np.array_equal(alone.tokens, together[i].tokens)
    np.testing.assert_allclose(alone.logprobs, together[i].logprobs, atol=1e-5)


def test_whoever_watches_a_reply_sees_it_grow_and_ends_it_and_no_other(engine):
  ps = prompts(5, seed=4)
  whole = play(engine, [(p, limits(i)) for i, p in enumerate(ps)])
  for end in (1, 3, 7):
    seen = {i: [] for i in range(len(ps))}

    def watch(tokens, versions, i, seen=seen, end=end):
      assert tokens.dtype == versions.dtype == np.int32 and len(tokens) == len(versions)
      seen[i].append(tokens.tolist())
      return i % 2 == 0 and len(tokens) >= end

    watches = [functools.partial(watch, i=i) for i in range(len(ps))]
    watched = play(engine, [(p, limits(i), watches[i]) for i, p in enumerate(ps)])
    for i, (before, now) in enumerate(zip(whole, watched, strict=True)):
      n = len(now.tokens)
      assert n == len(before.tokens) or (i % 2 == 0 and end <= n)
      assert np.array_equal(now.tokens, before.tokens[:n])
      np.testing.assert_allclose(now.logprobs, before.logprobs[:n], atol=1e-5)
      rows = len(ps[i]) + n - 1
      assert np.array_equal(now.routing[:-1], before.routing[:rows])
      assert (now.routing[-1] == NOT_ROUTED).all()
      assert all(now.tokens[: len(each)].tolist() == each for each in seen[i])
    assert any(
      len(now.tokens) < len(before.tokens) for now, before in zip(watched, whole, strict=True)
    )


@pytest.mark.slow
@pytest.mark.parametrize("drafts", [{}, DRAFTING], ids=["plain", "drafts"])
def test_programs_of_many_steps_sample_the_tokens_of_single_steps(drafts):
  rng = np.random.default_rng(1)
  requests = [
    (
      prompt,
      limits(
        i,
        stop_tokens=tuple(rng.integers(0, 40, rng.choice([0, 1, 10])).tolist()),
        max_new_tokens=int(rng.integers(1, 25)),
        temperature=float(rng.choice([0.0, 0.7, 1.0])),
        top_p=float(rng.choice([0.8, 1.0])),
      ),
    )
    for i, prompt in enumerate(prompts(14, seed=11, longest=30))
  ]
  single = play(build(drafts, num_pages=15, decode_steps=1), requests)
  for steps in (3, 16):
    many = build(drafts, num_pages=15, decode_steps=steps)
    for one, found in zip(single, play(many, requests), strict=True):
      assert np.array_equal(one.tokens, found.tokens) and one.stop == found.stop
      assert np.array_equal(one.routing, found.routing)
      np.testing.assert_allclose(one.logprobs, found.logprobs, atol=1e-5)
    assert many.stats.preempted


def test_sixteen_tokens_of_every_sequence_take_one_program(monkeypatch):
  engine = build(num_pages=64)
  programs = []
  run = engine._run
  monkeypatch.setattr(engine, "_run", lambda *args: programs.append(args) or run(*args))
  for i in range(3):
    engine.submit(np.array([5, 6, 7], np.int32), limits(i, stop_tokens=(), max_new_tokens=17))
  while engine.num_unfinished:
    engine.step()
  # The first of 17 is sampled by the prefill: of one sequence, then of the two that share its page.
  assert [args[0] is engine._decode_program for args in programs] == [False, False, True]
  assert engine.stats.forwards == 2 + 16 and engine.stats.decoded_rows == 3 * 16


def test_long_prompts_do_not_keep_running_sequences_waiting():
  engine = build(num_pages=64, slots=4, prefill_rows=1)
  first = engine.submit(np.array([5], np.int32), limits(stop_tokens=(), max_new_tokens=30))
  engine.step()
  for i in range(3):
    engine.submit(np.arange(2 + i, 40, dtype=np.int32), limits(i + 1))
  (running,) = engine._scheduler.running.values()
  assert running.id == first
  waits, last = [0], running.num_tokens
  while any(not s.decoding for s in engine._scheduler.running.values()) or len(waits) < 3:
    engine.step()
    waits[-1] += 1
    if running.num_tokens > last:
      last = running.num_tokens
      waits.append(0)
  assert max(waits) <= PREFILLS_IN_A_ROW + 1


def test_replies_end_at_a_stop_token_at_max_new_tokens_or_at_the_context(engine):
  first = play(engine, [(p, limits(5, stop_tokens=())) for p in prompts(3, seed=3)])
  assert all(len(g.tokens) == 20 and g.stop == "length" for g in first)
  stop = int(first[0].tokens[4])
  (again,) = play(engine, [(prompts(3, seed=3)[0], limits(5, stop_tokens=(stop, 99)))])
  cut = first[0].tokens.tolist().index(stop) + 1
  assert again.tokens.tolist() == first[0].tokens[:cut].tolist() and again.stop == "stop"
  long = np.full(CONTEXT - 3, 7, np.int32)
  (full,) = play(engine, [(long, limits(stop_tokens=()))])
  assert len(full.tokens) == 3 and full.stop == "length" and len(full.routing) == CONTEXT


def test_nothing_compiles_after_warm_up(engine):
  compiled = []
  listen = lambda name, *_, **__: compiled.append(name) if "backend_compile" in name else None
  jax.monitoring.register_event_duration_secs_listener(listen)
  try:
    before = engine.stats.compiles
    play(engine, [(p, limits(i, top_p=0.8)) for i, p in enumerate(prompts(5, seed=4, longest=40))])
    assert engine.stats.compiles == before and not compiled
  finally:
    jax.monitoring.clear_event_listeners()


def test_nothing_compiles_for_the_first_weights_that_are_fixed_to_a_device():
  engine = build()
  engine.warm_up()
  engine.set_params(jax.device_put(PARAMS, jax.devices()[0]), 1)
  compiled = []
  listen = lambda name, *_, **__: compiled.append(name) if "backend_compile" in name else None
  jax.monitoring.register_event_duration_secs_listener(listen)
  try:
    play(engine, [(p, limits(i)) for i, p in enumerate(prompts(4, seed=12))])
    assert not compiled
  finally:
    jax.monitoring.clear_event_listeners()


def test_top_p_records_the_renormalised_logprob_of_a_token_of_the_nucleus(engine):
  (prompt,) = prompts(1, seed=5)
  (generation,) = play(engine, [(prompt, limits(9, top_p=0.5))])
  ids = np.concatenate([prompt, generation.tokens])
  scores, _ = full_pass(np.pad(ids, (0, CONTEXT - len(ids)))[None])
  for i, token in enumerate(generation.tokens):
    p = scipy.special.softmax(np.asarray(scores[len(prompt) - 1 + i], np.float64))
    order = np.argsort(-p)
    nucleus = order[: np.searchsorted(np.cumsum(p[order]), 0.5) + 1]
    assert token in nucleus
    np.testing.assert_allclose(
      generation.logprobs[i], np.log(p[token] / p[nucleus].sum()), atol=1e-5
    )


def test_the_next_turn_and_the_rest_of_a_group_reuse_what_was_computed(engine):
  (prompt,) = prompts(1, seed=6, longest=2)
  prompt = np.concatenate([prompt, np.arange(2, 21, dtype=np.int32)])  # 20 tokens
  hits = engine.stats.prefix_hit_tokens
  group = play(engine, [(prompt, limits(i, stop_tokens=(), max_new_tokens=8)) for i in range(3)])
  assert (
    engine.stats.prefix_hit_tokens - hits == 2 * 16
  )  # two followers, pages of 4, one token left
  hits = engine.stats.prefix_hit_tokens
  turn = np.concatenate([prompt, group[0].tokens, [5, 6, 7]]).astype(np.int32)
  (reply,) = play(engine, [(turn, limits(1))])
  assert engine.stats.prefix_hit_tokens - hits >= 24
  logprobs, routing = reference(turn, reply, 1.0)
  np.testing.assert_allclose(reply.logprobs, logprobs, atol=1e-5)
  assert np.array_equal(reply.routing[:-1], routing)


def test_a_request_past_its_deadline_fails_by_name_and_the_others_go_on(engine):
  good, late = prompts(2, seed=7)
  result, failure = play(engine, [(good, limits()), (late, limits(deadline_s=-1.0))])
  assert len(result.tokens) > 0
  assert (
    isinstance(failure, Failure) and failure.kind == "deadline" and "deadline_s" in failure.text
  )


@pytest.mark.parametrize(
  ("prompt", "changes", "message"),
  [
    ([], {}, "at least one token"),
    ([3] * CONTEXT, {}, "raise max_context_tokens"),
    ([40], {}, "vocab_size=40"),
    ([3], {"max_new_tokens": 0}, "at least 1"),
    ([3], {"temperature": -1.0}, "temperature=-1.0"),
    ([3], {"top_p": 0.0}, "top_p=0.0"),
    ([3], {"stop_tokens": (5, 2**32)}, "stop_tokens hold 4294967296"),
    ([3], {"stop_tokens": (-1,)}, "stop_tokens hold -1"),
    ([3], {"routed_tokens": 1}, "routed_tokens=1 of a prompt of 1"),
  ],
)
def test_a_request_that_cannot_be_served_is_refused_with_the_remedy(
  engine, prompt, changes, message
):
  with pytest.raises(ValueError, match=message):
    engine.submit(np.array(prompt, np.int32), limits(**changes))


def test_a_policy_without_experts_is_sampled_and_returns_none():
  dense = dataclasses.replace(CFG, num_dense_layers=2, dense_ffw_dim=16, num_experts=0, mtp_depth=0)
  params = params_lib.init(dense, jax.random.key(0))
  sizes = {"slots": 2, "page_tokens": 4, "num_pages": 13, "max_context_tokens": CONTEXT}
  engine = Engine(dense, params, version=0, prefill_tokens=8, prefill_rows=1, **sizes)
  (prompt,) = prompts(1, seed=3, longest=9)
  (generation,) = play(engine, [(prompt, limits(0, stop_tokens=(), max_new_tokens=5))])
  assert len(generation.tokens) == 5 and generation.routing is None


def test_an_engine_that_cannot_work_is_refused_with_the_remedy():
  with pytest.raises(ValueError, match="raise num_pages to 13"):
    build(num_pages=12)


def test_experts_that_the_caller_has_are_not_returned_again(engine):
  (prompt,) = prompts(1, seed=8, longest=9)
  whole, rest = (
    play(engine, [(prompt, limits(3, routed_tokens=known))])[0] for known in (0, len(prompt) - 1)
  )
  assert np.array_equal(whole.routing[len(prompt) - 1 :], rest.routing)
  assert len(rest.routing) == len(rest.tokens) + 1


@jax.jit
def one_token(params, cache, token, length):
  output, cache = transformer.decode(
    params,
    token[None, None],
    CFG,
    cache,
    page_table=jnp.array([[1]]),
    lengths=length[None],
    num_new=jnp.ones(1, jnp.int32),
  )
  return transformer.logits(params, output.hidden[0, 0], CFG), cache


@pytest.mark.parametrize("drafts", [{}, DRAFTING], ids=["plain", "drafts"])
def test_new_weights_reach_running_sequences_and_each_logprob_is_of_its_version(drafts):
  engine = build(drafts, decode_steps=2)
  weights = {engine.version: PARAMS}
  weights |= {engine.version + 1: draw_params(1), engine.version + 2: draw_params(2)}
  first = engine.version
  steps = 0

  def swap(_):
    nonlocal steps
    steps += 1
    if steps in (3, 5):
      engine.set_params(weights[engine.version + 1], engine.version + 1)

  # Few enough pages are used that nobody is preempted, which would recompute with new weights.
  requests = [
    (p, limits(i, stop_tokens=(), max_new_tokens=12)) for i, p in enumerate(prompts(3, 9, 8))
  ]
  preempted = engine.stats.preempted
  generations = play(engine, requests, between=swap)
  assert engine.stats.preempted == preempted
  assert {v for g in generations for v in g.versions.tolist()} == {first, first + 1, first + 2}
  for (prompt, _), generation in zip(requests, generations, strict=True):
    assert (np.diff(generation.versions) >= 0).all() and generation.began == first
    # Position i is computed by the weights that sample the token after it.
    ids = np.concatenate([prompt, generation.tokens])
    used = [int(generation.versions[max(0, i + 1 - len(prompt))]) for i in range(len(ids) - 1)]
    cache = cache_lib.init(CFG, 2, CONTEXT)
    for i, version in enumerate(used):
      scores, cache = one_token(weights[version], cache, jnp.int32(ids[i]), jnp.int32(i))
      if i + 1 >= len(prompt):
        expected = scipy.special.log_softmax(np.asarray(scores, np.float64))[ids[i + 1]]
        assert abs(generation.logprobs[i + 1 - len(prompt)] - expected) < 1e-5


def test_a_recomputed_cache_is_that_of_the_new_weights_alone():
  """Tokens after the swap have their log-probabilities in a full pass of the new weights."""
  engine = build(decode_steps=2)
  first, new = engine.version, draw_params(1)
  steps = 0

  def swap(_):
    nonlocal steps
    steps += 1
    if steps == 4:
      engine.set_params(new, first + 1, recompute=True)

  (prompt,) = prompts(1, 9, 8)
  request = (prompt, limits(0, stop_tokens=(), max_new_tokens=12))
  (generation,) = play(engine, [request], between=swap)
  after = np.flatnonzero(generation.versions == first + 1)
  assert 0 < len(after) < 12
  ids = np.concatenate([prompt, generation.tokens])
  cache = cache_lib.init(CFG, 2, CONTEXT)
  for i in range(len(ids) - 1):
    scores, cache = one_token(new, cache, jnp.int32(ids[i]), jnp.int32(i))
    if i + 1 - len(prompt) in after:
      expected = scipy.special.log_softmax(np.asarray(scores, np.float64))[ids[i + 1]]
      assert abs(generation.logprobs[i + 1 - len(prompt)] - expected) < 1e-5


def test_experts_that_older_weights_chose_are_forgotten_where_nothing_was_sampled_under_them():
  """A prompt that is set back in the middle of its prefill is computed anew, and recorded anew."""
  prompt = np.arange(2, 32, dtype=np.int32)
  request = (prompt, limits(0, stop_tokens=(), max_new_tokens=4))
  engine, new, replies = build(prefill_rows=1, num_pages=40), draw_params(1), {}
  asked = engine.submit(*request)
  engine.step()
  assert [s.num_cached for s in engine._scheduler.running.values()] == [8]
  engine.set_params(new, 1, recompute=True)
  while engine.num_unfinished:
    replies.update(engine.step())
  fresh = build(prefill_rows=1, num_pages=40)
  fresh.set_params(new, 1)
  (expected,) = play(fresh, [request])
  np.testing.assert_array_equal(replies[asked].tokens, expected.tokens)
  np.testing.assert_array_equal(replies[asked].routing, expected.routing)


def test_prefixes_of_older_weights_are_not_reused_and_versions_never_go_back(engine):
  (prompt,) = prompts(1, seed=10, longest=2)
  prompt = np.concatenate([prompt, np.arange(2, 21, dtype=np.int32)])
  play(engine, [(prompt, limits())])
  before = jax.tree.leaves(engine.params)
  engine.set_params(draw_params(3), engine.version + 1)
  assert all(array.is_deleted() for array in before)  # their memory is free for the new ones
  hits = engine.stats.prefix_hit_tokens
  (reply,) = play(engine, [(prompt, limits())])
  assert engine.stats.prefix_hit_tokens == hits and set(reply.versions) == {engine.version}
  with pytest.raises(ValueError, match="never go back"):
    engine.set_params(PARAMS, engine.version - 1)
  wider = params_lib.init(dataclasses.replace(CFG, vocab_size=41), jax.random.key(0))
  with pytest.raises(ValueError, match="make a new Engine"):
    engine.set_params(wider, engine.version + 1)
  play(engine, [(prompt, limits())])  # refused weights take nothing away


def test_a_reply_goes_on_after_preemption_at_the_end_of_a_page_that_is_still_cached():
  engine = build(slots=2, num_pages=8, max_context_tokens=24, decode_steps=1)
  first, second = prompts(2, seed=13, longest=2)
  requests = [
    (np.concatenate([prompt, np.arange(2, 12)])[:5].astype(np.int32), limits(i, **changes))
    for i, (prompt, changes) in enumerate(
      (prompt, {"stop_tokens": (), "max_new_tokens": count})
      for prompt, count in ((first, 9), (second, 19))
    )
  ]
  replies = play(engine, requests)
  assert engine.stats.preempted
  for request, reply in zip(requests, replies, strict=True):
    (alone,) = play(engine, [request])
    assert np.array_equal(alone.tokens, reply.tokens)
