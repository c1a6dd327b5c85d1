"""A sampler slice for a learner on other devices: generates with the versions that it publishes.

    JAXRL_KEY_FILE=KEY python scripts/sampler.py --config=configs/search_cpu.py --workdir=W \
      --connect=HOST:PORT

Takes the learner's config, overrides and key, sees its --workdir on a shared disk, and uses the
mesh of the section `sampler_mesh`. The learner, with sampler.slices=N and workers.listen=HOST:PORT,
begins when N slices have joined. A slice stays when the learner ends, for the next; it leaves when
there has been none for --patience_s. Of several processes of a slice each runs the command, with
its own number, see scripts/train_rl.py.
"""

import dataclasses

from absl import flags

from jaxrl_agents.runs import config_flags, entry_point, processes, sampler_process, setup
from jaxrl_agents.runs.workdir import Workdir

_config = config_flags.define()
_start_processes = processes.define()
_WORKDIR = flags.DEFINE_string("workdir", None, "folder of the run", required=True)
_CONNECT = flags.DEFINE_string("connect", None, "HOST:PORT of workers.listen", required=True)
_PATIENCE_S = flags.DEFINE_float("patience_s", 600.0, "seconds without a learner until it leaves")


def main() -> None:
  """Serves."""
  config = _config()
  _start_processes()
  setup.compilation_cache(config)
  with setup.devices(dataclasses.replace(config, mesh=config.sampler_mesh)):
    sampler_process.serve(
      config, Workdir(_WORKDIR.value).weights, _CONNECT.value, _PATIENCE_S.value
    )


if __name__ == "__main__":
  entry_point.run(main, processes.leave)
