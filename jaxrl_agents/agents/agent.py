"""The interface of an agent: options, tasks, episodes, rewards, warm-up, baselines, report.

Your own agent is a subclass of `Agent` in a package of your own, and a config names an instance of
it by import path (`RunConfig.agent`). Only `tasks` and `episode` are required; every other method
has a plain default.
"""

from __future__ import annotations

import abc
import contextlib
import dataclasses
import pathlib
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from jaxrl_agents import chat as chat_lib
from jaxrl_agents.agents import rubric as rubric_lib
from jaxrl_agents.agents import scores as scores_lib
from jaxrl_agents.agents import teacher as teacher_lib
from jaxrl_agents.agents.chat_endpoint import Client
from jaxrl_agents.agents.grading import Grader, Judging
from jaxrl_agents.agents.hostile_player import HOSTILE, HostilePlayer
from jaxrl_agents.agents.rubric import Rubric
from jaxrl_agents.agents.story import Story
from jaxrl_agents.agents.teacher import Teacher
from jaxrl_agents.chat import Chat
from jaxrl_agents.config import CorpusConfig, SftConfig, import_path
from jaxrl_agents.harness import mcp_tools
from jaxrl_agents.harness.rollout import MakeRollout, SelfDriven
from jaxrl_agents.harness.scripted_player import Scripted
from jaxrl_agents.harness.tools import Tool
from jaxrl_agents.harness.worker_process import Services, WorkerSpec
from jaxrl_agents.types import Env, Group, Sampler, Segment, Task, Trajectory

if TYPE_CHECKING:  # the package mcp, an extra, is imported where a run has servers
  from jaxrl_agents.harness.mcp_tools.listing import Listing

DEMONSTRATOR = "demonstrator"
"""The scripted player whose episodes the warm-up imitates."""

TAKEN = frozenset({"phase", "step", "time", *scores_lib.COUNTS})
"""Names that no part of a reward may have: others are in metrics.jsonl and summary.json by them."""


class Tasks(abc.ABC):
  """Tasks by split."""

  @property
  @abc.abstractmethod
  def tasks(self) -> Mapping[str, Sequence[Task]]:
    """The tasks of the splits "train", "dev" and "test"."""

  @property
  @abc.abstractmethod
  def digest(self) -> str:
    """A digest of the tasks and of the documents they are about."""

  @property
  def shared(self) -> Any:
    """What workers need to play the tasks; small and picklable, such as a folder or a name."""
    return None

  def sample(self, split: str, count: int, seed: int) -> list[Task]:
    """`count` tasks of a split in a random order; all of them if there are fewer.

    Raises:
      ValueError: the split has no tasks.
    """
    tasks = sorted(self.tasks[split], key=lambda task: task.id)
    if not tasks:
      others = ", ".join(name for name, each in self.tasks.items() if each) or "none"
      raise ValueError(
        f"the corpus has no {split} tasks (splits with tasks: {others}); use a larger one, or a "
        "task set with this split"
      )
    return random.Random(f"{seed} {split}").sample(tasks, min(count, len(tasks)))


@dataclasses.dataclass(frozen=True)
class Setting:
  """What a run passes to its agent.

  Attributes:
    options: the agent's own section, an instance of `Agent.config`.
    corpus, sft: the sections of that name.
    chat: tokenizer and template of the policy.
    cache: folder of files that can be remade.
    seed: of the run.
    resamples: number of resamples of a bootstrap.
    threshold: of success from which a rollout is right, see config.EvalConfig.
    judge_weight: of a judge's grades in the reward, for `rewarded`.
  """

  options: Any
  corpus: CorpusConfig
  sft: SftConfig
  chat: Chat
  cache: pathlib.Path
  seed: int
  resamples: int
  threshold: float = 0.0
  judge_weight: float = 0.0


