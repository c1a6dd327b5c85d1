"""Scripted players of the sums: what the warm-up imitates, and what the policy is compared with."""

import random

from jaxrl_agents.types import Message

RIGHT = 0.5
"""The share of its sums that the careless player gets right."""


def exact(task, messages, tools, seed):
  """Knows the answer."""
  return Message("assistant", task.facts["gold"]["answer"])


def careless(task, messages, tools, seed):
  """Is off by one or two in half of its answers."""
  draw = random.Random(f"{seed} {task.id}")
  wrong = 0 if draw.random() < RIGHT else draw.choice((-2, -1, 1, 2))
  return Message("assistant", str(int(task.facts["gold"]["answer"]) + wrong))
