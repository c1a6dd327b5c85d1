"""Futures, and requests that run in the order of their numbers."""

import asyncio

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jaxrl_agents.gateway.requests import Refusal
from jaxrl_agents.gateway.tinker.futures import Futures, Ordered


def works(log, name):
  async def work():
    await asyncio.sleep(0)
    log.append(name)
    if isinstance(name, Exception):
      raise name
    return {"did": name}

  return work


@given(st.permutations(range(1, 9)), st.lists(st.integers(1, 8), max_size=8))
@settings(max_examples=40, deadline=None)
def test_requests_run_once_in_the_order_of_their_numbers(order, again):
  async def run():
    log, futures = [], Futures()
    ordered = Ordered(futures, "m")
    for seq_id in [*order, *again]:
      assert ordered.add(seq_id, "step", works(log, seq_id)) == f"m:{seq_id}"
      if seq_id % 3 == 0:
        await asyncio.sleep(0)
    results = [await futures.wait(f"m:{i}", 5.0) for i in range(1, 9)]
    assert log == list(range(1, 9))
    assert results == [{"did": i} for i in range(1, 9)]

  asyncio.run(run())


def test_a_missing_number_fails_those_that_wait_and_is_named():
  async def run():
    log, lost = [], []
    futures = Futures()
    ordered = Ordered(futures, "m", lost=lambda: lost.append(1), hold_s=0.1)
    ordered.add(2, "step", works(log, 2))
    assert await futures.wait("m:2", 0.01) is None
    assert ordered.waits_for() == "m waits for seq_id 1, which has not come yet"
    result = await futures.wait("m:2", 5.0)
    assert "seq_id 1 did not come within 0.1 s" in result["error"]
    assert result["category"] == "server" and lost == [1]
    ordered.add(1, "step", works(log, 1))  # too late
    assert "came after those that follow it" in (await futures.wait("m:1", 5.0))["error"]
    ordered.add(3, "step", works(log, 3))
    assert await futures.wait("m:3", 5.0) == {"did": 3} and log == [3]

  asyncio.run(run())


def test_what_the_client_did_wrong_fails_as_the_users():
  async def run():
    log, futures = [], Futures()
    ordered = Ordered(futures, "m")
    ordered.add(1, "step", works(log, ValueError("weights are missing")))
    ordered.add(2, "step", works(log, "next"))
    assert await futures.wait("m:1", 5.0) == {"error": "weights are missing", "category": "user"}
    assert await futures.wait("m:2", 5.0) == {"did": "next"}
    with pytest.raises(Refusal, match="was a request for step, and is now one for save"):
      ordered.add(2, "save", works(log, 2))
    with pytest.raises(Refusal, match="from 1 on"):
      ordered.add(0, "step", works(log, 0))

  asyncio.run(run())


def test_the_oldest_results_are_dropped_where_there_are_too_many_bytes():
  async def run():
    futures = Futures(kept_bytes=25)
    for i in range(4):
      futures.open(f"r{i}", "asample")
      futures.keep(f"r{i}", b"x" * 10)
    assert await futures.wait("r3", 1.0) == b"x" * 10
    with pytest.raises(Refusal, match="r1 is unknown, or its result was dropped"):
      await futures.wait("r1", 1.0)

  asyncio.run(run())
