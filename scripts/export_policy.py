"""Copies the policy that a run ended with into a folder that `policy.init` can name.

python scripts/export_policy.py --config=configs/base_cpu.py --workdir=W --out=FOLDER
"""

from absl import flags

from jaxrl_agents.runs import base, command, evaluation

_WORKDIR = flags.DEFINE_string("workdir", None, "folder of the run", required=True)
_OUT = flags.DEFINE_string("out", None, "folder to write", required=True)


def main() -> None:
  """Reads the newest policy of the run and writes it."""
  cfg = command.load_config().policy.model
  params = base.load(str(evaluation.newest_policy(_WORKDIR.value)), cfg)
  print(f"wrote {base.save(params, cfg, _OUT.value)}")


if __name__ == "__main__":
  command.run(main)
