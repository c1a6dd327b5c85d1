"""The sampler of a run in little: python small_sampler.py FOLDER [OPTIONS], as small_run.py."""

import dataclasses
import json
import pathlib
import sys

if __name__ == "__main__":
  sys.path.insert(0, str(pathlib.Path(__file__).parents[2]))
  from jaxrl_agents.runs import entry_point, sampler_process, setup
  from tests.runs.small_run import configured

  folder, *more = sys.argv[1:]
  sys.argv[1:] = []

  def main() -> None:
    config = configured(**json.loads(*more or ["{}"]))
    with setup.devices(dataclasses.replace(config, mesh=config.sampler_mesh)):
      # The caller ends this process: how long a learner takes to come back depends on the machine.
      sampler_process.serve(config, pathlib.Path(folder) / "weights", config.workers.listen, 600.0)

  entry_point.run(main)
