"""Groups that are older than allowed: masked token by token, or dropped and replaced."""

import dataclasses
import re

import numpy as np
import pytest

from jaxrl_agents.config import LearnerConfig
from jaxrl_agents.runs import batches
from jaxrl_agents.types import Group, Segment, Task, Trajectory


def test_masking_takes_the_loss_of_old_tokens_alone():
  mask = np.array([False, True, True, False, True])
  versions = np.where(mask, [0, 4, 8, 0, 12], -1).astype(np.int32)
  logprobs = np.where(mask, -1.5, 0).astype(np.float32)
  segment = Segment(np.arange(5, dtype=np.int32), mask, logprobs, versions, began=4)
  trajectory = Trajectory("t", (segment,), (), {}, "end", {"reward": 1.0})
  group = Group(Task("t", "toy", "", {}), (trajectory,), "g")
  (young,) = batches.masked(group, 8).trajectories
  (found,) = young.segments
  assert found.loss_mask.tolist() == [False, False, True, False, True]
  assert found.versions.tolist() == [-1, -1, 8, -1, 12]
  assert found.logprobs.tolist() == [0, 0, -1.5, 0, -1.5]
  assert found.tokens.tolist() == segment.tokens.tolist() and young.reward == 1.0


@pytest.mark.parametrize(
  ("errors", "advantage", "why"),
  [
    (("", ""), 0.5, ""),
    (("", "OSError: down"), 0.0, "all its rewards are equal"),
    (("OSError: down\nat line 3", "KeyError: 1"), 0.0, "all its rollouts failed, .*OSError: down"),
  ],
)
def test_the_ledger_is_told_why_a_step_learnt_nothing_from_a_group(errors, advantage, why):
  played = tuple(
    Trajectory("t", (), (), {}, "end", {} if error else {"advantage": advantage}, error=error)
    for error in errors
  )
  group = Group(Task("t", "toy", "", {}), played, "g")
  assert re.fullmatch(why, batches._not_learnt(group))


def test_levels_that_a_step_could_not_draw_are_refused_before_the_run():
  tasks = [Task(f"t{level}", "toy", "", {"level": level}) for level in (0, 2)]
  learner = LearnerConfig(steps=10, level_weights_early=(1.0,), level_weights_late=(0.0, 1.0, 0.0))
  with pytest.raises(ValueError, match=r"no weight to the levels present, \[0, 2\]; set learner"):
    batches.check_levels(learner, tasks)
  batches.check_levels(dataclasses.replace(learner, level_switch=1.0), tasks)  # only the early ones
  batches.check_levels(LearnerConfig(), tasks)
  with pytest.raises(ValueError, match="'t3' has the field level='hard'"):
    batches.check_levels(learner, [*tasks, Task("t3", "toy", "", {"level": "hard"})])
