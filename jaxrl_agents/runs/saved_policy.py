"""The policy of a checkpoint of a run, without the state that training would go on with."""

from __future__ import annotations

import pathlib
from typing import Any, NamedTuple

import jax

from jaxrl_agents.config import RunConfig
from jaxrl_agents.learner import checkpoint
from jaxrl_agents.learner import state as state_lib
from jaxrl_agents.policy import lora
from jaxrl_agents.policy import params as params_lib
from jaxrl_agents.runs import rl, setup, sft, weight_files

OPTIMIZERS = {"rl": rl.optimizer, "sft": sft.optimizer}


class Saved(NamedTuple):
  """A checkpoint of a run: its phase, "rl" or "sft" (the warm-up), and the steps learnt before."""

  phase: str
  step: int

  def follows(self, phase: str, step: int) -> bool:
    """Whether it was saved after this step of a phase of its run, counted from 0."""
    return step < self.step if phase == self.phase else self.phase == "rl"


def chosen(run: pathlib.Path, step: int | None) -> Saved | None:
  """The checkpoint of `step`, of reinforcement learning if that has begun, else of the warm-up.

  Without a step, the newest one of a phase that did not end; None if the last phase has left its
  weights, in `trained` or `warm_start`, or `run` is a folder of weights.

  Raises:
    ValueError: a step is given, and there is no checkpoint at all.
  """
  steps = {phase: _steps(run / "checkpoints" / phase) for phase in OPTIMIZERS}
  phase = "rl" if steps["rl"] else "sft"
  if step is not None:
    if not steps[phase]:
      raise ValueError(f"{run} has no checkpoint of step {step}, nor any other; leave out the step")
    return Saved(phase, step)
  has = lambda folder: (folder / weight_files.WEIGHTS).is_file()
  ended = has(run) or has(run / "trained") or (phase == "sft" and has(run / "warm_start"))
  return None if ended or not steps[phase] else Saved(phase, max(steps[phase]))


def load(config: RunConfig, run: pathlib.Path, saved: Saved, *, dtype: Any) -> dict[str, Any]:
  """The parameters of a checkpoint, adapters merged, on the first device. Leaves the folder as it
  is. The moments are read, too; JAX_PLATFORMS=cpu reads all into the memory of the host.

  Args:
    config: of the run.
    run: its folder.
    saved: which checkpoint.
    dtype: as of `weight_files.load`.

  Raises:
    FileNotFoundError: there is no checkpoint of this step; names those that there are.
    ValueError: it is damaged, or of another policy or optimizer.
  """
  cfg, tx = config.policy.model, OPTIMIZERS[saved.phase](config)
  state = jax.eval_shape(
    lambda params: state_lib.make_state(
      setup.with_adapters(config, params), tx, jax.random.key(config.seed)
    ),
    params_lib.abstract(cfg, config.policy.dtype),
  )
  with checkpoint.open_manager(run / "checkpoints" / saved.phase, writes=False) as manager:
    restored, _, _ = checkpoint.restore(manager, state, saved.step)
  params = lora.merged(restored.policy.params)
  return jax.tree.map(lambda x, like: x.astype(like.dtype), params, params_lib.abstract(cfg, dtype))


def _steps(folder: pathlib.Path) -> list[int]:
  """The steps whose checkpoints are in a folder, which need not exist."""
  if not folder.is_dir():
    return []
  with checkpoint.open_manager(folder, writes=False) as manager:
    return sorted(manager.all_steps())
