"""A whole run in little, for tests that kill it: python small_run.py FOLDER [OPTIONS].

OPTIONS are in JSON: {"learner": {"steps": 2}, "mesh": {"expert": 2}}, sections of the config;
{"processes": ["127.0.0.1:7000", 2, 0]} for one of several processes; {"constant": 3} for as many
tasks whose rollouts all have the same reward; and {"frozen": FOLDER} for episodes that ask a policy
with these weights.
"""

import contextlib
import dataclasses
import json
import pathlib
import sys
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np

from jaxrl_agents import chat
from jaxrl_agents.config import (
  LearnerConfig,
  PolicySection,
  RunConfig,
  SamplerConfig,
  WorkersConfig,
)
from jaxrl_agents.harness.worker_process import WorkerSpec
from jaxrl_agents.learner import barriers, checkpoint, loop, state, train_step
from jaxrl_agents.learner.preemption import Notice
from jaxrl_agents.policy import params as params_lib
from jaxrl_agents.policy.config import PolicyConfig
from jaxrl_agents.runs import batches as batches_lib
from jaxrl_agents.runs import entry_point, setup, weight_files
from jaxrl_agents.runs import processes as processes_lib
from jaxrl_agents.runs.process_channel import ProcessChannel
from jaxrl_agents.runs.rollout_workers import FrozenWeights, RolloutWorkers
from jaxrl_agents.runs.workdir import Workdir
from jaxrl_agents.types import Group, Task
from jaxrl_agents.weights import store

CFG = PolicyConfig(
  vocab_size=chat.load("base").vocab_size,
  embed_dim=8,
  num_layers=1,
  num_heads=1,
  num_kv_heads=1,
  head_dim=8,
  num_experts=2,
  experts_per_token=1,
  expert_ffw_dim=8,
)
CONFIG = RunConfig(
  name="small",
  policy=PolicySection(model=CFG),
  seed=1,
  agent="tests.sampler.counting:AGENT",
  sampler=SamplerConfig(slots=4, page_tokens=8, num_pages=100, prefill_tokens=32, draft_tokens=0),
  workers=WorkersConfig(processes=1, episodes=2, stall_s=60, deterministic=True),
  learner=LearnerConfig(
    steps=4, groups_per_step=2, group_size=2, substeps=2, row_tokens=64, rows_per_microbatch=2
  ),
)
TASKS = [Task(f"t{i}", "counting", f"count {i}", {"level": 0}) for i in range(6)]

OTHER = "other"
"""The policy that is not trained."""


def configured(**sections: dict[str, Any]) -> RunConfig:
  """CONFIG with options of sections replaced."""
  changed = {k: dataclasses.replace(getattr(CONFIG, k), **v) for k, v in sections.items()}
  return dataclasses.replace(CONFIG, **changed)


def run(
  folder: pathlib.Path,
  *,
  processes: Sequence[Any] = (),
  constant: int = 0,
  frozen: str = "",
  **sections: dict[str, Any],
) -> None:
  """Trains to the last step from where the folder stands; leaves params.npz and the ledger."""
  if processes:
    processes_lib.start(*processes)
  config = configured(**sections)
  setup.cores_as_devices(config)
  with (
    setup.devices(config),
    processes_lib.bound(config) as channel,
    processes_lib.stoppable(channel) as notice,
  ):
    trained(config, folder, channel, notice, constant, frozen)
    processes_lib.wait_for_all("trained")


def bits(array: jax.Array) -> np.ndarray:
  """The array; of bfloat16, which npz files cannot hold, its bits."""
  found = np.asarray(array)
  return found if found.dtype == np.float32 else found.view(np.uint16)


