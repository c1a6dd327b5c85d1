"""An environment that does nothing, for workers of scripts/bench_harness.py."""

from jaxrl_agents import chat
from jaxrl_agents.harness.worker_process import Services
from jaxrl_agents.types import Context, Message

TURNS = 8
"""Steps of an episode."""


class Null:
  """Answers every reply with two words, TURNS times."""

  def __init__(self, task):
    self._messages: tuple[Message, ...] = (Message("user", task.prompt),)
    self._turn = 0

  async def start(self):
    """The prompt."""
    return Context(self._messages)

  async def step(self, reply):
    """The same observation again; the last one ends the episode."""
    self._turn += 1
    self._messages += (reply, Message("user", "go on"))
    return Context(self._messages, done=self._turn == TURNS, stop="answer")

  def rewards(self, trajectory):
    """A constant."""
    return {"reward": 1.0}

  async def close(self):
    """Nothing is open."""


def build():
  """What a worker plays with."""
  return Services(chat.load("base"), lambda task, seed, sampler: (Null(task), sampler))
