"""Supervised warm-up: a scripted expert plays the train tasks, the policy imitates its good
episodes.

    python scripts/train_sft.py --config=configs/search_cpu.py --workdir=W

Leaves the policy in W/warm_start. The same command again goes on where it stopped.
"""

from absl import flags

from jaxrl_agents.runs import command, config_flags, setup, sft
from jaxrl_agents.runs.workdir import Workdir

_config = config_flags.define()
_WORKDIR = flags.DEFINE_string("workdir", None, "folder of the run", required=True)


def main() -> None:
  """Opens the corpus, makes demonstrations, trains."""
  config = _config()
  setup.compilation_cache(config.corpus.cache)
  workdir = Workdir(_WORKDIR.value)
  with setup.devices(config):
    sft.train(config, setup.open_corpus(config), workdir)
  print(f"the warm start is in {workdir.warm_start}")


if __name__ == "__main__":
  command.run(main)
