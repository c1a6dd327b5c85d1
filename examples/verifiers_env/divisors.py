"""A taskset of `verifiers` over `reasoning-gym`: greatest common divisors of small numbers.

Imported by `server.py` in the environment of verifiers; nothing in it knows who trains.
"""

import reasoning_gym
import verifiers.v1 as vf

__all__ = ["Divisors"]


class Pair(vf.TaskData):
  """The row of a task."""

  answer: str


class PairTask(vf.Task[Pair]):
  """Is solved by the number and nothing else."""

  @vf.reward
  async def solved(self, trace: vf.Trace) -> float:
    """1 if the last reply is the answer."""
    return float(trace.last_reply == self.data.answer)

  @vf.reward(weight=0.1)
  async def is_a_number(self, trace: vf.Trace) -> float:
    """1 if the last reply is a whole number at all."""
    return float(trace.last_reply.isdecimal())


class DivisorsConfig(vf.TasksetConfig):
  """How many tasks there are, of which seed, with numbers up to which."""

  size: int = 1_000
  seed: int = 0
  largest: int = 6


class Divisors(vf.Taskset[PairTask, DivisorsConfig]):
  """`gcd` of reasoning-gym, in fewer words."""

  def load(self):
    """The tasks, in order."""
    config = self.config
    rows = reasoning_gym.create_dataset(
      "gcd", size=config.size, seed=config.seed, max_value=config.largest
    )
    for row in rows:
      numbers = row["metadata"]["numbers"]
      prompt = f"greatest common divisor of {numbers[0]} and {numbers[1]}"
      yield PairTask(Pair(prompt=prompt, answer=row["answer"]), self.config.task)
