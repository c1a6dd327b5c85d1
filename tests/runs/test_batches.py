"""What the ledger is told of groups, and levels that no step could draw."""

import dataclasses
import re

import pytest

from jaxrl_agents.config import LearnerConfig
from jaxrl_agents.runs import batches
from jaxrl_agents.types import Group, Task, Trajectory


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
