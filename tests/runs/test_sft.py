"""SIGTERM in the warm-up: the step that it came in is learnt and saved, then the run ends."""

import os
import signal

import jax
import numpy as np
import pytest

from jaxrl_agents.learner import preemption, segment_files
from jaxrl_agents.learner.preemption import Preempted
from jaxrl_agents.policy import params as params_lib
from jaxrl_agents.runs import setup, sft
from jaxrl_agents.runs.workdir import Workdir
from tests.runs.small_run import CFG, configured

SFT = {"steps": 4, "save_every": 100, "rows_per_step": 2, "schedule": "constant", "warmup_steps": 0}
CONFIG = configured(sft=SFT, learner={"row_tokens": 16})


def rows():
  """Endless batches, each of its own tokens."""
  count = 0
  while True:
    tokens = np.random.default_rng(count).integers(1, 50, (2, 16)).astype(np.int32)
    yield sft.microbatches(
      {
        "tokens": tokens,
        "targets": np.roll(tokens, -1, axis=1),
        "depths": np.broadcast_to(np.arange(16, dtype=np.int32), (2, 16)),
        "ends": np.full((2, 16), 16, np.int32),
        "loss_mask": np.ones((2, 16), bool),
      },
      2,
    )
    count += 1


def fresh():
  return setup.fresh_state(CONFIG, params_lib.init(CFG, jax.random.key(0)), sft.optimizer(CONFIG))


@pytest.mark.slow
def test_sigterm_saves_the_step_it_came_in_and_the_next_run_ends_as_one_that_was_not_stopped():
  saved, seen = {}, []

  def save(step, state):
    saved[step] = jax.tree.map(np.asarray, state.replace(key=0))

  def log(step, metrics):
    seen.append(step)
    if seen == [0, 1]:
      os.kill(os.getpid(), signal.SIGTERM)

  stream = rows()
  with preemption.watched() as notice:
    with pytest.raises(Preempted):
      sft.imitate(CONFIG, fresh(), stream, 0, save=save, log=log, notice=notice)
  assert seen == [0, 1] and list(saved) == [2]
  again = saved[2].replace(key=jax.random.key(CONFIG.seed))
  again = jax.tree.map(lambda x: jax.numpy.asarray(x), again)
  with preemption.watched() as notice:
    sft.imitate(CONFIG, again, stream, 2, save=save, log=log, notice=notice)
    assert list(saved) == [2, 4]
    stopped = saved.pop(4)
    sft.imitate(CONFIG, fresh(), rows(), 0, save=save, log=log, notice=notice)
  for found, expected in zip(jax.tree.leaves(stopped), jax.tree.leaves(saved[4]), strict=True):
    assert found.tobytes() == expected.tobytes()


@pytest.mark.slow
def test_copies_of_another_config_leave_the_mixture_after_the_copy_phase_too(tmp_path):
  """Ids from 100 on are those of copies; they end after half of 4 steps."""
  workdir = Workdir(tmp_path)
  for name, first_id in (("demonstrations", 0), ("other_copies", 100)):
    segments = [
      segment_files.to_imitate(np.arange(4, dtype=np.int32) + first_id, np.arange(4) > 0)
      for _ in range(8)
    ]
    segment_files.write_segments(workdir.demonstrations / name, segments)
  config = configured(sft={**SFT, "copy_phase": 0.5}, learner={"row_tokens": 16})
  rates = {"demonstrations": 1.0, "other_copies": 1.0}
  steps = list(sft.batches(config, workdir, rates, 0))
  has_copies = [any((batch.tokens >= 100).any() for batch in step) for step in steps]
  assert has_copies == [True, True, False, False]


def test_a_warm_up_with_more_steps_behind_it_than_asked_for_is_refused(tmp_path):
  workdir = Workdir(tmp_path)
  sft.check_steps(CONFIG, workdir, 4)
  with pytest.raises(ValueError, match="has 5 steps, and sft.steps=4; set sft.steps=5 or more"):
    sft.check_steps(CONFIG, workdir, 5)
