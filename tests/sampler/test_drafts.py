"""Drafts: what prompt lookup finds, and replies that do not depend on who drafts."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl_agents.policy import mtp, transformer
from jaxrl_agents.policy import params as params_lib
from jaxrl_agents.policy.config import PolicyConfig
from jaxrl_agents.sampler import drafts
from jaxrl_agents.sampler.draft_gains import DraftGains
from jaxrl_agents.sampler.engine import Engine
from jaxrl_agents.types import SamplingLimits

VOCAB = 23
CFG = PolicyConfig(
  vocab_size=VOCAB,
  embed_dim=16,
  num_layers=2,
  num_heads=2,
  num_kv_heads=1,
  head_dim=8,
  num_experts=4,
  experts_per_token=2,
  expert_ffw_dim=8,
  mtp_depth=2,
)
PARAMS = params_lib.init(CFG, jax.random.key(0))


def found(ids, count, capacity=16):
  """(drafts, kind) of one row."""
  context = np.zeros((1, capacity), np.int32)
  context[0, : len(ids)] = ids
  result = drafts.lookup(jnp.asarray(context), jnp.array([len(ids) - 1]), count)
  return result.drafts[0].tolist(), int(result.kind[0])


def test_prompt_lookup_drafts_what_followed_the_newest_ids_before():
  assert found([5, 6, 7, 8, 9, 5, 6, 7], 2) == ([8, 9], 2)  # three ids are the second kind
  assert found([4, 5, 6, 7, 8, 9, 4, 5, 6, 7], 2) == ([8, 9], 3)  # four, the third
  assert found([6, 7, 8, 6, 7], 2) == ([8, 6], 1)  # two, the first


def test_prompt_lookup_prefers_more_ids_and_then_the_last_place():
  assert found([1, 2, 3, 10, 9, 2, 3, 11, 1, 2, 3], 1) == ([10], 2)
  assert found([2, 3, 10, 2, 3, 11, 2, 3], 1) == ([11], 1)


def test_prompt_lookup_repeats_what_is_shorter_than_the_drafts():
  assert found([9, 9, 9], 4) == ([9, 9, 9, 9], 1)
  assert found([1, 2, 1, 2], 3)[0] == [1, 2, 1]


def test_prompt_lookup_finds_nothing_where_one_id_only_stood_before():
  assert found([5, 6, 7, 5], 2)[1] == 0
  assert found([0], 2)[1] == 0 and found([0, 0], 2)[1] == 0


def by_hand(ids, count):
  newest = len(ids) - 1
  best = (0, 0)
  for place in range(newest):
    run = 0
    while run < min(4, place + 1) and ids[place - run] == ids[newest - run]:
      run += 1
    best = max(best, (run, place))
  run, place = best
  if run < 2:
    return None, 0
  longer = list(ids)
  while len(longer) < place + 1 + count:
    longer.append(longer[len(longer) - (newest - place)])
  return longer[place + 1 : place + 1 + count], run - 1


def test_prompt_lookup_equals_a_search_by_hand_on_random_contexts():
  rng = np.random.default_rng(0)
  kinds = set()
  for _ in range(300):
    ids = rng.integers(0, 3, rng.integers(1, 15)).tolist()
    expected, kind = by_hand(ids, 5)
    drafted, found_kind = found(ids, 5)
    assert found_kind == kind and (kind == 0 or drafted == expected)
    kinds.add(kind)
  assert kinds == {0, 1, 2, 3}


def engine(modules, lookup, cost=-1.0, **changes):
  sizes = {"slots": 3, "page_tokens": 4, "num_pages": 30, "prefill_tokens": 8, "prefill_rows": 2}
  return Engine(
    CFG,
    PARAMS,
    version=0,
    max_context_tokens=48,
    draft_tokens=modules,
    lookup_tokens=lookup,
    draft_cost=cost,
    **{**sizes, **changes},
  )


def requests(count):
  rng = np.random.default_rng(3)
  for seed in range(count):
    prompt = rng.integers(2, VOCAB, rng.integers(1, 24)).astype(np.int32)
    yield (
      prompt,
      SamplingLimits(
        int(rng.integers(1, 25)),
        (1,),
        temperature=float(rng.choice([0.0, 0.3, 1.0])),
        top_p=float(rng.choice([0.7, 1.0])),
        seed=seed,
      ),
    )


def replies(playing, wanted):
  ids = [playing.submit(prompt, limits) for prompt, limits in wanted]
  ended = {}
  while playing.num_unfinished:
    ended |= playing.step()
  return [ended[i] for i in ids]


@pytest.mark.slow
@pytest.mark.parametrize(("modules", "lookup", "cost"), [(1, 0, -1.0), (3, 2, -1.0), (0, 4, 1.2)])
def test_a_reply_does_not_depend_on_who_drafts(modules, lookup, cost):
  wanted = list(requests(14))
  plain, drafting = engine(0, 0), engine(modules, lookup, cost)
  for one, other in zip(replies(plain, wanted), replies(drafting, wanted), strict=True):
    assert np.array_equal(one.tokens, other.tokens) and one.stop == other.stop
    assert np.array_equal(one.routing, other.routing)
    np.testing.assert_allclose(one.logprobs, other.logprobs, atol=1e-5)
  assert 0 < drafting.stats.accepted < drafting.stats.drafted
  if lookup:
    assert drafting.stats.forwards < plain.stats.forwards


@pytest.mark.slow
def test_after_every_program_the_modules_stand_where_a_full_pass_puts_them():
  playing = engine(3, 2, decode_steps=3)
  playing.submit(np.arange(2, 13, dtype=np.int32), SamplingLimits(24, (), seed=0))
  compared = 0
  while playing.num_unfinished:
    playing.step()
    for sequence in playing._scheduler.running.values():
      if sequence.decoding:
        ids = np.zeros((1, 48), np.int32)
        ids[0, : sequence.num_tokens] = sequence.known_tokens
        trunk = transformer.forward(PARAMS, ids, CFG).hidden
        expected = mtp.mtp(PARAMS, trunk, np.roll(ids, -1), CFG)
        for depth in range(2):
          np.testing.assert_allclose(
            playing._state.hidden[sequence.slot, depth],
            expected[depth, 0, sequence.num_cached - 1 - depth],
            atol=1e-5,
          )
        compared += 1
  assert compared >= 4


@pytest.mark.slow
def test_steps_draft_only_where_that_is_expected_to_be_faster():
  drafted = []
  for cost in (0.9, 1e6):
    playing = engine(0, 3, cost)
    replies(playing, list(requests(4)))
    drafted.append(playing.stats.drafted)
  assert drafted[0] > 0 and drafted[1] == 0


@pytest.mark.slow
def test_warming_up_measures_what_drafts_cost_within_what_can_be(monkeypatch):
  playing, seconds = engine(0, 3, None), {False: 2.0, True: 3.0}
  measure, measured = playing._seconds_of_a_step, []

  def with_known_times(count, draft):
    measured.append(measure(count, draft))
    return seconds[draft]

  monkeypatch.setattr(playing, "_seconds_of_a_step", with_known_times)
  playing.warm_up()
  assert playing.draft_costs == {1: 1.5, 3: 1.5} and min(measured) > 0
  compiles = playing.stats.compiles
  replies(playing, list(requests(3)))
  assert playing.stats.compiles == compiles
  for found, expected in ((1.0, 1.0), (100.0, 4.0)):  # of a token, and of all four places
    seconds[True] = found
    playing.warm_up()
    assert set(playing.draft_costs.values()) == {expected}


def test_gains_begin_at_half_of_the_drafts_and_follow_what_is_seen():
  gains = DraftGains([2, 4])
  assert gains.gains.tolist() == [1.0, 2.0]
  gains.record(np.array([8, 0]), np.array([0, 0]))
  assert gains.gains.tolist() == [0.5, 2.0]  # (1 * 8 + 0) / (8 + 8)
  for _ in range(400):
    gains.record(np.zeros(2), np.zeros(2))
  np.testing.assert_allclose(gains.gains, [1.0, 2.0], atol=1e-2)  # it is tried again
