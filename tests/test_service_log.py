"""States of services: written at each change, read while they are written."""

import dataclasses
import json
import socket

import pytest

from jaxrl_agents import service_log
from jaxrl_agents.learner.loop import Plan
from jaxrl_agents.runs import service_states
from jaxrl_agents.runs.remote_states import RemoteStates
from jaxrl_agents.service_log import ServiceLog


def told(folder, service):
  return [(s.does, s.on, s.facts) for s in service_log.read(folder)[service]]


def test_a_state_is_written_once_and_lasts_until_the_next_one(tmp_path):
  log = ServiceLog(tmp_path / "services", "learner")
  for does, on in [("waits", "sampler"), ("waits", "sampler"), ("learns", "")]:
    log.now(does, on, step=3)
  assert told(tmp_path / "services", "learner") == [
    ("waits", "sampler", {"step": 3}),
    ("learns", "", {"step": 3}),
  ]


def test_lines_that_are_damaged_or_cut_off_are_left_out_and_end_no_line_after_them(tmp_path):
  ServiceLog(tmp_path, "learner").now("learns")
  path = tmp_path / "learner.jsonl"
  whole = path.read_bytes()
  path.write_bytes(b"{}\n[1]\nnull\n\xff\n" + whole + whole[:20])
  assert told(tmp_path, "learner") == [("learns", "", {})]
  ServiceLog(tmp_path, "learner").now("saves")
  assert [does for does, _, _ in told(tmp_path, "learner")] == ["learns", "saves"]


def test_only_the_end_of_a_long_file_is_read(tmp_path, monkeypatch):
  log = ServiceLog(tmp_path, "learner")
  for step in range(50):
    log.now("learns", step=step)
  monkeypatch.setattr(service_log, "TAIL_BYTES", 1_000)
  steps = [facts["step"] for _, _, facts in told(tmp_path, "learner")]
  assert 3 < len(steps) < 20 and steps == list(range(50 - len(steps), 50))


def test_a_service_that_ended_was_stopped_or_whose_process_is_gone_is_over(tmp_path):
  with pytest.raises(KeyboardInterrupt), service_log.opened(tmp_path, "learner") as tell:
    tell("learns")
    alive = service_log.read(tmp_path)["learner"][-1]
    raise KeyboardInterrupt
  assert [does for does, _, _ in told(tmp_path, "learner")] == ["starts", "learns", "stopped"]
  assert not alive.is_over and service_log.read(tmp_path)["learner"][-1].is_over
  assert dataclasses.replace(alive, pid=2**22 + 1).is_over
  assert not dataclasses.replace(alive, pid=2**22 + 1, host=socket.gethostname() + "x").is_over


def test_the_learner_waits_for_the_sampler_then_for_the_publisher(tmp_path):
  learner, publisher = (ServiceLog(tmp_path, name).now for name in ("learner", "publisher"))
  calls = []
  plan = service_states.logged(
    Plan(
      collect=lambda step: calls.append("collect") or [],
      publish=lambda params, version: calls.append("publish"),
      save=lambda step, state, progress: calls.append("save"),
      report=lambda step, metrics, groups: calls.append("report"),
    ),
    learner,
    publisher,
  )
  assert plan.collect(0) == []
  plan.publish({}, 4)
  plan.save(1, None, {})
  plan.report(0, {}, [])
  assert calls == ["collect", "publish", "save", "report"]
  assert [(does, on) for does, on, _ in told(tmp_path, "learner")] == [
    ("waits", "sampler"),
    ("learns", ""),
    ("waits", "publisher"),
    ("saves", ""),
    ("saves", ""),
    ("reports", ""),
  ]
  assert [(does, facts["version"]) for does, _, facts in told(tmp_path, "publisher")] == [
    ("publishes", 4),
    ("waits", 4),
  ]
  lines = (tmp_path / "publisher.jsonl").read_text().splitlines()
  assert json.loads(lines[0])["host"] == socket.gethostname()


def test_a_node_that_is_lost_is_told_as_stopped_and_counted_again_when_it_is_back(tmp_path):
  one, two = {"workers-a": {"ready": 4, "groups": 2}}, {"workers-b": {"ready": 4, "groups": 0}}
  with RemoteStates(tmp_path) as states:
    for places in (one | two, one, one | two):
      states.tell(places)
  assert told(tmp_path, "workers-a") == [
    ("serves", "", {"ready": 4, "groups": 2}),
    ("ended", "", {}),
  ]
  does = [does for does, _, _ in told(tmp_path, "workers-b")]
  assert does == ["serves", "stopped", "serves", "ended"]
