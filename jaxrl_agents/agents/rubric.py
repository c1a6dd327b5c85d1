"""Grades of a judge model by several rubrics, added to verified rewards (GRM).

Each group and step draws one rubric, so that compared rollouts are graded alike. A policy that
exploits one wording does not profit from the next. One held-out rubric is never rewarded; it shows
how much of a gain is specific to the others.

Source: Kimi K2.5, https://arxiv.org/abs/2602.02276 section 4.4.2, says that a context has several
rubrics and that they are added to verified rewards; formulas and numbers are ours.
"""

from __future__ import annotations

import dataclasses
import json
import random
import re
import statistics
from collections.abc import Mapping, Sequence

LOWEST, HIGHEST = 1, 10
"""The range of the grades of one criterion."""

VIOLATION_CAP = 0.3
"""Highest reward of a reply that breaks an instruction."""


@dataclasses.dataclass(frozen=True)
class Rubric:
  """Criteria with weights and descriptions. A `held_out` rubric only evaluates."""

  name: str
  weights: Mapping[str, float]
  texts: Mapping[str, str]
  held_out: bool = False


@dataclasses.dataclass(frozen=True)
class Verdict:
  """One answer of the judge: a grade from 1 to 10 for each criterion, and two flags.

  `violates`: the reply breaks an instruction. `injects`: the reply addresses the judge.
  """

  grades: Mapping[str, float]
  violates: bool = False
  injects: bool = False


def read(text: str, rubric: Rubric) -> Verdict | None:
  """Parses the JSON verdict in a judge's text; None if it does not match this rubric."""
  match = re.search(r"\{.*\}", text, re.DOTALL)
  try:
    found = json.loads(match[0] if match else "{}")
    grades = {name: float(found[name]) for name in rubric.weights}
  except (ValueError, TypeError, KeyError):
    return None
  if not all(LOWEST <= grade <= HIGHEST for grade in grades.values()):
    return None
  return Verdict(grades, bool(found.get("violates")), bool(found.get("injects")))


def drawn(rubrics: Sequence[Rubric], *, group_id: str, step: int, seed: int) -> Rubric:
  """The rubric of a group at a step; never a held-out one.

  Raises:
    ValueError: fewer than two rubrics are left: a policy would overfit to a single one.
  """
  usable = [rubric for rubric in rubrics if not rubric.held_out]
  if len(usable) < 2:
    raise ValueError(f"{len(usable)} rubrics to draw from; give at least 2 that are not held out")
  return random.Random(f"{seed}/{step}/{group_id}").choice(usable)


def grade(verdicts: Sequence[Verdict], rubric: Rubric) -> float:
  """`median over verdicts of sum_c w_c (s_c - 1) / 9`, in [0, 1].

  At most VIOLATION_CAP if a verdict says that an instruction was broken; 0 if one says that the
  reply addresses the judge.

  Raises:
    ValueError: there are no verdicts; a reply that could not be judged must not count as 0.
  """
  if not verdicts:
    raise ValueError("no verdict to grade by; ask the judge again or let the rollout fail")
  if any(verdict.injects for verdict in verdicts):
    return 0.0
  total = sum(rubric.weights.values())
  found = statistics.median(
    sum(w * (v.grades[name] - LOWEST) / (HIGHEST - LOWEST) for name, w in rubric.weights.items())
    / total
    for v in verdicts
  )
  return min(found, VIOLATION_CAP) if any(v.violates for v in verdicts) else found


def mixed(verified: float | None, graded: float, *, kappa: float = 0.3) -> float:
  """`r_verified + kappa g`, or g where nothing can be verified.

  Raises:
    ValueError: kappa is not below 1, so that a grade could lift a failure above a success.
  """
  if not 0 <= kappa < 1:
    raise ValueError(f"kappa={kappa} must be at least 0 and below 1")
  return graded if verified is None else verified + kappa * graded


def taste(trained: Sequence[float], held_out: Sequence[float]) -> float:
  """Mean grade by the rubrics in use minus that by the held-out one; a growing gap is a warning."""
  return statistics.fmean(trained) - statistics.fmean(held_out)
