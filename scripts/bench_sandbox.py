"""What a sandbox costs: forks, commands and snapshots, beside cp, bubblewrap and no walls at all.

    python scripts/bench_sandbox.py --rounds=100 --json=sandbox.json

Measures in one run, by turns, so that all see the same machine: a state forked until the fork
answers and until its first command is done; commands, reads, writes and snapshots in a sandbox that
is there; `cp -a` of the same files, `bwrap true` (where installed) and a plain subprocess. Prints
medians, ratios, forks per second, processor milliseconds of each, and the cores that --rate
environments a second would take at that. The load of the machine is printed first.
"""

from __future__ import annotations

import asyncio
import json
import os
import pathlib
import resource
import shutil
import statistics
import tempfile
import time
from collections.abc import Awaitable, Callable

from absl import flags

from jaxrl_agents.runs import entry_point
from jaxrl_agents.sandbox.errors import SandboxError
from jaxrl_agents.sandbox.host import backends
from jaxrl_agents.sandbox.host.sandbox import Sandbox
from jaxrl_agents.sandbox.host.sandboxes import Sandboxes
from jaxrl_agents.sandbox.records import Snapshot

_BACKEND = flags.DEFINE_enum("backend", "namespaces", list(backends.BACKENDS), "What to measure.")
_ROUNDS = flags.DEFINE_integer("rounds", 100, "Turns of each measurement.", lower_bound=2)
_FILES = flags.DEFINE_integer("files", 200, "Files of the state that is forked.", lower_bound=1)
_MORE_FILES = flags.DEFINE_integer("more_files", 2000, "Files of a larger one.", lower_bound=1)
_CHANGED = flags.DEFINE_integer("changed", 20, "Files changed before a snapshot.", lower_bound=1)
_AT_ONCE = flags.DEFINE_integer("at_once", 4, "Forks under way together.", lower_bound=1)
_RATE = flags.DEFINE_float("rate", 500.0, "Environments a second to count cores for.")
_JSON = flags.DEFINE_string("json", "", "File that the figures are written to.")

_TEXT = "def f(x):\n  return x + 1\n" * 30


def busy_s() -> float:
  """Seconds that the processors of this machine have worked, for anybody."""
  ticks = [int(field) for field in pathlib.Path("/proc/stat").read_text().split()[1:9]]
  return (sum(ticks) - ticks[3] - ticks[4]) / os.sysconf("SC_CLK_TCK")


def tree(count: int) -> dict[str, str]:
  """A repository of `count` files of 780 bytes each."""
  return {f"pkg{i // 20}/mod{i}.py": f"# {i}\n{_TEXT}" for i in range(count)}


class Clock:
  """Milliseconds of what was measured, by name."""

  def __init__(self) -> None:
    self.times: dict[str, list[float]] = {}

  async def time(self, name: str, call: Callable[[], Awaitable[object]]) -> object:
    """Awaits `call` and notes how long that took."""
    start = time.perf_counter()
    result = await call()
    self.times.setdefault(name, []).append(1e3 * (time.perf_counter() - start))
    return result

  def median(self, name: str) -> float:
    """The median of all notes of `name`; nan where there are none."""
    return statistics.median(self.times[name]) if name in self.times else float("nan")

  def high(self, name: str) -> float:
    """The 95th percentile."""
    times = sorted(self.times[name])
    return times[min(len(times) - 1, int(0.95 * len(times)))]


async def run_plain(words: list[str], **options: object) -> None:
  """A subprocess and its end."""
  process = await asyncio.create_subprocess_exec(*words, **options)  # type: ignore[arg-type]
  if await process.wait():
    raise ValueError(f"{words[0]} failed with status {process.returncode}")


async def measure_round(
  clock: Clock, boxes: Sandboxes, states: dict[int, Snapshot], here: Sandbox, folder: pathlib.Path
) -> None:
  """One turn of everything but the throughput."""
  for count, state in states.items():
    fork = await clock.time(f"fork, {count} files", lambda state=state: boxes.create(state))
    assert isinstance(fork, Sandbox)
    if count == _FILES.value:
      await clock.time("first command of a fork", lambda fork=fork: fork.exec("true"))
    await clock.time("close", fork.close)
  await clock.time("exec true", lambda: here.exec("true"))
  await clock.time("exec /usr/bin/true", lambda: here.exec("/usr/bin/true"))
  await clock.time("read 4 kB", lambda: here.read("big", limit=4096))
  await clock.time("write 4 kB", lambda: here.write("big", b"x" * 4096))
  snapshot = await clock.time(f"snapshot, {_CHANGED.value} changed", here.snapshot)
  assert isinstance(snapshot, Snapshot)
  boxes.drop(snapshot)
  copy = str(folder / "copy")
  for count in states:
    words = ["cp", "-a", str(folder / str(count)), copy]
    await clock.time(f"cp -a, {count} files", lambda words=words: run_plain(words))
    await asyncio.to_thread(shutil.rmtree, copy)
  await clock.time("subprocess true", lambda: run_plain(["/usr/bin/true"]))
  if shutil.which("bwrap"):
    user = {} if os.geteuid() else {"user": 65534, "group": 65534, "extra_groups": []}
    words = ["bwrap", "--unshare-all", "--ro-bind", "/", "/", "--proc", "/proc", "--dev", "/dev"]
    await clock.time("bwrap true", lambda: run_plain([*words, "/usr/bin/true"], **user))


