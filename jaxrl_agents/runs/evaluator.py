"""The evaluator: scores new versions of the weights on the dev split while training goes on.

It follows the folder of a run, in a process of its own: of this machine or of a node of its Ray
cluster, started by the run (runs.evaluator_service), or of any machine that sees the folder
(scripts/evaluate.py --follow). The learner never waits for it. It takes the newest version, and
versions that came and went meanwhile have no score.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import pathlib
import time
from collections.abc import Callable
from typing import Any

from jaxrl_agents import service_log
from jaxrl_agents.agents import agent as agent_lib
from jaxrl_agents.agents import scores
from jaxrl_agents.agents.agent import Tasks
from jaxrl_agents.config import FleetConfig, MeshConfig, PublishConfig, RunConfig
from jaxrl_agents.fleet.version_scores import VersionScores
from jaxrl_agents.harness.worker_process import Job
from jaxrl_agents.learner.preemption import Preempted
from jaxrl_agents.runs import agent_setting, evaluation, listeners, processes, setup
from jaxrl_agents.runs.rollout_workers import RolloutWorkers
from jaxrl_agents.runs.workdir import Listener, Workdir
from jaxrl_agents.service_log import Tell
from jaxrl_agents.types import Group, Task
from jaxrl_agents.weights import manifest as manifest_lib
from jaxrl_agents.weights import places

NAME = "evaluator"
"""The name of the service."""
EVALUATES = "evaluates"
"""What it does while it plays the tasks."""
SPLIT = "dev"
_POLL_S = 1.0


class LateError(Exception):
  """An evaluation took longer than evaluator.deadline_s."""


@dataclasses.dataclass(frozen=True)
class Ended:
  """The end of a process that evaluates. Attributes: in words; whether all that was due is done."""

  how: str
  well: bool = False


def serve(config: RunConfig, folder: str, is_over: Callable[[], bool]) -> None:
  """What a process does that the run starts as its evaluator: `follow`, with few cores and a low
  priority.

  Args:
    config: of the run.
    folder: of the run.
    is_over: see `follow`.
  """
  own = config.evaluator
  os.nice(own.nice)
  os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[-own.threads :])
  setup.compilation_cache(config)
  config = dataclasses.replace(
    config,
    mesh=config.sampler_mesh if own.on_node else MeshConfig(),
    workers=dataclasses.replace(
      config.workers, processes=min(config.workers.processes, own.threads)
    ),
  )
  workdir = Workdir(folder, weights=config.publish.folder)
  corpus = agent_setting.open_tasks(config, report=lambda *_: None)
  with (
    contextlib.suppress(Preempted),
    setup.devices(config),
    service_log.opened(workdir.services, NAME) as tell,
  ):
    follow(config, corpus, workdir, tell, is_over)


def follow(
  config: RunConfig,
  corpus: Tasks,
  workdir: Workdir,
  tell: Tell,
  is_over: Callable[[], bool],
) -> None:
  """Evaluates versions as they are published, until no more come.

  Args:
    config: of the run; this process samples on `config.mesh`.
    corpus: of the run.
    workdir: of the run.
    tell: of the states of this service.
    is_over: whether no more versions will be published; the newest is still evaluated then.
  """
  own = config.evaluator
  workdir.check_hard_links()
  results = VersionScores(workdir.evaluations, longest_s(config))
  config = alone(config)
  tasks = corpus.sample(SPLIT, own.tasks, config.seed)
  evaluated = _Evaluated(config, workdir, results, tasks, tell, is_over)
  with (
    listeners.opened(config, workdir.path) as told,
    processes.bound(config) as channel,
    processes.stoppable(channel) as notice,
  ):
    while not evaluated.done:  # once, and again after a late evaluation, or if the run goes back
      with RolloutWorkers(
        config,
        setup.worker_spec(config, corpus),
        setup.for_sampler(setup.warm_params(config, workdir)),
        0,
        weights=workdir.weights,
        channel=channel,
        notice=notice,
        frozen=evaluation.frozen(config, evaluation.started_from(config, workdir.path)),
      ) as workers:
        workers.warm_up()
        evaluated.go_on(workers, told)


def longest_s(config: RunConfig) -> float:
  """Seconds after which a process that still evaluates one version must hang."""
  return config.evaluator.deadline_s + config.workers.stall_s + 60.0


def alone(config: RunConfig) -> RunConfig:
  """The config of a process that evaluates a run beside it: one engine, workers of this machine."""
  return dataclasses.replace(
    config,
    sampler=dataclasses.replace(config.sampler, slices=0, frozen_slices=0, hosts=1),
    sampler_mesh=MeshConfig(),
    fleet=FleetConfig(),
    publish=PublishConfig(),
  )


@dataclasses.dataclass
class _Evaluated:
  """The loop of `follow`. Attributes: its arguments; `done`; versions that this process gave up."""

  config: RunConfig
  workdir: Workdir
  results: VersionScores
  tasks: list[Task]
  tell: Tell
  is_over: Callable[[], bool]
  done: bool = False
  given_up: set[int] = dataclasses.field(default_factory=set)

  def go_on(self, workers: RolloutWorkers, told: list[Listener]) -> None:
    """Evaluates with these workers, until all is done or they must be made anew."""
    last_news, held, newest = time.monotonic(), 0, -1
    while True:
      over = self.is_over()  # asked first: what was published until then is seen
      steps = published(self.workdir)
      if max(steps, default=-1) != newest:  # it is alive, whether or not this version is due
        newest, last_news = max(steps, default=-1), time.monotonic()
      version = due(
        steps,
        self.results.newest(),
        every=0 if over else max(self.config.evaluator.every, 1),
        last_step=self.config.learner.steps,
        given_up=self.given_up,
      )
      if version is not None and held and version <= held:
        self.given_up.clear()
        return  # the run began again, or went on from before: what is held was withdrawn
      claim = None if version is None else self.results.claim(version)
      if version is None or claim is None:
        if over or time.monotonic() - last_news > self.config.evaluator.idle_timeout_s:
          self.done = True
          return
        self.tell("waits", on="publisher")
        time.sleep(max(_POLL_S, places.poll_s(self.workdir.weights)))
        continue
      last_news, held = time.monotonic(), version
      try:
        record = self._scored(workers, version, steps[version])
        if self.results.keep(claim, record):
          for listener in told:
            listener("held_out", steps[version], record["scores"], record["time"])
      except (FileNotFoundError, manifest_lib.CorruptWeights):
        self.given_up.add(version)  # deleted since, or damaged: a newer one comes
      except LateError as error:
        print(f"version {version} has no score: {error}", flush=True)
        self.given_up.add(version)
        return
      finally:
        claim.unlink(missing_ok=True)

  def _scored(self, workers: RolloutWorkers, version: int, step: int) -> dict[str, Any]:
    self.tell(EVALUATES, version=version, step=step)
    began = time.monotonic()
    if version:
      workers.load(version)
    groups = _played(self.config, workers, self.tasks, f"evaluate {version}")
    return {
      "version": version,
      "step": step,
      "time": time.time(),
      "seconds": time.monotonic() - began,
      "split": SPLIT,
      "scores": scores.summary(groups),
    }


def published(workdir: Workdir) -> dict[int, int]:
  """{version: steps learnt before it} of the versions that can be read now, and of the start."""
  there = {
    *manifest_lib.versions(workdir.weights),
    *manifest_lib.versions(manifest_lib.differences(workdir.weights)),
  }
  found = {0: 0}
  for state in service_log.read(workdir.services).get("publisher", ()):
    version, step = state.facts.get("version"), state.facts.get("step")
    if isinstance(version, int) and isinstance(step, int) and version in there:
      found[version] = step
  return found


def due(
  steps: dict[int, int],
  newest: tuple[int, int] | None,
  *,
  every: int,
  last_step: int,
  given_up: set[int],
) -> int | None:
  """The version to evaluate next: the newest one; None if it is too soon for any.

  Args:
    steps: see `published`.
    newest: (version, step) that was evaluated last.
    every: steps from one evaluation to the next; 0 for the newest version, however soon it comes.
    last_step: after which a version is evaluated however soon it comes.
    given_up: versions to leave out.
  """
  after, since = newest or (-1, -every)
  found = [
    version
    for version, step in steps.items()
    if version > after and version not in given_up and (step - since >= every or step == last_step)
  ]
  return max(found, default=None)


def _played(
  config: RunConfig, workers: RolloutWorkers, tasks: list[Task], label: str
) -> list[Group]:
  """Rewarded groups of the tasks. Raises LateError where they take too long."""
  sampling, own = setup.eval_sampling(config), config.evaluator
  jobs = [Job(f"{label} {i}", task, own.rollouts, sampling) for i, task in enumerate(tasks)]
  deadline = time.monotonic() + own.deadline_s
  groups: list[Group] = []
  for group in workers.play(jobs):
    groups.append(group)
    if time.monotonic() > deadline and len(groups) < len(tasks):
      raise LateError(
        f"{len(groups)} of {len(tasks)} tasks were played in {own.deadline_s:g} s; raise "
        "evaluator.deadline_s, or lower evaluator.tasks"
      )
  return agent_lib.rewarded(
    agent_setting.agent(config), config.agent_config, groups, judge_weight=config.judge.weight
  )


def learner_ended(services: pathlib.Path) -> bool:
  """Whether the learner of a run has said that it ended."""
  state = service_log.newest(services, "learner")
  return state is not None and state.does == service_log.ENDED
