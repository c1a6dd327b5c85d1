"""Checks task folders: the solution of each must score 1, doing nothing 0.

python -m examples.harbor.check --config=examples/harbor/config.py --set harbor.folder=TASKS
"""

import argparse
import asyncio
import sys

from examples.harbor import folders
from examples.harbor.worlds import Worlds
from jaxrl_agents import config as config_lib
from jaxrl_agents.sandbox.errors import NoSandbox


async def check(options) -> bool:
  """Prints a line for each task; whether all are sound."""
  tasks = folders.read_all(options.folder, dict(options.images), options.roots)
  worlds = Worlds(options.backend, options.packages)
  all_sound = True
  try:
    for task in tasks:
      try:
        solved, nothing = await worlds.check(task)
        is_sound = (solved, nothing) == (1.0, 0.0)
        said = f"solution {solved:g}, nothing {nothing:g}"
      except ValueError as error:
        is_sound, said = False, str(error)
      all_sound = all_sound and is_sound
      print(f"{'ok ' if is_sound else 'BAD'} {task.name}: {said}")
  finally:
    await worlds.close()
  return all_sound


def main() -> None:
  """Exits with 1 if a task is not sound."""
  flags = argparse.ArgumentParser(description=__doc__.splitlines()[0])
  flags.add_argument("--config", default="examples/harbor/config.py")
  flags.add_argument("--set", action="append", default=[], help="an option, harbor.NAME=VALUE")
  given = flags.parse_args()
  try:
    is_sound = asyncio.run(check(config_lib.load(given.config, given.set).agent_config))
  except (ValueError, NoSandbox) as error:
    sys.exit(f"error: {error}")
  sys.exit(0 if is_sound else 1)


if __name__ == "__main__":
  main()
