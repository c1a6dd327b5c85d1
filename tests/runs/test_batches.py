"""What the ledger is told of groups, and levels that no step could draw."""

import contextlib
import dataclasses
import re
import threading
import time

import numpy as np
import pytest

from jaxrl_agents import config as config_lib
from jaxrl_agents.agents import toggle
from jaxrl_agents.config import LearnerConfig
from jaxrl_agents.learner import loop
from jaxrl_agents.runs import batches
from jaxrl_agents.types import Group, Segment, Task, Trajectory


@pytest.mark.parametrize(
  ("errors", "rewards", "advantage", "trains", "why"),
  [
    (("", ""), (0.0, 1.0), 0.5, True, ""),
    (("", ""), (0.0, 1.0), 0.5, False, "none of its rollouts has a loss: limits cut them off.*"),
    (("", ""), (0.0, 1.0), 0.0, True, "all its advantages are 0"),
    (("", "OSError: down"), (1.0, 0.0), 0.0, True, "all its rewards are equal"),
    (
      ("OSError: down\nline 3", "KeyError"),
      (0, 0),
      0,
      True,
      "all its rollouts failed.*OSError: down",
    ),
  ],
)
def test_the_ledger_is_told_why_a_step_learnt_nothing_from_a_group(
  errors, rewards, advantage, trains, why
):
  mask = np.array([False, trains])
  segment = Segment(
    np.arange(2, dtype=np.int32), mask, np.zeros(2, np.float32), np.zeros(2, np.int32)
  )
  measured = ({"reward": reward, "advantage": advantage} for reward in rewards)
  played = tuple(
    Trajectory("t", (segment,), (), {}, "end", {} if error else metrics, error=error)
    for error, metrics in zip(errors, measured, strict=True)
  )
  group = Group(Task("t", "toy", "", {}), played, "g")
  assert re.fullmatch(why, batches._not_learnt(group))


def test_the_ledger_is_told_that_an_update_was_left_out():
  segment = Segment(
    np.arange(2, dtype=np.int32), np.array([False, True]), np.zeros(2, np.float32), np.zeros(2)
  )
  metrics = {"reward": 1.0, "advantage": 0.5, "skipped": 1.0}
  group = Group(
    Task("t", "toy", "", {}), (Trajectory("t", (segment,), (), {}, "end", metrics),), "g"
  )
  assert batches._not_learnt(group) == "its update was left out, as the gradient was not finite"


def test_a_single_epoch_with_too_few_tasks_is_refused_before_the_run():
  tasks = [Task(f"t{i}", "toy", f"q{i}", {"level": i % 2}) for i in range(20)]
  learner = LearnerConfig(steps=2, groups_per_step=10, single_epoch=True)
  batches.check_tasks(learner, tasks)
  with pytest.raises(ValueError, match="need 20 tasks, and with learner.single_epoch there are 19"):
    batches.check_tasks(learner, tasks[1:])
  batches.check_tasks(dataclasses.replace(learner, single_epoch=False), tasks[1:])
  with pytest.raises(ValueError, match="there are 19"):
    batches.check_tasks(learner, [*tasks[1:], dataclasses.replace(tasks[1], id="again")])
  one_level = dataclasses.replace(
    learner, level_weights_early=(1.0, 0.0), level_weights_late=(1.0, 0.0)
  )
  with pytest.raises(ValueError, match="there are 10"):
    batches.check_tasks(one_level, tasks)


def test_a_single_epoch_whose_early_steps_alone_have_too_few_tasks_is_refused_before_the_run():
  """5 of 10 steps draw 2 tasks of level 0 each: 10 are needed. Of level 1 there are plenty."""
  easy = [Task(f"e{i}", "toy", f"e{i}", {"level": 0}) for i in range(10)]
  hard = [Task(f"h{i}", "toy", f"h{i}", {"level": 1}) for i in range(100)]
  learner = LearnerConfig(
    steps=10,
    groups_per_step=2,
    single_epoch=True,
    level_weights_early=(1.0, 0.0),
    level_weights_late=(0.0, 1.0),
    level_switch=0.5,
  )
  more = [Task(f"m{i}", "toy", f"m{i}", {"level": 0}) for i in range(90)]
  batches.check_tasks(learner, easy + hard)
  with pytest.raises(ValueError, match=r"5 of .* the levels \[0\] alone; .* 10 tasks, .* are 9;"):
    batches.check_tasks(learner, easy[1:] + hard)
  with pytest.raises(ValueError, match=r"5 of .* the levels \[1\] alone; .* 10 tasks, .* are 8;"):
    batches.check_tasks(learner, [*easy, *more, *hard[:8]])
  batches.check_tasks(dataclasses.replace(learner, single_epoch=False), easy[1:] + hard)


