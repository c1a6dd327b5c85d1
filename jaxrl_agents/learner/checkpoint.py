"""Checkpoints: each holds the train state and the progress of trained tasks, written atomically.

Resuming after a kill must neither lose nor repeat a task. Therefore parameters, moments, random key
and progress (which tasks were dispatched, finished and trained; the position in the data) become
visible together, by one rename. Arrays are stored under their path in the state, so that a
checkpoint of another policy is recognised by name and shape before it is read.

After the rename, digests of all files are written, and only then older steps are removed. A step
whose files do not match their digests is never restored: it is set aside, and the step before it is
used.
"""

from __future__ import annotations

import os
import pathlib
import sys
from typing import Any

import jax
import orbax.checkpoint as ocp

from jaxrl_agents import durable, file_digests, full_disk
from jaxrl_agents.learner import barriers
from jaxrl_agents.learner.state import TrainState

DAMAGED = "damaged"
"""Ending of the folder, beside that of the checkpoints, where damaged ones are set aside."""


def open_manager(folder: str | pathlib.Path, *, writes: bool = True) -> ocp.CheckpointManager:
  """The checkpoints of `folder` (created if missing).

  Leftovers of an interrupted save are removed before the next save. With `writes=False` nothing is
  created or removed, so that the run to which the folder belongs may go on meanwhile. Close the
  manager, or use `with`.
  """
  options = ocp.CheckpointManagerOptions(
    max_to_keep=None,  # `save` removes older steps once the digests of the new one are written
    create=writes,
    cleanup_tmp_directories=writes,
    enable_async_checkpointing=False,  # the next step would reuse the buffers that a save reads
  )
  handlers = {"state": ocp.StandardCheckpointHandler(), "progress": ocp.JsonCheckpointHandler()}
  path = pathlib.Path(folder).resolve()
  return ocp.CheckpointManager(path, options=options, item_handlers=handlers)


def save(
  manager: ocp.CheckpointManager,
  step: int,
  state: TrainState,
  progress: dict[str, Any],
  *,
  keep: int,
) -> None:
  """Writes one step and its digests, then removes all but the newest `keep` steps.

  Args:
    manager: from `open_manager`.
    step: number of optimizer batches so far; larger than every saved one.
    state: the whole train state.
    progress: plain JSON; what the loop needs to continue exactly where it stopped.

  Raises:
    ValueError: the step exists already, or `keep` is below 1.
    FullDiskError: there is no room; the earlier steps are as they were.
  """
  if keep < 1:
    raise ValueError(f"keep={keep} would delete every checkpoint as it is written; keep at least 1")
  if step in manager.all_steps():
    raise ValueError(f"step {step} is saved already; save each step once, or delete it first")
  items = ocp.args.Composite(
    state=ocp.args.StandardSave(_named(state)), progress=ocp.args.JsonSave(progress)
  )
  folder = pathlib.Path(manager.directory) / str(step)
  with full_disk.named(folder):
    manager.save(step, args=items)
    durable.sync_tree(folder)  # each process waits for what it wrote itself
    durable.sync(folder.parent)
    barriers.wait_for_all(f"files of step {step}")  # digests come and go from here on
    file_digests.write(folder, part=jax.process_index(), parts=jax.process_count())
  barriers.wait_for_all(f"digests of step {step}")
  for old in sorted(manager.all_steps())[:-keep]:
    manager.delete(old)


def restore(
  manager: ocp.CheckpointManager, target: TrainState, step: int | None = None
) -> tuple[TrainState, dict[str, Any], int]:
  """Reads a step, bitwise as it was saved, after verifying the digests of all its files.

  Without `step`, damaged steps are set aside and named on the standard error, and the newest whole
  one is read. With it, the folder stays as it is.

  Args:
    manager: from `open_manager`.
    target: a tree of jax.ShapeDtypeStruct or arrays; each array is read to the sharding of its
      place, or to the first device where there is none.
    step: which; None for the newest.

  Returns:
    (state, progress, step).

  Raises:
    FileNotFoundError: there is no checkpoint, or none of this step.
    ValueError: the checkpoint is of another policy or optimizer; names the first difference. Or
      the step, or every step, is damaged; names the files.
  """
  steps = sorted(manager.all_steps())
  if not steps or (step is not None and step not in steps):
    of_step = "" if step is None else f" of step {step}"
    raise FileNotFoundError(
      f"no checkpoint{of_step} in {manager.directory}; it holds steps {steps}"
    )
  if step is None:
    step = _newest_whole(manager)
  elif problem := _damage(manager, step):
    raise ValueError(
      f"checkpoint {step} in {manager.directory} is damaged: {problem}; it holds steps {steps}, "
      "take another one"
    )
  abstract = _named(target)
  if not (manager.directory / str(step) / "progress").exists():
    raise ValueError(
      f"step {step} in {manager.directory} was saved by an older version of this package, which "
      "this one cannot read; begin again in another --workdir, or take the version of the run"
    )
  saved = manager.item_metadata(step)["state"]
  _check_shapes(dict(saved.items()), abstract, f"step {step} in {manager.directory}")
  first = jax.sharding.SingleDeviceSharding(jax.devices()[0])
  places = {
    name: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=leaf.sharding or first)
    for name, leaf in abstract.items()
  }
  items = ocp.args.Composite(
    state=ocp.args.StandardRestore(places), progress=ocp.args.JsonRestore()
  )
  restored = manager.restore(step, args=items)
  arrays = [restored["state"][name] for name in abstract]
  is_key = [_is_key(leaf) for leaf in jax.tree.leaves(target)]
  impl = jax.random.key_impl(target.key) if isinstance(target.key, jax.Array) else None
  leaves = [
    jax.random.wrap_key_data(x, impl=impl) if typed else x
    for x, typed in zip(arrays, is_key, strict=True)
  ]
  state = jax.tree.unflatten(jax.tree.structure(target), leaves)
  return state, restored["progress"], step


