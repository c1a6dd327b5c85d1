"""The batches that the loop learns from: played synchronously, or while the learner trains."""

from __future__ import annotations

import collections
import concurrent.futures
import contextlib
import dataclasses
import functools
import math
import pathlib
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import jax
import numpy as np

from jaxrl_agents import background
from jaxrl_agents.agents import agent as agent_lib
from jaxrl_agents.agents import toggle
from jaxrl_agents.config import LearnerConfig, RunConfig
from jaxrl_agents.fleet import pacing
from jaxrl_agents.fleet.async_rollouts import AsyncRollouts
from jaxrl_agents.fleet.ledger import Ledger
from jaxrl_agents.fleet.pacing import Draw, Pacing
from jaxrl_agents.fleet.ready_groups import ReadyGroups
from jaxrl_agents.fleet.replies import Replies
from jaxrl_agents.fleet.schedule import Schedule
from jaxrl_agents.harness.worker_process import Job
from jaxrl_agents.learner import advantage, curriculum, loop, loss_exclusions
from jaxrl_agents.learner.curriculum import TaskStream
from jaxrl_agents.policy import lora
from jaxrl_agents.runs import agent_setting, processes, schedules, setup, weight_files
from jaxrl_agents.runs.rollout_workers import RolloutWorkers
from jaxrl_agents.runs.workdir import WARM_START
from jaxrl_agents.types import Group, Task

LEDGER, READY, REPLIES, SCHEDULE = "ledger.log", "ready", "replies.log", "schedule.log"
"""Files of a run beside its checkpoints, each of the module of fleet with its name."""

REPEATED = 1_000_003
"""Between the seeds of draws of one task within a batch, more than the steps of a run."""

TIMEOUT_S = 600.0
"""Longest that a publication may take."""

CONSTANT = "all its rewards are equal"
"""Why a step learnt nothing from a group whose rollouts finished."""

NOT_FINITE = "its update was left out, as the gradient was not finite"
"""Likewise."""


@dataclasses.dataclass(frozen=True)
class Start:
  """Where a run begins or goes on.

  Attributes:
    step: its first step.
    params, version: the learner's weights, which are donated to that step, and their version.
    progress: of the checkpoint that it continues from; {} for a new run.
    tasks: of the train split.
  """

  step: int
  params: dict[str, Any]
  version: int
  progress: Mapping[str, Any]
  tasks: Sequence[Task]


