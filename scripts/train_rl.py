"""Reinforcement learning of an agent inside its harness, with evaluation before and after.

    python scripts/train_rl.py --config=configs/search_cpu.py --workdir=W --set learner.lr=3e-5

Starts from W/warm_start if scripts/train_sft.py left one, else from policy.init. Leaves metrics,
trajectories, checkpoints, summary.json and report.html in W; the same command again continues where
it stopped. Of several processes that share the disk each runs it, with its own number:

    python scripts/train_rl.py --workdir=W --set mesh.fsdp=8 \\
      --set learner.rows_per_microbatch=8 --set sft.rows_per_step=8 \\
      --coordinator=HOST:PORT --num_processes=2 --process_id=0
"""

from absl import flags

from jaxrl_agents.runs import (
  config_flags,
  entry_point,
  processes,
  report_page,
  resumption,
  rl,
  setup,
)
from jaxrl_agents.runs.workdir import Workdir

_config = config_flags.define()
_start_processes = processes.define()
_WORKDIR = flags.DEFINE_string("workdir", None, "folder of the run", required=True)


def main() -> None:
  """Opens the corpus, trains, reports."""
  config = _config()
  setup.cores_as_devices(config)
  _start_processes()
  setup.compilation_cache(config)
  workdir = Workdir(_WORKDIR.value, weights=config.publish.folder)
  resumption.check_warm_up(config, workdir)  # before tasks are made, which may take minutes
  with setup.opened(config, workdir) as corpus:
    rl.train(config, corpus, workdir)
  if processes.is_first():
    report_page.write_if_possible(workdir.path)


if __name__ == "__main__":
  entry_point.run(main, processes.leave)
