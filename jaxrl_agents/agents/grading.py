"""Adds the grades of a judge model to the rewards of finished rollouts.

A rollout of a train task is graded by the rubric that its group has drawn, and by the held-out
ones; others, which are compared with those of other policies, by all rubrics. The parts:

    judged             grade in [0, 1] that is rewarded: by the drawn rubric, or the mean over all
                       that are rewarded
    judged_NAME        grade by the rubric NAME, where it was asked for
    judged_held_out    mean grade by the held-out rubrics, which is never rewarded
    judged_violations, judged_injections
                       1 if a verdict says so; of injections also if the text shows it
"""

from __future__ import annotations

import asyncio
import dataclasses
import statistics
import time
from collections.abc import Sequence

from jaxrl_agents.agents import judge_prompt
from jaxrl_agents.agents import rubric as rubric_lib
from jaxrl_agents.agents.chat_endpoint import Client, Endpoint
from jaxrl_agents.agents.rubric import Rubric, Verdict
from jaxrl_agents.agents.verdict_cache import VerdictCache
from jaxrl_agents.harness.rollout import EpisodeError
from jaxrl_agents.types import Task, Trajectory


@dataclasses.dataclass(frozen=True)
class Judging:
  """What workers need to have their rollouts graded; picklable.

  Attributes:
    endpoint: where the judge answers.
    rubrics: all of them, held-out ones included.
    trained: names of those that are rewarded; () for all that are not held out.
    samples, temperature, max_tokens: answers per rubric, and how they are sampled.
    max_characters: of an episode that the judge reads.
    deadline_s: most seconds until a rollout has its grades.
    cache: folder of answers.
    seed: of the run; decides which group draws which rubric.
  """

  endpoint: Endpoint
  rubrics: tuple[Rubric, ...]
  trained: tuple[str, ...]
  samples: int
  temperature: float
  max_tokens: int
  max_characters: int
  deadline_s: float
  cache: str
  seed: int


class Grader:
  """Grades the rollouts of one process."""

  def __init__(self, judging: Judging):
    rubric_lib.check(judging.rubrics, judging.trained)
    self._judging, self._client = judging, Client(judging.endpoint)
    self._cache = VerdictCache(judging.cache)
    self._rewarded = rubric_lib.rewarded(judging.rubrics, judging.trained)
    self._held_out = [rubric for rubric in judging.rubrics if rubric.held_out]

  async def graded(self, task: Task, group_id: str, trajectory: Trajectory) -> Trajectory:
    """The trajectory with the judge's parts among its rewards; a failed one as it is.

    Raises:
      EpisodeError: the judge is down, refuses, or was too slow. The rollout then has failed; it has
        no grade of 0.
    """
    if trajectory.error:
      return trajectory
    began = time.monotonic()
    parts = await self._parts(self._asked(task, group_id), trajectory)
    return dataclasses.replace(
      trajectory,
      rewards={**trajectory.rewards, **parts},
      metrics={**trajectory.metrics, "judge_s": time.monotonic() - began},
    )

  def _asked(self, task: Task, group_id: str) -> list[Rubric]:
    """The rubrics that are rewarded in this group."""
    if task.split != "train":
      return self._rewarded
    name = group_id.partition("/")[0]  # a group may be played in parts, "NAME/0", "NAME/1", ...
    return [rubric_lib.drawn(self._rewarded, group_id=name, seed=self._judging.seed)]

  async def _parts(self, asked: Sequence[Rubric], trajectory: Trajectory) -> dict[str, float]:
    every = [*asked, *self._held_out]
    if judge_prompt.addresses_judge(trajectory.log):
      verdicts = [[Verdict({}, injects=True)] for _ in every]
    else:
      text = judge_prompt.transcript(trajectory.log, self._judging.max_characters)
      verdicts = await self._verdicts(text, every, trajectory.task_id)
    grades = {
      rubric.name: rubric_lib.grade(found, rubric)
      for rubric, found in zip(every, verdicts, strict=True)
    }
    flat = [verdict for found in verdicts for verdict in found]
    return {
      "judged": statistics.fmean(grades[rubric.name] for rubric in asked),
      "judged_held_out": statistics.fmean(grades[rubric.name] for rubric in self._held_out),
      "judged_violations": float(any(verdict.violates for verdict in flat)),
      "judged_injections": float(any(verdict.injects for verdict in flat)),
      **{f"judged_{name}": grade for name, grade in grades.items()},
    }

  async def _verdicts(
    self, text: str, rubrics: Sequence[Rubric], task_id: str
  ) -> list[list[Verdict]]:
    """For each rubric the verdicts of all samples."""
    samples = self._judging.samples
    jobs = [
      asyncio.ensure_future(self._verdict(text, rubric, sample))
      for rubric in rubrics
      for sample in range(samples)
    ]
    try:
      async with asyncio.timeout(self._judging.deadline_s):
        flat = await asyncio.gather(*jobs)
    except TimeoutError:
      raise EpisodeError(
        f"task {task_id}: no grades within judge.deadline_s={self._judging.deadline_s:g}; raise "
        "it, or judge.at_once if the judge has room for more requests"
      ) from None
    finally:
      for job in jobs:
        job.cancel()
    return [flat[i : i + samples] for i in range(0, len(flat), samples)]

  async def _verdict(self, text: str, rubric: Rubric, sample: int) -> Verdict:
    """One answer, from the cache if it was given before."""
    endpoint = self._client.endpoint
    request = {
      "messages": judge_prompt.messages(text, rubric),
      "temperature": self._judging.temperature,
      "max_tokens": self._judging.max_tokens,
      "seed": sample,
    }
    key = self._cache.key(endpoint.url, endpoint.model, request)
    known = self._cache.get(key)
    if known is not None:
      return rubric_lib.read(known, rubric)

    def read(message: object) -> tuple[str, Verdict]:
      content = message.get("content") if isinstance(message, dict) else None
      if not isinstance(content, str):
        raise ValueError("the message has no text")
      return content, rubric_lib.read(content, rubric)

    answer, verdict = await self._client.ask(request, read)
    self._cache.put(key, answer)
    return verdict
