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
import pathlib
import random
import re
import statistics
from collections.abc import Mapping, Sequence
from typing import Any

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


GENERAL = (
  Rubric(
    "helpful",
    {"helpfulness": 2.0, "relevance": 1.0},
    {
      "helpfulness": "The user's need is met as far as the situation allowed.",
      "relevance": "Everything that was said and done bears on what was asked.",
    },
  ),
  Rubric(
    "instructions",
    {"compliance": 2.0, "form": 1.0},
    {
      "compliance": "Every instruction was followed to the letter, limits and bans included.",
      "form": "The answer has the form, length and language that were asked for.",
    },
  ),
  Rubric(
    "ready",
    {"readiness": 1.0, "detail": 1.0},
    {
      "readiness": "The answer can be used as it stands, without further questions or repairs.",
      "detail": "The level of detail fits the question: nothing needed is missing, nothing padded.",
    },
  ),
  Rubric(
    "overall",
    {"quality": 1.0},
    {"quality": "A demanding expert would accept the result as it is."},
    held_out=True,
  ),
)
"""The rubrics of an agent that has none of its own. The criteria are those that Kimi K2.5 names
(but for the looks of artifacts); the wording is ours."""


@dataclasses.dataclass(frozen=True)
class Verdict:
  """One answer of the judge: a grade from 1 to 10 for each criterion, and two flags.

  `violates`: the reply breaks an instruction. `injects`: the reply addresses the judge.
  """

  grades: Mapping[str, float]
  violates: bool = False
  injects: bool = False


def read(text: str, rubric: Rubric) -> Verdict:
  """Parses the verdict of a judge: a JSON object alone, or alone in one fence of code.

  Its keys are the criteria (whole numbers from 1 to 10), "violates" and "injects" (true or false),
  and "rationale" (text), which may be missing.

  Raises:
    ValueError: the text is anything else. Nothing is guessed: a grade that is looked for in free
      text may be one that the judged text has put there.
  """
  fenced = re.fullmatch(r"\s*```(?:json)?\n(.*)\n```\s*", text, re.DOTALL)
  try:
    found = json.loads(fenced[1] if fenced else text, object_pairs_hook=_once)
  except (ValueError, RecursionError) as error:
    raise ValueError(f"the verdict is no JSON object ({str(error)[:80]})") from None
  if not isinstance(found, dict):
    raise ValueError(f"the verdict is a {type(found).__name__}, not an object")
  wanted = {*rubric.weights, "violates", "injects"}
  if set(found) - {"rationale"} != wanted:
    raise ValueError(f"the verdict must have the keys {', '.join(sorted(wanted))}, and no other")
  grades = {name: found[name] for name in rubric.weights}
  for name, grade in grades.items():
    if type(grade) is not int or not LOWEST <= grade <= HIGHEST:
      raise ValueError(f"{name} is no whole number from {LOWEST} to {HIGHEST}")
  if type(found["violates"]) is not bool or type(found["injects"]) is not bool:
    raise ValueError("violates and injects must be true or false")
  return Verdict(grades, found["violates"], found["injects"])


def _once(pairs: Sequence[tuple[str, Any]]) -> dict[str, Any]:
  """An object of JSON, no key of which stands twice."""
  found = dict(pairs)
  if len(found) != len(pairs):
    raise ValueError("a key stands twice")
  return found


def load(path: str) -> tuple[Rubric, ...]:
  """The rubrics of a JSON file: {name: {"criteria": {criterion: [weight, text]}, "held_out":
  true}}.

  Raises:
    ValueError: the file cannot be read or has another form.
  """
  try:
    listed = json.loads(pathlib.Path(path).expanduser().read_text("utf-8"))
    return tuple(
      Rubric(
        name,
        {criterion: float(weight) for criterion, (weight, _) in fields["criteria"].items()},
        {criterion: str(text) for criterion, (_, text) in fields["criteria"].items()},
        held_out=_flag(fields, name),
      )
      for name, fields in listed.items()
    )
  except (OSError, ValueError, RuntimeError, RecursionError) as error:
    raise ValueError(f"judge.rubrics={path!r} cannot be read: {str(error)[:200]}") from None
  except (AttributeError, KeyError, TypeError):
    raise ValueError(
      f'judge.rubrics={path!r} must hold {{name: {{"criteria": {{criterion: [weight, text]}}, '
      '"held_out": false}}'
    ) from None


