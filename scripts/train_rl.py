"""Reinforcement learning of a search agent inside its harness, with evaluation before and after.

    python scripts/train_rl.py --config=configs/search_cpu.py --workdir=W --set learner.lr=3e-5

Starts from W/warm_start if scripts/train_sft.py left one, else from policy.init. Leaves metrics,
trajectories, checkpoints, summary.json and report.html in W; the same command again goes on where
it stopped.
"""

from absl import flags

from jaxrl_agents.runs import command, config_flags, page, rl, setup
from jaxrl_agents.runs.workdir import Workdir

_config = config_flags.define()
_WORKDIR = flags.DEFINE_string("workdir", None, "folder of the run", required=True)


def main() -> None:
  """Opens the corpus, trains, reports."""
  config = _config()
  setup.compilation_cache(config)
  workdir = Workdir(_WORKDIR.value)
  with setup.devices(config):
    rl.train(config, setup.open_corpus(config), workdir)
  print(f"report: {page.write(workdir.path)}")


if __name__ == "__main__":
  command.run(main)
