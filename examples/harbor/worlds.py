"""The sandboxes in which Harbor's tasks are solved and judged."""

from __future__ import annotations

import asyncio
import dataclasses
import json
import math
import pathlib
import shlex
from collections.abc import Mapping

from examples.harbor import folders
from examples.harbor.folders import HarborTask
from jaxrl_agents.sandbox.errors import Refused
from jaxrl_agents.sandbox.host.runtime import PACKAGES, Runtime
from jaxrl_agents.sandbox.host.sandbox import Sandbox
from jaxrl_agents.sandbox.host.sandboxes import ENV, Sandboxes
from jaxrl_agents.sandbox.records import Snapshot

LINKS = (
  ("app", "/work"),
  ("tests", "/tmp/harbor/tests"),
  ("solution", "/tmp/harbor/solution"),
  ("logs", "/tmp/harbor/logs"),
)
"""Where the folders of Harbor's containers lie in a sandbox."""

CLEARED = (
  "chmod u+rwx /tmp; chmod -R u+rwX /tmp/harbor; rm -rf /tmp/harbor && ! test -e /tmp/harbor"
  " && mkdir -p /tmp/harbor/tests /tmp/harbor/solution /tmp/harbor/logs/verifier /tmp/harbor/home"
)
"""Removes whatever an agent left in these folders, or fails."""

UNJUDGED = {"reward": 0.0, "unjudged": 1.0}


class Worlds:
  """Opens the sandboxes with the first use; all uses are in one event loop.

  Args:
    backend: of the sandboxes.
    packages: Python packages of this environment that programs in them find.
  """

  def __init__(self, backend: str = "namespaces", packages: tuple[str, ...] = ()):
    self._boxes = Sandboxes(backend, runtime=Runtime(links=LINKS, packages=packages))
    self._env = {"PYTHONPATH": f"/{PACKAGES}"} if packages else {}
    self._opening: asyncio.Task[Sandboxes] | None = None
    self._bases: dict[str, Snapshot] = {}

  async def box(self, task: HarborTask) -> Sandbox:
    """A sandbox in which nothing was done yet.

    Raises:
      sandbox.errors.NoSandbox: this machine cannot run one; the message names the remedy.
    """
    boxes = await self._open()
    if task.name not in self._bases:
      files = pathlib.Path(task.root) if task.root else {}
      self._bases[task.name] = await boxes.base(files, env={**self._env, **task.env})
    return await boxes.create(self._bases[task.name])

  async def solve(self, task: HarborTask, box: Sandbox) -> None:
    """Runs the task's own solution.

    Raises:
      ValueError: the task has none, or it fails.
    """
    if not (pathlib.Path(task.folder) / "solution" / "solve.sh").is_file():
      raise ValueError(f"Harbor task {task.name} has no solution/solve.sh")
    await box.exec(CLEARED)
    await _put(box, task, "solution")
    done = await box.exec("bash /solution/solve.sh", timeout_s=task.agent_s)
    if done.code:
      raise ValueError(f"solution of {task.name} ended with {done.code}: {done.output[-500:]}")

  async def judge(self, task: HarborTask, box: Sandbox) -> dict[str, float]:
    """What the task's tests give to the files that `box` has now.

    They run in a new sandbox with these files alone: no processes, variables or functions of the
    agent. Tests without a valid reward give 0 and "unjudged" 1, since an agent could reach that by
    itself; `check` finds tests that never give one.
    """
    boxes = await self._open()
    try:
      end = await box.snapshot()
    except Refused:  # files that no sandbox takes, which an agent can make
      return UNJUDGED
    try:
      env = {**self._env, **task.env}
      start = dataclasses.replace(end, shell="", cwd="/work", env=env)
      async with await boxes.create(start) as judging:
        return await _judged(task, judging, env)
    finally:
      boxes.drop(end)

  async def check(self, task: HarborTask) -> tuple[float, float]:
    """The rewards of the task's solution and of doing nothing: a sound task has 1 and 0."""
    rewards = []
    for is_solved in (True, False):
      async with await self.box(task) as box:
        if is_solved:
          await self.solve(task, box)
        rewards.append((await self.judge(task, box))["reward"])
    return rewards[0], rewards[1]

  async def close(self) -> None:
    """Ends all sandboxes."""
    if self._opening:
      await (await self._opening).close()

  async def _open(self) -> Sandboxes:
    if self._opening is None:
      self._opening = asyncio.create_task(self._boxes.__aenter__())
    return await asyncio.shield(self._opening)


async def _judged(task: HarborTask, box: Sandbox, env: Mapping[str, str]) -> dict[str, float]:
  if (await box.exec(CLEARED)).code:
    return UNJUDGED
  try:
    await _put(box, task, "tests")
    variables = {**ENV, **env, **task.verifier_env, "HOME": "/tmp/harbor/home"}
    words = " ".join(shlex.quote(f"{name}={value}") for name, value in variables.items())
    await box.exec(f"env -i {words} bash /tests/test.sh", timeout_s=task.verifier_s)
    return {"unjudged": 0.0} | await _reward(box)
  except (Refused, ValueError):  # no room for the tests, or no valid reward
    return UNJUDGED


async def _reward(box: Sandbox) -> dict[str, float]:
  """reward.json, else reward.txt.

  Raises:
    Refused: there is neither.
    ValueError: its content is no reward.
  """
  try:
    return parts_of(await box.read("/tmp/harbor/logs/verifier/reward.json"))
  except Refused:
    return parts_of(await box.read("/tmp/harbor/logs/verifier/reward.txt"), as_json=False)


def parts_of(text: str, *, as_json: bool = True) -> dict[str, float]:
  """The parts of a reward: an object of numbers as JSON with one called "reward", or that number.

  Raises:
    ValueError: the text is no reward.
  """
  try:
    found = json.loads(text) if as_json else {"reward": text}
    if not isinstance(found, Mapping) or "reward" not in found:
      raise ValueError("reward.json has no reward")
    parts = {str(name): float(value) for name, value in found.items()}
  except (TypeError, OverflowError, RecursionError) as error:
    raise ValueError(f"a reward is no number: {error}") from error
  if not all(map(math.isfinite, parts.values())):
    raise ValueError("a reward is not finite")
  return parts


async def _put(box: Sandbox, task: HarborTask, name: str) -> None:
  for path, content, mode in folders.files_of(pathlib.Path(task.folder) / name):
    await box.write(f"/tmp/harbor/{name}/{path}", content, mode)
