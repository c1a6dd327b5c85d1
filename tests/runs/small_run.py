"""A whole run in little, for tests that kill it: python small_run.py FOLDER [OPTIONS].

OPTIONS are in JSON, {"steps": 2, "save_every": 100, "mesh": {"expert": 2}}, each of them if wanted.
"""

import dataclasses
import json
import pathlib
import sys

import jax
import numpy as np

from jaxrl_agents import chat
from jaxrl_agents.config import LearnerConfig, MeshConfig, PolicySection, RunConfig
from jaxrl_agents.harness.process import Job, WorkerSpec
from jaxrl_agents.harness.rollout import Sampling
from jaxrl_agents.harness.workers import WorkerPool
from jaxrl_agents.learner import checkpoint, loop, preemption, state, train_step
from jaxrl_agents.learner.curriculum import TaskStream
from jaxrl_agents.policy import params as params_lib
from jaxrl_agents.policy.config import PolicyConfig
from jaxrl_agents.runs import command, setup
from jaxrl_agents.sampler.engine import Engine
from jaxrl_agents.sampler.server import RolloutServer
from jaxrl_agents.types import Task
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
LEARNER = LearnerConfig(
  steps=4, groups_per_step=2, group_size=2, substeps=2, row_tokens=64, rows_per_microbatch=2
)
TASKS = [Task(f"t{i}", "counting", f"count {i}", {"level": 0}) for i in range(6)]


def odd_share(trajectory) -> float:
  """A reward that differs between any two rollouts: the share of odd ids among those sampled."""
  sampled = np.concatenate([s.tokens[s.loss_mask] for s in trajectory.segments])
  return float(np.mean(sampled % 2))


def run(folder: pathlib.Path, *, mesh: dict[str, int] | None = None, **options: int) -> None:
  """Trains to the last step from where the folder stands; leaves params.npz and the ledger."""
  sizes = MeshConfig(**mesh or {})
  config = RunConfig(name="small", policy=PolicySection(model=CFG), seed=1, mesh=sizes)
  with setup.devices(config):
    trained(config, folder, dataclasses.replace(LEARNER, **options))


def trained(config: RunConfig, folder: pathlib.Path, learner: LearnerConfig) -> None:
  """`run` under the ambient mesh."""
  # With one expert a token the router's gradient is rounding, which a smaller eps would scale up.
  tx = state.make_optimizer(CFG, learning_rate=1e-2, eps=1e-4)
  fresh = setup.fresh_state(config, params_lib.init(CFG, jax.random.key(0)), tx)
  manager = checkpoint.open_manager(folder / "checkpoints", keep=2)
  first, current, ledger = setup.restored(manager, fresh)
  print(f"from {first}", flush=True)
  version = int(current.policy.version)
  store.withdraw_after(version, folder / "weights")
  engine = Engine(
    CFG,
    current.policy.params,
    version=version,
    slots=4,
    page_tokens=8,
    num_pages=100,
    max_context_tokens=64,
    prefill_tokens=32,
    draft_tokens=0,
    prefill_rows=1,
  )
  workers = WorkerPool(WorkerSpec("tests.sampler.counting:build"), 1, groups_per_worker=4)
  with preemption.watched() as notice, workers as pool:
    server = RolloutServer(engine, pool, max_rollouts=2, deterministic=True)

    def collect(tasks, step):
      jobs = [Job(f"{step} {i}", t, 2, Sampling(seed=step)) for i, t in enumerate(tasks)]
      return sorted(server.collect(jobs), key=lambda g: g.trajectories[0].group_id)

    def publish(params, number):
      store.publish(params, number, folder / "weights")
      engine.set_params(store.fetch(folder / "weights", number), number)

    plan = loop.Plan(
      collect=collect,
      total=lambda trajectory, step: odd_share(trajectory),
      publish=publish,
      save=lambda step, saved, found: checkpoint.save(manager, step, saved, found),
      report=lambda step, metrics, groups: print(f"step {step}", flush=True),
      held=notice.held,
    )
    current = loop.train(
      current,
      TaskStream(TASKS, 0, ledger.get("stream")),
      plan,
      cfg=CFG,
      learner=learner,
      tx=tx,
      objective=train_step.Objective("rl"),
      first_step=first,
    )
  manager.close()
  leaves = {f"p{i}": np.asarray(x) for i, x in enumerate(jax.tree.leaves(current.policy.params))}
  np.savez(folder / "params.npz", version=int(current.policy.version), **leaves)


if __name__ == "__main__":
  sys.path.insert(0, str(pathlib.Path(__file__).parents[2]))
  folder, *more = sys.argv[1:]
  sys.argv[1:] = []  # the command takes flags alone
  command.run(lambda: run(pathlib.Path(folder), **json.loads(*more or ["{}"])))
