"""Options of the agent swarm: limits of orchestrator and sub-agents, weights of PARL's rewards."""

from __future__ import annotations

import dataclasses
import itertools

from jaxrl_agents.agents.search import config as search_config
from jaxrl_agents.agents.search.config import SearchConfig
from jaxrl_agents.config.ranges import Count, NotNegative, Positive, Share, Whole


@dataclasses.dataclass(frozen=True)
class ParlConfig:
  """Weights of PARL's auxiliary rewards at the first step; a cosine takes them to 0 at
  `anneal_end`.

  Kimi K2.5 published no numbers: all are ours.

  Attributes:
    parallel: weight of r_parallel.
    finish: weight of r_finish.
    anneal_end: share of the steps after which both weights are 0.
    target_width: number of simultaneous assignments above which r_parallel does not grow.
  """

  parallel: NotNegative = 0.1
  finish: NotNegative = 0.1
  anneal_end: Share = 0.6
  target_width: Count = 4


@dataclasses.dataclass(frozen=True)
class TablesConfig:
  """Tasks of every size, with a budget of critical steps that no player's plan enters.

      max_steps = ceil(steps + steps_per_lookup * look-ups of the task)

  A user who asks for more waits longer, at one pace for whoever answers, with sub-agents or without
  (`steps_per_lookup=0`: equally long for every question).

  Attributes:
    max_rows: tables have 1 to this many rows, each number equally often; 0 for the tasks that
      `swarm.budget_share` chooses.
    steps: of the budget, whatever the size.
    steps_per_lookup: further steps for each look-up that the task takes.
  """

  max_rows: Whole = 0
  steps: NotNegative = 2.0
  steps_per_lookup: NotNegative = 0.25


@dataclasses.dataclass(frozen=True)
class SwarmConfig:
  """Limits of the agent swarm.

  Attributes:
    search: tools that search the corpus, and the orchestrator's context; without pruning. With
      search.system_prompt="environment", orchestrator and sub-agents read the texts of swarm.view.
    parl: weights of the auxiliary rewards.
    tables: tasks of every size, in the place of those that `budget_share` chooses.
    sub_policy: name of the frozen policy that plays the sub-agents; if empty, the policy in
      training plays them.
    sub_init: folders of the frozen policy's weights, of any size, used one after another (small
      to large for a curriculum); "" stands for the weights that training starts from.
    sub_until: shares of the training steps at which the next of `sub_init` takes over.
    alone: whether the orchestrator has only the tools of the corpus and no sub-agents.
    budget_share: budget of critical steps of a wide or deep task, as a share of the steps that a
      single agent needs; not read where `tables.max_rows` is set.
    stretch: factor on the tasks' budgets of critical steps.
    max_turns: most turns of the orchestrator.
    sub_max_turns: most turns of a sub-agent; fewer if fewer critical steps are left.
    sub_token_budget: tokens of a sub-agent's context.
    sub_max_new_tokens: most tokens of one reply of a sub-agent.
    sub_temperature: sampling temperature of sub-agents.
    sub_failure_rate: probability that the message of an assignment is lost: it takes its steps and
      ends with the status "error". A function of the episode's seed and the assignment's place.
    sub_deadline_s: seconds after which a sub-agent is given up.
    message_tokens: most tokens of a sub-agent's answer; the rest is cut off.
    max_agents: most sub-agents that an episode may create.
    max_assignments_per_turn: most assignments that run at once; further ones are refused.
    max_assignments: most assignments of an episode.
    serial: probability that the scripted orchestrator does everything itself.
    single: probability that a scripted episode has a single agent without sub-agents, with the
      steps and the context that it needs (of tables of every size: with those of a swarm).
    max_children: sub-agents of a scripted episode that are imitated besides the orchestrator.
  """

  search: SearchConfig = SearchConfig(can_prune=False)
  parl: ParlConfig = ParlConfig()
  tables: TablesConfig = TablesConfig()
  sub_policy: str = "frozen"
  sub_init: tuple[str, ...] = ()
  sub_until: tuple[NotNegative, ...] = ()
  alone: bool = False
  budget_share: Share = 0.4
  stretch: Positive = 1.0
  max_turns: Count = 15
  sub_max_turns: Count = 100
  sub_token_budget: Count = 32_268
  sub_max_new_tokens: Count = 2_048
  sub_temperature: Positive = 1.0
  sub_failure_rate: Share = 0.0
  sub_deadline_s: Positive = 100.0
  message_tokens: Count = 512
  max_agents: Count = 16
  max_assignments_per_turn: Count = 16
  max_assignments: Count = 64
  serial: Share = 0.7
  single: Share = 0.0
  max_children: Whole = 2

  @property
  def token_budget(self) -> int:
    """Tokens of the orchestrator's context, the largest of an episode."""
    return self.search.token_budget

  @property
  def max_new_tokens(self) -> int:
    """Most tokens of one reply of the orchestrator."""
    return self.search.max_new_tokens


