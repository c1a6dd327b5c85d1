"""The figures of docs/performance.md in one run: a table, a picture, and a file.

    python scripts/bench_all.py --json=speed.json
    python scripts/bench_all.py --json=speed.json --picture=speed.svg \\
      --peers=FOLDER_OF_VENVS --peer_scripts=FOLDER_OF_SCRIPTS

Runs bench_learner.py, bench_rollout.py and bench_step.py one after another, which measure this
machine's limits and, with --peers, `transformers`, Tunix and TRL on the same work (their heads say
what it is). The table has tokens per second (of a whole step, sampled ones), their share of the
machine's limit, and how many times as fast as each peer ours is; the picture has these ratios.
"""

from __future__ import annotations

import html
import json
import os
import pathlib
import subprocess
import sys
from typing import Any

from absl import app, flags

_JSON = flags.DEFINE_string("json", None, "File for the figures.", required=True)
_PICTURE = flags.DEFINE_string("picture", "", "File for the picture, .svg; none by default.")
_PEERS = flags.DEFINE_string("peers", "", "Folder of the peers' virtual environments.")
_PEER_SCRIPTS = flags.DEFINE_string("peer_scripts", "", "Folder of the peers' scripts.")
_REPEATS = flags.DEFINE_integer("repeats", 5, "Timed calls of each figure.", lower_bound=1)
_TIMEOUT_S = flags.DEFINE_float("timeout_s", 3_600.0, "Limit of each script.", lower_bound=1.0)

PEER_COLORS = {"transformers": "#4477aa", "tunix": "#cc7733", "trl": "#228833"}
LEARNER, SAMPLER, STEP = "update", "generation", "whole step"


def lines_of(script: str, *options: str) -> list[dict[str, Any]]:
  """The JSON lines that a script beside this one prints.

  Raises:
    RuntimeError: it ended with an error.
  """
  path = pathlib.Path(__file__).with_name(script)
  command = [sys.executable, str(path), f"--repeats={_REPEATS.value}", *options]
  if _PEERS.value:
    command += [f"--peers={_PEERS.value}", f"--peer_scripts={_PEER_SCRIPTS.value}"]
  done = subprocess.run(command, capture_output=True, text=True, timeout=_TIMEOUT_S.value)
  if done.returncode:
    raise RuntimeError(f"{script} ended with {done.returncode}:\n{done.stderr[-2000:]}")
  return [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]


def learner_rows(lines: list[dict[str, Any]]) -> list[dict[str, Any]]:
  """Rows of the table from bench_learner.py: its last line of each of our figures."""
  ours = [line for line in lines if line["name"].startswith("jaxrl_agents") and "round" not in line]
  return [
    {
      "work": f"{LEARNER}, {line['name'].partition(', ')[2]}",
      "tokens_per_s": line["tokens_per_s"],
      "share_of_limit": line.get("share_of_limit"),
      "times": {
        peer: line[f"faster_than_{peer}_times"]
        for peer in PEER_COLORS
        if f"faster_than_{peer}_times" in line
      },
    }
    for line in ours
  ]


def sampler_rows(lines: list[dict[str, Any]]) -> list[dict[str, Any]]:
  """Rows of the table from bench_rollout.py: a line for each number of sequences."""
  return [
    {
      "work": f"{SAMPLER}, {line['batch']} sequences",
      "tokens_per_s": line["tokens_per_s"],
      "share_of_limit": line["share_of_limit"],
      "times": times_of(line),
    }
    for line in lines
    if "batch" in line
  ]


def step_row(lines: list[dict[str, Any]]) -> dict[str, Any]:
  """Row of the table from the last line of bench_step.py."""
  return {
    "work": STEP,
    "tokens_per_s": lines[-1]["sampled_tokens_per_s"],
    "share_of_limit": None,
    "times": times_of(lines[-1]),
  }


def times_of(line: dict[str, Any]) -> dict[str, float]:
  """How many times as fast as each peer ours is, by the peer's name."""
  return {peer: line[f"times_{peer}"] for peer in PEER_COLORS if f"times_{peer}" in line}


def table(rows: list[dict[str, Any]]) -> str:
  """The rows in Markdown."""
  peers = [peer for peer in PEER_COLORS if any(peer in row["times"] for row in rows)]
  head = ["work", "tokens/s", "share of the machine's limit", *(f"times {peer}" for peer in peers)]
  lines = [head, ["---"] * len(head)]
  for row in rows:
    share = row["share_of_limit"]
    times = [f"{row['times'][peer]:.2f}" if peer in row["times"] else "" for peer in peers]
    percent = "" if share is None else f"{share:.0%}"
    lines.append([row["work"], f"{row['tokens_per_s']:,.0f}", percent, *times])
  return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def picture(rows: list[dict[str, Any]]) -> str:
  """Bars of the ratios to the peers, SVG; a line stands at 1, where ours is as fast as they are."""
  bars = [(row["work"], peer, times) for row in rows for peer, times in row["times"].items()]
  widest = max([1.0, *(times for _, _, times in bars)])
  scale, left, height = 420 / widest, 250, 22
  parts = []
  for i, (work, peer, times) in enumerate(bars):
    top = 30 + i * height
    label = html.escape(f"{work} / {peer}")
    parts.append(f'<text x="{left - 8}" y="{top + 12}" text-anchor="end">{label}</text>')
    width = times * scale
    parts.append(
      f'<rect x="{left}" y="{top}" width="{width:.1f}" height="15" fill="{PEER_COLORS[peer]}"/>'
    )
    parts.append(f'<text x="{left + width + 5:.1f}" y="{top + 12}">{times:.2f}</text>')
  bottom = 30 + len(bars) * height
  one = left + scale
  line = f'<line x1="{one:.1f}" y1="24" x2="{one:.1f}" y2="{bottom}" stroke="#222"/>'
  title = '<text x="8" y="16">times as fast as the peer on the same machine</text>'
  return (
    f'<svg xmlns="http://www.w3.org/2000/svg" width="740" height="{bottom + 10}" '
    f'font-family="sans-serif" font-size="11"><rect width="100%" height="100%" fill="white"/>'
    f"{title}{''.join(parts)}{line}</svg>\n"
  )


def main(argv: list[str]) -> None:
  """Runs the scripts, prints the table and writes the files."""
  if len(argv) > 1:
    raise app.UsageError(f"unknown arguments {argv[1:]}")
  if bool(_PEERS.value) != bool(_PEER_SCRIPTS.value):
    raise app.UsageError("--peers and --peer_scripts go together")
  if _PICTURE.value and not _PEERS.value:
    raise app.UsageError("--picture shows ratios to peers: give --peers and --peer_scripts, too")
  for file in filter(None, (_JSON.value, _PICTURE.value)):
    if not pathlib.Path(file).absolute().parent.is_dir():
      raise app.UsageError(f"{file}: there is no such folder; make it first")
  learner, sampler = lines_of("bench_learner.py"), lines_of("bench_rollout.py")
  step = lines_of("bench_step.py")
  rows = [*learner_rows(learner), *sampler_rows(sampler), step_row(step)]
  found = {
    "machine": {"cores": os.cpu_count(), **next(line for line in sampler if "gflops" in line)},
    "rows": rows,
    "lines": {"bench_learner": learner, "bench_rollout": sampler, "bench_step": step},
  }
  pathlib.Path(_JSON.value).write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
  if _PICTURE.value:
    pathlib.Path(_PICTURE.value).write_text(picture(rows), encoding="utf-8")
  print(found["machine"])
  print(table(rows))


if __name__ == "__main__":
  app.run(main)
