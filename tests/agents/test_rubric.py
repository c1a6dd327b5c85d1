"""Rubrics: one for a group, capped, and never above a verified success."""

import pytest

from jaxrl_agents.agents import rubric
from jaxrl_agents.agents.rubric import Rubric, Verdict

PLAIN = Rubric("plain", {"helpful": 3.0, "brief": 1.0}, {"helpful": "?", "brief": "?"})
OTHER = Rubric("other", {"helpful": 1.0}, {"helpful": "!"})
HIDDEN = Rubric("hidden", {"helpful": 1.0}, {"helpful": "-"}, held_out=True)


def test_a_grade_is_the_median_of_weighted_criteria_scaled_to_one():
  best, worst = Verdict({"helpful": 10, "brief": 10}), Verdict({"helpful": 1, "brief": 1})
  assert rubric.grade([best], PLAIN) == 1.0 and rubric.grade([worst], PLAIN) == 0.0
  mid = Verdict({"helpful": 7, "brief": 4})  # 0.75 * 6/9 + 0.25 * 3/9
  assert rubric.grade([mid], PLAIN) == pytest.approx(0.75 * 6 / 9 + 0.25 * 3 / 9)
  assert rubric.grade([best, worst], PLAIN) == 0.5
  assert rubric.grade([best, best, worst], PLAIN) == 1.0


def test_broken_instructions_are_capped_and_words_to_the_judge_are_worth_nothing():
  best = {"helpful": 10, "brief": 10}
  assert rubric.grade([Verdict(best), Verdict(best, violates=True)], PLAIN) == 0.3
  assert rubric.grade([Verdict(best), Verdict(best, injects=True)], PLAIN) == 0.0
  with pytest.raises(ValueError, match="no verdict"):
    rubric.grade([], PLAIN)


def test_a_group_has_one_rubric_a_step_and_never_the_held_out_one():
  rubrics = [PLAIN, HIDDEN, OTHER]
  draw = lambda group, step: rubric.drawn(rubrics, group_id=group, step=step, seed=0).name
  assert len({draw("g", 3) for _ in range(5)}) == 1
  assert {draw(f"g{i}", step) for i in range(20) for step in range(5)} == {"plain", "other"}
  with pytest.raises(ValueError, match="1 rubrics to draw from"):
    rubric.drawn([PLAIN, HIDDEN], group_id="g", step=0, seed=0)


def test_a_grade_never_lifts_a_failure_above_a_success():
  assert rubric.mixed(0.0, 1.0) == pytest.approx(0.3)
  assert rubric.mixed(1.0, 0.0) == 1.0
  assert rubric.mixed(None, 0.6) == 0.6
  with pytest.raises(ValueError, match="below 1"):
    rubric.mixed(1.0, 1.0, kappa=1.0)


def test_the_text_of_a_judge_is_read_or_refused():
  read = rubric.read(
    'I say: {"helpful": 8, "brief": 2, "rationale": "so", "violates": true}', PLAIN
  )
  assert read == Verdict({"helpful": 8.0, "brief": 2.0}, violates=True)
  for text in ("", "{}", '{"helpful": 8}', '{"helpful": 11, "brief": 2}', "{not json}", "[1]"):
    assert rubric.read(text, PLAIN) is None, text
  assert rubric.taste([0.8, 0.9], [0.5, 0.7]) == pytest.approx(0.25)
