"""Scripted players to compare with: an expert, blind enumeration, one that does nothing."""

import random

import pytest

from jaxrl_agents.agents.coding import baselines, reward
from jaxrl_agents.agents.coding.agent import AGENT
from jaxrl_agents.harness.rollout import Sampling, run_episode
from jaxrl_agents.types import Group, Task, Trajectory
from tests.agents.coding.bench import CALL_TASK, run, services

TEXT = '''\
def clamp(value, low, high):
    """Compares twice."""
    if value > low and value < high:
        return True
    return low
'''


def play(name, seed=0, **changes):
  async def body(workshop):
    shared = services(workshop, damage="token", **changes)
    player = AGENT.player(name, CALL_TASK, shared, seed, shared.chat)
    sampling = Sampling(max_new_tokens=shared.limits.max_new_tokens)
    return await run_episode(player, shared.chat, player, task=CALL_TASK, sampling=sampling)

  return run(body)


def test_the_possible_edits_replace_each_token_that_has_a_counterpart():
  draw = random.Random(0)
  tools = ("edit_file",)
  made = list(baselines.possible_edits({"m.py": TEXT}, "flip", draw, tools))
  changed = sorted(text.splitlines()[2:4] for _, text in made)
  assert all(TEXT.replace(edit.old, edit.new) == text for edit, text in made)
  first, second = TEXT.splitlines()[2:4]
  assert changed == sorted(
    [
      [first.replace(">", ">="), second],
      [first.replace("<", "<="), second],
      [first.replace("and", "or"), second],
      [first, second.replace("True", "False")],
    ]
  )
  assert len(list(baselines.possible_edits({"m.py": TEXT}, "token", draw, tools))) > len(made)
  both = list(baselines.possible_edits({"m.py": TEXT, "n.py": TEXT}, "flip", draw, tools))
  assert [edit.path for edit, _ in both].count("n.py") == len(made) == len(both) / 2


def test_enumeration_solves_without_knowing_the_damage_and_ends_when_the_tests_pass():
  found = [play("enumeration_16", seed) for seed in range(2)]
  for trajectory in found:
    assert trajectory.rewards["solved"] == 1.0
    edits = [c for c in reward.calls(trajectory.log) if c.name == "edit_file"]
    assert len(edits) == trajectory.rewards["edits"] == trajectory.rewards["turns"] - 1


def test_limited_enumeration_makes_as_many_edits_as_it_may():
  assert play("enumeration_0").rewards["edits"] == 0.0
  assert play("enumeration_1").rewards["edits"] == 1.0


def test_the_expert_solves_with_one_edit_and_doing_nothing_solves_nothing():
  expert, idle = play("expert"), play("do_nothing")
  assert (expert.rewards["solved"], expert.rewards["edits"]) == (1.0, 1.0)
  assert (idle.rewards["solved"], idle.rewards["turns"]) == (0.0, 1.0)
  with pytest.raises(ValueError, match="no scripted player 'enumeration'"):
    play("enumeration")


def rollout(edits, solved, error=""):
  parts = {"edits": edits, "solved": solved, "mended": solved, "mended_hidden": solved}
  return Trajectory("t", (), (), parts, "answer", {}, (), error)


def test_enumeration_at_equal_edits_is_cut_at_the_policys_mean_rounded_up():
  task = Task("t", "coding", "", {})
  policy = [Group(task, (rollout(1.0, 1.0), rollout(2.0, 0.0), rollout(9.0, 1.0, error="late")))]
  played = [Group(task, (rollout(2.0, 1.0), rollout(3.0, 1.0)))]  # the mean is 1.5: 2 edits
  [cut] = baselines.at_equal_edits(played, policy)
  assert [t.rewards["solved"] for t in cut.trajectories] == [1.0, 0.0]
  assert [t.rewards["edits"] for t in cut.trajectories] == [2.0, 2.0]


def test_enumeration_that_is_cut_pays_for_the_tries_that_are_left_and_no_others():
  """`clamp` is not mended by the first edits: the cut episode is as one that made no more."""
  task = Task("c", "coding", "", {})
  long, short = play("enumeration_16"), play("enumeration_2")
  assert (long.rewards["edits"] > 4, short.rewards["edits"]) == (True, 2.0)
  [cut] = baselines.at_equal_edits([Group(task, (long,))], [Group(task, (short,))])
  (found,) = cut.trajectories
  assert found.rewards["effort"] == pytest.approx(short.rewards["effort"], rel=0.25)
  totals = [reward.coding_total(each.rewards) for each in (found, short, long)]
  assert totals[0] == pytest.approx(totals[1], abs=0.01) and totals[2] > 0.9
