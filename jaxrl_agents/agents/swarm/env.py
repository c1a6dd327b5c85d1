"""The agent swarm of Kimi K2.5: an orchestrator that assigns tasks to frozen sub-agents.

The orchestrator creates sub-agents, assigns tasks to them, searches by itself, and ends the episode
with a reply without calls. Each turn is a stage: all its assignments run at once, each as a rollout
with its own context, budget and sampler, and the stage ends when all of them have ended.
`facts["max_steps"]` limits the critical steps; a stage counts 1 plus the turns of its longest
assignment. One step is always reserved for the answer, so that the budget is never exceeded.

Source: https://arxiv.org/abs/2602.02276 section 3 and appendix E. The depth of 1, the barrier after
a stage and the way the budget ends an episode are ours.
"""

from __future__ import annotations

import collections
import dataclasses
import math
from collections.abc import Sequence

from jaxrl_agents.agents import added_tools, system_prompt
from jaxrl_agents.agents.episode import Stop, TurnLoop
from jaxrl_agents.agents.search import reward
from jaxrl_agents.agents.search import view as search_view
from jaxrl_agents.agents.search.tools import SearchServices, SearchTools
from jaxrl_agents.agents.swarm import parl, subagents, tables, view
from jaxrl_agents.agents.swarm.config import SwarmConfig
from jaxrl_agents.agents.swarm.parl import Stage
from jaxrl_agents.agents.swarm.subagents import Assignment, Crew, Outcome
from jaxrl_agents.harness.rollout import Pinned, all_or_none, at_once
from jaxrl_agents.harness.tools import Tool, problem_with, run_call
from jaxrl_agents.types import Context, Message, Sampler, Task, ToolCall, Trajectory

MESSAGE_TOKENS = 8
"""An upper bound of the tokens that a chat format adds to the text of a tool message."""


@dataclasses.dataclass(frozen=True)
class SwarmServices:
  """Shared by the episodes of one process; `search.limits` limits the orchestrator's context."""

  search: SearchServices
  limits: SwarmConfig


