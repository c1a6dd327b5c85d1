"""Writes the page of a run from what its folder holds."""

from __future__ import annotations

import dataclasses
import os
import pathlib
import sys

from jaxrl_agents import chat, full_disk
from jaxrl_agents.agents import formats
from jaxrl_agents.harness import group_files
from jaxrl_agents.viewer import inputs, report


def write(
  workdir: str | os.PathLike[str],
  *,
  out: str = "",
  tokenizer: str = "",
  max_bytes: int = report.MAX_BYTES,
) -> pathlib.Path:
  """Writes the page of the run in `workdir` and returns its path.

  Args:
    workdir: what a training run left: metrics.jsonl, summary.json, trajectories/*.npz.
    out: the page, by default report.html in `workdir`.
    tokenizer: as for `chat.load`; by default `policy.tokenizer` of the run's config, else "base".
    max_bytes: bound on the size of the page.

  Raises:
    ValueError: `workdir` is no folder of a run, the tokenizer cannot be read, or the page is too
      large.
  """
  folder = pathlib.Path(workdir)
  run = inputs.read_run(folder)
  problems = list(run.problems)
  snapshots = []
  for key, title, path in inputs.sample_files(folder / "trajectories"):
    try:
      groups = group_files.load_groups(path)
      snapshots.append(inputs.Snapshot(key, title, tuple(groups)))
    except (ValueError, KeyError, TypeError, OSError) as error:
      problems.append(f"trajectories/{path.name} is left out: {error}")
  run = dataclasses.replace(run, problems=tuple(problems))
  decode = chat.load(tokenizer or _own_tokenizer(run)).decode
  target = pathlib.Path(out) if out else folder / "report.html"
  partial = target.with_name(f".{target.name}.partial")
  with full_disk.named(target.parent):
    page = report.render(run, snapshots, decode, max_bytes)
    partial.write_text(page, encoding="utf-8")
    os.replace(partial, target)
  return target


def write_if_possible(workdir: pathlib.Path) -> None:
  """Writes the page at the end of a run, whose result does not depend on it, and prints its place
  or why there is none.
  """
  try:
    print(f"report: {write(workdir)}")
  except Exception as error:
    later = f"python scripts/view.py --workdir={workdir} writes it later"
    why = error if isinstance(error, (ValueError, OSError)) else f"{type(error).__name__}: {error}"
    print(f"the report was not written: {why}; {later}", file=sys.stderr, flush=True)


def _own_tokenizer(run: inputs.Run) -> str:
  config = run.summary.get("config")
  options = dict(formats.flatten(config)) if isinstance(config, dict) else {}
  return options.get("policy.tokenizer", "base")