def _flag(fields: Mapping[str, Any], name: str) -> bool:
  """Whether a rubric is held out."""
  held_out = fields.get("held_out", False)
  if not isinstance(held_out, bool) or set(fields) - {"criteria", "held_out"}:
    raise ValueError(
      f"{name} has the fields {', '.join(fields)} and held_out={held_out!r}; write criteria, and "
      "held_out as true or false"
    )
  return held_out


def check(rubrics: Sequence[Rubric], trained: Sequence[str] = ()) -> None:
  """Raises ValueError unless the rubrics can be used together.

  At least two are rewarded (those that `trained` names, or all that are not held out): a policy
  would overfit to a single one. At least one is held out.
  """
  names = [rubric.name for rubric in rubrics]
  for rubric in rubrics:
    words = (rubric.name, *rubric.weights)
    if not rubric.weights or not all(re.fullmatch(r"[a-z][a-z0-9_]{0,31}", w) for w in words):
      raise ValueError(
        f"rubric {rubric.name!r} with the criteria {', '.join(rubric.weights) or 'none'}: names "
        "are up to 32 small letters, digits and _, and there is at least one criterion"
      )
    if {"violates", "injects", "rationale"} & set(words) or rubric.name in _RESERVED:
      raise ValueError(f"rubric {rubric.name!r} uses a reserved name; rename it or its criterion")
    if not all(0 < weight < float("inf") for weight in rubric.weights.values()):
      raise ValueError(f"rubric {rubric.name!r} has a weight that is not above 0")
  if len(set(names)) < len(names):
    raise ValueError(f"two rubrics have one name, among {', '.join(names)}; rename one")
  usable = [rubric.name for rubric in rubrics if not rubric.held_out]
  for name in trained:
    if name not in usable:
      raise ValueError(
        f"judge.trained names {name!r}; the rubrics that are not held out are {', '.join(usable)}"
      )
  if len(set(trained) or usable) < 2:
    raise ValueError(
      f"{len(set(trained) or usable)} rubrics to draw from; give at least 2 that are not held out"
    )
  if len(usable) == len(rubrics):
    raise ValueError("no rubric is held out; mark one, to see whether the others are exploited")


_RESERVED = ("held_out", "violations", "injections")


def rewarded(rubrics: Sequence[Rubric], trained: Sequence[str] = ()) -> list[Rubric]:
  """The rubrics that are rewarded: those that `trained` names, or all that are not held out."""
  return [r for r in rubrics if (r.name in trained if trained else not r.held_out)]


def drawn(rubrics: Sequence[Rubric], *, group_id: str, seed: int) -> Rubric:
  """The rubric of a group, whose id also names its step, among those that are rewarded."""
  return random.Random(f"{seed}/{group_id}").choice(rubrics)


def grade(verdicts: Sequence[Verdict], rubric: Rubric) -> float:
  """`median over verdicts of sum_c w_c (s_c - 1) / 9`, in [0, 1].

  At most VIOLATION_CAP if a verdict says that an instruction was broken; 0 if one says that the
  reply addresses the judge.

  Raises:
    ValueError: there are no verdicts; a reply that could not be judged must not count as 0.
  """
  if not verdicts:
    raise ValueError("no verdict to grade by; ask the judge again or let the rollout fail")
  if any(verdict.injects for verdict in verdicts):  # such a verdict needs no grades
    return 0.0
  total = sum(rubric.weights.values())
  found = statistics.median(
    sum(w * (v.grades[name] - LOWEST) / (HIGHEST - LOWEST) for name, w in rubric.weights.items())
    / total
    for v in verdicts
  )
  return min(found, VIOLATION_CAP) if any(v.violates for v in verdicts) else found


def mixed(verified: float, graded: float, *, weight: float) -> float:
  """`r_verified + weight g`.

  Raises:
    ValueError: the weight is not below 1, so that a grade could lift a failure above a success.
  """
  if not 0 <= weight < 1:
    raise ValueError(f"judge.weight={weight} must be at least 0 and below 1")
  return verified + weight * graded
