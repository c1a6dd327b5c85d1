"""Scores are averaged within tasks first, failures are counted apart, gains are paired."""

import numpy as np
import pytest

from jaxrl_agents.agents import scores
from jaxrl_agents.types import Group, Task, Trajectory


def task(name, gold=("1_0",)):
  facts = {"facts": [{"fact": g, "chunk_ids": [g], "is_final_answer": True} for g in gold]}
  return Task(name, "search", f"question of {name}", facts)


def rollout(name, error="", metrics=None, **rewards):
  metrics = {"reward": rewards.get("f1")} | (metrics or {})
  return Trajectory(name, (), (), rewards, "answer", metrics, (), error)


def test_tasks_weigh_the_same_however_many_rollouts_they_have():
  groups = [
    Group(task("a"), (rollout("a", f1=1.0), rollout("a", f1=0.0), rollout("a", f1=0.5))),
    Group(task("b"), (rollout("b", f1=0.1),)),
  ]
  found = scores.summary(groups)
  assert found["f1"] == pytest.approx((0.5 + 0.1) / 2)  # the mean over all four would be 0.4
  assert found["reward"] == found["f1"]
  assert (found["tasks"], found["rollouts"]) == (2, 4)


def test_a_failed_rollout_is_counted_and_never_scored_as_zero():
  groups = [
    Group(task("a"), (rollout("a", f1=0.8), rollout("a", error="EpisodeError: late"))),
    Group(task("b"), (rollout("b", error="EpisodeError: late"),)),
  ]
  found = scores.summary(groups)
  assert found["f1"] == 0.8
  assert (found["tasks"], found["failed"], found["failed_tasks"]) == (1, 2, 1)
  assert "b" not in scores.scores(groups)["f1"]


def test_the_reward_is_what_is_trained_also_where_a_part_has_its_name():
  of_agent = Trajectory("a", (), (), {"reward": 1.0, "calls": 2.0}, "answer", {"reward": 0.75})
  found = scores.summary([Group(task("a"), (of_agent,))])
  assert (found["reward"], found["calls"]) == (0.75, 2.0)


def test_a_metric_that_a_rollout_lacks_is_averaged_over_those_that_have_it():
  groups = [
    Group(task("a"), (rollout("a", f1=1.0, prune_accuracy=0.5), rollout("a", f1=1.0))),
    Group(task("b"), (rollout("b", f1=1.0),)),
  ]
  assert scores.summary(groups)["prune_accuracy"] == 0.5


def test_tokens_and_calls_are_reported_per_turn():
  one = rollout("a", f1=0.0, turns=4.0, tool_calls=6.0, metrics={"sampled_tokens": 100.0})
  found = scores.scores([Group(task("a"), (one,))])
  assert found["tokens_per_turn"] == {"a": 25.0}
  assert found["calls_per_turn"] == {"a": 1.5}


def test_the_bootstrap_agrees_with_the_normal_interval_of_paired_differences():
  rng = np.random.default_rng(0)
  hardness = rng.normal(size=400)  # shared by both sides: an unpaired interval would be wide
  old = {f"t{i}": x for i, x in enumerate(hardness)}
  new = {name: x + d for (name, x), d in zip(old.items(), rng.normal(0.1, 0.5, 400), strict=True)}
  differences = np.array([new[t] - old[t] for t in old])
  half = 1.96 * differences.std(ddof=1) / 20
  gain = scores.paired_bootstrap(new, old)
  assert gain.mean == pytest.approx(differences.mean())
  assert gain.lower95 == pytest.approx(differences.mean() - half, abs=0.005)
  assert gain.upper95 == pytest.approx(differences.mean() + half, abs=0.005)


def test_the_bootstrap_is_a_pure_function_of_its_seed_and_ignores_the_order_of_tasks():
  new, old = {"a": 1.0, "b": 0.2, "c": 0.5}, {"c": 0.1, "b": 0.3, "a": 0.2}
  backwards = dict(reversed(new.items()))
  assert scores.paired_bootstrap(new, old) == scores.paired_bootstrap(backwards, old)
  assert scores.paired_bootstrap(new, old, seed=1).mean == scores.paired_bootstrap(new, old).mean


def test_equal_differences_have_an_interval_of_no_width():
  gain = scores.paired_bootstrap({"a": 1.0, "b": 2.0}, {"a": 0.5, "b": 1.5})
  assert (gain.lower95, gain.mean, gain.upper95, gain.tasks) == (0.5, 0.5, 0.5, 2)


def test_tasks_of_a_cluster_are_drawn_together():
  new = {f"{name}{i}": gain for name, gain in (("a", 1.0), ("b", -0.5)) for i in range(50)}
  old = dict.fromkeys(new, 0.0)
  alone = scores.paired_bootstrap(new, old)
  together = scores.paired_bootstrap(new, old, clusters={task: task[0] for task in new})
  assert together.mean == alone.mean == 0.25 and alone.lower95 > 0
  # Both clusters are drawn twice in a quarter of the resamples each.
  assert (together.lower95, together.upper95) == (-0.5, 1.0)


