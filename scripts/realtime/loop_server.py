"""The real-time loop with a real policy, for tests that kill it: python loop_server.py FOLDER

FOLDER/start has the weights of version 0. Goes on with what FOLDER holds: serves users, trains on
what they say, gates and tries each version. Prints JSON: its address, then the beginning and the
end of each part. Adds a line to FOLDER/trained for each version that training returned.
"""

import asyncio
import contextlib
import json
import os
import pathlib
import sys
import time

import jax
import jax.numpy as jnp

sys.path.insert(0, str(pathlib.Path(__file__).parents[1]))
from realtime import world

from jaxrl_agents import chat as chat_lib
from jaxrl_agents.realtime.deployment import pointer
from jaxrl_agents.runs.realtime import Cycles
from jaxrl_agents.weights import store

SPEED = 300.0
"""Seconds of its clock in a second: the windows of feedback close after two seconds."""
QUESTIONS = 256
CALLS = 24
"""Fewest calls whose windows are over for a batch."""


def clock() -> float:
  """Seconds of the accelerated clock, which goes on while no process runs."""
  return SPEED * time.time()


def say(**what) -> None:
  """Prints a line of JSON."""
  print(json.dumps(what), flush=True)


@contextlib.contextmanager
def told(part: str):
  """Says when a part begins and ends."""
  say(began=part)
  yield
  say(ended=part)


async def cycle(cycles: Cycles, folder: pathlib.Path) -> None:
  """One training with its gate and its trial."""
  with told("train"):
    version, _ = await cycles.train()
    if version >= 0:
      with open(folder / "trained", "a", encoding="utf-8") as file:
        line = {"version": version, "digest": pointer(folder / "weights", version).digest}
        file.write(json.dumps(line) + "\n")
        file.flush()
        os.fsync(file.fileno())
  if version >= 0:
    with told("gate"):
      verdict = await cycles.gate(version)
      print(f"version {version}: {verdict.reasons or 'passed'}", file=sys.stderr, flush=True)
  with told("trial"):
    while True:
      await cycles.step()
      now = cycles.traffic.deployer.now
      if not now.trial or not now.stage:
        break
      await asyncio.sleep(0.05)


async def main() -> None:
  """Serves and learns until it is killed."""
  folder = pathlib.Path(sys.argv[1])
  params = jax.tree.map(jnp.asarray, store.fetch(folder / "start", 0))
  chat = chat_lib.load("base")
  async with world.serving(folder, chat, params, clock, questions=QUESTIONS) as (cycles, _, url):
    say(url=url)
    first, join = True, cycles.traffic.join
    while True:
      if first or len(join.closed(clock())) >= CALLS:
        await cycle(cycles, folder)  # at first: what the process before it did not finish
      first = False
      if join.calls and len(join.figures) < 3:
        await cycles.remember()
      await asyncio.sleep(0.05)


if __name__ == "__main__":
  asyncio.run(main())
