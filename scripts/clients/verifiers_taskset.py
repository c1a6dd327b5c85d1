"""A taskset of verifiers, played by its environment and eval client; prints the reward."""

import asyncio
import os
import pathlib
import sys

import verifiers.v1 as vf

HARNESSES = pathlib.Path(__file__).parents[2] / "examples" / "verifiers_env"
__all__ = ["Adding"]


class AddingTask(vf.Task):
  """Rewards the sum."""

  @vf.reward
  async def number(self, trace: vf.Trace) -> float:
    """The number that was said."""
    return float(trace.last_reply)


class Adding(vf.Taskset[AddingTask, vf.TasksetConfig]):
  """One task."""

  def load(self):
    """Yields it."""
    yield AddingTask(vf.TaskData(prompt="What is 2 + 3?"), self.config.task)


async def main():
  """Plays the task and prints its reward."""
  agent = {"harness": {"id": "one_reply"}, "runtime": {"type": "subprocess"}}
  config = vf.resolve_env_config({"taskset": {"id": "verifiers_taskset"}, "agent": agent})
  client = vf.EvalClientConfig(base_url=os.environ["OPENAI_BASE_URL"], api_key_var="OPENAI_API_KEY")
  environment = vf.load_environment(config)
  async with environment.serving():
    (task,) = environment.taskset
    model = vf.ModelContext(model="policy", client=client)
    episode = await environment.run_episode(task, model)
  print(f"{episode.traces[0].reward:g}" if episode.ok else episode)


if __name__ == "__main__":
  sys.path.append(str(HARNESSES))
  asyncio.run(main())
