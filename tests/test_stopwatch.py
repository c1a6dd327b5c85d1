import json
import time

import pytest

from jaxrl_agents import stopwatch
from jaxrl_agents.runs.workdir import Workdir


@pytest.fixture(autouse=True)
def fresh(monkeypatch):
  monkeypatch.setattr(stopwatch, "_seconds", {})


def test_a_part_that_is_timed_twice_has_the_sum_of_its_seconds_also_where_it_fails():
  with stopwatch.timed("index"):
    time.sleep(0.02)
  with pytest.raises(KeyError), stopwatch.timed("index"):
    time.sleep(0.03)
    raise KeyError
  stopwatch.add("tasks", 2.0)
  assert 0.05 <= stopwatch.seconds()["index"] < 5.0
  assert list(stopwatch.seconds()) == ["index", "tasks"]


def test_stages_have_the_seconds_since_the_end_of_the_one_before():
  began = time.monotonic()
  stages = stopwatch.Stages()
  time.sleep(0.03)
  stages.end("start")
  stages.end("compile")
  time.sleep(0.02)
  stages.end("learn")
  assert list(stages.seconds) == ["start", "compile", "learn"]
  assert stages.seconds["start"] >= 0.03 and stages.seconds["learn"] >= 0.02
  assert sum(stages.seconds.values()) <= time.monotonic() - began


def test_a_run_keeps_the_seconds_of_the_process_that_did_the_work(tmp_path):
  workdir = Workdir(tmp_path)
  stopwatch.add("tasks", 22.0)
  workdir.keep_seconds()
  stopwatch.add("tasks", 1.0)  # another process, which found the tasks in the cache
  stopwatch.add("index", 0.5)
  workdir.keep_seconds()
  assert json.loads(workdir.summary.read_text())["wall_s"] == {"tasks": 22.0, "index": 0.5}
