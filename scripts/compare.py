"""Several runs side by side: a table of their evaluations, and their curves as an SVG.

    python scripts/compare.py --workdir=runs/seed0 --workdir=runs/seed1 --svg=curves.svg

Prints the table in Markdown. A run is named after its folder.
"""

import pathlib

from absl import flags

from jaxrl_agents.runs import entry_point
from jaxrl_agents.viewer import comparison, inputs

_WORKDIRS = flags.DEFINE_multi_string("workdir", None, "folder of a run; once a run", required=True)
_SVG = flags.DEFINE_string("svg", "", "file for the curves; none are drawn if not given")


def main() -> None:
  """Prints the table, writes the curves."""
  runs = [inputs.read_run(workdir) for workdir in _WORKDIRS.value]
  print(comparison.table(runs))
  if _SVG.value:
    comparison.save_svg(runs, pathlib.Path(_SVG.value))


if __name__ == "__main__":
  entry_point.run(main)
