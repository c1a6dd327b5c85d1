"""Rewards to advantages: ridge against another solver, weights of users, freshness, guards."""

import numpy as np
import pytest

from jaxrl_agents.realtime import advantage, behaviour, regression_gate
from jaxrl_agents.realtime.feedback import Joined, Kind
from jaxrl_agents.types import Generation, Message, ToolCall
from tests.realtime.logged import call

KINDS = {"persist": Kind(1.0)}


def joined(name, user="u", value=1.0, **fields):
  return Joined(call(name, user=user, **fields), {"persist": value})


def test_the_baseline_is_the_ridge_regression_of_an_augmented_least_squares_problem():
  rng = np.random.default_rng(0)
  x, w = rng.normal(size=(30, 2)), rng.random(30)
  r = x @ [0.5, -1.0] + 0.3 + rng.normal(size=30) / 10
  rows = [({"a": float(a), "b": float(b)}, float(y)) for (a, b), y in zip(x, r, strict=True)]
  found = advantage.fit(rows, w, ridge=2.0)
  # Rows sqrt(2) * e_a and sqrt(2) * e_b with reward 0 are the penalty.
  root = np.sqrt(w)[:, None]
  design = np.concatenate([root * np.c_[np.ones(30), x], np.sqrt(2.0) * np.eye(3)[1:]])
  target = np.concatenate([np.sqrt(w) * r, [0.0, 0.0]])
  expected = np.linalg.lstsq(design, target, rcond=None)[0]
  np.testing.assert_allclose(found.weights, expected, atol=1e-9)
  assert found({"a": 1.0}) == pytest.approx(expected[0] + expected[1])
  assert advantage.fit([])({"a": 1.0}) == 0.0


@pytest.mark.parametrize("size", [1e6, 1e8, 1e9])
def test_a_large_feature_that_never_changes_leaves_the_baseline_as_it_is_without_it(size):
  turns = [{"turn": float(i % 3)} for i in range(200)]
  rewards = [0.5 + 0.1 * (i % 3) for i in range(200)]
  small = advantage.fit(list(zip(turns, rewards, strict=True)))
  large = [{**each, "bytes_of_repository": size} for each in turns]
  found = advantage.fit(list(zip(large, rewards, strict=True)))
  for with_it, without in zip(large[:3], turns, strict=False):
    assert found(with_it) == pytest.approx(small(without), abs=1e-6)


def test_ten_percent_of_the_users_move_the_reward_by_ten_percent_of_its_range_at_most():
  honest = [f"u{i}" for i in range(90) for _ in range(3)]
  flood = [f"bad{i}" for i in range(10) for _ in range(500)]
  weights = advantage.user_weights(honest + flood)
  assert weights.mean() == pytest.approx(1.0)
  rewards = np.array([0.0] * len(honest) + [1.0] * len(flood))
  assert np.mean(weights * rewards) == pytest.approx(0.1)
  assert rewards.mean() > 0.9  # what it were without weights


def test_advantages_are_weighted_residuals_over_their_root_mean_square_by_hand():
  rows = [joined("a", "u1", 1.0), joined("b", "u2", 0.0), joined("c", "u2", 0.0)]
  baseline = advantage.Baseline((), np.array([0.5]))
  found, metrics = advantage.samples(rows, KINDS, baseline, most_per_user=2)
  # Weights 1, 1/2, 1/2 times 3/2; residuals 1/2, -1/2, -1/2; their root mean square is 1/2.
  assert [each.advantage for each in found] == pytest.approx([1.5, -0.75, -0.75])
  assert metrics["reward"] == pytest.approx(0.5) and metrics["residual"] == pytest.approx(0.0)
  found, metrics = advantage.samples(rows, KINDS, baseline, most_per_user=1)
  assert [each.call.id for each in found] == ["a", "b"] and metrics["over_cap"] == 1


def test_old_and_withdrawn_versions_are_dropped_and_counted():
  rows = [
    joined("new", version=7),
    joined("last", version=6),
    joined("old", version=5),
    joined("bad", version=8),
    joined("none", tokens=()),
  ]
  kept, dropped = advantage.fresh(rows, lambda v: max(7 - v, 0), quarantined=(8,), max_age=1)
  assert [each.call.id for each in kept] == ["new", "last"]
  assert dropped == {"too_old": 1, "quarantined": 1, "empty": 1}


def reply(text, *tool_calls):
  made = Generation(
    np.arange(4, dtype=np.int32), np.full(4, -0.5, np.float32), np.zeros(4, np.int32), None, "stop"
  )
  return behaviour.figures(Message("assistant", text, tool_calls), made, 0.2)


def test_figures_of_replies_by_hand():
  found = reply("Which file do you mean?")
  assert (found["question"], found["length"], found["latency_s"]) == (1, 4, 0.2)
  assert found["entropy"] == pytest.approx(0.5)
  assert reply("I'm sorry, I cannot do that.")["refusal"] == 1
  assert reply("It is done. I can't stop here")["refusal"] == 1
  assert reply("I’m sorry.")["refusal"] == reply("But I won’t.")["refusal"] == 1
  assert reply("Incan canals")["refusal"] == 0
  edit = ToolCall("1", "edit", {"path": "a.py", "text": "x = 1\n", "line": 3})
  broken = ToolCall("2", "edit", {}, error="no JSON")
  assert reply("ok?", edit)["edit_size"] == 4 + 6 and reply("ok?", edit)["question"] == 0
  assert [reply("", edit)["invalid_tool"], reply("", edit, broken)["invalid_tool"]] == [0, 1]


def test_means_have_errors_of_binomials_and_of_means():
  rows = [reply("a") | {"length": float(n)} for n in (1, 2, 3, 6)]
  found = behaviour.means(rows)
  assert found["length"] == (3.0, pytest.approx(np.std([1, 2, 3, 6], ddof=1) / 2))
  q = 1 / 6  # none of 4 are questions: (0 + 1) / (4 + 2)
  assert found["question"] == (0.0, pytest.approx(np.sqrt(q * (1 - q) / 4)))
  assert behaviour.means([]) == {}


def test_a_guard_passes_one_call_in_200_and_stops_twenty():
  history = [{"invalid_tool": 0.0}] * 5
  suite = regression_gate.Suite("s", {"a": 1.0, "b": 1.0}, {"a": 1.0, "b": 1.0})

  def passes(broken):
    rows = [reply("x") | {"invalid_tool": float(i < broken)} for i in range(200)]
    checked = [g for g in behaviour.guards(history, behaviour.means(rows)) if g.history]
    return regression_gate.decide([suite], checked).passed

  assert passes(1) and not passes(20)


def test_a_policy_without_entropy_is_refused_however_much_the_history_varies():
  history = [{"entropy": value} for value in (0.1, 0.5, 0.1, 0.5, 0.3)]
  (guard,) = behaviour.guards(history, {"entropy": (0.01, 0.002)})
  suite = regression_gate.Suite("s", {"a": 1.0, "b": 1.0}, {"a": 1.0, "b": 1.0})
  assert guard.limit == pytest.approx(0.225)
  assert not regression_gate.decide([suite], [guard]).passed