def test_bounds_of_the_mean_reward_contain_it_and_depend_on_the_seed_alone():
  rng = np.random.default_rng(0)
  rewards = rng.normal(0.3, 0.5, 400)
  groups = [
    Group(task(f"t{i:03d}"), (rollout("x", metrics={"reward": r}),)) for i, r in enumerate(rewards)
  ]
  found = scores.reward_bounds(groups)
  half = 1.96 * rewards.std(ddof=1) / 20  # of the normal distribution
  assert found["reward_lower95"] == pytest.approx(rewards.mean() - half, abs=0.005)
  assert found["reward_upper95"] == pytest.approx(rewards.mean() + half, abs=0.005)
  assert found == scores.reward_bounds(groups[::-1])
  assert found != scores.reward_bounds(groups, seed=1)
  one = scores.reward_bounds(groups, cluster=lambda each: "same")
  assert one["reward_lower95"] == one["reward_upper95"] == pytest.approx(rewards.mean())


def test_an_evaluation_without_a_finished_rollout_has_no_bounds():
  assert scores.reward_bounds([Group(task("a"), (rollout("a", error="late"),))]) == {}
  with pytest.raises(ValueError, match="there are 0 tasks"):
    scores.mean_bounds({})
  with pytest.raises(ValueError, match="the score of task 'b' is inf, not finite"):
    scores.mean_bounds({"a": 1.0, "b": float("inf")})


def test_pass_at_k_is_the_share_of_subsets_of_k_rollouts_with_a_right_one():
  # Of the six pairs of four rollouts, two of them right, one has no right one.
  assert scores.pass_at_k(4, 2, 2) == pytest.approx(5 / 6)
  assert scores.pass_at_k(4, 2, 1) == 0.5
  assert scores.pass_at_k(4, 2, 4) == scores.pass_at_k(4, 2, 3) == 1.0
  assert scores.pass_at_k(4, 0, 4) == 0.0
  with pytest.raises(ValueError, match="k=5 is not in 1 to 4"):
    scores.pass_at_k(4, 2, 5)


def test_passes_are_means_over_tasks_and_leave_out_those_with_too_few_finished_rollouts():
  played = lambda name, *right: Group(task(name), tuple(rollout(name, solved=r) for r in right))
  failed = Group(task("c"), (rollout("c", error="late"), rollout("c", solved=1.0)))
  groups = [played("a", 1.0, 0.5), played("a", 0.0, 1.0), played("b", 0, 0, 0, 0, 0), failed]
  found = scores.passes(groups, "solved", threshold=1.0)
  assert found == pytest.approx(
    {"pass_at_1": (0.5 + 0.0 + 1.0) / 3, "pass_at_2": (5 / 6 + 0.0) / 2, "pass_at_4": 0.5}
  )
  assert scores.passes(groups, "solved", threshold=0.5)["pass_at_2"] == 0.5  # 3 of 4 in "a"
  assert scores.passes([failed], "solved", threshold=1.0) == {}


def test_a_rollout_without_a_part_of_success_passes_by_its_reward():
  rewards = (0.7, 0.2)
  group = Group(task("a"), tuple(rollout("a", metrics={"reward": r}) for r in rewards))
  assert scores.passes([group], "", threshold=0.6) == {"pass_at_1": 0.5, "pass_at_2": 1.0}


@pytest.mark.parametrize(
  ("new", "old", "message"),
  [
    ({"a": 1.0}, {"b": 1.0}, "no task in common"),
    ({"a": float("nan")}, {"a": 1.0}, "task 'a' are nan and 1.0, not finite"),
  ],
)
def test_sets_that_cannot_be_compared_are_errors(new, old, message):
  with pytest.raises(ValueError, match=message):
    scores.paired_bootstrap(new, old)


def test_gains_are_named_by_metric_and_count_only_tasks_of_both_sides():
  new = [Group(task("a"), (rollout("a", f1=0.9),)), Group(task("c"), (rollout("c", f1=0.0),))]
  old = [Group(task("a"), (rollout("a", f1=0.4),))]
  found = scores.gains(new, old, metrics=("reward", "f1"))
  assert found["f1_gain"] == found["reward_gain_lower95"] == pytest.approx(0.5)
  with pytest.raises(ValueError, match="no metric 'recall' in both sets"):
    scores.gains(new, old, metrics=("recall",))


def test_the_trained_policy_is_compared_with_each_other_evaluation_on_common_tasks():
  def played(a, b):
    each = {"a": a, "b": b}
    return [Group(task(name), (rollout(name, metrics={"reward": r}),)) for name, r in each.items()]

  evaluations = {
    "warm_start": played(0.0, 0.5),
    "trained": played(1.0, 1.0),
    "failed": [Group(task("a"), (rollout("a", error="late"),))],
  }
  found = scores.minus_each(evaluations, resamples=500)
  assert found["trained_minus_warm_start"] == 0.75
  assert found["trained_minus_warm_start_lower95"] == 0.5
  assert found["trained_minus_warm_start_upper95"] == 1.0
  assert len(found) == 3
  one = scores.minus_each(evaluations, cluster=lambda each: "same", resamples=500)
  assert one["trained_minus_warm_start_lower95"] == 0.75
