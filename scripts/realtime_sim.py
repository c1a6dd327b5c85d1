"""The real-time loop with simulated users: what it learns, refuses, takes back, and survives.

    python scripts/realtime_sim.py --json=FILE

A small policy is served by two engines behind the gateway, and trained by the learner on what users
say of it. Users are a process of their own with the `openai` client (scripts/realtime/users.py):
hidden preferences that change at a set time, feedback that is late and biased, adversaries.

Prints: `gained` (mean preference over the start), `lost` (what a change of preferences costs),
`won_back` (how much of that the policy regains) and `regained` (the share), with --control also
`attainable` (what a policy reaches that learns from the changed users from the start) and the share
of that; planted regressions and harmless updates that the gate refused; sessions until a roll-back
and the share of users that were exposed; how far adversaries moved the trained reward; and what was
lost or doubled when a server with a scripted policy, and one with the whole loop, were killed. Of
several seeds it prints means, the least, the most and the lower 95 % bound; shares are then those
of the means.
"""

import asyncio
import json
import pathlib
import statistics
import tempfile
import time
from collections.abc import Sequence

import jax
import numpy as np
from absl import flags
from realtime import crashes, loop_kills, rollbacks, small_policy, world
from realtime.world import AFTER, BEFORE, World
from scipy import stats

from jaxrl_agents import chat as chat_lib
from jaxrl_agents.realtime import advantage
from jaxrl_agents.realtime.arms import CANARY, STABLE, user_hash
from jaxrl_agents.realtime.traffic import Traffic
from jaxrl_agents.runs import entry_point

_SEEDS = flags.DEFINE_integer("seeds", 1, "whole simulations")
_CYCLES = flags.DEFINE_integer("cycles", 6, "before preferences change, and as many after")
_SESSIONS = flags.DEFINE_integer("sessions", 240, "sessions of a cycle")
_USERS = flags.DEFINE_integer("users", 180, "honest ones; a ninth as many are adversaries")
_CONTROL = flags.DEFINE_bool("control", False, "also learn from the changed users alone")
_PLANTS = flags.DEFINE_integer("plants", 50, "regressions, and as many harmless updates")
_ROLLBACKS = flags.DEFINE_integer("rollbacks", 50, "candidates that passed the gate but are worse")
_KILLS = flags.DEFINE_integer("kills", 20, "times that a scripted server is killed with kill -9")
_LOOP_KILLS = flags.DEFINE_integer("loop_kills", 4, "times that the whole loop is killed", 0)
_JSON = flags.DEFINE_string("json", None, "also write the figures to this file")


def movement(traffic: Traffic, number: int) -> float:
  """By how much adversaries moved the trained reward of a batch, as a share of its range."""
  join = traffic.join
  key = traffic.user_key
  bad = {user_hash(f"bad {i}", key) for i in range(_USERS.value)}
  batch = [join.calls[name] for name in join.batches[number]]
  none = advantage.Baseline((), np.zeros(1))
  mean = lambda rows: advantage.samples(rows, join.kinds, none, most_per_user=16)[1]["reward"]
  spread = [k.weight * (k.high - k.low) for k in join.kinds.values()]
  honest = [each for each in batch if each.call.user not in bad]
  return abs(mean(batch) - mean(honest)) / (sum(map(abs, spread)) + 0.5)