class SwarmEnv:
  """One episode. Invariant: the critical steps of `stages` never exceed the task's `max_steps`
  times `stretch`.

  The reasons to stop are those of `episode.Stop`; STEP_LIMIT means that calls were made when only
  the step of the answer was left.

  Attributes:
    stages: what ran in each turn so far.
    ids: the names of chunks.
  """

  def __init__(self, task: Task, services: SwarmServices, crew: Crew, seed: int):
    self._task, self._limits, self._services = task, services.limits, services.search
    self._crew, self._seed = crew, seed
    self._chat, self._context = services.search.chat, services.search.limits
    self._corpus = SearchTools(task, services.search)
    self.ids = self._corpus.ids
    self.stages: list[Stage] = []
    self._roles: dict[str, str] = {}
    self._messages: list[Message] = []
    self._assigned = 0
    self._added: tuple[Tool, ...] = ()
    self._loop = TurnLoop(
      self._chat.stop_tokens,
      max_turns=self._limits.max_turns,
      cut_off=view.CUT_OFF,
      run_calls=self._run_calls,
    )
    own = [Tool(view.CREATE, self._create), Tool(view.ASSIGN, self._assign)]
    if services.limits.alone:
      own = []
    self._max_steps = math.ceil(task.facts["max_steps"] * services.limits.stretch)
    self._tools = {tool.spec.name: tool for tool in (*own, *self._corpus.tools)}
    self._specs = tuple(tool.spec for tool in self._tools.values())

  def add_tools(self, tools: Sequence[Tool]) -> None:
    """Gives further tools to the orchestrator and to all its sub-agents."""
    self._added = tuple(tools)
    self._tools |= added_tools.checked(
      tools, self._tools, max_tokens=lambda: self._corpus.max_tokens, count=self._chat.count
    )
    self._specs = tuple(tool.spec for tool in self._tools.values())

  async def start(self) -> Context:
    """The question, after the system prompt if there is one."""
    own = view.system_prompt(self._limits, self._specs)
    self._messages += system_prompt.messages(self._context.system_prompt, own)
    line = view.steps_line(self._left)
    self._messages.append(Message("user", self._task.prompt + line))
    return self._next()

  async def step(self, reply: Message) -> Context:
    """Records the turn and runs its calls as one stage."""
    self._children: tuple[Trajectory, ...] = ()
    stop = await self._loop.take(reply, self._messages, is_last=self._left == 1)
    if len(self.stages) < self._loop.turns:  # a turn without calls is a stage of one step
      self.stages.append(Stage())
    if stop in (Stop.ANSWER, Stop.STEP_LIMIT):
      return self._stopped(stop)
    last = self._messages[-1]
    text = last.content + view.steps_line(self._left)
    self._messages[-1] = dataclasses.replace(last, content=text)
    return self._stopped(stop, self._children) if stop else self._next(self._children)

  def rewards(self, trajectory: Trajectory) -> dict[str, float]:
    """The parts of `parl.swarm_parts`; "performance", the item F1 of a table or 1 for the right
    answer; for a table, the parts of `tables.table_parts`; counts.

    An episode in which a fault ended a sub-agent keeps its reward, whatever its score: dropping
    those that failed would let a policy escape its failures.
    """
    answer = reward.final_answer(trajectory.log, trajectory.stop)
    calls = reward.calls(trajectory.log)
    parts = {
      "completed": float(trajectory.stop == "answer"),
      "turns": float(len(self.stages)),
      "agents": float(len(self._roles)),
      "tool_calls": float(len(calls)),
      "malformed_calls": float(sum(bool(call.error) for call in calls)),
    }
    return parts | self._performance(answer) | parl.swarm_parts(self.stages)

  async def close(self) -> None:
    """Does nothing: the episode holds no resources."""

  @property
  def _left(self) -> int:
    """The remaining critical steps, including the one of the answer."""
    return self._max_steps - parl.critical_steps(self.stages)

  def _performance(self, answer: str) -> dict[str, float]:
    facts = self._task.facts
    if "truth" in facts:
      right = tables.normal(tables.last_cell(answer)) == tables.normal(facts["truth"])
      return {"performance": float(right), "success": float(right)}
    gold = [self._with_source(row) for row in facts["rows"]]
    found = tables.table_parts(answer, gold, columns=facts["columns"], keys=facts["keys"])
    return {"performance": found["item_f1"], **found}

  def _with_source(self, row: dict) -> dict[str, str]:
    """The cells of a gold row, with the name that its source has in this episode."""
    cells = dict(row["cells"])
    if "source" in self._task.facts["columns"]:
      cells["source"] = self.ids.name(row["source"])
    return cells

  def _next(self, children: tuple[Trajectory, ...] = ()) -> Context:
    room = self._context.token_budget - self._usage()
    if room < 1:
      return self._stopped(Stop.CONTEXT_OVERFLOW, children)
    return Context(
      messages=tuple(self._messages),
      tools=self._specs,
      max_new_tokens=min(self._context.max_new_tokens, room),
      children=children,
    )

  def _stopped(self, stop: str, children: tuple[Trajectory, ...] = ()) -> Context:
    return Context(tuple(self._messages), self._specs, done=True, stop=stop, children=children)

  def _usage(self) -> int:
    """Tokens of the orchestrator's next prompt."""
    return len(self._chat.render(self._messages, self._specs))

  async def _run_calls(self, calls: Sequence[ToolCall]) -> list[Message]:
    """Runs the calls of one turn, appends the stage, and returns the results.

    Sub-agents are created in the order of the calls, before any assignment runs. Assignments run at
    once, in parallel with the other calls, which run one after another.
    """
    room = self._context.token_budget - self._usage()
    texts: dict[str, str] = {}
    counts = collections.Counter[bool]()  # of calls that run: assignments and others
    for call in calls:
      is_assignment = call.name == view.ASSIGN.name
      if text := self._answered(call, counts[is_assignment]):
        texts[call.id] = text
      else:
        counts[is_assignment] += 1
    running = [call for call in calls if call.id not in texts]
    assigned = [call for call in running if call.name == view.ASSIGN.name]
    asked = sum(call.name == view.ASSIGN.name for call in calls)
    direct = [call for call in running if call.name != view.ASSIGN.name]
    played = [
      self._assign(**call.arguments, number=i, place=calls.index(call))
      for i, call in enumerate(assigned)
    ]
    outcomes, found = await all_or_none(
      at_once(self._crew.playing, played), self._look_up(direct, room)
    )
    texts |= found
    kept = self._context.reply_reserve_tokens + self._chat.count(view.steps_line(1))
    room -= sum(self._chat.count(text) + MESSAGE_TOKENS for text in texts.values()) + kept
    share = max(room // max(len(assigned), 1) - MESSAGE_TOKENS, 1)
    for call, outcome in zip(assigned, outcomes, strict=True):
      texts[call.id] = self._cut(outcome.text, min(share, self._limits.message_tokens))
    ran = tuple(outcome.assigned for outcome in outcomes)
    self.stages.append(Stage(ran, refused=asked - len(ran)))
    self._assigned += len(ran)
    self._children = tuple(outcome.trajectory for outcome in outcomes)
    return [Message("tool", texts[call.id], tool_call_id=call.id) for call in calls]

  def _answered(self, call: ToolCall, before: int) -> str:
    """The immediate result of a call that is malformed, refused, or creates a sub-agent; "" if it
    must run. `before` calls of the turn run that are assignments as well, or no assignments either.
    """
    problem = problem_with(self._tools, call)
    if problem:
      return problem
    if call.name == view.CREATE.name:
      return self._create(**call.arguments)
    if call.name != view.ASSIGN.name:
      return search_view.too_many_calls(before, self._context.max_calls)
    return self._refusal(call.arguments["agent"], before)

  def _create(self, name: str, system_prompt: str) -> str:
    """Registers a kind of sub-agent."""
    if name in self._roles:
      return f"Error: there is a sub-agent {name!r} already. Use it, or choose another name."
    if len(self._roles) >= self._limits.max_agents:
      return f"Error: there are {len(self._roles)} sub-agents already; use one of them."
    self._roles[name] = system_prompt
    return view.CREATED

  def _refusal(self, agent: str, before: int) -> str:
    """Why an assignment after `before` others of its turn may not run; "" if it may."""
    limits = self._limits
    if agent not in self._roles:
      known = ", ".join(list(self._roles)[:8]) or "none; create one first"
      return f"Error: there is no sub-agent {agent!r}. There are: {known}."
    if before >= limits.max_assignments_per_turn:
      return f"Error: at most {limits.max_assignments_per_turn} tasks a turn. Wait for the others."
    if self._assigned + before >= limits.max_assignments:
      return f"Error: all {limits.max_assignments} tasks of this episode are given. Answer."
    if self._sub_turns < 1:
      return "Error: no steps are left for a sub-agent. Answer."
    return ""

  @property
  def _sub_turns(self) -> int:
    """Most turns of an assignment in the present stage; one step is reserved for the answer."""
    return min(self._limits.sub_max_turns, self._left - 2)

  async def _assign(self, agent: str, prompt: str, number: int = 0, place: int = 0) -> Outcome:
    """Plays assignment `number` of a turn, made by call `place`, to its end. Its errors are part of
    the outcome and are not raised.
    """
    assignment = Assignment(
      id=f"{self._task.id}/{len(self.stages)}.{number}",
      system_prompt=self._roles[agent],
      prompt=prompt,
      max_turns=self._sub_turns,
      stage=len(self.stages),
      call=place,
    )
    return await subagents.play(
      assignment, self._task, self._services, self._limits, self._crew, self._seed, self._added
    )

  async def _look_up(self, calls: Sequence[ToolCall], room: int) -> dict[str, str]:
    """The results of the other calls, by call id; each reduces the room of those after it."""
    found: dict[str, str] = {}
    for call in calls:
      self._corpus.allow(room)
      found[call.id] = await run_call(self._tools, call)
      room -= self._chat.count(found[call.id])
    return found

  def _cut(self, text: str, tokens: int) -> str:
    ids = self._chat.encode(text)
    return text if len(ids) <= tokens else self._chat.decode(ids[:tokens])


def sampled_crew(sampler: Sampler, policy: str) -> Crew:
  """Sub-agents played by `policy`, sampled by `sampler`; "" is the policy in training."""
  pinned = Pinned(sampler, policy)
  return Crew(lambda env, assignment, seed: (env, pinned), pinned.playing)


def make(task: Task, services: SwarmServices, crew: Crew, seed: int) -> SwarmEnv:
  """A new episode of `task`; `seed` is of the sub-agents' sampling.

  Raises:
    ValueError: the task has no budget of critical steps, or nothing to judge an answer by.
  """
  facts = task.facts
  if facts.get("max_steps", 0) < 1 or not ("truth" in facts or facts.get("rows")):
    raise ValueError(
      f"task {task.id!r} needs facts['max_steps'] >= 1 and facts['rows'] or facts['truth']; make "
      "tasks with agents.swarm.tasks.make_tasks"
    )
  return SwarmEnv(task, services, crew, seed)