class Batches:
  """Batches of complete groups with rewards, and the publication of the weights that play them.

  Playing and learning take turns: a batch is played when it is asked for, with the newest weights.

  Args:
    config: of the run.
    workers: play the episodes.
    start: of the run.
    ledger: of the run, in its first process; None in the others.
    groups: complete ones that `start` does not count as trained, and that need not be played again.
  """

  def __init__(
    self,
    config: RunConfig,
    workers: RolloutWorkers,
    start: Start,
    ledger: Ledger | None,
    groups: Sequence[Group] = (),
  ):
    self._config, self._workers, self._ledger = config, workers, ledger
    learner, kept = config.learner, start.progress
    self._stream = TaskStream(
      start.tasks, config.seed, kept.get("stream"), single_epoch=learner.single_epoch
    )
    self._budgets = toggle.LengthBudgets(kept.get("length_budgets"))
    self._resampled = self._truncated = 0  # of the batch that is being collected
    self._pacing = Pacing(
      self._draw,
      batch=learner.groups_per_step,
      depth=config.fleet.depth,
      first=start.step,
      batches=learner.steps - start.step,
      # What was recorded had room: a replay may have more groups ready at the same place.
      ready_bytes=math.inf if config.fleet.replay else config.fleet.ready_gib * 2**30,
      state=kept.get("pacing"),
      tasks=start.tasks,
      groups=groups,
    )

  def collect(self, step: int) -> list[Group]:
    """The groups of a step, in the order in which their tasks were drawn.

    Raises:
      loop.OutageError: every rollout of the step failed.
    """
    self._workers.turn_to(self._progress(step))
    self._resampled = self._truncated = 0
    groups: list[Group] = []
    while lack := self._config.learner.groups_per_step - len(groups):
      groups += self._with_differences(self._played(lack), step)
    _check_played(groups, step)
    self._pacing.learnt(len(groups))  # before the next ones are played
    return groups

  def _played(self, count: int) -> list[Group]:
    """The next `count` groups, which are played now."""
    draws = list(iter(self._pacing.next, None))
    played = lambda: list(self._workers.play(map(self._job, draws)))
    for group in self._workers.shared(played):
      self._ended(group)
      self._pacing.finished(group)
    groups = self._pacing.take(count)
    assert groups is not None
    return groups

  def publish(self, params: dict[str, Any], version: int) -> None:
    """Makes a version of the weights, with adapters, that of all samplers."""
    self._workers.publish(lora.merged(params), version)

  @property
  def published(self) -> Callable[[int], Any] | None:
    """See loop.Plan; None where all rollouts are of the newest weights."""
    return None

  def metrics(self) -> dict[str, float]:
    """Metrics of the last batch that was collected: groups that others were played for, and
    rollouts that a limit cut off.
    """
    return {
      "groups_resampled": float(self._resampled),
      "rollouts_truncated": float(self._truncated),
    }

  def state(self) -> dict[str, Any]:
    """For a checkpoint's progress."""
    return {
      "stream": self._stream.state(),
      "length_budgets": self._budgets.state(),
      "pacing": self._pacing.state(),
      "temperature": self._config.sampler.temperature,
    }

  def learnt(self, step: int, groups: Sequence[Group]) -> None:
    """A step has learnt from groups, which have their advantages; see loop.Plan."""
    if self._ledger:
      self._ledger.learnt(step, {group.id: _not_learnt(group) for group in groups})

  def before_save(self) -> None:
    """Makes durable what a checkpoint needs beside it; to be called before it is written."""

  def after_save(self, step: int) -> None:
    """Removes what is not needed any more, since there is a complete checkpoint of this step."""
    if self._ledger:
      self._ledger.saved()

  def _draw(self, batch: int) -> list[Task]:
    """The tasks of a batch; each batch is drawn once, in order."""
    learner = self._config.learner
    return self._stream.next(learner.groups_per_step, batch, loop.level_weights(learner, batch))

  def _job(self, draw: Draw) -> Job:
    """What the workers play for a task."""
    config = self._config
    if self._ledger:
      self._ledger.dispatched(draw.label, draw.task.id, config.learner.group_size)
    sampling = setup.sampling(config, config.seed + 1 + draw.batch + REPEATED * draw.repeat)
    return Job(draw.label, draw.task, config.learner.group_size, sampling)

  def _ended(self, group: Group) -> None:
    """Takes note of a group whose rollouts have all ended."""
    if self._ledger:
      self._ledger.finished(group)

  def _progress(self, step: int) -> float:
    return step / max(self._config.learner.steps, 1)

  def _with_differences(self, groups: list[Group], step: int) -> list[Group]:
    """The groups with rewards, without those whose rewards are all equal, as far as the step may
    still have others played in their place (`learner.resample_constant`).
    """
    kept = []
    for group in self._rewarded(groups, step):
      may_resample = self._resampled < self._config.learner.resample_constant
      if may_resample and advantage.is_constant(group):
        self._resampled += 1
        self._replace(group, step, _not_learnt(group))
      else:
        kept.append(group)
        self._truncated += sum(map(loss_exclusions.is_truncated, group.trajectories))
    return kept

  def _replace(self, group: Group, step: int, why: str) -> None:
    """Has another group played in the place of one that was taken and will not be trained."""
    if self._ledger:
      self._ledger.learnt(step, {group.id: why})
    self._pacing.replace(1)

  def _rewarded(self, groups: list[Group], step: int) -> list[Group]:
    """The groups with rewards, gated by Toggle if that is set, and with truncated rollouts as
    `learner.truncated` says.
    """
    config = self._config
    agent = agent_setting.agent(config)
    if config.toggle.phase_steps:
      groups = toggle.gated(
        groups,
        self._budgets,
        part=agent.success,
        limited=toggle.is_limited(step, config.toggle.phase_steps),
        solved=config.toggle.solved,
        percentile=config.toggle.percentile,
      )
    rewarded = agent_lib.rewarded(
      agent,
      config.agent_config,
      groups,
      self._progress(step),
      judge_weight=config.judge.weight,
    )
    return loss_exclusions.without_truncated(rewarded, config.learner.truncated)


