"""Scripted players of the divisors: what the warm-up imitates, and baselines."""

import random

from jaxrl_agents.types import Message

RIGHT = 0.4
"""The share of its answers that the careless player does not guess."""


def exact(task, messages, tools, seed):
  """Knows the answer."""
  return Message("assistant", task.facts["gold"]["answer"])


def careless(task, messages, tools, seed):
  """Guesses most of its answers."""
  draw = random.Random(f"{seed} {task.id}")
  if draw.random() < RIGHT:
    return exact(task, messages, tools, seed)
  return Message("assistant", str(draw.randint(1, 6)))