class Agent(abc.ABC):
  """An agent that a run can train.

  Attributes:
    name: of its section in overrides, summaries and reports.
    config: class of its options: a frozen dataclass whose fields have defaults, with attributes
      `token_budget` (of a context), `max_new_tokens` (of a reply) and `max_turns`.
    reward_sections: fields of `config` that only weight rewards.
    places: fields of `config` that say where something runs and how long it is waited for, not what
      is done: a run may be resumed with others.
    sources: fields of `config` that say where tasks are read from: a run may be resumed with others
      if the tasks are the same (`Tasks.digest`).
    headline: the score that progress bars show.
    success: the part of the rewards that is 1 if a rollout is right, for Toggle and pass@k; "" for
      none.
    metrics: names of the scores in a summary; () for all.
    story: its part of the report.
  """

  name: str
  config: type
  reward_sections: tuple[str, ...] = ()
  places: tuple[str, ...] = ()
  sources: tuple[str, ...] = ()
  headline: str = "reward"
  success: str = ""
  metrics: tuple[str, ...] = ()
  story: Story = Story()

  @abc.abstractmethod
  def tasks(self, setting: Setting, report: Any = print) -> Tasks:
    """Makes the tasks, or loads them from the cache.

    Raises:
      ValueError: no tasks can be made.
    """

  @abc.abstractmethod
  def episode(self, task: Task, services: Any, seed: int, sampler: Sampler) -> Env | SelfDriven:
    """A new episode of `task`; `services` is what `services` returned in this process.

    `seed` is of the episode's own random draws; `sampler` samples policies other than the one in
    training. Runs in a worker process, which must not import jax.
    """

  def services(self, chat: Chat, options: Any, shared: Any) -> Any:
    """What the episodes of one worker process share: indexes, sandboxes, clients of services.

    Args:
      chat: tokenizer and template of the policy.
      options: the agent's section.
      shared: what `Tasks.shared` returned.
    """
    return options

  def reward(
    self, options: Any, parts: Mapping[str, float], progress: float | None = None
  ) -> float:
    """The reward of an episode, computed from its parts. `progress` is the share of the steps that
    are done, from 0 to 1; None, at evaluation, counts as after the last step.

    Raises:
      ValueError: there is no part "reward", and the method is not overridden.
    """
    if "reward" not in parts:
      raise ValueError(
        f"the rewards of agent {self.name} have no part called 'reward', only {sorted(parts)}; "
        "return one from `rewards` of its environment, or override Agent.reward"
      )
    return parts["reward"]

  def rubrics(self, options: Any) -> Sequence[Rubric]:
    """What a judge (section `judge`) grades its episodes by: at least two, and one held out."""
    return rubric_lib.GENERAL

  def check(self, options: Any, steps: int, stall_s: float) -> None:
    """Raises ValueError where options contradict each other, learner.steps or workers.stall_s."""
    return None

  def own_tools(self, options: Any) -> Sequence[str] | None:
    """Names of the tools of its episodes; None if they take no further tools (`tools.mcp`).

    An agent that names them has environments with a method `add_tools` (`types.EnvWithTools`).
    """
    return None

  def sandboxes(self, options: Any, packages: Sequence[str]) -> Any:
    """Sandboxes (`sandbox.host.sandboxes`) as those of its episodes, which show Python packages of
    this environment to programs in them; None if its episodes have no sandbox.

    An agent that has some has environments that are a `types.EnvWithSandbox`.

    Raises:
      ValueError: these packages cannot be shown.
    """
    return None

  def tools_to_serve(
    self, task: Task | None, services: Any
  ) -> contextlib.AbstractAsyncContextManager[Mapping[str, Tool]]:
    """Its tools by name, outside of an episode, while the context lasts (scripts/serve_mcp.py).

    Args:
      task: whose repository or names the tools are about, if they need one.
      services: what `services` returned.

    Raises:
      ValueError: the agent serves none, or needs a task for them.
    """
    raise ValueError(f"agent {self.name} serves no tools; give it a method tools_to_serve")

  def max_turn_s(self, options: Any, stall_s: float) -> float:
    """Most seconds of a turn, its tools included."""
    return stall_s

  def player(
    self, name: str, task: Task, services: Any, seed: int, chat: Chat
  ) -> Scripted | SelfDriven:
    """An episode of a scripted player: `DEMONSTRATOR`, or one that `has_player` names.

    Raises:
      ValueError: the agent has no such player.
    """
    if name == DEMONSTRATOR:
      raise ValueError(
        f"agent {self.name} has no scripted player {name!r}, which the sources demonstrations and "
        "practice of the warm-up need; set their rates in sft.rates to 0, or start from weights"
      )
    raise ValueError(self._no_player(name, self.config()))

  def has_player(self, name: str, options: Any) -> bool:
    """Whether `player` takes this name; by default `DEMONSTRATOR` and the names of `baselines`."""
    return name == DEMONSTRATOR or name in self.baselines(options)

  def check_player(self, name: str, options: Any) -> None:
    """Checks, before any episode, that a scripted player can play.

    Raises:
      ValueError: the agent has no such player, or the options make it impossible for it to play.
    """
    if not self.has_player(name, options):
      raise ValueError(self._no_player(name, options))

  def _no_player(self, name: str, options: Any) -> str:
    names = ", ".join(self.baselines(options)) or "none"
    return f"agent {self.name} has no scripted player {name!r}; it has {names}"

  def baselines(self, options: Any) -> Sequence[str]:
    """Names of the scripted players that are evaluated besides the policy."""
    return ()

  def named_code_digest(self, options: Any) -> str:
    """A digest of what `options` name and demonstrations depend on, such as functions and files; ""
    if there is nothing. The code of the agent itself counts anyway.
    """
    return ""

  def imitated(
    self, setting: Setting, groups: Sequence[Group]
  ) -> tuple[Iterator[Segment], Mapping[str, int]]:
    """The segments of the demonstrator's episodes that the warm-up imitates, and their counts."""
    rollouts = [t for group in groups for t in group.trajectories]
    finished = [t for t in rollouts if not t.error]
    counts = {"played": len(rollouts), "failed": len(rollouts) - len(finished)}
    return (segment for each in finished for segment in each.segments), counts

  def practice(self, setting: Setting, tasks: Any) -> list[Task]:
    """Simpler tasks for the warm-up.

    Raises:
      ValueError: the agent has none.
    """
    raise ValueError(f"there is no practice for agent={self.name}; set its rate in sft.rates to 0")

  def texts(self, setting: Setting, tasks: Any) -> Sequence[str]:
    """Texts like those that the policy reads."""
    return [task.prompt for task in tasks.tasks["train"]]

  def drills(self, setting: Setting, tasks: Any) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Short exercises: token ids, int32 [T], and which of them are trained, bool [T].

    Raises:
      ValueError: the agent has none.
    """
    raise ValueError(f"there are no drills for agent={self.name}; set their rate in sft.rates to 0")

  def has_stable_ids(self, options: Any) -> bool:
    """Whether the ids of documents and chunks are arbitrary and the same in every episode, so that
    the warm-up must replace them by random ones.
    """
    return False

  def variants(self, options: Any) -> Mapping[str, Any]:
    """{name: options} of further evaluations of the trained weights."""
    return {}

  def frozen(
    self, options: Any, start: pathlib.Path
  ) -> Mapping[str, Sequence[tuple[str | pathlib.Path, float]]]:
    """{policy: its weights} of the frozen policies that play besides the one in training. Weights
    are pairs of a folder and the share of the training steps until which it is used; `start` is the
    folder that training starts from. It need not be there yet: options are checked by the names and
    the number of weights.
    """
    return {}

  def cluster(self, task: Task) -> str:
    """The cluster of a task. Tasks of one cluster are not independent of each other, such as those
    about one repository; a bootstrap resamples whole clusters.
    """
    return task.id

  def entry(self, setting: Setting, groups: Sequence[Group]) -> dict[str, float]:
    """The scores of an evaluation: means over the tasks, bounds of the mean reward, and pass@k."""
    found = scores_lib.entry(groups, self.metrics) | scores_lib.reward_bounds(
      groups, cluster=self.cluster, resamples=setting.resamples, seed=setting.seed
    )
    threshold = setting.threshold or (1.0 if self.success else 0.0)
    if threshold:
      found |= scores_lib.passes(groups, self.success, threshold=threshold)
    return found

  def scores(
    self, setting: Setting, tasks: Any, groups: Sequence[Group]
  ) -> dict[str, dict[str, Any]]:
    """The scores of one evaluation: "policy" and what it is compared with; means over the tasks."""
    return {"policy": self.entry(setting, groups)}

  def gains(
    self, setting: Setting, candidate: Sequence[Group], baseline: Sequence[Group]
  ) -> dict[str, float]:
    """The paired gains of one evaluation over another, in reward and in the headline score, with
    their bounds (`scores.gains`).

    Raises:
      ValueError: they have no task in common.
    """
    return scores_lib.gains(
      candidate,
      baseline,
      metrics=tuple(dict.fromkeys(("reward", self.headline))),
      cluster=self.cluster,
      resamples=setting.resamples,
      seed=setting.seed,
    )

  def compare(
    self, setting: Setting, tasks: Any, evaluations: Mapping[str, Sequence[Group]]
  ) -> dict[str, Any]:
    """The part of the summary that compares the evaluations.

    Args:
      setting: of the run.
      tasks: of the run.
      evaluations: "warm_start", "trained", "base" if the warm start is not `policy.init`, those of
        `variants` and of `baselines`, on the same tasks.

    Returns:
      {"eval": {name: scores}, "paired_bootstrap": gains with bounds}, and further entries.
    """
    gains = self.gains(setting, evaluations["trained"], evaluations["warm_start"])
    gains |= scores_lib.minus_each(
      evaluations, cluster=self.cluster, resamples=setting.resamples, seed=setting.seed
    )
    found = {name: self.entry(setting, groups) for name, groups in evaluations.items()}
    return {"eval": found, "paired_bootstrap": gains}


def reply_alone(prompt: np.ndarray, reply: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
  """A drill of a prompt and a reply, int32 [P] and [R], of which the reply is trained."""
  tokens = np.concatenate([prompt, reply])
  return tokens, np.arange(len(tokens)) >= len(prompt)


def worker_spec(
  agent: str,
  tokenizer: str,
  options: Any,
  shared: Any,
  player: str,
  listing: Listing | None = None,
  *,
  judging: Judging | None = None,
  teacher: Teacher | None = None,
  thinking: str = "model",
) -> WorkerSpec:
  """Workers that play episodes of an agent (named as in RunConfig): those of the policy if `player`
  is empty, else those of a scripted player of the agent, of `HOSTILE`, or of the given `teacher`.
  Their environments have the tools of `listing` (harness.mcp_tools.listing), if there is one. With
  `judging`, a judge grades the rollouts. `tokenizer` and `thinking` as for `chat.load`.
  """
  arguments = (agent, tokenizer, options, shared, player, listing, judging, teacher, thinking)
  return WorkerSpec("jaxrl_agents.agents.agent:worker_services", arguments)


def worker_services(
  name: str,
  tokenizer: str,
  options: Any,
  shared: Any,
  player: str,
  listing: Listing | None = None,
  judging: Judging | None = None,
  teacher: Teacher | None = None,
  thinking: str = "model",
) -> Services:
  """Builds the services of a worker (`WorkerSpec.build`). With a scripted player, the policy's
  sampler stays unused.

  Raises:
    ValueError: there is a listing of MCP tools, and this machine lacks the package for them.
  """
  agent, chat = import_path.agent(name), chat_lib.load(tokenizer, thinking)
  services = agent.services(chat, options, shared)
  equipped = _equipment(listing)

  def policy(task: Task, seed: int, sampler: Sampler) -> tuple[Env | SelfDriven, Sampler]:
    return equipped(agent.episode(task, services, seed, sampler)), sampler

  def scripted(task: Task, seed: int, sampler: Sampler) -> tuple[Env | SelfDriven, Sampler]:
    played = agent.player(player, task, services, seed, chat)
    return equipped(played), played if isinstance(played, Scripted) else sampler

  def hostile(task: Task, seed: int, sampler: Sampler) -> tuple[Env | SelfDriven, Sampler]:
    player = HostilePlayer(chat, seed)
    episode = agent.episode(task, services, seed, player)
    return episode if isinstance(episode, SelfDriven) else player.plays(equipped(episode)), player

  players: dict[str, MakeRollout] = {"": policy, HOSTILE: hostile}
  if teacher is not None:
    players[teacher_lib.NAME] = _taught(agent, chat, services, equipped, teacher)
  grade = Grader(judging).graded if judging else None
  return Services(chat, players.get(player, scripted), grade)


def _taught(
  agent: Agent, chat: Chat, services: Any, equipped: Callable[[Any], Any], teacher: Teacher
) -> MakeRollout:
  """Makes the episodes in which a model behind an endpoint plays.

  An agent that asks for replies itself is refused: it can be pointed at the endpoint as it is.
  """
  client = Client(teacher.endpoint)

  def taught(task: Task, seed: int, sampler: Sampler) -> tuple[Env | SelfDriven, Sampler]:
    env = agent.episode(task, services, seed, sampler)
    if isinstance(env, SelfDriven):
      raise ValueError(
        f"agent {agent.name} asks for its replies itself, as tokens, which a teacher behind an "
        "endpoint does not give; record its demonstrations by a player of its own"
      )
    played = Scripted(equipped(env), chat, teacher_lib.player(teacher, client, seed))
    return played, played

  return taught


def _equipment(listing: Listing | None) -> Callable[[Any], Any]:
  """Gives an environment the tools of a listing; the environment itself where there is none."""
  if listing is None:
    return lambda env: env
  mcp_tools.require()
  from jaxrl_agents.harness.mcp_tools import episodes

  sessions = episodes.Sessions(listing)
  return lambda env: episodes.EnvWithMcpTools(env, sessions)


def rewarded(
  agent: Agent,
  options: Any,
  groups: Sequence[Group],
  progress: float | None = None,
  *,
  judge_weight: float = 0.0,
) -> list[Group]:
  """The groups with the reward of every finished rollout added to its metrics as "reward".

  The grade of a judge, where there is one, is added with its weight; "verified_reward" is without.

  Raises:
    ValueError: a part has one of the names `TAKEN`.
  """

  def weighed(trajectory: Trajectory) -> Trajectory:
    if trajectory.error:
      return trajectory
    if taken := TAKEN.intersection(trajectory.rewards):
      raise ValueError(
        f"the rewards of agent {agent.name} have a part called {min(taken)!r}, a name that "
        "metrics.jsonl or summary.json has for something else; give it another one"
      )
    found = {"reward": agent.reward(options, trajectory.rewards, progress)}
    if "judged" in trajectory.rewards:
      found["verified_reward"] = found["reward"]
      grade = trajectory.rewards["judged"]
      found["reward"] = rubric_lib.mixed(found["reward"], grade, weight=judge_weight)
    return dataclasses.replace(trajectory, metrics={**trajectory.metrics, **found})

  return [
    dataclasses.replace(group, trajectories=tuple(map(weighed, group.trajectories)))
    for group in groups
  ]
