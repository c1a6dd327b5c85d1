"""The coding environment: the policy repairs a damaged repository in a sandbox; tests judge it.

The policy reads, edits and runs code, several calls a turn, and ends the episode with a reply
without calls. Its changes are then judged in another sandbox (`agents.coding.judge.verdict`). When
a tool result brings the context to its trigger, the policy is asked to write a summary. The next
context is the system prompt, the unchanged request, the summary, and the state that the harness
knows. The whole episode is one trajectory, and its reward trains every sampled token, including
those of summaries.

Source: Cursor, "Composer 2", https://arxiv.org/abs/2603.24477 sections 4 and 6.2, and its post
"Self-summarization", https://cursor.com/blog/self-summarization. The strategies it is compared
with: Kimi K2.5, https://arxiv.org/abs/2602.02276 appendix E.
"""

from __future__ import annotations

import asyncio
import collections
import contextlib
import copy
import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

from jaxrl_agents.agents import added_tools
from jaxrl_agents.agents.coding import reward as rewards_lib
from jaxrl_agents.agents.coding import view
from jaxrl_agents.agents.coding.conversation import Conversation
from jaxrl_agents.agents.coding.judge import repo as repo_lib
from jaxrl_agents.agents.coding.judge import self_search, test_runs
from jaxrl_agents.agents.coding.judge.changes import added_lines, changes_between
from jaxrl_agents.agents.coding.judge.run_tests import NotBegun
from jaxrl_agents.agents.coding.judge.verdict import UNJUDGED, Judge, Verdict
from jaxrl_agents.agents.coding.services import CodingServices, check
from jaxrl_agents.agents.coding.tools import Change, Workspace
from jaxrl_agents.agents.episode import Stop, TurnLoop
from jaxrl_agents.harness.rollout import EpisodeError
from jaxrl_agents.harness.tools import Tool, ToolError, problem_with, run_call
from jaxrl_agents.sandbox.errors import NoSandbox, Refused, SandboxError
from jaxrl_agents.sandbox.host import interruptible
from jaxrl_agents.sandbox.host.sandbox import Sandbox
from jaxrl_agents.sandbox.records import Snapshot
from jaxrl_agents.types import Context, Message, Task, ToolCall, Trajectory

MIN_OUTPUT = 16
"""Tokens of a result that are shown even when the context is full."""
MAX_LOSSES = 2
"""How often one call may lose a sandbox before the call is skipped."""


@dataclasses.dataclass(frozen=True)
class CodingState:
  """The state of an episode between two turns, which a lost sandbox goes back to."""

  box: Snapshot
  messages: tuple[Message, ...]
  todos: tuple[Mapping[str, str], ...]
  changes: tuple[Change, ...]
  turns: int
  malformed_turns: int
  summaries: int
  summarizing: bool
  test_runs: int = 0
  edits: int = 0


