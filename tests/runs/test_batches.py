"""Groups that are older than allowed: masked token by token, or dropped and replaced."""

import numpy as np

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
