"""Copies a policy of a run into a folder that `policy.init` can name.

    python scripts/export_policy.py --config=configs/search_cpu.py --workdir=W --out=FOLDER
    python scripts/export_policy.py --config=configs/search_cpu.py --workdir=W --step=8 --out=FOLDER

It is the policy that the run ended with; of a run that was stopped, that of its newest checkpoint;
with --step that of an earlier one, if it is kept (learner.keep_checkpoints). The run may go on
meanwhile. The optimizer's moments are read, too; if they do not fit on one device, set
JAX_PLATFORMS=cpu.

Beside the weights goes the curve of their training, curve.csv: means of the loss over ten steps. A
run in several parts is named part by part: --workdir=W --workdir=W2.
"""

import csv
import itertools
import pathlib

from absl import flags

from jaxrl_agents.runs import config_flags, entry_point, evaluation, saved_policy, weight_files
from jaxrl_agents.viewer import inputs

CURVE = "curve.csv"
AVERAGED = 10
"""Steps behind a row of the curve."""

_config = config_flags.define()
_WORKDIRS = flags.DEFINE_multi_string("workdir", None, "folder of the run", required=True)
_STEP = flags.DEFINE_integer(
  "step",
  None,
  "export the checkpoint after this many steps, of the last --workdir",
  lower_bound=1,
)
_DTYPE = flags.DEFINE_enum(
  "dtype", None, ["float32", "bfloat16"], "dtype of the written arrays; by default policy.dtype"
)
_OUT = flags.DEFINE_string("out", None, "folder to write", required=True)


def main() -> None:
  """Reads the policy of the run and writes it."""
  config = _config()
  out = pathlib.Path(_OUT.value)
  if out.resolve() in (pathlib.Path(workdir).resolve() for workdir in _WORKDIRS.value):
    raise ValueError(
      f"--out={out} is the folder of a run; take another one, such as {out}/exported"
    )
  cfg, dtype = config.policy.model, _DTYPE.value or config.policy.dtype
  run = pathlib.Path(_WORKDIRS.value[-1]).expanduser()
  saved = saved_policy.chosen(run, _STEP.value)
  newest = ""
  if saved:
    params = saved_policy.load(config, run, saved, dtype=dtype)
  else:
    newest = str(evaluation.newest_policy(_WORKDIRS.value[-1]))
    params = weight_files.load(newest, cfg, dtype=dtype)
  curve, started = out / CURVE, out / evaluation.STARTED_FROM
  for file in (curve, started):
    file.unlink(missing_ok=True)  # else the digests of the weights would cover an old one
  folder = weight_files.save(params, cfg, out, tokenizer=config.policy.tokenizer)
  _write_curve(curve, saved)
  start = evaluation.started_from(config, run)
  is_trained = saved.phase == "rl" if saved else pathlib.Path(newest) != start
  if is_trained and evaluation.frozen(config, start):  # which play beside it in an evaluation
    named = start if str(start) in weight_files.SHIPPED else start.resolve()
    started.write_text(f"{named}\n", encoding="utf-8")
  print(f"wrote {folder}" + (f", of checkpoint {saved.step} ({saved.phase})" if saved else ""))


def _write_curve(curve: pathlib.Path, saved: saved_policy.Saved | None) -> None:
  """Writes the losses of all parts; of the last one those before the checkpoint, if it is one."""
  with curve.open("w", newline="") as file:
    table = csv.writer(file, lineterminator="\n")
    table.writerow(("part", "phase", "step", "loss"))
    for part, workdir in enumerate(_WORKDIRS.value, start=1):
      lines = [row for row in inputs.read_run(workdir).rows if row.get("loss") is not None]
      if saved and part == len(_WORKDIRS.value):
        lines = [row for row in lines if saved.follows(row["phase"], row["step"])]
      for phase, rows in itertools.groupby(lines, key=lambda row: row["phase"]):
        rows = list(rows)
        for start in range(0, len(rows), AVERAGED):
          chunk = rows[start : start + AVERAGED]
          mean = sum(row["loss"] for row in chunk) / len(chunk)
          table.writerow((part, phase, chunk[-1]["step"], f"{mean:.3f}"))


if __name__ == "__main__":
  entry_point.run(main)
