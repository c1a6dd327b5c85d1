"""Sub-agents of a swarm: each assignment is an episode of the search environment.

Assignments run in parallel. An error in the environment, a tool or the sampler ends only its own
assignment, within its deadline, with the status "error".
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence

from jaxrl_agents.agents.random_draws import seeded
from jaxrl_agents.agents.search import reward
from jaxrl_agents.agents.search.env import SearchEnv
from jaxrl_agents.agents.search.short_ids import BELOW
from jaxrl_agents.agents.search.tools import SearchServices
from jaxrl_agents.agents.swarm import view
from jaxrl_agents.agents.swarm.config import SwarmConfig
from jaxrl_agents.agents.swarm.parl import FINISHED, Assigned
from jaxrl_agents.agents.system_prompt import ENVIRONMENT
from jaxrl_agents.harness.rollout import Record, SamplerRefused, Sampling, failed, run_episode
from jaxrl_agents.harness.tools import Tool
from jaxrl_agents.types import Env, Message, Sampler, Task, Trajectory

STATUS_OF_STOP = {
  "turn_limit": "step_limit",
  "context_overflow": "token_limit",
  "malformed": "error",
}
"""{reason to stop: status} of a sub-agent's episode that ended without an answer."""


@dataclasses.dataclass(frozen=True)
class Assignment:
  """A task for a sub-agent. `id` is unique among all episodes of a rollout.

  It was made by call number `call`, counted from 0, of the turn that is stage number `stage`.
  """

  id: str
  system_prompt: str
  prompt: str
  max_turns: int
  stage: int
  call: int


@dataclasses.dataclass(frozen=True)
class Crew:
  """The players of sub-agents.

  Attributes:
    player: (environment, assignment, seed) -> the environment and its player.
    playing: is told how many more players sample than the orchestrator alone (Sampler.playing).
  """

  player: Callable[[SearchEnv, Assignment, int], tuple[Env, Sampler]]
  playing: Callable[[int], None] = lambda more: None


@dataclasses.dataclass(frozen=True)
class Outcome:
  """The outcome of an assignment, for the rewards, the orchestrator and the viewer.

  The trajectory's metrics hold "stage" and "call" of the assignment, and "steps", its model turns.
  """

  assigned: Assigned
  text: str
  trajectory: Trajectory


async def play(
  assignment: Assignment,
  task: Task,
  services: SearchServices,
  limits: SwarmConfig,
  crew: Crew,
  seed: int,
  tools: Sequence[Tool] = (),
) -> Outcome:
  """Plays an assignment of `task` to its end, with `tools` beside those of the search environment.

  Raises:
    SamplerRefused: the policy of the sub-agents cannot be sampled at all. Nothing else is raised.
  """
  gold = {name: task.facts[name] for name in ("short_ids", BELOW) if name in task.facts}
  own = Task(assignment.id, "search", assignment.prompt, {"facts": [], **gold}, task.split)
  record = Record()
  try:
    env = SearchEnv(own, _bounded(services, limits, assignment), _first(limits, assignment))
    if tools:
      env.add_tools(tools)
    made, player = crew.player(env, assignment, seed)
    trajectory = await run_episode(
      made,
      services.chat,
      player,
      task=own,
      sampling=Sampling(
        temperature=limits.sub_temperature,
        seed=seed,
        max_new_tokens=limits.sub_max_new_tokens,
        generate_deadline_s=limits.sub_deadline_s,
        episode_deadline_s=limits.sub_deadline_s,
      ),
      record=record,
    )
  except SamplerRefused:
    raise
  except Exception as error:
    trajectory = failed(own, record, error)
  lost = seeded(seed, f"lost {assignment.id}").random() < limits.sub_failure_rate
  return _outcome(trajectory, assignment, lost)


def _bounded(
  services: SearchServices, limits: SwarmConfig, assignment: Assignment
) -> SearchServices:
  """The services with the limits of one sub-agent."""
  own = dataclasses.replace(
    services.limits,
    max_turns=assignment.max_turns,
    max_new_tokens=limits.sub_max_new_tokens,
    token_budget=limits.sub_token_budget,
    threshold_tokens=limits.sub_token_budget // 2,
    can_prune=False,
    show_hint="none",
  )
  return dataclasses.replace(services, limits=own)


def _first(limits: SwarmConfig, assignment: Assignment) -> list[Message]:
  """What the orchestrator wrote for the sub-agent, then what its environment says."""
  text = assignment.system_prompt
  if limits.search.system_prompt == ENVIRONMENT:
    text = f"{text}\n\n{view.sub_agent_prompt(limits, assignment.max_turns)}".strip()
  return [Message("system", text)] if text else []


def _outcome(trajectory: Trajectory, assignment: Assignment, lost: bool) -> Outcome:
  """What the orchestrator learns; of a `lost` assignment (SwarmConfig.sub_failure_rate) nothing."""
  replies = [message.content for message in trajectory.log if message.role == "assistant"]
  answer = reward.final_answer(trajectory.log, trajectory.stop).strip()
  if trajectory.error or lost:
    status = "error"
  elif trajectory.stop == "answer":
    status = FINISHED if answer else "empty"
  else:
    status = STATUS_OF_STOP[trajectory.stop]
  said = replies[-1] if replies and not lost else ""
  text = answer if status == FINISHED else view.unfinished(status, said)
  segments = tuple(dataclasses.replace(s, routing=None) for s in trajectory.segments)
  place = {"stage": assignment.stage, "call": assignment.call, "steps": len(replies)}
  metrics = {**trajectory.metrics, **{name: float(value) for name, value in place.items()}}
  kept = dataclasses.replace(
    trajectory, segments=segments, rewards={}, stop=status, metrics=metrics
  )
  return Outcome(Assigned(status, len(replies), fault=bool(trajectory.error)), text, kept)
