"""What drafts are worth: the replies of a run sampled again, with each drafter and without.

    python scripts/quickstart.py --workdir=W
    python scripts/bench_drafts.py --config=configs/search_cpu.py --workdir=W

The work: prompts that a run's evaluation recorded, from which its policy samples replies as the
recipe does, --batches at once in an engine of so many slots. All drafters answer the same requests,
in turns in one process; the median of --repeats counts. A call before them fills the cache of
prefixes, so nearly all of the time is decoding. Passes are those of the decode steps.
Replies are the same ids whoever drafts, but for rounding: their share is printed. With --always
every step drafts that can; without, those where the engine expects it to be faster.
"""

from __future__ import annotations

import json
import os
import pathlib
import statistics
import time

import numpy as np
from absl import flags

from jaxrl_agents.config import RunConfig
from jaxrl_agents.harness.group_files import load_groups
from jaxrl_agents.runs import agent_setting, config_flags, entry_point, evaluation, setup
from jaxrl_agents.sampler.engine import Engine
from jaxrl_agents.types import Generation, SamplingLimits

_config = config_flags.define()
_WORKDIR = flags.DEFINE_string("workdir", None, "A finished run.", required=True)
_BATCHES = flags.DEFINE_list("batches", ["1", "2", "4"], "Sequences at once.")
_REPLIES = flags.DEFINE_integer("replies", 24, "Replies of a call.", lower_bound=1)
_REPEATS = flags.DEFINE_integer("repeats", 3, "Timed calls; the median counts.", lower_bound=1)
_ALWAYS = flags.DEFINE_bool("always", False, "Draft in every step, whatever it costs.")
_DRAFTERS = flags.DEFINE_list(
  "drafters", ["0:0", "0:3", "1:0", "1:3"], "Drafts of the modules:drafts of prompt lookup."
)


def prompts_of(workdir: pathlib.Path, count: int) -> list[np.ndarray]:
  """Prompts of replies that the evaluation of a run recorded, evenly from all its episodes."""
  found = []
  for group in load_groups(workdir / "trajectories" / "eval_trained.npz"):
    for trajectory in group.trajectories:
      for segment in trajectory.segments:
        starts = np.nonzero(np.diff(segment.loss_mask.astype(np.int8)) == 1)[0] + 1
        found += [segment.tokens[:start] for start in starts]
  if len(found) < count:
    raise ValueError(f"{workdir} has {len(found)} replies; give --replies={len(found)} or fewer")
  return [found[i] for i in np.linspace(0, len(found) - 1, count).astype(int)]


def sample(
  engine: Engine, prompts: list[np.ndarray], config: RunConfig, stop_tokens: tuple[int, ...]
) -> list[Generation]:
  """The replies to all prompts."""
  ids = {}
  for seed, prompt in enumerate(prompts):
    limits = SamplingLimits(
      config.agent_config.max_new_tokens,
      stop_tokens,
      temperature=config.sampler.temperature,
      seed=seed,
    )
    ids[engine.submit(prompt, limits)] = seed
  replies = {}
  while engine.num_unfinished:
    for request, reply in engine.step():
      if not isinstance(reply, Generation):
        raise RuntimeError(reply.text)
      replies[ids[request]] = reply
  return [replies[seed] for seed in range(len(prompts))]


def measure(config: RunConfig, params, prompts, batch: int, stop_tokens: tuple[int, ...]) -> None:
  """Prints a JSON line for each drafter."""
  engines, rows = {}, {}
  for name in _DRAFTERS.value:
    modules, lookup = map(int, name.split(":"))
    context = config.agent_config.token_budget
    engine = Engine(
      config.policy.model,
      params,
      version=0,
      slots=batch,
      page_tokens=config.sampler.page_tokens,
      num_pages=2 + (batch + len(prompts)) * (context // config.sampler.page_tokens + 2),
      max_context_tokens=context,
      prefill_tokens=config.sampler.prefill_tokens,
      draft_tokens=modules,
      lookup_tokens=lookup,
      draft_cost=-1.0 if _ALWAYS.value else None,
    )
    start = time.perf_counter()
    engine.warm_up()
    rows[name] = {"warm_up_s": time.perf_counter() - start, "seconds": []}
    engines[name] = engine
  for repeat in range(_REPEATS.value + 1):
    for name, engine in engines.items():
      before = vars(engine.stats).copy()
      start = time.perf_counter()
      replies = sample(engine, prompts, config, stop_tokens)
      seconds = time.perf_counter() - start
      if repeat == 0:  # the caches of prefixes fill
        continue
      stats = {key: value - before[key] for key, value in vars(engine.stats).items()}
      rows[name]["seconds"].append(seconds)
      rows[name]["stats"], rows[name]["replies"] = stats, replies
  plain = rows[_DRAFTERS.value[0]]
  for name, row in rows.items():
    stats = row["stats"]
    same = [
      np.array_equal(a.tokens, b.tokens)
      for a, b in zip(row["replies"], plain["replies"], strict=True)
    ]
    print(
      json.dumps(
        {
          "batch": batch,
          "drafters": name,
          "tokens": stats["tokens"],
          "median_s": round(statistics.median(row["seconds"]), 3),
          "passes": stats["decode_steps"],
          "tokens_per_row_and_step": round(1 + stats["accepted"] / stats["decoded_rows"], 3),
          "acceptance": round(stats["accepted"] / max(stats["drafted"], 1), 3),
          "drafted": stats["drafted"],
          "times_faster": round(
            statistics.median(plain["seconds"]) / statistics.median(row["seconds"]), 3
          ),
          "times_fewer_passes": round(plain["stats"]["decode_steps"] / stats["decode_steps"], 3),
          "same_replies": sum(same) / len(same),
          "warm_up_s": round(row["warm_up_s"], 1),
          "load1": round(os.getloadavg()[0], 2),
        }
      ),
      flush=True,
    )


def main() -> None:
  """Measures each batch."""
  config = _config()
  setup.compilation_cache(config)
  workdir = pathlib.Path(_WORKDIR.value)
  stop_tokens = agent_setting.load_chat(config).stop_tokens
  with setup.devices(config):
    params = setup.loaded(config, str(evaluation.newest_policy(_WORKDIR.value)))
    prompts = prompts_of(workdir, _REPLIES.value)
    for batch in map(int, _BATCHES.value):
      measure(config, params, prompts, batch, stop_tokens)


if __name__ == "__main__":
  entry_point.run(main)
