"""C_{k,q} against values by hand, its limits, and what an episode takes."""

import math

import numpy as np
import pytest

from jaxrl_agents.agents.coding.length_penalty import Spent, length_penalty, spent
from jaxrl_agents.types import Message, ToolCall


def test_the_published_form_gives_the_values_worked_out_by_hand():
  for effort, value in [(0, 0.0), (3, 2.0), (8, 4.0)]:  # k = 1, q = 1/2: 2 (sqrt(1 + x) - 1)
    assert length_penalty(effort, k=1.0, q=0.5) == pytest.approx(value, abs=1e-12)
  assert length_penalty(3, k=1.0, q=2.0) == pytest.approx(0.75)  # x / (1 + k x)
  assert length_penalty(3, k=2.0, q=3.0) == pytest.approx((1 - 1 / 49) / 4)


def test_at_q_1_it_is_the_logarithm_and_the_general_form_tends_to_it():
  assert length_penalty(5, k=2.0, q=1.0) == pytest.approx(math.log(11) / 2)
  for q in (1 - 1e-6, 1 + 1e-6):
    assert length_penalty(5, k=2.0, q=q) == pytest.approx(math.log(11) / 2, rel=1e-5)


def test_at_q_0_or_k_0_it_is_the_effort_itself():
  assert length_penalty(7.5, k=3.0, q=0.0) == pytest.approx(7.5)
  assert length_penalty(7.5, k=0.0, q=2.0) == 7.5


@pytest.mark.parametrize(("k", "q"), [(1.0, 0.5), (0.3, 1.0), (2.0, 2.0)])
def test_it_begins_with_slope_1_rises_and_is_concave(k, q):
  x = np.linspace(0, 50, 2001)
  y = np.array([length_penalty(each, k=k, q=q) for each in x])
  slopes = np.diff(y) / np.diff(x)
  assert (slopes > 0).all()
  assert (np.diff(slopes) < 0).all()
  assert length_penalty(1e-6, k=k, q=q) / 1e-6 == pytest.approx(1.0, rel=1e-4)
  # C'(x) = (1 + k x)^-q
  assert slopes[1000] == pytest.approx((1 + k * x[1000]) ** -q, rel=2e-2)


@pytest.mark.parametrize("numbers", [(-1, 1, 1), (1, -1, 1), (1, 1, -1)])
def test_a_negative_number_is_an_error(numbers):
  with pytest.raises(ValueError, match="must not be negative"):
    length_penalty(numbers[0], k=numbers[1], q=numbers[2])


def test_effort_is_the_weighted_sum_of_what_an_episode_takes():
  log = (
    Message("user", "one two"),
    Message("assistant", "think hard", (ToolCall("0.0", "shell", {}),), tokens=np.arange(10)),
    Message("tool", "a b c d", tool_call_id="0.0"),
    Message("assistant", "all done now", reasoning="short"),
  )
  took = spent(log, "answer", lambda text: len(text.split()))
  # The first turn has 10 tokens, 2 of them words of thought; the last 3 words and 1 of thought.
  assert took == Spent(3, 8, 4, 3, 1, 2)
  assert took.effort == pytest.approx((3 + 8 + 3) / 1000 + 4 / 4000 + 0.05 + 0.2)


def test_a_turn_that_is_not_the_answer_has_no_final_message():
  log = (Message("user", "x"), Message("assistant", "cut off here"))
  took = spent(log, "turn_limit", lambda text: len(text.split()))
  assert (took.thinking_tokens, took.final_tokens) == (3, 0)
