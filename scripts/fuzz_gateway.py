"""Plays random histories of agents through sessions of the gateway, and checks what they leave.

    python scripts/fuzz_gateway.py --histories=10000 --json=FILE
    python scripts/fuzz_gateway.py --histories=300 --canary --json=FILE

Every history is one session of an agent that speaks the chat, messages or responses dialect in one
of the four chat formats. It edits, prunes, forks and compacts its history, drops thoughts, writes
arguments anew, loses replies, repeats requests, and has several under way. Each sampled token that
it got must be trained once, under the ids that it was sampled after; a history that goes on must
begin with the ids of its last reply. Replies are scripted; broken ones and random ids among them.

With --canary a small mixture of experts samples the replies in a real engine, and the learner
scores what would be trained, with prefixes shared and not; the differences of log-probabilities
must stay within the bound of `learner.canary_bound`. Ends with 1 if anything is wrong, and prints
the seeds.
"""

import asyncio
import collections
import json
import pathlib
import sys
import tempfile
import time

import jax
from absl import flags

from jaxrl_agents import chat as chat_lib
from jaxrl_agents.config.sections import LearnerConfig
from jaxrl_agents.learner import canary, packing, train_step
from jaxrl_agents.learner.advantage import Rollout
from jaxrl_agents.policy import params as params_lib
from jaxrl_agents.policy.config import PolicyConfig
from jaxrl_agents.runs import entry_point
from jaxrl_agents.runs.serving import EngineSampler
from jaxrl_agents.sampler.engine import Engine

_HISTORIES = flags.DEFINE_integer("histories", 10_000, "sessions to play")
_SEED = flags.DEFINE_integer("seed", 0, "of the first session; the others count on")
_CANARY = flags.DEFINE_bool("canary", False, "sample with an engine, and score with the learner")
_JSON = flags.DEFINE_string("json", None, "also write the figures to this file")

ROOT = pathlib.Path(__file__).parents[1]
BATCH = 20
"""Histories of which the learner scores the segments at once."""


class Found:
  """Counts and problems of the histories that were played."""

  def __init__(self):
    self.counts, self.problems = collections.Counter(), []

  def add(self, seed, played, problems):
    """Counts one history; names its seed if something is wrong."""
    self.counts += played.counts + collections.Counter(calls=len(played.session.tree.calls))
    self.problems += [f"seed {seed}: {problem}" for problem in problems]


async def scripted(histories, found: Found) -> None:
  """Plays all, the formats in turns."""
  with tempfile.TemporaryDirectory() as folder:
    chats = list(histories.chats(folder).values())
  for seed in range(_SEED.value, _SEED.value + _HISTORIES.value):
    played = await histories.play(seed, chats[seed % len(chats)])
    found.add(seed, played, histories.problems(played))


async def sampled(histories, found: Found) -> dict[str, float]:
  """Plays all with a real engine; returns how far the learner is from the sampler."""
  chat = chat_lib.load("base")
  cfg = PolicyConfig(
    vocab_size=chat.vocab_size,
    embed_dim=32,
    num_layers=2,
    num_heads=2,
    num_kv_heads=1,
    head_dim=16,
    num_experts=4,
    experts_per_token=2,
    expert_ffw_dim=16,
  )
  params = params_lib.init(cfg, jax.random.key(_SEED.value))
  sizes = {"slots": 8, "page_tokens": 16, "num_pages": 1_200, "prefill_tokens": 64}
  engine = Engine(cfg, params, version=0, max_context_tokens=histories.CONTEXT_TOKENS, **sizes)
  engine.warm_up()
  gaps, segments = {}, []
  with EngineSampler(engine, asyncio.get_running_loop()).running() as sampler:
    for i in range(_HISTORIES.value):
      seed = _SEED.value + i
      played = await histories.play(seed, chat, sampler)
      found.add(seed, played, histories.problems(played))
      segments += played.trajectory.segments
      if (i + 1) % BATCH == 0 or i + 1 == _HISTORIES.value:
        for name, gap in scored(cfg, params, segments, histories.CONTEXT_TOKENS).items():
          gaps[name] = max(gap, gaps.get(name, 0.0))
        segments = []
  return gaps


def scored(cfg: PolicyConfig, params, segments, row_tokens: int) -> dict[str, float]:
  """The largest p99 and maximum of |log pi - log mu|, with prefixes shared and not."""
  found = {}
  for shared in (False, True):
    batches = packing.pack(
      [Rollout((segment,)) for segment in segments],
      row_tokens=row_tokens,
      rows_per_microbatch=1,
      share_prefixes=shared,
    )
    objective = train_step.Objective("rl")
    scores = [train_step.recompute_logprobs(params, b, cfg, objective) for b in batches]
    gap = train_step.logprob_gap(scores, batches)
    canary.check(gap, bound=LearnerConfig().canary_bound, version=0)
    name = "shared_prefixes" if shared else "rows"
    found |= {f"gap_p99_{name}": gap["gap_p99"], f"gap_max_{name}": gap["gap_max"]}
  return found


def main() -> None:
  """Plays, prints the figures."""
  sys.path.insert(0, str(ROOT))
  from tests.gateway import histories

  began, found, gaps = time.monotonic(), Found(), {}
  try:
    if _CANARY.value:
      gaps = asyncio.run(sampled(histories, found))
    else:
      asyncio.run(scripted(histories, found))
  except canary.CanaryError as error:
    found.problems.append(str(error))
  figures = {
    "histories": _HISTORIES.value,
    **dict(sorted(found.counts.items())),
    **gaps,
    "problems": found.problems,
    "seconds": round(time.monotonic() - began, 1),
  }
  print(json.dumps(figures, indent=2))
  if _JSON.value:
    pathlib.Path(_JSON.value).write_text(json.dumps(figures, indent=2) + "\n")
  sys.exit(bool(found.problems))


if __name__ == "__main__":
  entry_point.run(main)