class CodingEnv:
  """One episode. Invariant: `_talk` holds the policy's next context, `_workspace` what its tools
  work on.

  The reasons to stop are those of `episode.Stop`, except STEP_LIMIT.
  """

  def __init__(self, task: Task, services: CodingServices):
    self._task, self._services, self._limits = task, services, services.limits
    self._chat, self._repo = services.chat, services.repos[task.facts["repo"]]
    self._damaged = {**self._repo.files, **repo_lib.broken(self._repo, task.facts["edits"])}
    self._workspace = Workspace(
      services.limits,
      services.chat.count,
      self._damaged,
      name=task.id,
      indexes=services.indexes,
      pages=services.pages,
      tested=self._tested,
    )
    self._specs = tuple(tool.spec for tool in self._workspace.tools.values())
    self._talk = Conversation(task.prompt, services.limits, services.chat, self._specs)
    self._loop = TurnLoop(
      self._chat.stop_tokens,
      max_turns=self._limits.max_turns,
      cut_off=view.CUT_OFF,
      run_calls=self._run_calls,
    )
    self._judge: Judge | None = None
    self._saved: tuple[CodingState, list[ToolCall]] | None = None  # and the calls that ran after it
    self._verdict: Verdict | None = None
    self._added: list[str] = []
    self._changed: list[str] = []
    self._outside_tools: set[str] = set()

  @property
  def tools(self) -> Mapping[str, Tool]:
    """The tools by name, which work on the sandbox that `start` makes."""
    return self._workspace.tools

  def add_tools(self, tools: Sequence[Tool]) -> None:
    """Gives the policy further tools, whose calls a restored sandbox does not repeat."""
    self._outside_tools = set(self._offered(tools))

  def add_sandboxed_tools(self, tools: Sequence[Tool], packages: Sequence[str]) -> None:
    """Gives the policy the tools of programs in its sandbox, which shows them `packages`."""
    self._services.workshop.show(packages)
    self._offered([self._workspace.noting_loss(tool) for tool in tools])

  @property
  def sandbox(self) -> Sandbox | None:
    """The sandbox that the tools work on; None before `start` and after `close`."""
    return self._workspace.box

  def _offered(self, tools: Sequence[Tool]) -> Mapping[str, Tool]:
    workspace = self._workspace
    added = added_tools.checked(
      tools, workspace.tools, max_tokens=lambda: workspace.max_tokens, count=self._chat.count
    )
    workspace.tools |= added
    self._specs = tuple(tool.spec for tool in workspace.tools.values())
    self._talk = Conversation(self._task.prompt, self._limits, self._chat, self._specs)
    return added

  async def start(self) -> Context:
    """The request after the system prompt, if there is one."""
    self._judge = await self._services.workshop.judge()
    box = await self._judge.boxes.create(await self._judge.base(self._repo))
    self._workspace.box = box
    for path, text in repo_lib.broken(self._repo, self._task.facts["edits"]).items():
      await box.write(path, text)
    return self._next()

  async def step(self, reply: Message) -> Context:
    """Records the turn, then runs its calls one after another or takes the summary.

    Raises:
      EpisodeError: this machine cannot run or judge the task, whatever the agent did.
    """
    try:
      if self._limits.snapshot_turns and self._loop.turns % self._limits.snapshot_turns == 0:
        await self._save()
      return await self._advance(reply)
    except SandboxError as error:
      await self._blame_the_agent(error)
      return Context(tuple(self._talk.messages), self._specs, done=True, stop=Stop.SANDBOX_LOST)

  async def _advance(self, reply: Message) -> Context:
    if self._talk.summarizing:
      self._loop.turns += 1
      self._talk.take_summary(reply, self._workspace.state())
      stop = Stop.TURN_LIMIT if self._loop.turns >= self._limits.max_turns else None
    else:
      stop = await self._loop.take(reply, self._talk.messages)
      if stop is None:
        self._talk.shorten()
    if stop is None and self._talk.room() < 1:
      stop = Stop.CONTEXT_OVERFLOW
    return await self._finish(stop) if stop else self._next()

  def rewards(self, trajectory: Trajectory) -> dict[str, float]:
    """The parts that `agents.coding.reward.coding_parts` computes."""
    if self._verdict is None:
      raise ValueError(f"task {self._task.id}: the episode has not ended; there is no verdict")
    return rewards_lib.coding_parts(
      trajectory.log,
      trajectory.stop,
      dataclasses.asdict(self._verdict),
      added=self._added,
      changed=self._changed,
      offered=list(self._workspace.tools),
      broken=rewards_lib.broken_calls(
        trajectory.log,
        lambda call: problem_with(self._workspace.tools, call),
        most=self._limits.max_calls,
        cut_by_room=self._is_cut_by_room,
      ),
      summaries=self._talk.summaries,
      test_runs=self._workspace.test_runs,
      edits=self._workspace.edits,
      count=self._chat.count,
    )

  def _is_cut_by_room(self, message: Message) -> bool:
    """Whether a reply was cut off because the context was full, before the limit of a reply."""
    tokens = message.tokens
    if tokens is None or not len(tokens) or not self._loop.is_cut_off(message):
      return False
    return len(tokens) < self._limits.max_new_tokens

  async def close(self) -> None:
    """Ends the sandbox and releases its snapshots."""
    self._drop_saved()
    box, self._workspace.box = self._workspace.box, None
    if box is not None:
      await _closed(box)

  async def snapshot(self) -> CodingState:
    """The state of the episode, to branch from or to continue; call `drop` on its `box` later."""
    box = self._workspace.box
    if box is None:
      raise ValueError(f"task {self._task.id}: start the episode before taking a snapshot")
    return CodingState(
      await box.snapshot(),
      tuple(self._talk.messages),
      tuple(copy.deepcopy(self._workspace.todos)),
      tuple(self._workspace.changes),
      self._loop.turns,
      self._loop.malformed,
      self._talk.summaries,
      self._talk.summarizing,
      self._workspace.test_runs,
      self._workspace.edits,
    )

  def forget(self, state: CodingState) -> None:
    """Releases the files of a snapshot; episodes that continued from it are not affected."""
    if self._judge is not None:
      self._judge.boxes.drop(state.box)

  async def _save(self) -> None:
    """Takes the snapshot from which a lost sandbox is restored."""
    try:
      state = await self.snapshot()
    except Refused:  # too much to be saved: the older snapshot still serves
      return
    except SandboxError:  # the sandbox was lost between two turns, likewise
      self._workspace.lost = True
      return
    self._drop_saved()
    self._saved = (state, [])

  def _drop_saved(self) -> None:
    if self._saved is not None:
      self.forget(self._saved[0])
    self._saved = None

  async def _restore(self, state: CodingState) -> None:
    assert self._judge is not None
    if self._workspace.box is not None:
      await _closed(self._workspace.box)
    self._workspace.box = await self._judge.boxes.create(state.box)
    self._workspace.lost = False
    self._workspace.cwd = state.box.cwd
    self._workspace.todos = [dict(item) for item in state.todos]
    self._workspace.changes = list(state.changes)
    self._workspace.test_runs, self._workspace.edits = state.test_runs, state.edits
    self._talk.messages = list(state.messages)
    self._talk.summaries, self._talk.summarizing = state.summaries, state.summarizing
    self._loop.turns, self._loop.malformed = state.turns, state.malformed_turns

  async def _run_calls(self, calls: Sequence[ToolCall]) -> list[Message]:
    """The results of the calls of one turn. A lost sandbox is restored."""
    texts: list[str] = []
    losses: collections.Counter[int] = collections.Counter()
    left = self._talk.room_for_results()
    while len(texts) < len(calls):
      i = len(texts)
      room = left - sum(map(self._chat.count, texts))
      self._workspace.max_tokens = min(self._limits.tool_output_tokens, max(room, MIN_OUTPUT))
      if i >= self._limits.max_calls:
        texts.append(view.TOO_MANY.format(most=self._limits.max_calls))
        continue
      if self._workspace.lost:
        await self._bring_back()
      text = await run_call(self._workspace.tools, calls[i])
      if self._workspace.lost:
        losses[i] += 1
        if losses[i] < MAX_LOSSES:
          continue
      elif self._saved is not None and calls[i].name not in self._outside_tools:
        self._saved[1].append(calls[i])
      texts.append(text)
    if self._workspace.lost:
      await self._bring_back()
    return [
      Message("tool", text, tool_call_id=call.id) for call, text in zip(calls, texts, strict=True)
    ]

  async def _bring_back(self) -> None:
    """Restores the sandbox from the last snapshot and repeats all calls since, except fatal ones.

    Raises:
      sandbox.errors.SandboxError: there is no snapshot, or it cannot be restored.
    """
    if self._saved is None:
      raise SandboxError(
        f"task {self._task.id}: the sandbox is lost and there is no snapshot of it"
      )
    state, ran = self._saved
    talk, turns = copy.copy(self._talk), (self._loop.turns, self._loop.malformed)
    try:
      await self._restore(state)
      for call in ran:
        await run_call(self._workspace.tools, call)
    finally:
      self._talk, (self._loop.turns, self._loop.malformed) = talk, turns
    if self._workspace.lost:
      raise SandboxError(
        f"task {self._task.id}: the sandbox was lost again while it was brought back"
      )

  def _next(self) -> Context:
    return Context(tuple(self._talk.messages), self._specs, self._talk.max_new_tokens())

  async def _finish(self, stop: Stop) -> Context:
    """Judges the repository in its present state."""
    assert self._judge is not None
    try:
      async with asyncio.timeout(self._limits.grade_s):
        changes = await self._changes(await self._last_state())
        self._verdict = await self._judge.grade(self._repo, self._task.facts, changes)
    except (SandboxError, TimeoutError) as error:
      await self._blame_the_agent(error)
    else:
      self._added = added_lines(self._damaged, changes)
      self._refuse_searches(changes)
      now = {path: text.encode() for path, text in self._repo.files.items()} | changes
      was = {path: text.encode() for path, text in self._damaged.items()}
      self._changed = sorted(path for path in now if now[path] != was.get(path))
    return Context(tuple(self._talk.messages), self._specs, done=True, stop=stop)

  async def _blame_the_agent(self, error: Exception) -> None:
    """Gives the verdict UNJUDGED if the damaged repository alone can be judged on this machine.

    What an agent does to its sandbox is its own failure: a rollout without a reward would escape
    its negative advantage.

    Raises:
      EpisodeError: the control run failed too, so that the fault is the machine's.
    """
    assert self._judge is not None
    try:
      damaged = repo_lib.broken(self._repo, self._task.facts["edits"])
      changes = {path: text.encode() for path, text in damaged.items()}
      async with asyncio.timeout(self._limits.grade_s):
        await self._judge.grade(self._repo, self._task.facts, changes)
    except (SandboxError, TimeoutError) as control:
      raise EpisodeError(
        f"task {self._task.id}: neither the agent's work ({error or type(error).__name__}) nor the "
        f"repository without it ({control or type(control).__name__}) could be judged"
      ) from error
    self._verdict = UNJUDGED

  def _refuse_searches(self, changes: Mapping[str, bytes | None]) -> None:
    """Without a shell, code that searches for the repair when it runs is none: it would do what the
    policy cannot, or may not do as often.
    """
    assert self._verdict is not None
    if "shell" not in self._limits.tools and self._repo.kind == "calls":
      found = self_search.searching(self._repo, changes)
      if found:
        suspicious = tuple(sorted({*self._verdict.suspicious, *found}))
        self._verdict = dataclasses.replace(self._verdict, solved=False, suspicious=suspicious)

  async def _tested(self) -> str:
    """What the visible tests show of the present files, for the tool that counts its runs."""
    assert self._judge is not None and self._workspace.box is not None
    changes = await self._changes(await self._workspace.box.snapshot())
    seconds, facts = self._limits.command_s, self._task.facts
    for last_try in (False, True):
      try:
        return await test_runs.shown(self._judge, self._repo, facts, changes, command_s=seconds)
      except (NotBegun, NoSandbox) as error:  # nothing of the policy's has run
        if last_try:
          raise EpisodeError(
            f"task {self._task.id}: the tests could not be started: {error}"
          ) from error
      except SandboxError as error:  # not the sandbox that the tools work on
        raise ToolError(view.UNTESTED) from error
    raise AssertionError("the second try returns or raises")

  async def _changes(self, now: Snapshot) -> dict[str, bytes | None]:
    """{path below /work: content} of every file that differs from the undamaged repository in a
    state of the sandbox, which is released.
    """
    assert self._judge is not None
    try:
      base = await self._judge.base(self._repo)
      store = self._judge.boxes.store
      return await interruptible.run(
        lambda check: changes_between(store, base.layers, now.layers, check=check)
      )
    finally:
      self._judge.boxes.drop(now)

  async def _last_state(self) -> Snapshot:
    for last_try in (False, True):
      if self._workspace.lost:
        await self._bring_back()
      assert self._workspace.box is not None
      try:
        return await self._workspace.box.snapshot()
      except Refused:
        raise
      except SandboxError:
        self._workspace.lost = True
        if last_try:
          raise
    raise AssertionError("the second try returns or raises")


async def _closed(box: Any) -> None:
  with contextlib.suppress(SandboxError):  # a sandbox that does not end is killed with the process
    await box.close()


def make(task: Task, services: CodingServices) -> CodingEnv:
  """A new episode of `task`.

  Raises:
    ValueError: the task's repository is missing, or the limits contradict each other.
  """
  check(task, services)
  return CodingEnv(task, services)