def reported(
  folder: pathlib.Path, step: int, metrics: dict[str, float], groups: Sequence[Group]
) -> None:
  """The first process adds a line with the ids of the groups to trained.txt, and one with the
  metrics to metrics.txt; then each prints the step.
  """
  if processes_lib.is_first():
    with (folder / "trained.txt").open("a") as file:
      file.write(json.dumps([step, [group.id for group in groups]]) + "\n")
    with (folder / "metrics.txt").open("a") as file:
      file.write(json.dumps([step, metrics]) + "\n")
  print(f"step {step}", flush=True)


def trained(
  config: RunConfig,
  folder: pathlib.Path,
  channel: ProcessChannel,
  notice: Notice,
  constant: int,
  frozen: str,
) -> None:
  """`run` under the ambient mesh."""
  # With one expert a token the router's gradient is rounding, which a smaller eps would scale up.
  dtype = config.policy.dtype
  tx = state.make_optimizer(CFG, learning_rate=1e-2, eps=1e-4, dtype=dtype)
  manager = checkpoint.open_manager(folder / "checkpoints")
  with setup.learner_devices(config):
    fresh = setup.fresh_state(config, params_lib.init(CFG, jax.random.key(0), dtype), tx)
    first, current, progress = setup.restored(manager, fresh)
  print(f"from {first}", flush=True)
  version = int(current.policy.version)
  weights = Workdir(folder, weights=config.publish.folder).weights
  if channel.is_first:
    store.withdraw_after(version, weights)
  with (
    RolloutWorkers(
      config,
      WorkerSpec("tests.sampler.counting:build"),
      setup.for_sampler(current.policy.params),
      version,
      weights=weights,
      channel=channel,
      notice=notice,
      frozen={OTHER: [FrozenWeights(frozen)]} if frozen else None,
    ) as workers,
    contextlib.ExitStack() as stack,
  ):
    equal = [dataclasses.replace(task, facts={**task.facts, "reward": 1.0}) for task in TASKS]
    tasks = [*equal[:constant], *TASKS[constant:]]
    if frozen:
      tasks = [dataclasses.replace(t, facts={**t.facts, "other": OTHER}) for t in tasks]
    start = batches_lib.Start(first, current.policy.params, version, progress, tasks)
    batches = stack.enter_context(batches_lib.opened(config, workers, start, folder))

    def save(step: int, saved: state.TrainState, found: dict[str, Any]) -> None:
      batches.before_save()
      checkpoint.save(manager, step, saved, found, keep=2)
      batches.after_save(step)

    plan = loop.Plan(
      collect=batches.collect,
      publish=batches.publish,
      learnt=batches.learnt,
      kept=batches.state,
      published=batches.published,
      save=save,
      report=lambda step, metrics, groups: reported(
        folder, step, metrics | batches.metrics(), groups
      ),
      held=notice.held,
      devices=lambda: setup.learner_devices(config),
    )
    current = loop.train(
      current,
      plan,
      cfg=CFG,
      learner=config.learner,
      tx=tx,
      objective=train_step.Objective("rl"),
      first_step=first,
    )
    stack.close()  # the last version is complete and in the engine
    if engine := workers._engine:
      leaves = jax.tree.leaves(barriers.gathered(engine.params))
      held = {f"p{i}": bits(x) for i, x in enumerate(leaves)}
      np.savez(folder / "held.npz", version=engine.version, **held)
  manager.close()
  print(f"trained on {len(current.policy.version.sharding.device_set)} devices", flush=True)
  weight_files.save(current.policy.params, CFG, folder / "trained")
  params = barriers.gathered(current.policy.params)
  leaves = {f"p{i}": bits(x) for i, x in enumerate(jax.tree.leaves(params))}
  if channel.is_first:
    np.savez(folder / "params.npz", version=int(current.policy.version), **leaves)


if __name__ == "__main__":
  sys.path.insert(0, str(pathlib.Path(__file__).parents[2]))
  folder, *more = sys.argv[1:]
  sys.argv[1:] = []  # the command takes flags alone
  entry_point.run(
    lambda: run(pathlib.Path(folder), **json.loads(*more or ["{}"])), processes_lib.leave
  )
