"""One cycle of the real-time loop: a batch of joined traffic, training, the gate, the trial.

  batch     calls whose windows are over, fixed in the log before they are trained
  train     from the stable weights; published under the next number
  gate      shadow replies to logged prompts, and an evaluation, against the stable policy
  trial     realtime.trial: 5 %, 50 %, all users; or back

A cycle that dies anywhere is continued by the next process: a batch in the log whose version was
not published is trained again, the same calls from the same weights.
"""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

from jaxrl_agents.agents.scores import TaskScores
from jaxrl_agents.chat import Chat
from jaxrl_agents.learner import packing, train_step
from jaxrl_agents.learner.advantage import Rollout, split_substeps
from jaxrl_agents.learner.state import PolicyState, TrainState, make_state
from jaxrl_agents.policy.config import PolicyConfig
from jaxrl_agents.realtime import advantage, behaviour, feedback, regression_gate, shadow
from jaxrl_agents.realtime import calls as calls_lib
from jaxrl_agents.realtime.advantage import Sample
from jaxrl_agents.realtime.arms import CANARY, STABLE
from jaxrl_agents.realtime.calls import LoggedCall
from jaxrl_agents.realtime.regression_gate import Suite, Verdict
from jaxrl_agents.realtime.traffic import Traffic
from jaxrl_agents.realtime.trial import Rules, Trial
from jaxrl_agents.runs.serving import EngineSampler
from jaxrl_agents.types import Sampler, SamplingLimits
from jaxrl_agents.weights import manifest as manifest_lib
from jaxrl_agents.weights import store

Evaluate = Callable[[Sampler], Awaitable[TaskScores]]

HISTORY = 8
"""Accepted versions that the guards compare with."""


@dataclasses.dataclass(frozen=True)
class Learning:
  """How a batch is trained.

  Attributes:
    cfg, tx, objective: sizes, optimizer, loss.
    row_tokens, rows_per_microbatch, substeps: see config.LearnerConfig.
    reference: parameters that the objective's KL term is taken to; None without one.
    max_age: see `advantage.fresh`.
    most_per_user: see `advantage.samples`.
    shadow_calls: logged prompts that a candidate answers before the gate.
    margin: of the evaluation, see `regression_gate.Suite`.
  """

  cfg: PolicyConfig
  tx: optax.GradientTransformation
  objective: train_step.Objective
  row_tokens: int
  rows_per_microbatch: int
  substeps: int = 1
  reference: Any = None
  max_age: int = 1
  most_per_user: int = 16
  shadow_calls: int = 200
  margin: float = 0.05


