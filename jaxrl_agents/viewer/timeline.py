"""What the services of a run did over its last steps, and who waited for whom, as a picture.

A lane for each service. A thick bar is work, in the service's own colour; a thin one is waiting, in
the colour of the service that was waited for.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Mapping, Sequence

from jaxrl_agents import service_log
from jaxrl_agents.agents import formats
from jaxrl_agents.service_log import State
from jaxrl_agents.viewer import spans
from jaxrl_agents.viewer.spans import Span

STEPS = 12
"""Steps of the learner that are drawn, the last ones."""

WIDTH, LANE, LEFT, RIGHT, TOP = 1100, 30, 170, 10, 8
_WORK, _WAIT = 18, 4  # heights of bars
_NARROW = 0.5
_COLOURS = 6  # s0 ... s5 of the style sheet
_ORDER = ("learner", "sampler", "publisher", "evaluator")
_TICKS = 6
_STEADY = "serves"  # of what is only counted, and has no lane


@dataclasses.dataclass(frozen=True)
class Bar:
  """A rectangle: `colour` is a number of the style sheet, and `title` is shown on touch."""

  x: float
  y: float
  width: float
  height: float
  colour: int
  title: str


@dataclasses.dataclass(frozen=True)
class Lane:
  """A service: its name, the middle of its lane, its colour, and where its time went in words."""

  service: str
  y: float
  colour: int
  shares: str


@dataclasses.dataclass(frozen=True)
class Timeline:
  """The picture.

  Attributes:
    lanes, bars: as above.
    ticks: (x, text) of the axis.
    width, height: of all.
    first, last: steps that are drawn.
  """

  lanes: tuple[Lane, ...]
  bars: tuple[Bar, ...]
  ticks: tuple[tuple[float, str], ...]
  width: int
  height: int
  first: int
  last: int


def of(services: Mapping[str, Sequence[State]]) -> Timeline | None:
  """The picture of a run; None if its learner has told no step that ended."""
  newest = max((states[-1].time for states in services.values()), default=0.0)
  found = {service: spans.of(states, newest) for service, states in services.items()}
  starts = [s.time for s in services.get("learner", ()) if s.does == service_log.STARTS]
  since = max(starts, default=0.0)  # a resumed run repeats steps
  steps = [span for span in found.get("learner", ()) if span.step >= 0 and span.began >= since]
  if not steps:
    return None
  last = steps[-1].step
  drawn = [span for span in steps if last - STEPS < span.step <= last]
  began, ended = drawn[0].began, drawn[-1].ended
  names = sorted(found, key=lambda name: (_ORDER.index(name) if name in _ORDER else 9, name))
  lanes, bars = [], []
  inside = {name: _within(found[name], began, ended) for name in names}
  names = [name for name in names if any(span.does != _STEADY for span in inside[name])]
  colours = {name: i % _COLOURS for i, name in enumerate(names)}
  for i, name in enumerate(names):
    y = TOP + LANE * i + LANE / 2
    lanes.append(Lane(name, y, colours[name], _shares(inside[name])))
    bars += _bars(inside[name], name, y, colours, began, ended)
  return Timeline(
    tuple(lanes),
    tuple(bars),
    tuple(_ticks(began, ended)),
    WIDTH,
    TOP + LANE * len(names) + 24,
    drawn[0].step,
    last,
  )


def _within(found: Sequence[Span], began: float, ended: float) -> list[Span]:
  """The parts of spans in a window."""
  cut = [
    dataclasses.replace(s, began=max(s.began, began), ended=min(s.ended, ended)) for s in found
  ]
  return [span for span in cut if span.seconds > 0]


def _bars(
  found: Sequence[Span],
  service: str,
  y: float,
  colours: Mapping[str, int],
  began: float,
  ended: float,
) -> list[Bar]:
  """Bars of one lane; what is too narrow to be seen becomes part of the bar before it."""
  scale = (WIDTH - LEFT - RIGHT) / max(ended - began, 1e-9)
  bars: list[Bar] = []
  for span in found:
    x, width = LEFT + (span.began - began) * scale, span.seconds * scale
    if bars and width < _NARROW:
      bars[-1] = dataclasses.replace(bars[-1], width=round(x + width - bars[-1].x, 2))
      continue
    height = _WAIT if span.on else _WORK
    colour = colours.get(span.on, _COLOURS - 1) if span.on else colours[service]
    step = f", step {span.step}" if span.step >= 0 else ""
    title = f"{service} {_words(span)}{step}: {span.seconds:.2f} s"
    bars.append(Bar(round(x, 2), y - height / 2, round(width, 2), height, colour, title))
  return bars


def _words(span: Span) -> str:
  return f"waits for {span.on}" if span.on else span.does


def _shares(found: Sequence[Span]) -> str:
  """ "learns 61 %, waits for sampler 30 %", the largest share first, none below one per cent."""
  seconds: dict[str, float] = {}
  for span in found:
    seconds[_words(span)] = seconds.get(_words(span), 0.0) + span.seconds
  whole = sum(seconds.values())
  ordered = sorted(seconds.items(), key=lambda item: -item[1])
  return ", ".join(f"{what} {s / whole:.0%}" for what, s in ordered if s / whole >= 0.01)


def _ticks(began: float, ended: float) -> list[tuple[float, str]]:
  """Times at round numbers of seconds, since the beginning."""
  whole = max(ended - began, 1e-3)  # a clock may have been set back
  rough = whole / _TICKS
  power = 10.0 ** math.floor(math.log10(rough))
  step = next(m * power for m in (1, 2, 5, 10) if m * power >= rough)
  scale = (WIDTH - LEFT - RIGHT) / whole
  times = itertools.takewhile(lambda t: t <= whole, (i * step for i in itertools.count()))
  text = lambda t: formats.duration(t) if step >= 1 else f"{t:g} s"
  return [(round(LEFT + t * scale, 1), str(text(float(f"{t:.6g}")))) for t in times]