async def cycle(at: World, preference) -> dict[str, float]:
  """Traffic in three rounds, in which a candidate reaches all users; then training and the gate."""
  counts: dict[str, float] = {}
  for _ in range(3):
    told = await at.play(_SESSIONS.value // 3, preference)
    counts = {name: counts.get(name, 0) + told.get(name, 0) for name in counts | told}
  for _ in range(3):  # by chance nobody may have been in the canary
    if at.cycles.traffic.deployer.now.trial:
      await at.play(_SESSIONS.value // 3, preference)
  found = {"preference": counts["liked"] / counts["honest"], **counts}
  version, metrics = await at.cycles.train()
  if version >= 0:
    verdict = await at.cycles.gate(version)
    found |= {"passed": float(verdict.passed), **metrics}
    found["movement"] = movement(at.cycles.traffic, max(at.cycles.traffic.join.batches))
    for reason in verdict.reasons:
      print(f"  refused: {reason}", flush=True)
  return found


async def learned(at: World) -> dict[str, float]:
  """Cycles before and after the change of preferences."""
  rows = []
  await at.play(_SESSIONS.value // 3, BEFORE)
  for _ in range(5):
    await at.cycles.remember()
  stable = at.samplers[STABLE]
  start = await world.preferred(at.chat, stable, BEFORE, 0)
  for preference in (BEFORE, AFTER):
    if preference is AFTER:
      adapted = await world.preferred(at.chat, stable, BEFORE, 1)
      frozen = await world.preferred(at.chat, stable, AFTER, 2)
    for number in range(_CYCLES.value):
      rows.append(await cycle(at, preference))
      row = rows[-1]
      now = at.cycles.traffic.deployer.now
      print(
        f"cycle {number}: preference {row['preference']:.3f}, stable v{now.stable.version}, "
        + ", ".join(
          f"{k} {row[k]:.3g}" for k in ("reward", "entropy", "gap_p99", "movement") if k in row
        ),
        flush=True,
      )
  after = await world.preferred(at.chat, stable, AFTER, 3)
  return {
    "start": start,
    "adapted": adapted,
    "gained": adapted - start,
    "frozen_after_drift": frozen,
    "after_drift": after,
    "lost": adapted - frozen,
    "won_back": after - frozen,
    "adversaries_moved_reward": max(row.get("movement", 0.0) for row in rows),
    "updates_refused": sum(1 - row.get("passed", 1.0) for row in rows),
    "foreign_events_refused": sum(
      row.get("status 401", 0) + row.get("status 403", 0) for row in rows
    ),
    "deployments": float(len(at.cycles.traffic.deployer.now.history) - 1),
  }


async def attained(at: World) -> float:
  """The preference that a policy reaches which learns from the changed users from the start."""
  await at.play(_SESSIONS.value // 3, AFTER)
  for _ in range(5):
    await at.cycles.remember()
  for number in range(_CYCLES.value):
    row = await cycle(at, AFTER)
    print(f"control, cycle {number}: preference {row['preference']:.3f}", flush=True)
  return await world.preferred(at.chat, at.samplers[STABLE], AFTER, 3)


async def gated(at: World, params) -> dict[str, float]:
  """What the gate says of planted regressions, and of harmless updates."""
  cfg, plants = small_policy.config(at.chat), small_policy.PLANTS
  found: dict[str, list[bool]] = {}
  number = at.samplers[CANARY].version

  async def refused(name: str, changed) -> None:
    nonlocal number
    number += 1
    await at.samplers[CANARY].set_params(changed, number)
    verdict, _ = await at.cycles.verdict(at.samplers[CANARY])
    found.setdefault(name, []).append(not verdict.passed)
    if name != "harmless" and verdict.passed:
      print(f"  {name}, and passed: {verdict.gains['evaluation']}", flush=True)
    if name == "harmless" and not verdict.passed:
      print(f"  harmless, and refused: {verdict.reasons[0]}", flush=True)

  worst = {p.name: small_policy.planted(params, cfg, at.chat, p, 0) for p in plants}
  for i in range(_PLANTS.value):
    plant = plants[i % len(plants)]
    strength = 1.0 - 0.05 * (i // len(plants))
    mixed = jax.tree.map(lambda a, b, s=strength: a + s * (b - a), params, worst[plant.name])
    await refused(plant.name, mixed)
    changed = small_policy.planted(params, cfg, at.chat, small_policy.HARMLESS, i)
    await refused("harmless", changed)
  shares = {name: statistics.mean(map(float, each)) for name, each in found.items()}
  print("refused", {name: round(share, 3) for name, share in shares.items()}, flush=True)
  rows = [each for name, each in found.items() if name != "harmless"]
  return {
    "planted": float(sum(map(len, rows))),
    "planted_refused": float(sum(map(sum, rows))),
    "harmless_refused_share": shares["harmless"],
  }


async def simulated(seed: int) -> dict[str, float]:
  """One simulation with the learner."""
  chat = chat_lib.load("base")
  began = time.monotonic()
  params = small_policy.start(small_policy.config(chat), chat, seed=seed)
  print(f"seed {seed}: warm start {time.monotonic() - began:.0f} s", flush=True)
  sizes = {"users": _USERS.value, "adversaries": _USERS.value // 9, "seed": seed}
  with tempfile.TemporaryDirectory() as folder:
    async with world.opened(pathlib.Path(folder), chat, params, **sizes) as at:
      found = await learned(at)
      if not seed and _PLANTS.value:
        served = at.cycles.traffic.deployer.now.stable.version
        found |= await gated(at, at.cycles.fetched(served))
  if _CONTROL.value:
    with tempfile.TemporaryDirectory() as folder:
      async with world.opened(pathlib.Path(folder), chat, params, **sizes) as at:
        found["attainable"] = await attained(at)
    found["attainable_gain"] = found["attainable"] - found["frozen_after_drift"]
  return found


def lower95(values: Sequence[float]) -> float:
  """Lower end of the two-sided 95 % interval of the mean of several seeds, by Student's t."""
  error = statistics.stdev(values) / len(values) ** 0.5
  return statistics.mean(values) - float(stats.t.ppf(0.975, len(values) - 1)) * error


def main() -> None:
  """Runs all parts and prints their figures."""
  found: dict[str, float] = {}
  if _KILLS.value:
    found |= crashes.measured(_KILLS.value)
  if _LOOP_KILLS.value:
    found |= loop_kills.measured(_LOOP_KILLS.value)
  if _ROLLBACKS.value:
    found |= rollbacks.measured(_ROLLBACKS.value)
  runs = [asyncio.run(simulated(seed)) for seed in range(_SEEDS.value)]
  for name in runs[0] if runs else ():
    values = [run[name] for run in runs if name in run]
    found[name] = statistics.mean(values)
    if len(values) > 1:
      found[f"{name}_least"], found[f"{name}_most"] = min(values), max(values)
      found[f"{name}_lower95"] = lower95(values)
  for share, of in (("regained", "lost"), ("regained_of_attainable", "attainable_gain")):
    if found.get(of, 0.0) > 0.0:
      found[share] = found["won_back"] / found[of]
  for name, value in found.items():
    print(f"{name:32} {value:,.3f}")
  if _JSON.value:
    pathlib.Path(_JSON.value).write_text(json.dumps(found, indent=2) + "\n")


if __name__ == "__main__":
  entry_point.run(main)
