"""What the first process of a learner tells the others is checked; test_several has whole runs."""

import numpy as np
import pytest

from jaxrl_agents.harness import schema
from jaxrl_agents.harness.schema import MessageError
from jaxrl_agents.runs.process_channel import KINDS, ProcessChannel
from jaxrl_agents.sampler.engine_calls import Cancel, Submit
from jaxrl_agents.types import Group, SamplingLimits, Segment, Task, Trajectory


def passed(*message):
  return schema.decode(schema.encode(message), KINDS)


def test_calls_of_an_engine_come_back_in_their_order():
  limits = SamplingLimits(4, (1, 2), seed=7, policy="other")
  prompt = np.asarray([3, 4], np.int32)
  kind, now, calls = passed("advance", 12.5, (Submit(0, prompt, limits), Cancel(5)))
  assert (kind, now, calls[1]) == ("advance", 12.5, Cancel(5))
  assert calls[0].prompt.tolist() == [3, 4] and calls[0].limits == limits


def test_groups_come_back_with_their_tasks():
  segment = Segment(
    np.arange(2, dtype=np.int32),
    np.asarray([False, True]),
    np.asarray([0, -0.5], np.float32),
    np.asarray([-1, 3], np.int32),
  )
  task = Task("t", "search", "why?", {"gold": ["a", 10**30]}, "dev", 4)
  group = Group(task, (Trajectory("t", (segment,), (), {"r": 1.0}, "answer"),), "g 0")
  _, (found,) = passed("groups", (group,))
  assert (found.task, found.id) == (task, "g 0")
  assert found.trajectories[0].segments[0].logprobs.tolist() == [0.0, -0.5]
  assert found.trajectories[0].rewards == {"r": 1.0}


@pytest.mark.parametrize(
  ("message", "error"),
  [
    (("load", -1), "an integer from 0"),
    (("load", "eval()"), "an integer from 0"),
    (("advance", 1.0, ((1, 2),)), "a Submit of 3 fields is needed"),
    (("ready",), "a message of the kind 'ready'; known are"),
  ],
)
def test_anything_else_is_named(message, error):
  with pytest.raises(MessageError, match=error):
    passed(*message)


def test_a_single_process_has_a_channel_that_leads_nowhere():
  channel = ProcessChannel()
  assert channel.is_first and not channel.several
  channel.broadcast(("load", 3))
  channel.agree("config", "one")