class Cycles:
  """Makes new versions of the weights from traffic and tries them.

  Invariant: a call is in one batch at most, and a batch leads to one version at most. What an arm's
  sampler serves is what the deployment names, once `serve` has returned.

  Args:
    traffic: of the gateway that users talk to.
    samplers: of the arms, the same that `traffic` has; nobody else sets their weights.
    learning: how batches are trained.
    evaluate: scores of the policy behind a sampler on tasks that do not change.
    chat, limits: of shadow replies.
    rules: of trials.
  """

  def __init__(
    self,
    traffic: Traffic,
    samplers: Mapping[str, EngineSampler],
    learning: Learning,
    *,
    evaluate: Evaluate,
    chat: Chat,
    limits: SamplingLimits,
    rules: Rules = Rules(),
  ):
    self.traffic, self._samplers, self._learning = traffic, samplers, learning
    self._evaluate, self._chat, self._limits, self._rules = evaluate, chat, limits, rules
    self._moments: Any = None
    self._draws = 0
    self._stable_scores: tuple[int, TaskScores] | None = None
    self.trial: Trial | None = None
    self._watch()

  def _waits_for_gate(self) -> int:
    """The version that was trained and that the gate has not decided on; -1 if there is none."""
    now, join = self.traffic.deployer.now, self.traffic.join
    if now.trial and not now.stage:
      return now.trial.version
    published = manifest_lib.versions(self.traffic.deployer.folder)
    return join.newest if join.newest > now.newest and join.newest in published else -1

  def _watch(self) -> None:
    """Has a trial watch the candidate among users; a stable one may still be rolled back."""
    now = self.traffic.deployer.now
    if now.candidate and now.stage:
      self.trial = Trial(self.traffic.deployer, self.traffic.join, self._rules)

  async def serve(self) -> None:
    """Gives the samplers what the deployment names.

    An engine's number never goes back: after a roll-back the canary's keeps the withdrawn weights,
    and no session asks it.
    """
    now = self.traffic.deployer.now
    for arm, served in ((STABLE, now.stable), (CANARY, now.trial)):
      sampler = self._samplers[arm]
      if served and served.version > sampler.version:
        params = await asyncio.to_thread(self.fetched, served.version)
        await sampler.set_params(params, served.version)

  async def train(self) -> tuple[int, dict[str, float]]:
    """Trains the next batch from the stable weights and publishes a version.

    Returns:
      (version, metrics), of the version that waits for the gate if there is one; -1 if there was
      nothing to train, or while a version is on trial.
    """
    join, deployer = self.traffic.join, self.traffic.deployer
    if (version := self._waits_for_gate()) >= 0:  # its process died, or the gate raised
      return version, {}
    if deployer.now.trial:  # another version could not be proposed
      return -1, {}
    number = max(join.batches, default=-1)
    version = max(deployer.now.newest, *manifest_lib.versions(deployer.folder)) + 1
    dropped: dict[str, int] = {}
    begun = bool(join.batches.get(number)) and not self._is_published(number)
    fixed = begun and self._fix_again(number, version)
    if not fixed:  # all is published, or nothing is left of the batch that was not
      number += 1
      fixed, dropped = self._fix(number, version)
    if not fixed:
      return -1, {name: float(count) for name, count in dropped.items()}
    names = join.batches[number]
    baseline = self._baseline(number)
    samples, metrics = advantage.samples(
      [join.calls[name] for name in names],
      join.kinds,
      baseline,
      most_per_user=self._learning.most_per_user,
    )
    more = await asyncio.to_thread(self._learn, samples, version)
    return version, {**metrics, **more, **{k: float(v) for k, v in dropped.items()}}

  async def gate(self, version: int) -> Verdict:
    """Proposes a version, and lets it into the canary or rolls it back, as the gate decides."""
    deployer = self.traffic.deployer
    if not (trial := deployer.now.trial) or deployer.now.stage or trial.version != version:
      deployer.propose(version)  # else the gate did not decide the last time
    await self.serve()
    verdict, figures = await self.verdict(self._samplers[CANARY])
    if verdict.passed:
      self._accept(figures)
      self.trial = Trial(deployer, self.traffic.join, self._rules)
      deployer.advance()
    else:
      deployer.roll_back()
    return verdict

  async def verdict(self, sampler: Sampler) -> tuple[Verdict, dict[str, tuple[float, float]]]:
    """What the gate says of the policy behind a sampler, and its figures on logged prompts."""
    figures = await self._figures(sampler)
    candidate = await self._evaluate(sampler)
    suite = Suite("evaluation", candidate, await self._of_stable(), self._learning.margin)
    guards = behaviour.guards(self.traffic.join.figures[-HISTORY:], figures)
    return regression_gate.decide([suite], guards, resamples=2_000), figures

  async def _of_stable(self) -> TaskScores:
    """The scores of the stable policy, which are measured once."""
    sampler = self._samplers[STABLE]
    if self._stable_scores is None or self._stable_scores[0] != sampler.version:
      self._stable_scores = sampler.version, await self._evaluate(sampler)
    return self._stable_scores[1]

  async def remember(self) -> None:
    """Adds the stable policy's figures on logged prompts to the history of the guards."""
    self._accept(await self._figures(self._samplers[STABLE]))

  async def step(self) -> bool:
    """Lets the trial go on; returns whether what is served changed."""
    changed = self.trial is not None and self.trial.step(self.traffic.clock())
    if not self.traffic.deployer.now.trial or self.traffic.deployer.now.stage:
      await self.serve()  # also what an earlier step could not fetch
    if self.trial and self.trial.rolled_back:
      self._watch()
    return changed

  def _accept(self, figures: Mapping[str, tuple[float, float]]) -> None:
    means = {name: mean for name, (mean, _) in figures.items()}
    self.traffic.append({"kind": feedback.FIGURES, "figures": means}, durable=True)

  async def _figures(self, sampler: Sampler) -> dict[str, tuple[float, float]]:
    """`behaviour.means` of shadow replies. The latency is divided by that of the stable policy at
    the same time: other work of the machine must not refuse a candidate."""
    stable = behaviour.means(await self._shadow(self._samplers[STABLE]))
    found = behaviour.means(await self._shadow(sampler))
    if found:
      base = stable["latency_s"][0]
      mean, error = found["latency_s"]
      found["latency_s"] = mean / base, error / base
    return found

  async def _shadow(self, sampler: Sampler) -> list[dict[str, float]]:
    logged = [joined.call for joined in self.traffic.join.calls.values()]
    newest = logged[-self._learning.shadow_calls :]
    self._draws += len(newest)
    limits = dataclasses.replace(self._limits, seed=self._limits.seed + self._draws)
    return await shadow.replay(newest, self._of_id, sampler, self._chat, limits)

  def _of_id(self, name: str) -> LoggedCall:
    return self.traffic.join.calls[name].call

  def _is_published(self, number: int) -> bool:
    """Whether the version of a batch is published, or was once."""
    version, deployer = self.traffic.join.versions[number], self.traffic.deployer
    now = deployer.now
    used = (*now.history, *now.quarantined, *(p.version for p in (now.stable, now.candidate) if p))
    return version in used or version in manifest_lib.versions(deployer.folder)

  def _fix_again(self, number: int, version: int) -> bool:
    """Makes sure that a batch that was not trained leads to `version`, without calls of weights
    that were withdrawn since; returns whether calls are left.
    """
    join, withdrawn = self.traffic.join, set(self.traffic.deployer.now.quarantined)
    versions = lambda name: set(join.calls[name].call.generation.versions.tolist())
    kept = [name for name in join.batches[number] if not versions(name) & withdrawn]
    if (join.versions[number], len(kept)) != (version, len(join.batches[number])):
      record = {"kind": feedback.BATCH, "number": number, "version": version, "calls": kept}
      self.traffic.append({**record, "dropped": []}, durable=True)
    return bool(kept)

  def _fix(self, number: int, version: int) -> tuple[bool, dict[str, int]]:
    """Writes the next batch into the log; (whether there is one, what was dropped)."""
    join, now = self.traffic.join, self.traffic.deployer.now
    closed = join.closed(self.traffic.clock())
    kept, dropped = advantage.fresh(
      closed, now.age, quarantined=now.quarantined, max_age=self._learning.max_age
    )
    if kept:
      names = {joined.call.id for joined in kept}
      record = {
        "kind": feedback.BATCH,
        "number": number,
        "version": version,
        "calls": [joined.call.id for joined in kept],
        "dropped": [j.call.id for j in closed if j.call.id not in names],
      }
      self.traffic.append(record, durable=True)
    return bool(kept), dropped

  def _baseline(self, number: int) -> advantage.Baseline:
    """The baseline that earlier batches give."""
    join = self.traffic.join
    names = [name for n, each in join.batches.items() if n < number for name in each]
    rows = [(join.calls[n].call.features, join.calls[n].reward(join.kinds)) for n in names]
    weights = advantage.user_weights([join.calls[n].call.user for n in names])
    return advantage.fit(rows, weights)

  def fetched(self, version: int) -> dict[str, Any]:
    """The published parameters of a version."""
    return jax.tree.map(jnp.asarray, store.fetch(self.traffic.deployer.folder, version))

  def _learn(self, samples: Sequence[Sample], version: int) -> dict[str, float]:
    """Trains on samples and publishes the result; returns metrics."""
    learning, now = self._learning, self.traffic.deployer.now
    state = make_state(self.fetched(now.stable.version), learning.tx, jax.random.key(version))
    moments, self._moments = self._moments, None
    if moments and moments[0] == now.stable.version:  # else those of weights that were withdrawn
      state = dataclasses.replace(state, opt_state=moments[1])
    policy = PolicyState(state.policy.params, jnp.int32(now.stable.version))
    state = dataclasses.replace(state, policy=policy)
    rollouts = [
      Rollout((calls_lib.segment(s.call, self._of_id),), s.advantage, i, s.reward)
      for i, s in enumerate(samples)
    ]
    found: list[dict[str, float]] = []
    for part in split_substeps(rollouts, learning.substeps):
      state, metrics = train_step.update(
        state, self._packed(part), learning.cfg, learning.objective, learning.tx
      )
      found.append(metrics)
    self._publish(state, version)
    names = ("gap_p99", "gap_max", "grad_norm", "entropy")
    first = {name: found[0][name] for name in names if name in found[0]}
    return {**first, "optimizer_steps": float(len(found))}

  def _publish(self, state: TrainState, version: int) -> None:
    now, folder = self.traffic.deployer.now, self.traffic.deployer.folder
    oldest = min(p.version for p in (now.stable, now.previous, now.replaced) if p)
    newer = sum(v > oldest for v in manifest_lib.versions(folder))
    store.publish(state.policy.params, version, folder, keep=newer + 2)
    self._moments = version, state.opt_state

  def _packed(self, rollouts: Sequence[Rollout]) -> list[packing.Batch]:
    learning = self._learning
    batches = packing.pack(
      rollouts,
      row_tokens=learning.row_tokens,
      rows_per_microbatch=learning.rows_per_microbatch,
      normaliser=learning.objective.loss.normaliser,
    )
    if learning.reference is None:
      return batches
    scored = lambda b: np.asarray(
      train_step.recompute_logprobs(learning.reference, b, learning.cfg, learning.objective)
    )
    return [batch._replace(reference_logprobs=scored(batch)) for batch in batches]
