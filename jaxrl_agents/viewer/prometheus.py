"""The newest numbers of a run in Prometheus' text format, version 0.0.4.

https://prometheus.io/docs/instrumenting/exposition_formats/
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from jaxrl_agents.agents import formats
from jaxrl_agents.viewer.live import Live

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"

# name of a gauge: its help.
_GAUGES = {
  "jaxrl_steps": "Steps that have ended.",
  "jaxrl_step_time_seconds": "When the last step ended, seconds since the epoch.",
  "jaxrl_scalar": "Scalars of the last step.",
  "jaxrl_held_out_version": "Version of the weights that was evaluated last.",
  "jaxrl_held_out_score": "Its scores on the dev split.",
  "jaxrl_service_up": "1 while a service goes on, 0 after it ended or died.",
  "jaxrl_service_state_time_seconds": "Since when a service does what it does.",
}


def text(live: Live) -> str:
  """All gauges, each with its samples."""
  samples: dict[str, list[str]] = {name: [] for name in _GAUGES}
  for name, labels, value in _samples(live):
    number = formats.number(value)
    if number is not None:
      listed = ",".join(f'{key}="{_escaped(label)}"' for key, label in labels.items())
      samples[name].append(f"{name}{{{listed}}} {number!r}\n")
  return "".join(
    f"# HELP {name} {help}\n# TYPE {name} gauge\n{''.join(samples[name])}"
    for name, help in _GAUGES.items()
    if samples[name]
  )


def _samples(live: Live) -> Iterator[tuple[str, Mapping[str, str], Any]]:
  run = {"run": live.name}
  for phase, rows in live.rows.items():
    last, labels = rows[-1], run | {"phase": phase}
    yield "jaxrl_steps", labels, last["step"] + 1
    yield "jaxrl_step_time_seconds", labels, last.get("time")
    for name, value in last.items():
      if name not in ("phase", "step", "time"):
        yield "jaxrl_scalar", labels | {"name": name}, value
  for record in live.held_out[-1:]:
    yield "jaxrl_held_out_version", run, record["version"]
    for name, value in record["scores"].items():
      yield "jaxrl_held_out_score", run | {"name": str(name)}, value
  for service, states in live.services.items():
    last_state = states[-1]
    labels = run | {"service": service}
    yield "jaxrl_service_up", labels, int(not last_state.is_over)
    doing = {"does": last_state.does, "on": last_state.on}
    yield "jaxrl_service_state_time_seconds", labels | doing, last_state.time


def _escaped(label: str) -> str:
  return label.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
