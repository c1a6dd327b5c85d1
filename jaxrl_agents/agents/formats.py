"""Formats numbers and settings for the report."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any


def flatten(values: Mapping[str, Any], prefix: str = "") -> list[tuple[str, str]]:
  """Nested settings as pairs ("section.option", text), in their own order."""
  flat: list[tuple[str, str]] = []
  for key, value in values.items():
    name = f"{prefix}{key}"
    if isinstance(value, Mapping):
      flat += flatten(value, name + ".")
    else:
      flat.append((name, str(value)))
  return flat


def number(value: Any) -> float | None:
  """A finite number as float, else None."""
  if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value):
    return None
  return float(value)


def mapping(value: Any) -> Mapping[str, Any]:
  """A mapping as it is, anything else as an empty one."""
  return value if isinstance(value, Mapping) else {}


def signed(value: float) -> str:
  """+0.66 or −0.02, with a true minus sign; a value that rounds to zero has no sign."""
  text = f"{abs(value):.2f}"
  return text if float(text) == 0 else ("+" if value > 0 else "−") + text


def duration(seconds: Any) -> str | None:
  """43 s, 13 min 32 s, or 2 h 05 min; None when `seconds` is not a number."""
  value = number(seconds)
  if value is None:
    return None
  minutes, rest = divmod(round(value), 60)
  if not minutes:
    return f"{rest} s"
  if minutes < 60:
    return f"{minutes} min {rest:02d} s"
  return f"{minutes // 60} h {minutes % 60:02d} min"
