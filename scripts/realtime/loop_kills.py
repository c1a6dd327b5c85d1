"""Kills the real-time loop with kill -9, again and again, in each of its parts."""

import collections
import json
import os
import pathlib
import random
import signal
import subprocess
import sys
import tempfile
import threading
import time

import jax
from realtime import crashes, small_policy

from jaxrl_agents import chat as chat_lib
from jaxrl_agents import record_log
from jaxrl_agents.realtime import feedback
from jaxrl_agents.realtime.deployment import Deployer
from jaxrl_agents.weights import store

START, PARTS = "start", ("train", "gate", "trial")
START_S, PART_S = 180.0, 60.0
PAUSE_S = 0.05
"""Between two sessions, so that the log does not grow so large that it is slow to read."""


class Killed:
  """One process of the loop, and the part in which it is killed: a random moment of that.

  Args:
    folder: of the loop.
    part: START, or one of PARTS.
    lasts: {part: the seconds that it took the last time}; what ends is added.
    share: of the part that passes before the process is killed.
  """

  def __init__(self, folder: pathlib.Path, part: str, lasts: dict[str, float], share: float):
    server = pathlib.Path(__file__).with_name("loop_server.py")
    self._began_s = time.monotonic()
    compiled = {
      "JAX_COMPILATION_CACHE_DIR": str(folder / "compiled"),
      "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
    }
    self.process = subprocess.Popen(
      [sys.executable, str(server), str(folder)],
      stdout=subprocess.PIPE,
      text=True,
      env={**os.environ, **compiled},
    )
    self._part, self._lasts, self._share = part, lasts, share
    self.url, self.died_in = "", START
    self._listening = threading.Event()
    self._reader = threading.Thread(target=self._read)
    self._reader.start()
    if part == START:
      self._kill_in(START)

  def served(self) -> str:
    """The address, once there is one; "" if the process was killed before."""
    if not self._listening.wait(START_S):
      self.process.kill()
      raise RuntimeError(f"the loop did not start within {START_S:.0f} s; see its errors above")
    if self._part in PARTS:
      self._timer(PART_S)  # if its part does not come
    return self.url

  def ended(self) -> None:
    """Waits for the end.

    Raises:
      RuntimeError: the process ended by itself.
    """
    self.process.wait(START_S + PART_S)
    self._reader.join(10)
    if self.process.returncode != -signal.SIGKILL:
      raise RuntimeError(f"the loop ended by itself in {self.died_in}; see its errors above")

  def _read(self) -> None:
    assert self.process.stdout
    began_s, armed = self._began_s, False
    for line in self.process.stdout:
      told, now_s = json.loads(line), time.monotonic()
      if "url" in told:
        self._lasts[START] = now_s - self._began_s
        self.url, self.died_in = told["url"], "between parts"
        self._listening.set()
      elif "began" in told:
        self.died_in, began_s = told["began"], now_s
        if told["began"] == self._part and not armed:
          armed = True
          self._kill_in(self._part)
      else:
        self.died_in = "between parts"
        self._lasts[told["ended"]] = now_s - began_s
    self._listening.set()  # also when it was killed before it served

  def _kill_in(self, part: str) -> None:
    self._timer(self._share * self._lasts.get(part, 2.0))

  def _timer(self, after_s: float) -> None:
    timer = threading.Timer(after_s, self.process.kill)
    timer.daemon = True
    timer.start()


def measured(kills: int, seed: int = 0) -> dict[str, float]:
  """What is lost, doubled or broken over so many kills, in turns of each part.

  Users talk all the time, and repeat what was not acknowledged. Prints where the kills struck.
  """
  rng, chat = random.Random(seed), chat_lib.load("base")
  acknowledged: dict[str, str] = {}
  waiting: list[tuple[str, str, str]] = []
  struck: collections.Counter[str] = collections.Counter()
  lasts: dict[str, float] = {}
  prompts = [small_policy.prompt(thing).content for thing in small_policy.COLOURS]
  with tempfile.TemporaryDirectory() as name:
    folder = pathlib.Path(name)
    params = small_policy.start(small_policy.config(chat), chat, seed=seed)
    store.publish(jax.device_get(params), 0, folder / "start")
    for number in range(kills):
      part = (*PARTS, START)[number % (1 + len(PARTS))]
      run = Killed(folder, part, lasts, rng.random())
      if url := run.served():
        crashes.talk(url, waiting, acknowledged, rng, prompts, PAUSE_S)
      run.ended()
      struck[run.died_in] += 1
      if (folder / "weights").exists():
        Deployer(folder / "weights")  # raises if a version that it names is not whole
    print("kills", dict(struck), flush=True)
    return {"loop_kills": float(kills), **checked(folder, acknowledged)}


def checked(folder: pathlib.Path, acknowledged: dict[str, str]) -> dict[str, float]:
  """What log, weights and trainings of a folder say.

  Lost are: events that were acknowledged and are not in the log, and batches that led to no
  version though a later one did. Doubled are: events and calls that count twice, and versions
  that were made twice with different weights.
  """
  records = list(record_log.scan(folder / "traffic.log"))
  events = collections.Counter(
    (r["event"]["user"], r["event"]["event_id"]) for r in records if r["kind"] == feedback.EVENT
  )
  written = {name for _, name in events}
  batches = {r["number"]: r for r in records if r["kind"] == feedback.BATCH}  # the last of each
  calls = collections.Counter(name for batch in batches.values() for name in batch["calls"])
  made: dict[int, set[str]] = {}
  trained = folder / "trained"  # not there if all were killed before a training returned
  for line in trained.read_text().splitlines() if trained.exists() else ():
    told = json.loads(line)
    made.setdefault(told["version"], set()).add(told["digest"])
  versions = [batch["version"] for batch in batches.values() if batch["calls"]]
  now = Deployer(folder / "weights").now
  return {
    "loop_calls": float(sum(r["kind"] == "call" for r in records)),
    "loop_events_acknowledged": float(len(acknowledged)),
    "loop_events_lost": float(len(acknowledged.keys() - written)),
    "loop_events_doubled": float(sum(n > 1 for n in events.values())),
    "loop_batches": float(len(batches)),
    "loop_batches_lost": float(sum(v not in made for v in versions if v < max(made, default=0))),
    "loop_versions_doubled": float(len(versions) - len(set(versions))),
    "loop_versions_remade": float(sum(len(each) > 1 for each in made.values())),
    "loop_calls_doubled": float(sum(n > 1 for n in calls.values())),
    "loop_versions_stable": float(len(now.history)),
    "loop_versions_refused_or_withdrawn": float(len(now.quarantined)),
  }