def aged(sampled_by):
  """A solved rollout of tokens that these versions sampled."""
  versions = np.asarray([-1, *sampled_by], np.int32)
  mask = versions >= 0
  tokens = np.arange(len(versions), dtype=np.int32)
  logprobs = np.where(mask, -0.5, 0.0).astype(np.float32)
  segment = Segment(tokens, mask, logprobs, versions, began=int(sampled_by[0]))
  return Trajectory("t", (segment,), (), {"reward": 1.0}, "answer", {})


def test_toggle_measures_the_whole_length_also_of_rollouts_with_tokens_that_are_too_old():
  given = ["fleet.depth=1", "fleet.max_age=2", "toggle.phase_steps=4", "toggle.solved=0.5"]
  config = config_lib.load("examples/number_game/config.py", given)
  played = object.__new__(batches.AsyncBatches)
  played._config, played._ages, played._published = config, [], [1, 3, 5, 7]
  played._budgets = toggle.LengthBudgets({"t": 50.0})
  group = Group(
    Task("t", "coding", "", {}), (aged([1] * 100 + [7] * 10), aged([7] * 20)), "step 0 0"
  )
  assert played._of_age(group, 0) is group
  (young,) = played._rewarded([group], 0)  # of the limited phase: 110 tokens are too many
  assert [each.metrics["reward"] for each in young.trajectories] == [0.0, 1.0]
  assert [int(each.segments[0].loss_mask.sum()) for each in young.trajectories] == [10, 20]


def test_a_synchronous_run_leaves_no_groups_of_versions_that_it_trains_again(tmp_path):
  for name in (batches.READY, batches.REPLIES):
    (tmp_path / name).mkdir() if name == batches.READY else (tmp_path / name).touch()
  (tmp_path / batches.READY / "step_9_0.npz").touch()

  class Workers:
    def noted(self, ledger):
      return contextlib.nullcontext()

  config = config_lib.load("configs/search_cpu.py", ["fleet.depth=0"])
  start = batches.Start(4, {}, 4, {"stream": {"drawn": {}}}, [Task("t", "e", "p", {})])
  with batches.opened(config, Workers(), start, tmp_path):
    assert not (tmp_path / batches.READY).exists() and not (tmp_path / batches.REPLIES).exists()


def test_an_engine_that_spans_several_processes_cannot_play_ahead_of_them(tmp_path, monkeypatch):
  monkeypatch.setattr(batches.jax, "process_count", lambda: 2)
  config = config_lib.load("configs/search_cpu.py", ["fleet.depth=1"])
  with pytest.raises(ValueError, match="run of 2 processes needs sampler slices"):
    with batches.opened(config, None, None, tmp_path):
      pass


def test_another_process_of_a_run_that_plays_ahead_learns_what_the_first_tells_it(
  tmp_path, monkeypatch
):
  """It writes its part of a version in a thread, which has ended when the batches are closed."""
  told = [Group(Task("t", "e", "p", {}), (Trajectory("t", (), (), {"reward": 1.0}, "end"),), "g")]
  written = []

  class Workers:
    def shared(self, make):
      return told

    def begin_publishing(self, params, version):
      return lambda: (time.sleep(0.05), written.append((threading.current_thread().name, version)))

  monkeypatch.setattr(batches.processes, "is_first", lambda: False)
  slices = ["fleet.backend=ray", "fleet.address=auto", "sampler.slices=1"]
  config = config_lib.load("configs/search_cpu.py", ["fleet.depth=1", *slices])
  start = batches.Start(0, {}, 0, {}, [Task("t", "e", "p", {})])
  with batches.opened(config, Workers(), start, tmp_path) as other:
    assert other.collect(0) == told and other.state() == {}
    other.publish({}, 1)
    other.publish({}, 2)  # after the one before
    assert written == [("publisher", 1)]
  assert written == [("publisher", 1), ("publisher", 2)]
  assert not list(tmp_path.iterdir())  # files are those of the first process


def test_levels_that_a_step_could_not_draw_are_refused_before_the_run():
  tasks = [Task(f"t{level}", "toy", "", {"level": level}) for level in (0, 2)]
  learner = LearnerConfig(steps=10, level_weights_early=(1.0,), level_weights_late=(0.0, 1.0, 0.0))
  with pytest.raises(ValueError, match=r"no weight to the levels present, \[0, 2\]; set learner"):
    batches.check_tasks(learner, tasks)
  only_early = dataclasses.replace(learner, level_switch=1.0)
  batches.check_tasks(only_early, tasks)
  assert loop.level_weights(only_early, 10) == (1.0,)  # of a group that replaces another one
  batches.check_tasks(LearnerConfig(), tasks)
  with pytest.raises(ValueError, match="'t3' has the field level='hard'"):
    batches.check_tasks(learner, [*tasks, Task("t3", "toy", "", {"level": "hard"})])
