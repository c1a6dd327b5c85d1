"""Whatever a policy samples, an episode ends with a stop, an intact record and no exception."""

import asyncio
import json
import random

import numpy as np
import pytest

from jaxrl_agents.agents.search import env, reward
from jaxrl_agents.harness.rollout import Sampling, run_group
from jaxrl_agents.types import Generation
from tests.agents.search.arena import WORDS, make_task

STOPS = {"answer", "turn_limit", "context_overflow", "malformed"}
TOOLS = ["search_corpus", "grep_corpus", "read_document", "prune_chunks", "serch", ""]
KEYS = ["query", "pattern", "doc_id", "chunk_ids", "chunk_id", ""]
PATTERNS = ["(", "[a-", "(?P<", "\\", "{2}", "a{9999999}", "(?:", "\x00", ".*", "^", "part 1"]
EPISODES = 75  # of each kind


def random_text(draw):
  return "".join(
    chr(draw.choice([draw.randrange(32, 127), draw.randrange(0xD7FF)])) for _ in "x" * 9
  )


def random_value(draw, depth=0):
  kind = draw.randrange(9 if depth < 3 else 6)
  if kind >= 6:
    values = [random_value(draw, depth + 1) for _ in range(draw.randrange(4))]
    return values if kind < 8 else {random_text(draw): value for value in values}
  ids = [f"{100 + draw.randrange(13)}_{draw.randrange(7)}" for _ in range(draw.randrange(4))]
  simple = [draw.choice(PATTERNS), draw.choice(WORDS), ids, draw.random() * 1e300, None, True]
  return simple[kind]


def random_ids(draw, chat):
  """Any ids: control tokens as often as all others together."""
  n = draw.randrange(1, 40)
  return [draw.choice([draw.randrange(9), draw.randrange(chat.vocab_size)]) for _ in range(n)]


def random_bytes(draw, chat):
  raw = bytes(draw.randrange(256) for _ in range(draw.randrange(1, 60)))
  return [*chat.encode(raw.decode("utf-8", "replace")), *chat.stop_tokens]


def random_calls(draw, chat):
  """Calls that are well formed but for a cut, a missing end, a wrong name, key or value."""
  call, end = (chat.id_of(name) for name in ("<|call|>", "<|/call|>"))
  ids = []
  for _ in range(draw.randrange(1, 4)):
    arguments = {draw.choice(KEYS): random_value(draw) for _ in range(draw.choice([0, 1, 1, 1, 2]))}
    text = draw.choice(TOOLS) + json.dumps(arguments)
    if draw.random() < 0.2:
      text = text[: draw.randrange(len(text) + 1)]
    ids += [call, *chat.encode(text), *([end] if draw.random() < 0.9 else [])]
  return ids + (list(chat.stop_tokens) if draw.random() < 0.9 else [])


def random_answer(draw, chat):
  ids = "".join(
    f"<Document id={draw.choice(['100_0', '1_1', '', '<', random_text(draw)])}>" for _ in "ab"
  )
  return [*chat.encode(ids), *chat.stop_tokens]


KINDS = {
  "token ids": [random_ids],
  "bytes": [random_bytes, random_calls],
  "calls": [random_calls],
  "everything": [random_ids, random_calls, random_calls, random_calls, random_answer],
}


class RandomSampler:
  """Samples a random reply; the routing of every row is its position."""

  def __init__(self, chat, makers):
    self._chat, self._makers = chat, makers

  async def generate(self, prompt, limits):
    draw = random.Random(limits.seed)
    ids = draw.choice(self._makers)(draw, self._chat)[: limits.max_new_tokens]
    n, rows = len(ids), len(prompt) + len(ids)
    places = np.arange(limits.routed_tokens, rows, dtype=np.uint16)
    routing = np.tile(places[:, None, None], (1, 2, 2))
    stop = "stop" if ids[-1] in limits.stop_tokens else "length"
    return Generation(
      np.asarray(ids, np.int32), np.full(n, -1, np.float32), np.full(n, 5, np.int32), routing, stop
    )


@pytest.mark.parametrize("kind", KINDS)
def test_random_replies_never_break_an_episode(limited, kind):
  services = limited(
    token_budget=480, threshold_tokens=200, tool_output_tokens=120, tool_deadline_s=1.0, max_turns=7
  )
  group = asyncio.run(
    run_group(
      lambda task, seed, sampler: (env.make(task, services), sampler),
      make_task(),
      EPISODES,
      chat=services.chat,
      sampler=RandomSampler(services.chat, KINDS[kind]),
      sampling=Sampling(seed=11, max_new_tokens=100),
    )
  )
  assert [t.error for t in group.trajectories] == [""] * EPISODES
  for trajectory in group.trajectories:
    assert trajectory.stop in STOPS
    assert 0 <= reward.search_total(trajectory.rewards, beta=4.0) <= 2.0
    assert all(np.isfinite(value) for value in trajectory.rewards.values())
    replies = [m.tokens for m in trajectory.log if m.role == "assistant"]
    trained = [s.tokens[s.loss_mask] for s in trajectory.segments]
    np.testing.assert_array_equal(np.concatenate(replies), np.concatenate(trained))
    for segment in trajectory.segments:
      assert len(segment.tokens) <= 480
      np.testing.assert_array_equal(segment.routing[:, 0, 0], np.arange(len(segment.tokens)))


def test_the_same_seed_plays_the_same_group_again(limited):
  services = limited(token_budget=480, threshold_tokens=200, tool_output_tokens=120)

  def play_once(seed):
    group = asyncio.run(
      run_group(
        lambda task, _, sampler: (env.make(task, services), sampler),
        make_task(),
        4,
        chat=services.chat,
        sampler=RandomSampler(services.chat, [random_calls]),
        sampling=Sampling(seed=seed, max_new_tokens=100),
      )
    )
    return [[m.content for m in t.log] + [t.stop] for t in group.trajectories]

  assert play_once(1) == play_once(1)
  assert play_once(1) != play_once(2)