class _Publication:
  """A version that is being published in a thread of its own: at most one at a time."""

  def __init__(self) -> None:
    self._running: concurrent.futures.Future[None] | None = None
    self._version = -1

  def begin(self, version: int, *calls: Callable[[], None]) -> None:
    """Makes these calls, one after another, in the publisher's thread."""
    self._version = version
    self._running = background.call(lambda: [call() for call in calls], "publisher")

  def end(self) -> None:
    """Returns when the version is complete, and raises what went wrong."""
    running, self._running = self._running, None
    if running:
      try:
        running.result(TIMEOUT_S)
      except concurrent.futures.TimeoutError:
        raise TimeoutError(
          f"version {self._version} was not published within {TIMEOUT_S:g} s; check that the disk "
          "of the run has room and answers, then run the same command again"
        ) from None

  @contextlib.contextmanager
  def completed(self) -> Iterator[None]:
    """At its end the last version is complete: it is to be evaluated."""
    try:
      yield
      self.end()
    finally:
      if self._running:
        concurrent.futures.wait([self._running], TIMEOUT_S)


class FollowedBatches(Batches):
  """The batches of an asynchronous run in its other processes, which the first one plays
  (`AsyncBatches`) and tells them.

  Args:
    config, workers, start: see Batches.
  """

  def __init__(self, config: RunConfig, workers: RolloutWorkers, start: Start):
    super().__init__(config, workers, start, None)
    self._publication = _Publication()

  @contextlib.contextmanager
  def playing(self) -> Iterator[None]:
    """At the end of the context all that was published is complete."""
    with self._publication.completed():
      yield

  def collect(self, step: int) -> list[Group]:
    """See AsyncBatches."""
    groups = self._workers.shared(list)
    _check_played(groups, step)
    return groups

  def publish(self, params: dict[str, Any], version: int) -> None:
    """Has this process's part of a version written while learning goes on."""
    self._publication.end()
    rest = self._workers.begin_publishing(lora.merged(params), version)
    self._publication.begin(version, rest)

  @property
  def published(self) -> Callable[[int], Any]:
    """See AsyncBatches."""
    return self._workers.published

  def state(self) -> dict[str, Any]:
    """Nothing: the first process writes a checkpoint's progress."""
    return {}


