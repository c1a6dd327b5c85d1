"""A taskset of `verifiers` over `reasoning-gym`: sums of two numbers with one digit each.

Imported by `server.py` in the environment of verifiers; nothing in it knows who trains.
"""

import reasoning_gym
import verifiers.v1 as vf

__all__ = ["Sums"]


class Sum(vf.TaskData):
  """The row of a task."""

  answer: str


class SumTask(vf.Task[Sum]):
  """Is solved by the number and nothing else."""

  @vf.reward
  async def solved(self, trace: vf.Trace) -> float:
    """1 if the last reply is the answer."""
    return float(trace.last_reply == self.data.answer)

  @vf.reward(weight=0.1)
  async def is_a_number(self, trace: vf.Trace) -> float:
    """1 if the last reply is a whole number at all."""
    return float(trace.last_reply.removeprefix("-").isdecimal())


class SumsConfig(vf.TasksetConfig):
  """How many tasks there are, and of which seed."""

  size: int = 2_000
  seed: int = 0


class Sums(vf.Taskset[SumTask, SumsConfig]):
  """`chain_sum` of reasoning-gym."""

  def load(self):
    """The tasks, in order."""
    rows = reasoning_gym.create_dataset(
      "chain_sum", size=self.config.size, seed=self.config.seed, max_terms=2, max_digits=1
    )
    for row in rows:
      prompt = row["metadata"]["expression"] + " ="
      yield SumTask(Sum(prompt=prompt, answer=row["answer"]), self.config.task)
