"""Copies the policy that a run ended with into a folder that `policy.init` can name.

    python scripts/export_policy.py --config=configs/search_cpu.py --workdir=W --out=FOLDER

Beside the weights goes the curve of their training, curve.csv: means of the loss over ten steps. A
run in several parts is named part by part: --workdir=W --workdir=W2.
"""

import csv
import itertools
import pathlib

from absl import flags

from jaxrl_agents.runs import config_flags, entry_point, evaluation, weight_files
from jaxrl_agents.viewer import inputs

CURVE = "curve.csv"
AVERAGED = 10
"""Steps behind a row of the curve."""

_config = config_flags.define()
_WORKDIRS = flags.DEFINE_multi_string("workdir", None, "folder of the run", required=True)
_DTYPE = flags.DEFINE_enum(
  "dtype", None, ["float32", "bfloat16"], "of the written arrays; by default policy.dtype"
)
_OUT = flags.DEFINE_string("out", None, "folder to write", required=True)


def main() -> None:
  """Reads the newest policy of the run and writes it."""
  config = _config()
  out = pathlib.Path(_OUT.value)
  if out.resolve() in (pathlib.Path(workdir).resolve() for workdir in _WORKDIRS.value):
    raise ValueError(
      f"--out={out} is the folder of a run; take another one, such as {out}/exported"
    )
  cfg = config.policy.model
  newest = str(evaluation.newest_policy(_WORKDIRS.value[-1]))
  params = weight_files.load(newest, cfg, dtype=_DTYPE.value or config.policy.dtype)
  curve = out / CURVE
  curve.unlink(missing_ok=True)  # else the digests of the weights would cover an old one
  folder = weight_files.save(params, cfg, out, tokenizer=config.policy.tokenizer)
  with curve.open("w", newline="") as file:
    table = csv.writer(file, lineterminator="\n")
    table.writerow(("part", "phase", "step", "loss"))
    for part, workdir in enumerate(_WORKDIRS.value, start=1):
      lines = [row for row in inputs.read_run(workdir).rows if row.get("loss") is not None]
      for phase, rows in itertools.groupby(lines, key=lambda row: row["phase"]):
        rows = list(rows)
        for start in range(0, len(rows), AVERAGED):
          chunk = rows[start : start + AVERAGED]
          mean = sum(row["loss"] for row in chunk) / len(chunk)
          table.writerow((part, phase, chunk[-1]["step"], f"{mean:.3f}"))
  print(f"wrote {folder}")


if __name__ == "__main__":
  entry_point.run(main)
