"""Faults that are no kills: the run ends with an error that names them, and goes on once mended."""

import dataclasses
import json
import resource
import threading

import numpy as np
import psutil
import pytest

from jaxrl_agents.fleet import ledger
from jaxrl_agents.learner import checkpoint, loop
from jaxrl_agents.runs import batches
from jaxrl_agents.weights import store
from tests.runs import small_run
from tests.runs.test_several import ended, start, wait_for

pytestmark = pytest.mark.slow

AHEAD = {"fleet": {"depth": 1}, "workers": {"deterministic": False}}


def trained(folder):
  """[step, ids of its groups] of each step that was reported."""
  return [json.loads(line) for line in (folder / "trained.txt").read_text().splitlines()]


def assert_each_step_was_trained_once(folder, steps):
  assert [step for step, _ in trained(folder)] == list(range(steps))
  groups = sorted(group for _, groups in trained(folder) for group in groups)
  assert groups == sorted(f"step {step} {place}" for step in range(steps) for place in range(2))
  found = ledger.read(folder / "ledger.log")
  ends = [(state.group, state.sample) for state in found if state.step >= 0]
  assert len(ends) == len(set(ends)) == steps * 4 and not found.doubled


@pytest.mark.timeout(400)
@pytest.mark.parametrize("options", [{}, AHEAD], ids=["by turns", "ahead"])
def test_a_reward_that_is_no_number_ends_the_run_untrained_and_is_played_again_once_mended(
  tmp_path, monkeypatch, options
):
  """Three steps of two groups play each of the six tasks once."""
  options = {**options, "learner": {"steps": 3}}
  bad = dataclasses.replace(small_run.TASKS[4], facts={"level": 0, "reward": float("nan")})
  tasks = small_run.TASKS
  monkeypatch.setattr(small_run, "TASKS", [*tasks[:4], bad, *tasks[5:]])
  with pytest.raises(ValueError, match=r"task 't4' is nan from the parts \{.*'reward': nan"):
    small_run.run(tmp_path, **options)
  done = len(trained(tmp_path)) if (tmp_path / "trained.txt").exists() else 0
  with checkpoint.open_manager(tmp_path / "checkpoints") as manager:
    assert (manager.latest_step() or 0) == done < 3
  monkeypatch.setattr(small_run, "TASKS", tasks)
  small_run.run(tmp_path, **options)
  assert_each_step_was_trained_once(tmp_path, 3)
  params = np.load(tmp_path / "params.npz")
  assert all(np.isfinite(params[name]).all() for name in params.files)


@pytest.mark.timeout(400)
@pytest.mark.parametrize("options", [{}, AHEAD], ids=["by turns", "ahead"])
def test_an_outage_ends_the_run_which_goes_on_after_it_with_the_step_that_failed(
  tmp_path, monkeypatch, options
):
  """The outage begins after step 0. Steps of groups that were played before it are still trained,
  and kept, though no checkpoint was due.
  """
  options = {**options, "learner": {"steps": 6, "save_every": 100}}
  outage, report = tmp_path / "outage", small_run.reported
  facts = {"level": 0, "outage": str(outage)}
  tasks = [dataclasses.replace(task, facts=facts) for task in small_run.TASKS]
  monkeypatch.setattr(small_run, "TASKS", tasks)

  def reported_until_the_outage(folder, step, *rest):
    report(folder, step, *rest)
    outage.touch()

  monkeypatch.setattr(small_run, "reported", reported_until_the_outage)
  failed = r"all 4 rollouts of step \d failed, .* by ConnectionError: the sandboxes do not answer;"
  with pytest.raises(loop.OutageError, match=failed):
    small_run.run(tmp_path, **options)
  with checkpoint.open_manager(tmp_path / "checkpoints") as manager:
    assert manager.latest_step() == len(trained(tmp_path)) < 6
  outage.unlink()
  monkeypatch.setattr(small_run, "reported", report)
  small_run.run(tmp_path, **options)
  assert_each_step_was_trained_once(tmp_path, 6)


@pytest.mark.timeout(400)
def test_a_disk_that_does_not_answer_while_weights_are_published_ends_the_run(
  tmp_path, monkeypatch
):
  """The reader of a version that is published hangs until the run has ended."""
  fetch, answers = store.fetch, threading.Event()

  def hung(*arguments):
    if threading.current_thread().name == "publisher":
      answers.wait(300)
    return fetch(*arguments)

  monkeypatch.setattr(store, "fetch", hung)
  monkeypatch.setattr(batches, "TIMEOUT_S", 2.0)
  with pytest.raises(TimeoutError, match=r"version 2 was not published within 2 s; check"):
    small_run.run(tmp_path, **AHEAD)
  assert not answers.is_set()
  answers.set()


@pytest.mark.timeout(400)
def test_a_disk_that_is_full_ends_the_run_with_its_name_and_the_same_command_goes_on(tmp_path):
  """No file may grow beyond 1,000 bytes from some moment on, as if there were no room."""
  options = {**AHEAD, "learner": {"steps": 8}}
  run = start("small_run.py", tmp_path, tmp_path / "cache", 1, **options)
  wait_for(run, "step 0")
  psutil.Process(run.pid).rlimit(resource.RLIMIT_FSIZE, (1_000, resource.RLIM_INFINITY))
  output = ended(run, status=2)
  assert str(tmp_path) in output and "could not be written: File too large. Free some" in output
  assert "step 7" not in output
  ended(start("small_run.py", tmp_path, tmp_path / "cache", 1, **options))
  by_step = dict(trained(tmp_path))  # a step that was not saved is trained again, which counts
  assert sorted(by_step) == list(range(8))
  found = ledger.read(tmp_path / "ledger.log")
  ends = [(state.group, state.sample) for state in found if state.step >= 0]
  assert len(ends) == len(set(ends)) == 32 and not found.doubled
