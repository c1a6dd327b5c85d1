"""An agent with a shell that solves task folders of Harbor in a sandbox."""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Mapping, Sequence
from typing import Any

from examples.harbor import folders
from examples.harbor.folders import HarborTask
from examples.harbor.worlds import Worlds
from jaxrl_agents.agents.agent import DEMONSTRATOR, Agent, Tasks
from jaxrl_agents.agents.episode import Stop, TurnLoop
from jaxrl_agents.chat import Chat
from jaxrl_agents.config.ranges import Count, Positive
from jaxrl_agents.harness.scripted_player import Scripted
from jaxrl_agents.harness.tools import Tool, run_call
from jaxrl_agents.sandbox.host.sandbox import Sandbox
from jaxrl_agents.types import Context, Message, Task, ToolCall, ToolSpec, Trajectory

MARGIN_S = 70.0
"""Seconds beyond a command's limit within which the sandbox answers or is given up."""


@dataclasses.dataclass(frozen=True)
class HarborConfig:
  """Options: `--set harbor.folder=TASKS`.

  Attributes:
    folder: of the task folders; all of them are in every split.
    images: pairs of an image (or the name of a task with a Dockerfile) and the folder with the
      files of its working directory, "" for none.
    roots: a folder with one folder for each task that is not in `images`, of the task's name, with
      the files of its working directory; "" for none.
    packages: Python packages of this environment that programs in the sandbox find.
    backend: of the sandboxes.
    command_s: seconds of one command.
    output_chars: of a command's output that the policy reads.
    max_turns: turns after which an episode ends.
    token_budget: of a context.
    max_new_tokens: of a reply.
  """

  folder: str = "examples/harbor/tasks"
  images: tuple[tuple[str, str], ...] = (("python:3.12-slim", ""),)
  roots: str = ""
  packages: tuple[str, ...] = ()
  backend: str = "namespaces"
  command_s: Positive = 30.0
  output_chars: Count = 2_000
  max_turns: Count = 10
  token_budget: Count = 4_096
  max_new_tokens: Count = 512


class HarborTasks(Tasks):
  """The folders as tasks."""

  def __init__(self, options: HarborConfig):
    found = folders.read_all(options.folder, dict(options.images), options.roots)
    rows = {task.name: dataclasses.asdict(task) for task in found}
    self._digest = hashlib.sha256(json.dumps(rows, sort_keys=True).encode()).hexdigest()
    self._tasks = {
      split: [Task(name, "harbor", row["instruction"], row, split) for name, row in rows.items()]
      for split in ("train", "dev", "test")
    }

  @property
  def tasks(self) -> Mapping[str, Sequence[Task]]:
    """The tasks of each split."""
    return self._tasks

  @property
  def digest(self) -> str:
    """Of what was read of the folders."""
    return self._digest


@dataclasses.dataclass(frozen=True)
class Services:
  """What the episodes of one worker process share."""

  chat: Chat
  options: HarborConfig
  worlds: Worlds


class HarborEnv:
  """One task: commands in a sandbox until a reply without a call, which ends the episode."""

  def __init__(self, task: Task, services: Services):
    self._task, self._services = HarborTask(**task.facts), services
    self.box: Sandbox | None = None
    self._parts: dict[str, float] = {}
    self._messages = [Message("user", task.prompt)]
    parameters = {
      "type": "object",
      "properties": {"command": {"type": "string", "minLength": 1}},
      "required": ["command"],
    }
    spec = ToolSpec("bash", "Runs a command in the shell; it begins in /app.", parameters)
    deadline_s = services.options.command_s + MARGIN_S
    self._tools = {"bash": Tool(spec, self._bash, deadline_s=deadline_s)}
    self._loop = TurnLoop(
      services.chat.stop_tokens,
      max_turns=services.options.max_turns,
      cut_off="Your reply was cut off. Give a shorter one.",
      run_calls=self._run_calls,
    )

  async def start(self) -> Context:
    """Opens the sandbox."""
    self.box = await self._services.worlds.box(self._task)
    return self._context()

  async def step(self, reply: Message) -> Context:
    """Runs the calls of a reply; judges the files when the episode ends."""
    options, chat = self._services.options, self._services.chat
    stop = await self._loop.take(reply, self._messages)
    specs = tuple(tool.spec for tool in self._tools.values())
    size = len(chat.render(self._messages, specs)) + options.max_new_tokens
    if not stop and size > options.token_budget:
      stop = Stop.CONTEXT_OVERFLOW
    if stop:
      self._parts = await self._services.worlds.judge(self._task, self._open_box())
    return self._context(stop or "")

  def rewards(self, trajectory: Trajectory) -> dict[str, float]:
    """What the tests gave."""
    if not self._parts:
      raise ValueError(f"task {self._task.name}: the episode has not ended")
    return self._parts

  async def close(self) -> None:
    """Ends the sandbox."""
    if self.box:
      await self.box.close()

  def _open_box(self) -> Sandbox:
    if self.box is None:
      raise ValueError(f"task {self._task.name}: start the episode first")
    return self.box

  async def _bash(self, command: str) -> str:
    options = self._services.options
    done = await self._open_box().exec(command, options.command_s, options.output_chars)
    end = f" ({done.why})" if done.why else ""
    return f"{done.output}\n[exit status {done.code}{end}]"

  async def _run_calls(self, calls: Sequence[ToolCall]) -> list[Message]:
    results = [await run_call(self._tools, call) for call in calls]
    return [
      Message("tool", text, tool_call_id=call.id) for call, text in zip(calls, results, strict=True)
    ]

  def _context(self, stop: str = "") -> Context:
    return Context(
      messages=tuple(self._messages),
      tools=tuple(tool.spec for tool in self._tools.values()),
      max_new_tokens=self._services.options.max_new_tokens,
      done=bool(stop),
      stop=stop,
    )


class Solved(HarborEnv):
  """An episode that begins after the task's own solution has run."""

  async def start(self) -> Context:
    """Runs the solution."""
    context = await super().start()
    await self._services.worlds.solve(self._task, self._open_box())
    return context


class HarborAgent(Agent):
  """Solves Harbor's tasks with one tool."""

  name, config = "harbor", HarborConfig

  def check(self, options: HarborConfig, steps: int, stall_s: float) -> None:
    """The sandboxes have to have a root of their own."""
    if options.backend == "unsafe-local":
      raise ValueError("harbor.backend=unsafe-local has no /app, /tests and /logs; use another one")

  def tasks(self, setting: Any, report: Any = print) -> HarborTasks:
    """Reads the folders."""
    return HarborTasks(setting.options)

  def services(self, chat: Chat, options: HarborConfig, shared: Any) -> Services:
    """The sandboxes of a worker process."""
    return Services(chat, options, Worlds(options.backend, options.packages))

  def episode(self, task: Task, services: Services, seed: int, sampler: Any) -> HarborEnv:
    """One task for the policy."""
    return HarborEnv(task, services)

  def baselines(self, options: HarborConfig) -> Sequence[str]:
    """What a sound task gives 1 and 0."""
    return ("solution", "nothing")

  def player(self, name: str, task: Task, services: Services, seed: int, chat: Chat) -> Scripted:
    """The task's own solution, or nothing."""
    if name == DEMONSTRATOR or name not in self.baselines(services.options):
      raise ValueError(f"Harbor's folders have no player {name!r}, only solution and nothing")
    env = Solved(task, services) if name == "solution" else HarborEnv(task, services)
    return Scripted(env, chat, lambda context: Message("assistant", "Done."))


AGENT = HarborAgent()
