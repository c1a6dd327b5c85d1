"""Writes one self-contained page about a run: no server, no network, opens from disk.

The static part (sentence, table, settings) is a jinja2 template with autoescape on. Curves and
episodes are JSON in the page, drawn by its own scripts, which set everything a policy or a
document wrote as text and never as markup. A content security policy allows exactly these
scripts, by their digest.
"""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jinja2
import markupsafe

from jaxrl_agents.agents import formats
from jaxrl_agents.types import Group
from jaxrl_agents.viewer import curves, headline, stories, timeline, tokens, trajectory
from jaxrl_agents.viewer.inputs import Run, Snapshot, sample_rollouts, spread, total_reward

MAX_BYTES = 5_000_000
ASSETS = Path(__file__).parent / "assets"

_SCRIPTS = ("dom.js", "charts.js", "tokens.js", "swarm.js", "episodes.js")
# (tasks per snapshot, rollouts per task, with tokens); the first choice that fits is used.
_SAMPLES = (
  (12, 8, True),
  (8, 8, True),
  (8, 4, True),
  (6, 3, True),
  (4, 3, True),
  (6, 4, False),
  (3, 2, False),
  (1, 1, False),
)


def render(
  run: Run,
  snapshots: Sequence[Snapshot],
  decode: tokens.Decode | None,
  max_bytes: int = MAX_BYTES,
) -> str:
  """The page as HTML of at most `max_bytes` UTF-8 bytes, with as many episodes as fit.

  Args:
    run: scalars of the run.
    snapshots: the episodes to choose from.
    decode: returns the text of token ids; None leaves the per-token view out.
    max_bytes: bound on the size.

  Raises:
    ValueError: the page is larger even with a single episode a snapshot.
  """
  page = ""
  for tasks, rollouts, with_tokens in _SAMPLES:
    sampled = episodes(run, snapshots, tasks, rollouts, decode if with_tokens else None)
    page = _page(run, sampled).encode("utf-8", "replace").decode("utf-8")
    if len(page.encode()) <= max_bytes:
      return page
  raise ValueError(
    f"the page takes {len(page.encode()):,} bytes even with one episode a snapshot, more than "
    f"{max_bytes:,}; raise --max_bytes"
  )


def episodes(
  run: Run,
  snapshots: Sequence[Snapshot],
  tasks: int,
  rollouts: int,
  decode: tokens.Decode | None,
) -> dict[str, Any]:
  """At most `tasks` tasks of each snapshot and `rollouts` rollouts of each, as JSON values."""
  table = tokens.TokenTable(decode) if decode else None
  told = []
  for snapshot in snapshots:
    chosen = [snapshot.groups[i] for i in spread(len(snapshot.groups), tasks)]
    told.append(
      {
        "key": snapshot.key,
        "title": snapshot.title,
        "of_tasks": len(snapshot.groups),
        "groups": [_group(group, rollouts, table) for group in chosen],
      }
    )
  return {
    "snapshots": told,
    "texts": table.texts if table else [],
    "ids": table.ids if table else [],
    "limits": dict(stories.of(run.summary).limits(stories.options(run.summary))),
  }


def _group(group: Group, rollouts: int, table: tokens.TokenTable | None) -> dict[str, Any]:
  task = group.task
  return {
    "task": {
      "id": task.id,
      "split": task.split,
      "prompt": task.prompt,
      "truth": str(task.facts.get("truth", "")),
      "level": task.facts.get("level"),
    },
    "of_rollouts": len(group.trajectories),
    "rollouts": [
      {
        **trajectory.describe(group.trajectories[i], task),
        "number": i + 1,
        "reward": total_reward(group.trajectories[i]),
        "segments": [tokens.describe(s, table) for s in group.trajectories[i].segments]
        if table
        else None,
      }
      for i in sample_rollouts(group.trajectories, rollouts)
    ],
  }


def _page(run: Run, sampled: dict[str, Any]) -> str:
  style = (ASSETS / "style.css").read_text("utf-8")
  scripts = [(ASSETS / name).read_text("utf-8") for name in _SCRIPTS]
  phases = curves.phases(run)
  clock = curves.wall_clock(run)
  environment = jinja2.Environment(
    loader=jinja2.FileSystemLoader(ASSETS),
    autoescape=True,
    undefined=jinja2.StrictUndefined,
    trim_blocks=True,
    lstrip_blocks=True,
  )
  config = run.summary.get("config")
  story = stories.of(run.summary)
  return environment.get_template("report.html").render(
    run=run,
    sentence=headline.sentence(run),
    facts=headline.facts(run),
    columns=[title for _, title in story.columns],
    bound=story.bound,
    fine=story.fine,
    rows=headline.table(run),
    counts=headline.counts(run),
    sections=[*headline.beside(run), *headline.judge(run), *story.sections(run.summary)],
    signed=formats.signed,
    phases=phases,
    timeline=timeline.of(run.services),
    clock=[(name, s, formats.duration(s), 100 * s / sum(p[1] for p in clock)) for name, s in clock],
    settings=formats.flatten(config) if isinstance(config, dict) else [],
    config_sha256=str(run.summary.get("config_sha256", "")),
    versions=formats.flatten(run.summary.get("versions") or {}),
    has_episodes=any(snapshot["groups"] for snapshot in sampled["snapshots"]),
    style=markupsafe.Markup(style),
    scripts=[markupsafe.Markup(script) for script in scripts],
    script_digests=" ".join(_digest(script) for script in scripts),
    curves_json=script_json(phases),
    episodes_json=script_json(sampled),
  )


def script_json(value: Any) -> markupsafe.Markup:
  """JSON that cannot end the script element it stands in: <, > and & are written as escapes."""
  text = json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
  for character in "<>&\u2028\u2029":
    text = text.replace(character, f"\\u{ord(character):04x}")
  # A lone surrogate, which a broken decode may give, has no UTF-8 form.
  return markupsafe.Markup(text.encode("utf-8", "replace").decode("utf-8"))


def _digest(script: str) -> str:
  return f"'sha256-{base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()}'"
