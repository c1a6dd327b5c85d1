"""Ranges of options. They are part of an option's type, and checked when a config is loaded.

    steps: Whole = 16               0, 1, 2, ...
    substeps: Count = 4             1, 2, 3, ...
    hasty: Share = 0.3              from 0 to 1
    lr: Positive = 1e-4             above 0
    weight: NotNegative = 0.0       from 0
    level: Annotated[int, Range(0, 3)] = 0

Numbers without a range, in the section of your own agent for example, must be finite.
"""

from __future__ import annotations

import dataclasses
import math
import typing
from collections.abc import Iterator, Mapping
from typing import Annotated, Any


@dataclasses.dataclass(frozen=True)
class Range:
  """Numbers from `least` to `most`; `least` itself is left out if `above` is set."""

  least: float = -math.inf
  most: float = math.inf
  above: bool = False

  def holds(self, number: float) -> bool:
    """Whether a finite number is in the range."""
    return self.least <= number <= self.most and not (self.above and number == self.least)

  def __str__(self) -> str:
    parts = []
    if self.least > -math.inf:
      parts.append(f"above {self.least:g}" if self.above else f"at least {self.least:g}")
    if self.most < math.inf:
      parts.append(f"at most {self.most:g}")
    return " and ".join(parts) or "any number"


LIMIT = 2**63
"""Whole numbers are smaller, since arrays hold them."""

Whole = Annotated[int, Range(0)]
Count = Annotated[int, Range(1)]
Share = Annotated[float, Range(0, 1)]
ShareAboveZero = Annotated[float, Range(0, 1, above=True)]
Positive = Annotated[float, Range(0, above=True)]
NotNegative = Annotated[float, Range(0)]
Decay = Annotated[float, Range(0, 0.999999)]  # of a mean over steps: with 1 nothing would enter it


def shown(text: str) -> str:
  """A text as it may stand in an error: quoted, printable, and not too long."""
  return repr(text) if len(text) <= 60 else f"{text[:60]!r}... ({len(text)} characters)"


def check(section: Any, name: str = "", *, called: Mapping[str, str] | None = None) -> None:
  """Checks every number of a section, and of the sections in it.

  Args:
    section: a dataclass.
    name: of the section in overrides, with a dot at its end.
    called: {field: its name in overrides} of fields whose name there is another one.

  Raises:
    ValueError: a number is not finite or out of its range; names the option and the range.
  """
  hints = typing.get_type_hints(type(section), include_extras=True)
  for field in dataclasses.fields(section):
    value = getattr(section, field.name)
    if dataclasses.is_dataclass(value):
      check(value, f"{name}{(called or {}).get(field.name, field.name)}.")
      continue
    allowed = _range_of(hints[field.name])
    for key, number in _numbers(value):
      if isinstance(number, int) and abs(number) >= LIMIT:
        raise ValueError(f"{name}{field.name}{key}={str(number)[:24]}... must be less than 2^63")
      if not math.isfinite(number) or not allowed.holds(number):
        limits = str(allowed) if math.isfinite(number) else f"a finite number, {allowed}"
        raise ValueError(f"{name}{field.name}{key}={number:g} must be {limits}")


def _range_of(hint: Any) -> Range:
  """The range in a type, also in that of the elements of a tuple."""
  found = (each for each in getattr(hint, "__metadata__", ()) if isinstance(each, Range))
  inner = (_range_of(each) for each in typing.get_args(hint))
  return next((each for each in (*found, *inner) if each != Range()), Range())


def _numbers(value: Any) -> Iterator[tuple[str, float]]:
  """(place in the value, number) of the numbers of an option."""
  if isinstance(value, int | float) and not isinstance(value, bool):
    yield "", value
  elif isinstance(value, tuple | list):
    for i, each in enumerate(value):
      yield from ((f"[{i}]{key}", number) for key, number in _numbers(each))
  elif isinstance(value, Mapping):
    for key, each in value.items():
      yield from ((f".{key}{more}", number) for more, number in _numbers(each))