class AsyncBatches(Batches):
  """Batches that are played while the learner learns from earlier ones (`fleet.depth` > 0).

  Invariant: no token with loss of a group that `collect` returns is more than `fleet.max_age`
  publications old.

  Args:
    config, workers, start: see Batches.
    ledger: of the run.
    ready: the groups that an earlier process of the run left, and where those of this one are kept.
    schedule: of the run, if it can be replayed or is a replay.
  """

  def __init__(
    self,
    config: RunConfig,
    workers: RolloutWorkers,
    start: Start,
    ledger: Ledger,
    ready: ReadyGroups,
    schedule: Schedule | None,
  ):
    # Without a checkpoint nothing says that version 0 is the one which earlier groups are of.
    self._goes_on = bool(start.progress)
    # The learner scores tokens at one temperature, so those of another one are played again.
    temperature = start.progress.get("temperature", config.sampler.temperature)
    usable = self._goes_on and temperature == config.sampler.temperature
    groups = ready.load(newest=start.version) if usable else []
    super().__init__(config, workers, start, ledger, groups)
    ready.remove_others(self._pacing.kept)
    for group in groups:
      if group.id in self._pacing.kept:
        ledger.kept(group)
    self._published = [*start.progress.get("published", ()), start.version]
    self._ready, self._schedule = ready, schedule
    self._replies: Replies | None = None
    self._used: dict[str, int] = {}  # the step that used a group whose file is still there
    self._ages: list[int] = []
    if not config.sampler.slices:  # these have begun with the version that is kept for them
      workers.keep(lora.merged(start.params), start.version)
    self._ahead: AsyncRollouts | None = None
    self._publication = _Publication()
    self._learning = 0  # groups that no publication has taken over

  @contextlib.contextmanager
  def playing(self, replies: pathlib.Path) -> Iterator[None]:
    """Plays in a thread of its own while the context lasts; `replies` is their file."""
    assert self._ledger is not None
    newest = self._published[-1] if self._goes_on else -1
    with (
      Replies(replies, newest, self._pacing.is_to_play) as self._replies,
      self._workers.noted(self._ledger, self._replies),
      self._workers.scheduled(self._schedule),
      self._workers.ahead(self._pacing, self._job, self._ended) as self._ahead,
    ):
      with self._publication.completed():
        yield

  def collect(self, step: int) -> list[Group]:
    """The next complete groups, those that ended first; waits for them.

    Raises:
      loop.OutageError: every rollout of the step failed.
    """
    self._workers.turn_to(self._progress(step))
    groups = self._workers.shared(lambda: self._taken(step))
    _check_played(groups, step)
    self._learning = len(groups)
    return groups

  def _taken(self, step: int) -> list[Group]:
    """The groups of a step, with rewards, once they are complete."""
    assert self._ahead is not None
    self._ahead.learnt(self._learning)  # where no weights were published
    self._ages, self._resampled, self._truncated = [], 0, 0
    groups: list[Group] = []
    while lack := self._config.learner.groups_per_step - len(groups):
      taken = self._ahead.take(lack, self._schedule.batch() if self._schedule else None)
      if self._schedule:
        self._schedule.taken(taken)
      self._used |= {group.id: step for group in taken}
      young = [group for group in (self._of_age(each, step) for each in taken) if group]
      groups += self._with_differences(young, step)
    return groups

  def publish(self, params: dict[str, Any], version: int) -> None:
    """Has a version written while learning goes on, at most one at a time; the samplers go on too,
    and swap between two steps. Jobs that begin after this batch was learnt from wait for it.
    """
    assert self._ahead is not None
    self._publication.end()
    finish = self._workers.begin_publishing(lora.merged(params), version)
    self._published.append(version)
    learnt = functools.partial(self._ahead.learnt, self._learning)
    self._publication.begin(version, finish, learnt)
    self._learning = 0

  @property
  def published(self) -> Callable[[int], Any]:
    """The weights that were published and are still kept, by version."""
    return self._workers.published

  def metrics(self) -> dict[str, float]:
    """Also depths of the queue in groups, ages of the groups that were taken in publications, how
    many were too old, the sampler's idle seconds, and how many replies of earlier attempts were
    used again.
    """
    assert self._ahead is not None and self._replies is not None
    in_flight, ready = self._ahead.depths()
    return super().metrics() | {
      "groups_in_flight": float(in_flight),
      "groups_ready": float(ready),
      "age_mean": float(np.mean(self._ages)),
      "age_max": float(max(self._ages)),
      "groups_too_old": float(sum(age > self._config.fleet.max_age for age in self._ages)),
      "sampler_idle_s": self._ahead.take_idle_s(),
      "replies_used_again": float(self._replies.take_found()),
    }

  def state(self) -> dict[str, Any]:
    """For a checkpoint's progress, with the tasks whose groups were not trained yet."""
    assert self._ahead is not None
    with self._ahead.still():
      found = super().state()
    return found | {"published": self._published[-1 - self._config.fleet.max_age : -1]}

  def before_save(self) -> None:
    """Waits until all groups that ended are on the disk."""
    self._ready.flush()

  def after_save(self, step: int) -> None:
    """Removes the groups that the steps before this one have used."""
    assert self._replies is not None
    super().after_save(step)
    self._replies.shrink()
    done = [name for name, used in self._used.items() if used < step]
    self._ready.remove(done)
    for name in done:
      del self._used[name]

  def _ended(self, group: Group) -> None:
    """Has the group written, beside the checkpoints; in the sampler's thread."""
    assert self._replies is not None
    super()._ended(group)
    self._ready.keep(group)
    self._replies.ended(group.id)

  def _of_age(self, group: Group, step: int) -> Group | None:
    """The group; None if it is dropped for tokens that are too old."""
    fleet = self._config.fleet
    age = pacing.age(group, self._published)
    self._ages.append(age)
    if age <= fleet.max_age:
      return group
    if fleet.too_old == "drop":
      self._replace(group, step, f"{age} publications old")
      return None
    return group

  def _rewarded(self, groups: list[Group], step: int) -> list[Group]:
    """Also without the loss of tokens that are too old, which Toggle counts as all others."""
    max_age = self._config.fleet.max_age

    def young(group: Group) -> Group:
      if pacing.age(group, self._published) <= max_age:
        return group
      return loss_exclusions.without_old_tokens(group, self._published[-1 - max_age])

    return list(map(young, super()._rewarded(groups, step)))

  def _replace(self, group: Group, step: int, why: str) -> None:
    assert self._ahead is not None and self._ledger is not None
    self._ledger.learnt(step, {group.id: why})
    self._ahead.replace(1)


