"""Several runs side by side: a table of their evaluations, curves, bars, scores by size of task.

    python scripts/compare.py --workdir=runs/0 --workdir=runs/1 --svg=curves.svg --bars=bars.svg
    python scripts/compare.py --workdir=runs/0 --sizes=sizes.svg    # of tables of every size
    python scripts/compare.py --workdir=runs/all --workdir=runs/without --paired

Prints the table in Markdown. A run is named after its folder, with those above it where two folders
have one name.
"""

import dataclasses
import pathlib

from absl import flags

from jaxrl_agents.runs import entry_point, paired_runs
from jaxrl_agents.viewer import comparison, inputs

_WORKDIRS = flags.DEFINE_multi_string("workdir", None, "folder of a run; once a run", required=True)
_SVG = flags.DEFINE_string("svg", "", "file for the curves; none are drawn if not given")

_BARS = flags.DEFINE_string("bars", "", "SVG file for a bar of each evaluation; none if not given")

_SIZES = flags.DEFINE_string("sizes", "", "SVG file for scores by size of task; none if not given")

_PAIRED = flags.DEFINE_bool(
  "paired", False, "also what the trained policy of the first run scores above that of each other"
)


def main() -> None:
  """Prints the table, writes the drawings."""
  named = zip(inputs.names(_WORKDIRS.value), _WORKDIRS.value, strict=True)
  runs = [dataclasses.replace(inputs.read_run(workdir), name=name) for name, workdir in named]
  print(comparison.table(runs))
  if _PAIRED.value:
    print("\n" + paired_runs.table(_WORKDIRS.value))
  if _SVG.value:
    comparison.save_svg(runs, pathlib.Path(_SVG.value))
  if _BARS.value:
    comparison.save_svg(runs, pathlib.Path(_BARS.value), comparison.bars)
  if _SIZES.value:
    comparison.save_svg(runs, pathlib.Path(_SIZES.value), comparison.sizes)


if __name__ == "__main__":
  entry_point.run(main)