def _newest_whole(manager: ocp.CheckpointManager) -> int:
  """The newest step without damage; newer ones are set aside."""
  problems = {}
  for step in sorted(manager.all_steps(), reverse=True):
    problems[step] = _damage(manager, step)
    if not problems[step]:
      _set_aside(manager, [newer for newer in problems if newer != step])
      return step
    print(f"checkpoint {step} is damaged: {problems[step]}", file=sys.stderr, flush=True)
  raise ValueError(
    f"every checkpoint in {manager.directory} is damaged: "
    + "; ".join(f"{step}: {problem}" for step, problem in problems.items())
    + ". Restore the folder from a copy, or remove it to begin again"
  )


def _damage(manager: ocp.CheckpointManager, step: int) -> str:
  """What is wrong with a step, the same in every process; "" if nothing is."""
  folder = pathlib.Path(manager.directory) / str(step)
  found = file_digests.damage(folder, part=jax.process_index(), parts=jax.process_count())
  anywhere = barriers.any_of(bool(found), f"damage of step {step}")
  return found or ("a file that another process verified" if anywhere else "")


def _set_aside(manager: ocp.CheckpointManager, steps: list[int]) -> None:
  """Moves damaged steps out of the way of those that will be written again."""
  place = pathlib.Path(f"{manager.directory}-{DAMAGED}")
  for step in steps:
    if jax.process_index() == 0:
      place.mkdir(exist_ok=True)
      number = sum(1 for _ in place.iterdir())
      os.replace(pathlib.Path(manager.directory) / str(step), place / f"{step}-{number}")
    print(f"checkpoint {step} was moved to {place}", file=sys.stderr, flush=True)
  if steps:
    barriers.wait_for_all("damaged checkpoints were set aside")
    manager.reload()


def _is_key(leaf):
  return jax.dtypes.issubdtype(leaf.dtype, jax.dtypes.prng_key)


def _named(state):
  """{path: array or ShapeDtypeStruct} in the order of the leaves; a typed key as its numbers."""
  named = {}
  for path, leaf in jax.tree_util.tree_leaves_with_path(state):
    if _is_key(leaf):
      numbers = jax.random.key_data if isinstance(leaf, jax.Array) else _abstract_numbers
      leaf = numbers(leaf)
    named[jax.tree_util.keystr(path, simple=True, separator=".")] = leaf
  return named


def _abstract_numbers(leaf):
  numbers = jax.eval_shape(jax.random.key_data, jax.ShapeDtypeStruct(leaf.shape, leaf.dtype))
  return jax.ShapeDtypeStruct(numbers.shape, numbers.dtype, sharding=leaf.sharding)


def _check_shapes(saved, wanted, where):
  describe = lambda leaf: f"{leaf.dtype}{list(leaf.shape)}"
  remedy = "restore with the configuration that wrote it, or give another checkpoint folder"
  for name, leaf in wanted.items():
    if name not in saved:
      raise ValueError(
        f"{where} has no {name}, which this policy needs ({describe(leaf)}); {remedy}"
      )
    if tuple(saved[name].shape) != tuple(leaf.shape) or saved[name].dtype != leaf.dtype:
      raise ValueError(
        f"{name} is {describe(saved[name])} at {where} but {describe(leaf)} in this policy; "
        f"{remedy}"
      )
  for name in saved:
    if name not in wanted:
      raise ValueError(f"{where} has {name}, which this policy does not know; {remedy}")
