"""Replies of rollouts that are played again: found by all that decides them, not by less."""

import dataclasses

import numpy as np
import pytest

from jaxrl_agents import full_disk
from jaxrl_agents.fleet import replies as replies_lib
from jaxrl_agents.fleet.replies import Replies
from jaxrl_agents.types import Generation, SamplingLimits
from tests.file_limits import no_file_beyond

LIMITS = SamplingLimits(8, (3, 4), seed=5)
PROMPT = np.asarray([7, 8, 9], np.int32)
G = "step 0 1"


def reply(*tokens, version=0, routing=True):
  n = len(tokens)
  return Generation(
    np.asarray(tokens, np.int32),
    -np.arange(n, dtype=np.float32) / 3,
    np.full(n, version, np.int32),
    np.arange(2 * n, dtype=np.uint16).reshape(n, 2, 1) if routing else None,
    "stop",
    began=version,
  )


def same(a, b):
  pairs = [(getattr(a, f.name), getattr(b, f.name)) for f in dataclasses.fields(Generation)]
  return all(x is y if x is None or y is None else np.array_equal(x, y) for x, y in pairs)


def opened(path, newest=9, is_wanted=lambda group: True):
  return Replies(path, newest, is_wanted)


@pytest.mark.parametrize("routing", [True, False])
def test_a_reply_comes_back_bit_by_bit_in_this_process_and_the_next(tmp_path, routing):
  path, sampled = tmp_path / "replies.log", reply(1, 2, 3, version=2, routing=routing)
  with opened(path) as replies:
    replies.sampled(G, PROMPT, LIMITS, sampled)
    assert same(replies.find(G, PROMPT, LIMITS), sampled)
  with opened(path) as replies:
    assert same(replies.find(G, PROMPT.copy(), LIMITS), sampled)
    assert replies.take_found() == 1 and replies.take_found() == 0


def test_replies_of_discarded_versions_never_come_back_when_their_numbers_do(tmp_path):
  path, old = tmp_path / "replies.log", reply(1, version=2)
  with opened(path) as replies:
    replies.sampled(G, PROMPT, LIMITS, reply(2, version=6))
    replies.sampled("step 0 2", PROMPT, LIMITS, old)
  for newest in (4, 6):  # resumed from version 4, and later from another version 6
    with opened(path, newest) as replies:
      assert replies.find(G, PROMPT, LIMITS) is None
      assert same(replies.find("step 0 2", PROMPT, LIMITS), old)


def test_another_group_prompt_seed_or_limit_is_sampled(tmp_path):
  with opened(tmp_path / "replies.log") as replies:
    replies.sampled(G, PROMPT, LIMITS, reply(1))
    assert replies.find("step 0 2", PROMPT, LIMITS) is None
    assert replies.find(G, PROMPT[:2], LIMITS) is None
    for change in (
      {"seed": 6},
      {"max_new_tokens": 7},
      {"stop_tokens": (3,)},
      {"temperature": 0.5},
      {"top_p": 0.9},
      {"routed_tokens": 1},
    ):
      assert replies.find(G, PROMPT, dataclasses.replace(LIMITS, **change)) is None


def test_replies_of_later_weights_than_the_checkpoints_are_not_used(tmp_path):
  path, other = tmp_path / "replies.log", dataclasses.replace(LIMITS, seed=6)
  with opened(path) as replies:
    replies.sampled(G, PROMPT, LIMITS, reply(1, version=3))
    replies.sampled(G, PROMPT, other, reply(1, version=4))
    replies.sampled("step 9 0", PROMPT, LIMITS, reply(1))
  with opened(path, newest=3, is_wanted=lambda group: group == G) as replies:
    assert replies.find(G, PROMPT, LIMITS) and not replies.find(G, PROMPT, other)
    assert replies.find("step 9 0", PROMPT, LIMITS) is None


def test_replies_of_groups_that_ended_are_forgotten_and_the_file_shrinks(tmp_path, monkeypatch):
  monkeypatch.setattr(replies_lib, "_ROOM_BYTES", 1 << 10)
  path = tmp_path / "replies.log"
  with opened(path) as replies:
    for group in (G, *(f"step 1 {place}" for place in range(20))):
      replies.sampled(group, PROMPT, LIMITS, reply(*range(50)))
    grown = path.stat().st_size
    replies.shrink()
    assert path.stat().st_size == grown  # all of it is needed
    for place in range(20):
      replies.ended(f"step 1 {place}")
    assert replies.find("step 1 3", PROMPT, LIMITS) is None
    replies.shrink()
    assert path.stat().st_size < grown / 15
    assert same(replies.find(G, PROMPT, LIMITS), reply(*range(50)))
    replies.sampled(G, PROMPT[:1], LIMITS, reply(4))
  with opened(path) as replies:
    assert replies.find(G, PROMPT, LIMITS) and replies.find(G, PROMPT[:1], LIMITS)


def test_a_damaged_file_is_named_and_begun_anew(tmp_path, capfd):
  path = tmp_path / "replies.log"
  with opened(path) as replies:
    replies.sampled(G, PROMPT, LIMITS, reply(1))
    replies.sampled(G, PROMPT[:1], LIMITS, reply(1))
  path.write_bytes(path.read_bytes().replace(b'"began":0', b'"began":1', 1))
  with opened(path) as replies:
    assert replies.find(G, PROMPT, LIMITS) is None
  assert "unfinished rollouts are sampled again" in capfd.readouterr().err


def test_a_full_disk_is_named_and_loses_no_reply(tmp_path, monkeypatch):
  monkeypatch.setattr(replies_lib, "_ROOM_BYTES", 0)
  path = tmp_path / "replies.log"
  with opened(path) as replies:
    replies.sampled(G, PROMPT, LIMITS, reply(*range(50)))
    before = path.read_bytes()
    with no_file_beyond(len(before) + 20):
      with pytest.raises(full_disk.FullDiskError, match=r"replies\.log could not be written"):
        replies.sampled(G, PROMPT[:1], LIMITS, reply(4))
    assert path.read_bytes() == before and replies.find(G, PROMPT[:1], LIMITS) is None
    for _ in range(3):
      replies.sampled("step 1 0", PROMPT, LIMITS, reply(*range(50)))
    replies.ended("step 1 0")
    with no_file_beyond(100), pytest.raises(full_disk.FullDiskError):
      replies.shrink()
    assert [each.name for each in tmp_path.iterdir()] == ["replies.log"]
    replies.shrink()
    assert path.stat().st_size == len(before)
    assert same(replies.find(G, PROMPT, LIMITS), reply(*range(50)))


def test_a_file_that_cannot_even_begin_on_a_full_disk_is_named(tmp_path):
  with no_file_beyond(4), pytest.raises(full_disk.FullDiskError, match=r"replies\.log could not"):
    opened(tmp_path / "replies.log")
  with opened(tmp_path / "replies.log") as replies:  # once there is room
    replies.sampled(G, PROMPT, LIMITS, reply(1))