def check(options: SwarmConfig) -> None:
  """Raises ValueError where two options contradict each other."""
  search_config.check(options.search, "swarm.search")
  parl = options.parl
  if options.search.can_prune:
    raise ValueError(
      "swarm.search.can_prune=True has no effect: a swarm splits contexts and does not prune them; "
      "set swarm.search.can_prune=False"
    )
  demonstrator = ("hasty", "generous")
  for name in ("hops", *demonstrator, "max_documents", "reward", "show_hint"):
    value, default = (getattr(each, name) for each in (options.search, SearchConfig()))
    if value != default:
      raise ValueError(
        f"swarm.search.{name}={value!r} has no effect on a swarm, whose tasks, demonstrator and "
        "reward are its own; leave it out"
      )
  if options.sub_init and not options.sub_policy:
    raise ValueError(
      "swarm.sub_init has no effect with swarm.sub_policy='', where the policy in training plays "
      "the sub-agents; name a policy, or leave sub_init empty"
    )
  if not 0 < parl.anneal_end <= 1 or parl.target_width < 2:
    raise ValueError(
      f"swarm.parl.anneal_end={parl.anneal_end} must be in (0, 1] and swarm.parl.target_width="
      f"{parl.target_width} at least 2"
    )
  if not 0 < options.budget_share < 1:
    raise ValueError(f"swarm.budget_share={options.budget_share:g} must be above 0 and below 1")
  tables = options.tables
  if not tables.max_rows and tables != TablesConfig():
    raise ValueError(
      f"swarm.tables.steps={tables.steps:g} and swarm.tables.steps_per_lookup="
      f"{tables.steps_per_lookup:g} have no effect with swarm.tables.max_rows=0; set max_rows"
    )
  if tables.max_rows and tables.steps + tables.steps_per_lookup <= 1:
    raise ValueError(
      f"swarm.tables.steps={tables.steps:g} and swarm.tables.steps_per_lookup="
      f"{tables.steps_per_lookup:g} leave no step for the answer to one look-up; raise steps"
    )
  ends = (0.0, *options.sub_until, 1.0)
  if len(ends) != max(len(options.sub_init), 1) + 1 or any(
    later <= earlier for earlier, later in itertools.pairwise(ends)
  ):
    raise ValueError(
      f"swarm.sub_until={options.sub_until} must name one share of the steps, rising within (0, 1),"
      f" for each of swarm.sub_init={options.sub_init} but the last"
    )
  if options.sub_token_budget > options.token_budget:
    raise ValueError(
      f"swarm.sub_token_budget={options.sub_token_budget} is more than swarm.search.token_budget="
      f"{options.token_budget}, for which samplers and rows are made; lower it"
    )


def check_run(options: SwarmConfig, steps: int) -> None:
  """Raises ValueError where an option contradicts learner.steps."""
  if steps > 1 and options.parl.anneal_end * steps > steps - 1:
    raise ValueError(
      f"swarm.parl.anneal_end={options.parl.anneal_end:g} leaves none of the {steps} steps to the "
      "reward of the task alone; lower it"
    )
