"""Some of the random histories of which scripts/fuzz_gateway.py plays thousands."""

import asyncio
import dataclasses

import pytest

from tests.gateway import histories


@pytest.fixture(scope="module")
def chats(tmp_path_factory):
  return histories.chats(tmp_path_factory.mktemp("chats"))


@pytest.mark.parametrize("name", ["own", "qwen3", "kimi_k2", "harmony"])
def test_in_random_histories_every_sampled_token_is_trained_once_in_its_own_context(name, chats):
  async def checked():
    found = []
    for seed in range(20):
      found += histories.problems(await histories.play(seed, chats[name]))
    return found

  assert asyncio.run(checked()) == []


def test_what_is_wrong_with_a_trajectory_is_found(chats):
  async def played():
    one = await histories.play(1, chats["own"])
    assert not histories.problems(one)
    first, *rest = one.trajectory.segments
    tokens, mask = first.tokens.copy(), first.loss_mask.copy()
    tokens[0] += 1  # another context
    mask[0] = True
    left = lambda *segments: dataclasses.replace(
      one, trajectory=dataclasses.replace(one.trajectory, segments=segments)
    )
    change = lambda **changes: left(dataclasses.replace(first, **changes), *rest)
    broken = [
      left(*rest),
      left(first, first, *rest),
      change(tokens=tokens),
      change(loss_mask=mask),
      change(logprobs=first.logprobs - 1),
      change(versions=first.versions + 1),
    ]
    return [histories.problems(each) for each in broken]

  missing, twice, moved, masked, logprobs, versions = asyncio.run(played())
  assert missing and all("not trained" in each for each in missing)
  assert twice and all("is trained 2 times, not 1" in each for each in twice)
  for found in (moved, masked, logprobs, versions):
    assert "a token is trained that was never sampled so" in found