def _check_played(groups: Sequence[Group], step: int) -> None:
  """Raises loop.OutageError if every rollout of a step failed."""
  errors = [each.error for group in groups for each in group.trajectories]
  if errors and all(errors):
    raise loop.OutageError(
      f"all {len(errors)} rollouts of step {step} failed, the first one by {errors[0]}; mend the "
      "cause and start the run again, which goes on with this step"
    )


def _not_learnt(group: Group) -> str:
  """Why a step learnt nothing from a group; "" if it did."""
  played = group.trajectories
  if any(each.metrics.get("advantage") and advantage.has_loss(each) for each in played):
    skipped = any(each.metrics.get(advantage.SKIPPED) for each in played)
    return NOT_FINITE if skipped else ""
  errors = [each.error for each in played]
  if all(errors):
    first = errors[0].partition("\n")[0][:200]
    return f"all its rollouts failed, the first one by {first}"
  compared = advantage.compared(group)
  if compared and len({each.reward for each in compared}) == 1:
    return CONSTANT
  if not any(map(advantage.has_loss, compared)):
    return "none of its rollouts has a loss: limits cut them off, or their tokens are too old"
  return "all its advantages are 0"


def check_tasks(learner: LearnerConfig, tasks: Sequence[Task]) -> None:
  """Raises ValueError where tasks have levels that no step could draw, there are none, or a single
  epoch has too few, for all steps or for those before or after `learner.level_switch` alone.
  """
  levels = curriculum.by_level(tasks)
  phases = collections.Counter(loop.level_weights(learner, step) for step in range(learner.steps))
  drawn = {
    weights: {level for level, share in curriculum.shares(levels, weights).items() if share}
    for weights in phases
  }
  if not learner.single_epoch:
    return
  count = lambda of: len({curriculum.mark(task) for level in of for task in levels[level]})
  there, needed = count(set().union(*drawn.values())), learner.steps * learner.groups_per_step
  if there < needed:
    raise ValueError(
      f"learner.steps={learner.steps} times learner.groups_per_step={learner.groups_per_step} need "
      f"{needed} tasks, and with learner.single_epoch there are {there}; lower them, or make "
      "more tasks"
    )
  for weights, steps in phases.items():
    there, needed = count(drawn[weights]), steps * learner.groups_per_step
    if there < needed:
      raise ValueError(
        f"{steps} of learner.steps={learner.steps} draw from the levels {sorted(drawn[weights])} "
        f"alone; times learner.groups_per_step={learner.groups_per_step} they need {needed} tasks, "
        f"and with learner.single_epoch there are {there}; change learner.level_switch, "
        "learner.level_weights_early or learner.level_weights_late, or make more tasks"
      )


@contextlib.contextmanager
def opened(
  config: RunConfig,
  workers: RolloutWorkers,
  start: Start,
  folder: pathlib.Path,
) -> Iterator[Batches]:
  """The batches of a run, played asynchronously if `fleet.depth` says so.

  Args:
    config, workers, start: see Batches.
    folder: of the run, in which LEDGER, READY, REPLIES and SCHEDULE lie.

  Raises:
    ValueError: they are to be played asynchronously by an engine that spans several processes, or
      the record of `fleet.replay` does not fit (runs.schedules).
  """
  if config.fleet.depth and jax.process_count() > 1 and not config.sampler.slices:
    raise ValueError(
      f"fleet.depth={config.fleet.depth} in a run of {jax.process_count()} processes needs sampler "
      "slices on nodes of a Ray cluster, since an engine that spans the processes of the learner "
      "waits for it; set sampler.slices, or fleet.depth=0"
    )
  if config.fleet.depth and not processes.is_first():
    followed = FollowedBatches(config, workers, start)
    with followed.playing():
      yield followed
    return
  if not processes.is_first():
    yield Batches(config, workers, start, None)
    return
  with Ledger(folder / LEDGER, start.step) as ledger:
    if not config.fleet.depth:
      # Versions that sampled these are trained again, as other weights of the same numbers.
      shutil.rmtree(folder / READY, ignore_errors=True)
      (folder / REPLIES).unlink(missing_ok=True)
      with workers.noted(ledger):
        yield Batches(config, workers, start, ledger)
      return
    warm_start = weight_files.digest(folder / WARM_START)
    with (
      ReadyGroups(folder / READY, ledger.ready) as ready,
      schedules.opened(folder / SCHEDULE, config, step=start.step, start=warm_start) as schedule,
    ):
      ahead = AsyncBatches(config, workers, start, ledger, ready, schedule)
      with ahead.playing(folder / REPLIES):
        yield ahead
