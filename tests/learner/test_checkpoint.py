"""Checkpoints: bitwise, all or nothing, and refused where they do not fit."""

import os
import pathlib
import signal
import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from jaxrl_agents.learner import checkpoint
from jaxrl_agents.learner.state import PolicyState, TrainState, make_state

PROGRESS = {"step": 3, "dispatched": ["task-1", "task-2"], "trained": {"task-1": 3}, "epoch": 0}


def make(width=4, seed=0):
  rng = np.random.default_rng(seed)
  params = {"embed": jnp.asarray(rng.normal(size=(5, width)), jnp.float32), "norm": jnp.ones(width)}
  tx = optax.adamw(1e-2)
  state = make_state(params, tx, jax.random.key(seed))
  updates, opt_state = tx.update(jax.tree.map(lambda p: p * 0.1, params), state.opt_state, params)
  policy = PolicyState(optax.apply_updates(params, updates), jnp.int32(7))
  return TrainState(policy, opt_state, state.key)


def assert_equal(a, b):
  assert jax.tree.structure(a) == jax.tree.structure(b)
  numbers = lambda x: jax.random.key_data(x) if jnp.issubdtype(x.dtype, jax.dtypes.prng_key) else x
  for x, y in zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True):
    assert x.dtype == y.dtype
    np.testing.assert_array_equal(numbers(x), numbers(y))


def test_a_restored_state_is_bitwise_the_saved_one_with_its_progress(tmp_path):
  with checkpoint.open_manager(tmp_path) as manager:
    checkpoint.save(manager, 3, make(), PROGRESS, keep=2)
  target = jax.eval_shape(make)
  with checkpoint.open_manager(tmp_path) as manager:
    state, progress, step = checkpoint.restore(manager, target)
  assert step == 3
  assert progress == PROGRESS
  assert_equal(state, make())
  np.testing.assert_array_equal(
    jax.random.uniform(state.key, (3,)), jax.random.uniform(make().key, (3,))
  )


def test_the_newest_steps_are_kept_and_each_can_be_asked_for(tmp_path):
  with checkpoint.open_manager(tmp_path) as manager:
    for step in (1, 2, 3):
      checkpoint.save(manager, step, make(seed=step), {"step": step}, keep=2)
    assert sorted(manager.all_steps()) == [2, 3]
    state, progress, step = checkpoint.restore(manager, make())
    assert (step, progress) == (3, {"step": 3})
    assert_equal(state, make(seed=3))
    state, progress, step = checkpoint.restore(manager, make(), 2)
    assert (step, progress) == (2, {"step": 2})
    assert_equal(state, make(seed=2))
    with pytest.raises(FileNotFoundError, match=r"of step 1 in .* steps \[2, 3\]"):
      checkpoint.restore(manager, make(), 1)
    with pytest.raises(ValueError, match="step 3 is saved already"):
      checkpoint.save(manager, 3, make(), {}, keep=2)


def test_a_reader_leaves_what_a_run_is_writing(tmp_path):
  with checkpoint.open_manager(tmp_path) as manager:
    checkpoint.save(manager, 1, make(), PROGRESS, keep=2)
  half = tmp_path / "2.orbax-checkpoint-tmp"  # as orbax names it
  half.mkdir()
  with checkpoint.open_manager(tmp_path, writes=False) as manager:
    assert checkpoint.restore(manager, make(), 1)[1] == PROGRESS
  assert half.is_dir()
  with checkpoint.open_manager(tmp_path) as manager:
    checkpoint.save(manager, 2, make(), PROGRESS, keep=2)
  assert not half.exists()


def test_an_empty_folder_is_a_named_error(tmp_path):
  with checkpoint.open_manager(tmp_path) as manager:
    with pytest.raises(FileNotFoundError, match="no checkpoint"):
      checkpoint.restore(manager, make())


def test_a_checkpoint_of_another_width_names_the_first_parameter_and_both_shapes(tmp_path):
  with checkpoint.open_manager(tmp_path) as manager:
    checkpoint.save(manager, 1, make(width=4), {}, keep=2)
    message = r"policy.params.embed is float32\[5, 4\] .* but float32\[5, 6\] .*another checkpoint"
    with pytest.raises(ValueError, match=message):
      checkpoint.restore(manager, make(width=6))
    more = make()
    more.policy.params["head"] = jnp.ones((4, 5))
    with pytest.raises(ValueError, match="has no policy.params.head"):
      checkpoint.restore(manager, more)
    fewer = make()
    del fewer.policy.params["norm"]
    with pytest.raises(ValueError, match="has policy.params.norm, which this policy does not know"):
      checkpoint.restore(manager, fewer)


CHILD = """
import os, signal, sys, threading, time, pathlib
import jax, jax.numpy as jnp, numpy as np, optax
from jaxrl_agents.learner import checkpoint
from jaxrl_agents.learner.state import make_state
folder = pathlib.Path(sys.argv[1])
params = {f"w{i}": jnp.full((512, 512), float(i)) for i in range(48)}
state = make_state(params, optax.identity(), jax.random.key(0))
manager = checkpoint.open_manager(folder)
checkpoint.save(manager, 1, state, {"step": 1}, keep=3)

def kill_once_writing():
  while True:
    written = [p for p in folder.glob("2*/**/*") if p.is_file()]
    if any("orbax-checkpoint-tmp" in str(p) for p in written):
      os.kill(os.getpid(), signal.SIGKILL)
    time.sleep(0.0005)

threading.Thread(target=kill_once_writing, daemon=True).start()
checkpoint.save(manager, 2, state, {"step": 2}, keep=3)
print("finished", flush=True)
"""


@pytest.mark.slow
def test_a_process_killed_in_the_middle_of_a_save_leaves_the_previous_step(tmp_path):
  root = pathlib.Path(__file__).parents[2]
  result = subprocess.run(
    [sys.executable, "-c", CHILD, str(tmp_path)],
    env={**os.environ, "JAX_PLATFORMS": "cpu", "PYTHONPATH": str(root)},
    capture_output=True,
    text=True,
    timeout=200,
  )
  assert result.returncode == -signal.SIGKILL, result.stderr[-2000:]
  assert "finished" not in result.stdout
  assert list(tmp_path.glob("2*")), "the kill came before anything of step 2 was written"
  params = {f"w{i}": jnp.zeros((512, 512)) for i in range(48)}
  target = make_state(params, optax.identity(), jax.random.key(1))
  with checkpoint.open_manager(tmp_path) as manager:
    assert list(manager.all_steps()) == [1]
    state, progress, _ = checkpoint.restore(manager, target)
    assert progress == {"step": 1}
    assert float(state.policy.params["w7"][3, 3]) == 7
    checkpoint.save(manager, 2, state, {"step": 2}, keep=3)
    assert list(manager.all_steps()) == [1, 2]
    assert [p.name for p in tmp_path.glob("2*")] == ["2"]
