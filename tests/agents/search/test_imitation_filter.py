"""The SFT filter, rule by rule, with counts and probabilities worked out by hand."""

import numpy as np
import pytest

from jaxrl_agents.agents.search import imitation_filter
from jaxrl_agents.types import Group, Message, Segment, Task, ToolCall, Trajectory


def rollout(tr, out, *, turns=2, stop="answer", error="", call_error="", name="t"):
  calls = (ToolCall("1", "search_corpus", {}, call_error),)
  log = (Message("user", "q"),)
  for _ in range(turns - 1):
    log += (Message("assistant", "", calls), Message("tool", "hits"))
  log += (Message("assistant", "answer"),)
  segment = Segment(
    np.arange(3, dtype=np.int32), np.ones(3, bool), np.zeros(3, np.float32), np.zeros(3, np.int32)
  )
  rewards = {} if error else {"trajectory_recall": tr, "output_recall": out}
  return Trajectory(name, (segment,), log, rewards, stop, error=error)


def group(*trajectories, query="q"):
  return Group(Task(query, "search", query, {}), trajectories)


def ids(result):
  return [id(trajectory) for trajectory in result.kept]


def one_per_query(trajectories, prefix="q"):
  return [group(t, query=f"{prefix}{i}") for i, t in enumerate(trajectories)]


def test_malformed_failed_and_unanswered_rollouts_are_dropped_whatever_their_recall():
  bad = [
    rollout(1.0, 1.0, error="worker died"),
    rollout(1.0, 1.0, stop="turn_limit"),
    rollout(1.0, 1.0, stop="malformed"),
    rollout(1.0, 1.0, call_error="not JSON"),
  ]
  result = imitation_filter.keep_for_sft(one_per_query(bad), seed=0)
  assert result.kept == ()
  assert result.counts["malformed_dropped"] == 4


def test_rollouts_that_explored_well_and_concluded_badly_are_dropped():
  # Gaps 0.5 and 0.4: the cut-off is strict; 0.5 of trajectory recall is not "well".
  groups = one_per_query([rollout(1.0, 0.5), rollout(0.75, 0.25), rollout(0.5, 0.25)])
  result = imitation_filter.keep_for_sft(groups, seed=0)
  assert result.counts["concluded_badly_dropped"] == 2
  assert result.counts["lower_recall_kept"] + result.counts["lower_recall_dropped"] == 1


def test_good_rollouts_are_all_kept_in_the_order_of_the_input():
  good = [rollout(0.75, 0.5), rollout(0.6, 0.41), rollout(1.0, 0.75)]
  result = imitation_filter.keep_for_sft([group(*good)], seed=0)
  assert ids(result) == list(map(id, good))
  assert result.counts["good_kept"] == 3


def test_lower_recall_is_kept_at_the_square_of_its_nearness_to_the_bounds():
  # tr 0.25 and or 0.2: (0.5 * 0.5 + 0.5 * 0.5)^2 = 0.25. 4,000 draws: standard deviation 0.0068.
  groups = one_per_query([rollout(0.25, 0.2)] * 4000)
  result = imitation_filter.keep_for_sft(groups, seed=1)
  assert len(result.kept) / 4000 == pytest.approx(0.25, abs=0.03)
  # On the bounds themselves: (0.5 + 0.5)^2 = 1, always kept.
  assert (
    len(imitation_filter.keep_for_sft(one_per_query([rollout(0.5, 0.4)] * 50), seed=1).kept) == 50
  )


def test_zero_recall_gives_one_negative_example_a_query_and_at_most_five_percent():
  good = one_per_query([rollout(1.0, 1.0)] * 38, prefix="good")
  # 38 positives carry 2 negatives: 2 / 40 = 5 %; a third would be 3 / 41 = 7 %.
  one_query = [group(*[rollout(0.0, 0.0)] * 8, query="zero")]
  many_queries = one_per_query([rollout(0.0, 0.0)] * 8, prefix="zero")
  counts = imitation_filter.keep_for_sft(good + one_query, seed=0).counts
  assert (counts["zero_recall_kept"], counts["zero_recall_dropped"]) == (1, 7)
  counts = imitation_filter.keep_for_sft(good + many_queries, seed=0).counts
  assert (counts["zero_recall_kept"], counts["zero_recall_dropped"]) == (2, 6)
  assert imitation_filter.keep_for_sft(many_queries, seed=0).kept == ()


def test_of_several_successes_on_one_query_the_one_with_fewest_turns_stays():
  long, short, tie = (rollout(1.0, out, turns=n) for out, n in ((1.0, 5), (0.8, 3), (0.9, 3)))
  partial = rollout(0.9, 0.75, turns=2)  # below 0.8: no success, so it is not compared
  # The same prompt in a second group is the same query.
  result = imitation_filter.keep_for_sft([group(long, partial, short), group(tie)], seed=0)
  assert ids(result) == [id(partial), id(short)]
  assert result.counts["repeated_success_dropped"] == 2


def test_every_rollout_is_counted_once_and_draws_do_not_depend_on_other_queries():
  values = np.random.default_rng(0).choice([0.0, 0.2, 0.4, 0.6, 0.8, 1.0], size=(200, 2))
  groups = one_per_query([rollout(max(a, b), min(a, b)) for a, b in values])
  whole = imitation_filter.keep_for_sft(groups, seed=3)
  assert sum(whole.counts.values()) == 200
  assert ids(whole) == ids(imitation_filter.keep_for_sft(groups, seed=3))
  assert ids(whole) != ids(imitation_filter.keep_for_sft(groups, seed=4))
  lower = [g for g in groups if 0 < g.trajectories[0].rewards["trajectory_recall"] < 0.5]
  alone = ids(imitation_filter.keep_for_sft(lower, seed=3))
  assert set(alone) == {id(g.trajectories[0]) for g in lower} & set(ids(whole))


def test_rollouts_without_the_recalls_are_refused_by_name():
  other = Trajectory("task7", (), (), {"tests_pass": 1.0}, "answer")
  with pytest.raises(ValueError, match="'task7'.*'trajectory_recall'.*tests_pass"):
    imitation_filter.keep_for_sft([group(other)], seed=0)