def own_s() -> float:
  """Processor seconds of this process and of its children that have ended, theirs included."""
  used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
  return sum(one.ru_utime + one.ru_stime for one in used)


async def throughput(count: int) -> dict[str, float]:
  """`count` forks, `--at_once` under way: how many a second, and processor milliseconds of each.

  The processes' own time has all but what the kernel does after their end; the machine's has that,
  and whatever else ran meanwhile.
  """
  gate = asyncio.Semaphore(_AT_ONCE.value)
  own = own_s()
  async with Sandboxes(_BACKEND.value) as boxes:
    state = await boxes.base(tree(_FILES.value))

    async def one() -> None:
      async with gate:
        await (await boxes.create(state)).close()

    start, machine = time.perf_counter(), busy_s()
    await asyncio.gather(*(one() for _ in range(count)))
    rate = count / (time.perf_counter() - start)
    machine = 1e3 * (busy_s() - machine) / count
  own = 1e3 * (own_s() - own) / count
  return {"forks_per_s": rate, "own_cpu_ms": own, "machine_cpu_ms": machine}


async def measure() -> dict[str, object]:
  """All figures."""
  clock = Clock()
  load = os.getloadavg()[0]
  async with Sandboxes(_BACKEND.value) as boxes:
    with tempfile.TemporaryDirectory() as name:
      folder = pathlib.Path(name)
      states = {}
      for count in (_FILES.value, _MORE_FILES.value):
        for path, text in tree(count).items():
          (folder / str(count) / path).parent.mkdir(parents=True, exist_ok=True)
          (folder / str(count) / path).write_text(text)
        async with await boxes.create(await boxes.base(tree(count))) as box:
          await box.exec("echo '# edited' >> pkg0/mod0.py")
          states[count] = await box.snapshot()
      async with await boxes.create(states[_FILES.value]) as here:
        await here.write("big", b"x" * 4096)
        await here.exec(f"for f in $(ls */*.py | head -{_CHANGED.value}); do echo >> $f; done")
        for _ in range(_ROUNDS.value):
          await measure_round(clock, boxes, states, here, folder)
  return report(clock, load, await throughput(max(400, 4 * _ROUNDS.value)))


def report(clock: Clock, load: float, many: dict[str, float]) -> dict[str, object]:
  """Prints the figures and returns them."""
  cores = os.cpu_count() or 1
  print(f"backend {_BACKEND.value}; {cores} cores, load {load:.1f} when it began")
  print(f"{'milliseconds':28s} {'median':>8s} {'95 %':>8s}")
  for name in clock.times:
    print(f"{name:28s} {clock.median(name):8.2f} {clock.high(name):8.2f}")
  fork = f"fork, {_FILES.value} files"
  more = f"fork, {_MORE_FILES.value} files"
  ratios = {
    f"fork of {_MORE_FILES.value} files / of {_FILES.value}": clock.median(more)
    / clock.median(fork),
    f"cp -a of {_FILES.value} files / fork": clock.median(f"cp -a, {_FILES.value} files")
    / clock.median(fork),
    f"cp -a of {_MORE_FILES.value} files / fork": clock.median(f"cp -a, {_MORE_FILES.value} files")
    / clock.median(more),
    "bwrap true / fork": clock.median("bwrap true") / clock.median(fork),
    "fork / subprocess true": clock.median(fork) / clock.median("subprocess true"),
    "exec /usr/bin/true / subprocess true": clock.median("exec /usr/bin/true")
    / clock.median("subprocess true"),
  }
  print("ratios")
  for name, ratio in ratios.items():
    print(f"{name:44s} {ratio:8.2f}")
  print(f"{many['forks_per_s']:.0f} forks made and ended a second, {_AT_ONCE.value} at once")
  for whose, key in (("their own", "own_cpu_ms"), ("the whole machine's", "machine_cpu_ms")):
    print(
      f"{many[key]:.2f} processor ms of each ({whose}): {1e3 / many[key]:.0f} ready forks a second "
      f"and core, {_RATE.value * many[key] / 1e3:.1f} cores for {_RATE.value:g} a second"
    )
  return {
    "backend": _BACKEND.value,
    "cores": cores,
    "load": load,
    "median_ms": {name: round(clock.median(name), 3) for name in clock.times},
    "p95_ms": {name: round(clock.high(name), 3) for name in clock.times},
    "ratios": {name: round(ratio, 3) for name, ratio in ratios.items()},
    **{name: round(figure, 3) for name, figure in many.items()},
  }


def main() -> None:
  """Measures, prints and writes."""
  try:
    figures = asyncio.run(measure())
  except SandboxError as error:
    raise ValueError(f"{error}\nscripts/doctor.py tells more") from None
  if _JSON.value:
    pathlib.Path(_JSON.value).write_text(json.dumps(figures, indent=2) + "\n")


if __name__ == "__main__":
  entry_point.run(main)
