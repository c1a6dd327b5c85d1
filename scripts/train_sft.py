"""Supervised warm-up: the policy imitates a scripted demonstrator's episodes of train tasks.

    python scripts/train_sft.py --config=configs/search_cpu.py --workdir=W

Leaves the policy in W/warm_start. The same command again continues where it stopped, also under
another mesh. Of several processes that share the disk each runs it, with its own number:

    python scripts/train_sft.py --workdir=W --set mesh.fsdp=8 \\
      --set learner.rows_per_microbatch=8 --set sft.rows_per_step=8 \\
      --coordinator=HOST:PORT --num_processes=2 --process_id=0
"""

from absl import flags

from jaxrl_agents.runs import config_flags, entry_point, processes, resumption, setup, sft
from jaxrl_agents.runs.workdir import Workdir

_config = config_flags.define()
_start_processes = processes.define()
_WORKDIR = flags.DEFINE_string("workdir", None, "folder of the run", required=True)


def main() -> None:
  """Opens the corpus, makes demonstrations, trains."""
  config = _config()
  setup.cores_as_devices(config)
  _start_processes()
  setup.compilation_cache(config)
  workdir = Workdir(_WORKDIR.value)
  resumption.check_warm_up(config, workdir)  # before tasks are made, which may take minutes
  with setup.opened(config, workdir) as corpus, setup.learner_devices(config):
    sft.train(config, corpus, workdir)
  print(f"the warm start is in {workdir.warm_start}")


if __name__ == "__main__":
  entry_point.run(main, processes.leave)
