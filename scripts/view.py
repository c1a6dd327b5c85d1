"""Writes W/report.html: one static page with the result, the curves and the episodes of a run.

    python scripts/view.py --workdir=W

Works on a finished run and on one that is still going: the page shows what is there.
"""

import pathlib

from absl import flags

from jaxrl_agents.runs import entry_point, report_page
from jaxrl_agents.viewer import report

_WORKDIR = flags.DEFINE_string("workdir", None, "the folder of a training run", required=True)
_OUT = flags.DEFINE_string("out", "", "the page to write; W/report.html if not given")
_TOKENIZER = flags.DEFINE_string(
  "tokenizer", "", "'base' or the folder of a tokenizer.json; the run's own if not given"
)
_MAX_BYTES = flags.DEFINE_integer(
  "max_bytes", report.MAX_BYTES, "size of the page; fewer episodes are shown where they do not fit"
)


def main() -> None:
  """Writes the page and prints where it is."""
  if _OUT.value and pathlib.Path(_OUT.value).is_dir():
    raise ValueError(f"--out={_OUT.value} is a folder; name a file in it")
  if _OUT.value and not pathlib.Path(_OUT.value).absolute().parent.is_dir():
    raise ValueError(f"--out={_OUT.value}: there is no such folder; make it first")
  written = report_page.write(
    _WORKDIR.value, out=_OUT.value, tokenizer=_TOKENIZER.value, max_bytes=_MAX_BYTES.value
  )
  print(f"{written} ({written.stat().st_size / 1e6:.1f} MB): open it in a browser")


if __name__ == "__main__":
  entry_point.run(main)
