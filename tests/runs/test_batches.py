"""What the ledger is told of groups, and levels that no step could draw."""

import dataclasses
import re

import numpy as np
import pytest

from jaxrl_agents.config import LearnerConfig
from jaxrl_agents.learner import loop
from jaxrl_agents.runs import batches
from jaxrl_agents.types import Group, Segment, Task, Trajectory


@pytest.mark.parametrize(
  ("errors", "rewards", "advantage", "trains", "why"),
  [
    (("", ""), (0.0, 1.0), 0.5, True, ""),
    (("", ""), (0.0, 1.0), 0.5, False, "none of its rollouts has a loss: limits cut them off.*"),
    (("", ""), (0.0, 1.0), 0.0, True, "all its advantages are 0"),
    (("", "OSError: down"), (1.0, 0.0), 0.0, True, "all its rewards are equal"),
    (
      ("OSError: down\nline 3", "KeyError"),
      (0, 0),
      0,
      True,
      "all its rollouts failed.*OSError: down",
    ),
  ],
)
def test_the_ledger_is_told_why_a_step_learnt_nothing_from_a_group(
  errors, rewards, advantage, trains, why
):
  mask = np.array([False, trains])
  segment = Segment(
    np.arange(2, dtype=np.int32), mask, np.zeros(2, np.float32), np.zeros(2, np.int32)
  )
  measured = ({"reward": reward, "advantage": advantage} for reward in rewards)
  played = tuple(
    Trajectory("t", (segment,), (), {}, "end", {} if error else metrics, error=error)
    for error, metrics in zip(errors, measured, strict=True)
  )
  group = Group(Task("t", "toy", "", {}), played, "g")
  assert re.fullmatch(why, batches._not_learnt(group))


def test_levels_that_a_step_could_not_draw_are_refused_before_the_run():
  tasks = [Task(f"t{level}", "toy", "", {"level": level}) for level in (0, 2)]
  learner = LearnerConfig(steps=10, level_weights_early=(1.0,), level_weights_late=(0.0, 1.0, 0.0))
  with pytest.raises(ValueError, match=r"no weight to the levels present, \[0, 2\]; set learner"):
    batches.check_levels(learner, tasks)
  only_early = dataclasses.replace(learner, level_switch=1.0)
  batches.check_levels(only_early, tasks)
  assert loop.level_weights(only_early, 10) == (1.0,)  # of a group that replaces another one
  batches.check_levels(LearnerConfig(), tasks)
  with pytest.raises(ValueError, match="'t3' has the field level='hard'"):
    batches.check_levels(learner, [*tasks, Task("t3", "toy", "", {"level": "hard"})])
