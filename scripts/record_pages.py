"""Records the web pages that the coding agent's fetch_page reads.

    python scripts/record_pages.py --urls=FILE --out=pages.jsonl      # FILE: one address a line

`coding.pages=pages.jsonl` offers them, where `coding.tools` names fetch_page.
Pages that the file has are not fetched again, so that the same command continues where it stopped.
Exit status 1 if a page could not be recorded.
"""

import pathlib
import sys

from absl import flags

from jaxrl_agents.corpus import page_recorder
from jaxrl_agents.runs import entry_point

_URLS = flags.DEFINE_string("urls", None, "File of addresses, one a line.", required=True)
_OUT = flags.DEFINE_string("out", None, "JSON lines to write or to add to.", required=True)
_DEADLINE = flags.DEFINE_float("deadline_s", 30.0, "Seconds for each page.", lower_bound=0.1)


def main() -> None:
  """Records and tells of each page."""
  urls = pathlib.Path(_URLS.value).read_text("utf-8").split()
  failed = 0
  for url, problem in page_recorder.record(
    urls, pathlib.Path(_OUT.value), deadline_s=_DEADLINE.value
  ):
    failed += bool(problem)
    print(f"left out {problem}" if problem else f"recorded {url}", flush=True)
  print(f"{len(page_recorder.recorded(pathlib.Path(_OUT.value)))} pages in {_OUT.value}")
  if failed:
    sys.exit(entry_point.FAILED)


if __name__ == "__main__":
  entry_point.run(main)
