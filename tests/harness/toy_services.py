"""Services for worker tests: a counting game, importable in a spawned process."""

import gc
import os
import signal
import sys
import time
from multiprocessing.connection import Connection

from jaxrl_agents import chat
from jaxrl_agents.harness import schema
from jaxrl_agents.harness.scripted_player import Scripted
from jaxrl_agents.harness.worker_process import Services
from jaxrl_agents.types import Context, Message


class CountEnv:
  """Ends after `turns` replies; does what its task's prompt names on the way."""

  def __init__(self, task):
    self._task = task
    self._messages = [Message("user", task.prompt)]
    self._turns = task.facts["turns"]

  async def start(self):
    return Context(tuple(self._messages), max_new_tokens=8)

  async def step(self, reply):
    if self._task.prompt == "raise":
      raise RuntimeError("the environment broke")
    if self._task.prompt == "kill":
      os.kill(os.getpid(), signal.SIGKILL)
    if self._task.prompt == "forge":
      (connection,) = [each for each in gc.get_objects() if isinstance(each, Connection)]
      connection.send(("group", self._task.id, os.getpid))  # a pickle
    if self._task.prompt == "half":  # a message of which the rest never comes
      (connection,) = [each for each in gc.get_objects() if isinstance(each, Connection)]
      os.write(connection.fileno(), (1 << 20).to_bytes(4, "big") + b"the beginning")
    if self._task.prompt == "hang":
      time.sleep(600)
    self._messages += [reply, Message("tool", "next", tool_call_id=str(len(self._messages)))]
    self._turns -= 1
    done = self._turns == 0
    return Context(
      tuple(self._messages), max_new_tokens=8, done=done, stop="answer" if done else ""
    )

  def rewards(self, trajectory):
    if self._task.prompt == "text":
      return {"turns": "2.0"}
    return {"turns": trajectory.metrics["turns"], "jax": float("jax" in sys.modules)}

  async def close(self):
    pass


def build():
  return Services(chat.load(), lambda task, seed, sampler: (CountEnv(task), sampler))


def build_scripted():
  """Services in which a scripted player plays, so that nobody samples."""
  shared = chat.load()

  def make_episode(task, seed, sampler):
    player = Scripted(CountEnv(task), shared, lambda context: Message("assistant", "one more"))
    return player, player

  return Services(shared, make_episode)


def build_nothing():
  raise OSError("no corpus here")


def build_where_no_token_is():
  assert not [name for name in os.environ if name.startswith("RAY_")]
  return build()


def build_with_short_messages():
  schema.MAX_BYTES = 4_000  # in this process
  return build_scripted()
