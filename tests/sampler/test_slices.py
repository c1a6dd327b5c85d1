"""Sampler slices behind a real listener, each a thread with an engine of its own."""

import os
import socket
import threading
import time

import jax
import numpy as np
import pytest

from jaxrl_agents.policy import params as params_lib
from jaxrl_agents.sampler import slice_process as slice_lib
from jaxrl_agents.sampler.engine import Engine
from jaxrl_agents.sampler.slices import Slices, SlicesError
from jaxrl_agents.types import SamplingLimits
from jaxrl_agents.wire.listener import Listener, connect
from tests.sampler.test_server import CFG

pytestmark = pytest.mark.slow

SECRET = b"0123456789abcdef"
RUNS = {"config": "one"}
PROMPTS = [np.arange(1, 3 + i, dtype=np.int32) for i in range(7)]


def params(version):
  return params_lib.init(CFG, jax.random.key(version))


def engine(version):
  return Engine(
    CFG,
    params(version),
    version=version,
    slots=4,
    page_tokens=8,
    num_pages=40,
    max_context_tokens=32,
    prefill_tokens=32,
    draft_tokens=0,
    prefill_rows=1,
  )


@pytest.fixture
def listener():
  with Listener("127.0.0.1:0", SECRET, {"sampler": RUNS}) as listener:
    yield listener


def come(listener):
  """A slice that joins; returns its end of the connection."""
  connection = connect(listener.address, SECRET, role="sampler", runs=RUNS, patience_s=5)
  made = []

  def make(version):
    made.append(engine(version))
    return made[0]

  load = lambda version: made[0].set_params(params(version), version)
  threading.Thread(target=slice_lib.serve, args=(connection, make, load), daemon=True).start()
  return connection


def hang_up(connection):
  with socket.socket(fileno=os.dup(connection.fileno())) as shared:
    shared.shutdown(socket.SHUT_RDWR)


def joined(listener, count, **options):
  options = {"deterministic": True, "start_deadline_s": 60, **options}
  return Slices(listener, count, 0, max_context_tokens=32, vocab_size=CFG.vocab_size, **options)


def finish(sampler, limit_s=60):
  """{request: generation} once none is unfinished."""
  found, deadline = {}, time.monotonic() + limit_s
  while sampler.num_unfinished:
    assert time.monotonic() < deadline, sampler.describe()
    found |= dict(sampler.step())
  return found


def submit(sampler, prompts=PROMPTS):
  return [sampler.submit(p, SamplingLimits(6, (), seed=i)) for i, p in enumerate(prompts)]


def test_one_slice_in_a_deterministic_run_gives_what_an_engine_here_gives(listener):
  alone = engine(0)
  submit(alone)
  expected = finish(alone)
  come(listener)
  with joined(listener, 1) as sampler:
    sampler.wait_until_ready()
    submit(sampler)
    found = finish(sampler)
    stats = sampler.stats
  assert found.keys() == expected.keys()
  for i, generation in expected.items():
    for name in ("tokens", "logprobs", "versions", "routing"):
      assert getattr(found[i], name).tobytes() == getattr(generation, name).tobytes()
  assert stats == alone.stats


def test_new_weights_reach_sequences_that_run(listener):
  come(listener)
  with joined(listener, 1, deterministic=False) as sampler:
    sampler.wait_until_ready()
    request = sampler.submit(PROMPTS[0], SamplingLimits(25, (), seed=3))
    sampler.step()
    sampler.load(1)
    later = sampler.submit(PROMPTS[1], SamplingLimits(4, (), seed=3))
    found = finish(sampler)
  assert len(found[request].tokens) == 25
  assert sorted(found[request].versions) == list(found[request].versions)
  assert set(found[later].versions) == {1}


@pytest.mark.parametrize("deterministic", [False, True])
def test_what_a_slice_had_that_is_gone_another_does(listener, deterministic, capfd):
  connections = [come(listener), come(listener)]
  with joined(listener, 2, deterministic=deterministic) as sampler:
    sampler.wait_until_ready()
    ids = [sampler.submit(p, SamplingLimits(4 + 2 * i, (), seed=i)) for i, p in enumerate(PROMPTS)]
    found = dict(sampler.step())
    hang_up(connections[0])
    found |= finish(sampler)
    assert "1 slices" in sampler.describe()
  assert found.keys() == set(ids) and sampler.num_unfinished == 0
  assert "the sampler slice at 127.0.0.1:" in capfd.readouterr().err


def test_a_request_that_cannot_be_served_is_refused_here_and_one_cancelled_never_ends(listener):
  come(listener)
  with joined(listener, 1) as sampler:
    sampler.wait_until_ready()
    with pytest.raises(ValueError, match="leaves no room for a reply"):
      sampler.submit(np.ones(40, np.int32), SamplingLimits(4, ()))
    first, second = submit(sampler, PROMPTS[:2])
    sampler.cancel(first)
    assert set(finish(sampler)) == {second}


def test_without_slices_the_message_says_what_to_start(listener):
  with joined(listener, 1, start_deadline_s=0.3) as sampler:
    with pytest.raises(SlicesError, match=f"scripts/sampler.py --connect={listener.address}"):
      sampler.wait_until_ready()
