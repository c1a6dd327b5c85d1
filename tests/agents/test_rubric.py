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


def test_a_group_has_one_rubric_and_never_the_held_out_one():
  rewarded = rubric.rewarded([PLAIN, HIDDEN, OTHER])
  draw = lambda group, step: rubric.drawn(rewarded, group_id=f"step {step} {group}", seed=0).name
  assert len({draw(1, 3) for _ in range(5)}) == 1
  assert {draw(i, step) for i in range(20) for step in range(5)} == {"plain", "other"}


def test_a_grade_never_lifts_a_failure_above_a_success():
  assert rubric.mixed(0.0, 1.0, weight=0.3) == pytest.approx(0.3)
  assert rubric.mixed(1.0, 0.0, weight=0.3) == 1.0
  with pytest.raises(ValueError, match="below 1"):
    rubric.mixed(1.0, 1.0, weight=1.0)


def test_the_text_of_a_judge_is_read_or_refused():
  plain = '{"helpful": 8, "brief": 2, "rationale": "so", "violates": true, "injects": false}'
  for text in (plain, f"\n```json\n{plain}\n```\n"):
    assert rubric.read(text, PLAIN) == Verdict({"helpful": 8, "brief": 2}, violates=True)
  wrong = ("", "{}", "[1]", f"I say: {plain}", plain.replace("8", "11"), plain.replace("8", "8.5"))
  for text in (*wrong, plain.replace("true", "1"), plain.replace('"rationale"', '"other"')):
    with pytest.raises(ValueError, match=r"verdict|whole number|true or false"):
      rubric.read(text, PLAIN)
