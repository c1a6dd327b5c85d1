"""A run in the terminal: its services, its queue, and its newest numbers."""

from __future__ import annotations

import itertools
import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import Group
from rich.table import Table
from rich.text import Text

from jaxrl_agents.agents import formats
from jaxrl_agents.service_log import State
from jaxrl_agents.viewer import spans
from jaxrl_agents.viewer.live import Live

WINDOW_S = 600.0
"""Shares of waiting are those of the last ten minutes."""

_BARS = "▁▂▃▄▅▆▇█"
_POINTS = 30
_PHASES = ("rl", "mtp", "sft")

# (scalar, title); "held_out/NAME" is a score of the evaluator.
_SCALARS = (
  ("reward", "reward"),
  ("held_out/reward", "reward, held out"),
  ("loss", "loss"),
  ("entropy", "entropy, nats a token"),
  ("grad_norm", "gradient norm"),
  ("canary_max_abs_logprob_difference", "canary, max |Δ log p|"),
  ("sampler_tokens_per_s", "sampler, tokens/s"),
  ("learner_tokens_per_s", "learner, tokens/s"),
  ("sampler_idle_share", "sampler, share of idle time"),
  ("learner_idle_share", "learner, share of idle time"),
  ("groups_in_flight", "groups in play"),
  ("groups_ready", "groups ready"),
  ("age_mean", "age of groups, mean"),
  ("age_max", "age of groups, largest"),
  ("publish_s", "publication, seconds"),
  ("publish_bytes", "publication, bytes"),
  ("pause_s", "pause for new weights, seconds"),
  ("rss_mib", "memory, MiB"),
)


def frame(live: Live) -> Group:
  """One picture of the run, for a rich console."""
  parts: list[Any] = [_head(live)]
  if live.services:
    parts += [Text(), _services(live)]
  phase = next((name for name in _PHASES if name in live.rows), "")
  if phase:
    parts += [Text(), _numbers(live.rows[phase], live.held_out if phase == "rl" else ())]
  else:
    parts += [Text(), Text("no step has ended yet", "dim")]
  return Group(*parts)


def _head(live: Live) -> Text:
  head = Text(_plain(live.name), "bold")
  for phase, rows in live.rows.items():
    last = rows[-1]
    done = last["step"] + 1
    of = f" of {live.steps}" if phase == "rl" and live.steps else ""
    head.append(f"   {_plain(phase)}: {done}{of} steps", "default")
    if isinstance(last.get("time"), (int, float)):
      head.append(f", the last {_ago(live.now - last['time'])} ago", "dim")
    per_step = _seconds_a_step(rows)
    if of and per_step is not None and 0 < done < live.steps:
      head.append(f", about {_ago(per_step * (live.steps - done))} left", "dim")
  return head


def _seconds_a_step(rows: Sequence[Mapping[str, Any]]) -> float | None:
  """The mean over neighbouring rows, without pauses of the run: what is longer than 20 medians.
  None without two rows that have a time.
  """
  timed = [row for row in rows if isinstance(row.get("time"), (int, float))]
  taken = [
    (b["time"] - a["time"]) / (b["step"] - a["step"])
    for a, b in itertools.pairwise(timed)
    if b["step"] > a["step"]
  ]
  if not taken:
    return None
  longest = 20 * statistics.median(taken)
  return statistics.fmean(each for each in taken if each <= longest)


def _services(live: Live) -> Table:
  table = Table(box=None, pad_edge=False, header_style="dim")
  for title in ("service", "does", "since", "waited for (10 min)", "process"):
    table.add_column(title, no_wrap=title in ("service", "since"))
  shares = spans.all_waits(live.services, live.now, live.now - WINDOW_S)
  for service, states in live.services.items():
    last = states[-1]
    waited = sorted(
      ((share, on) for on, share in shares.get(service, {}).items() if on and share >= 0.01),
      reverse=True,
    )
    table.add_row(
      Text(_plain(service), "bold"),
      _doing(last),
      Text(_ago(live.now - last.time), justify="right"),
      Text(", ".join(f"{_plain(on)} {share:.0%}" for share, on in waited)),
      Text(f"{_plain(last.host)}:{last.pid}", "dim"),
    )
  return table


def _doing(state: State) -> Text:
  facts = " ".join(f"{_plain(k)} {_plain(str(v))}" for k, v in state.facts.items())
  if state.is_over:
    gone = state.does not in ("ended", "stopped")
    return Text(f"gone ({_plain(state.does)})" if gone else state.does, "red" if gone else "dim")
  text = f"waits for {_plain(state.on)}" if state.on else _plain(state.does)
  return Text(f"{text}  {facts}".rstrip(), "yellow" if state.on else "green")


def _numbers(rows: Sequence[Mapping[str, Any]], held_out: Sequence[Mapping[str, Any]]) -> Table:
  table = Table(box=None, pad_edge=False, header_style="dim")
  for title in ("", "last", f"last {_POINTS}"):
    table.add_column(title, justify="right" if title == "last" else "left", no_wrap=True)
  for name, title in _SCALARS:
    if name.startswith("held_out/"):
      values = [each["scores"].get(name.partition("/")[2]) for each in held_out]
    else:
      values = [row.get(name) for row in rows]
    known = [value for value in map(formats.number, values) if value is not None]
    if known:
      table.add_row(title, Text(_shown(known[-1])), Text(sparkline(known[-_POINTS:]), "cyan"))
  return table


def sparkline(values: Sequence[float]) -> str:
  """A bar for each value, the smallest lowest and the largest highest."""
  low, high = min(values), max(values)
  if low == high:
    return _BARS[0] * len(values)
  scale = (len(_BARS) - 1) / (high - low)
  return "".join(_BARS[round((value - low) * scale)] for value in values)


def _shown(value: float) -> str:
  return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"


def _ago(seconds: float) -> str:
  return formats.duration(max(seconds, 0.0)) or ""


def _plain(text: str) -> str:
  """The text without what a terminal would obey."""
  return "".join(c if c.isprintable() else "?" for c in text)
