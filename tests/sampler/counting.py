"""A two-turn environment for the workers of test_server."""

import os
import pathlib

from jaxrl_agents import chat
from jaxrl_agents.harness.process import Services
from jaxrl_agents.types import Context, Message


class TwoTurns:
  """Asks twice. A task with `facts["dies"]` ends its worker that many times."""

  def __init__(self, task):
    self.task = task
    self.messages = (Message("user", task.prompt),)

  async def start(self):
    facts = self.task.facts
    if facts.get("dies"):
      folder = pathlib.Path(facts["folder"])
      marks = len(list(folder.iterdir()))
      if marks < facts["dies"]:
        (folder / str(marks)).touch()
        os._exit(3)
    return Context(self.messages, max_new_tokens=6)

  async def step(self, reply):
    self.messages += (reply, Message("user", "again"))
    return Context(self.messages, max_new_tokens=6, done=len(self.messages) > 4, stop="answer")

  def rewards(self, trajectory):
    return {"tokens": float(sum(s.loss_mask.sum() for s in trajectory.segments))}

  async def close(self):
    pass


def build():
  return Services(chat.load("base"), lambda task, seed, sampler: (TwoTurns(task), sampler))
