"""Event files, numbers for Prometheus, and which version is evaluated next."""

import math
import re
import socket
import struct
import sys
import urllib.error
import urllib.request

import pytest

from jaxrl_agents import config as config_lib
from jaxrl_agents.runs import evaluator, event_files, listeners, metrics_server
from jaxrl_agents.runs.workdir import Workdir
from jaxrl_agents.service_log import ServiceLog
from jaxrl_agents.weights import manifest as manifest_lib
from tests.runs import told_lines
from tests.runs.small_run import CONFIG


def events(folder):
  """The events of the files of a folder: a length, its checksum, the event, its checksum."""
  from tensorboardX.proto.event_pb2 import Event

  for path in sorted(folder.iterdir()):
    content, at = path.read_bytes(), 0
    while at < len(content):
      (size,) = struct.unpack_from("<Q", content, at)
      event = Event()
      event.ParseFromString(content[at + 12 : at + 12 + size])
      yield event
      at += size + 16


def test_every_finite_number_of_a_line_is_a_scalar_of_its_step(tmp_path):
  pytest.importorskip("tensorboardX")
  workdir = Workdir(tmp_path)
  with event_files.EventFiles(workdir.path) as files:
    workdir.listeners.append(files.write)
    workdir.log("rl", 3, {"reward": 0.5, "reward/f1": 0.25, "gap": math.nan})
    workdir.log("sft", 0, {"loss": 2.0})
  found = {
    (value.tag, event.step): value.simple_value
    for event in events(tmp_path / "tensorboard/rl")
    for value in event.summary.value
  }
  assert found == {("reward", 3): 0.5, ("reward/f1", 3): 0.25}
  assert len(list((tmp_path / "tensorboard/sft").iterdir())) == 1


def test_a_resumed_run_tells_tensorboard_to_forget_the_steps_that_it_repeats(tmp_path):
  pytest.importorskip("tensorboardX")
  for steps in ((0, 1, 2), (1, 2)):
    with event_files.EventFiles(tmp_path) as files:
      for step in steps:
        files.write("rl", step, {"reward": 1.0}, 1.0)
  starts = [e.step for e in events(tmp_path / "tensorboard/rl") if e.HasField("session_log")]
  assert starts == [0, 1]


def test_without_the_library_the_error_says_what_to_install(tmp_path, monkeypatch):
  monkeypatch.setitem(sys.modules, "tensorboardX", None)
  with pytest.raises(ValueError, match=r"pip install 'jaxrl_agents\[tensorboard\]'"):
    event_files.EventFiles(tmp_path)


def with_listener(name):
  return config_lib.with_overrides(CONFIG, [f"monitor.listener=tests.runs.told_lines:{name}"])


def test_a_listener_of_ones_own_is_told_each_line_and_closed_at_the_end(tmp_path):
  workdir = Workdir(tmp_path)
  with listeners.opened(with_listener("kept"), workdir.path) as found:
    workdir.listeners += found
    workdir.log("sft", 0, {"loss": 2.0})
    workdir.log("rl", 3, {"reward": 0.5, "gap": math.nan})
  lines = [["sft", 0, {"loss": 2.0}], ["rl", 3, {"reward": 0.5, "gap": None}]]
  assert told_lines.read(tmp_path) == [*lines, CONFIG.name]


@pytest.mark.parametrize(
  ("name", "named"),
  [
    ("no_manager", "monitor.listener=.*no_manager returned a builtin.*; return a context manager"),
    ("kpet", "monitor.listener=.*did you mean 'kept'"),
  ],
)
def test_a_listener_that_cannot_be_opened_is_named(tmp_path, name, named):
  with pytest.raises(ValueError, match=named), listeners.opened(with_listener(name), tmp_path):
    pass


def free_port():
  with socket.socket() as found:
    found.bind(("127.0.0.1", 0))
    return found.getsockname()[1]


def test_the_newest_numbers_are_served_while_the_run_goes_on(tmp_path):
  workdir, port = Workdir(tmp_path / 'r"un'), free_port()
  ServiceLog(workdir.services, "learner").now("waits", on="sampler")
  address = f"http://127.0.0.2:{port}/metrics"
  with metrics_server.serving("127.0.0.2", port, workdir.path):
    for step in (0, 1):
      workdir.log("rl", step, {"reward/f1": 0.25 + step})
      with urllib.request.urlopen(address, timeout=10) as answer:
        text = answer.read().decode()
    with pytest.raises(urllib.error.HTTPError, match="404"):
      urllib.request.urlopen(f"http://127.0.0.2:{port}/", timeout=10)
    with pytest.raises(ValueError, match=f"monitor.host=127.*port={port} cannot.*name another"):
      with metrics_server.serving("127.0.0.2", port, workdir.path):
        pass
  assert 'jaxrl_steps{run="r\\"un",phase="rl"} 2.0\n' in text
  assert 'jaxrl_scalar{run="r\\"un",phase="rl",name="reward/f1"} 1.25\n' in text
  assert 'jaxrl_service_up{run="r\\"un",service="learner"} 1.0\n' in text
  for line in text.splitlines():
    assert re.fullmatch(r'# (HELP|TYPE) \w+ .+|\w+\{(\w+="([^"\\]|\\.)*",?)+\} [-+.\de]+', line)
  with pytest.raises(urllib.error.URLError):
    urllib.request.urlopen(address, timeout=10)


def due(steps, newest=None, every=2, given_up=()):
  return evaluator.due(steps, newest, every=every, last_step=8, given_up=set(given_up))


def test_the_newest_version_is_evaluated_and_those_that_were_passed_by_never():
  steps = {0: 0, 4: 1, 8: 2, 12: 3, 16: 4}
  assert due(steps) == 16
  assert due(steps, newest=(16, 4)) is None
  assert due(steps | {20: 5}, newest=(16, 4)) is None
  assert due(steps | {20: 5, 24: 6}, newest=(16, 4)) == 24
  assert due(steps | {24: 6}, newest=(16, 4), given_up=[24]) is None
  assert due({28: 7, 32: 8}, newest=(28, 7)) == 32  # the last one is never too soon
  assert due({0: 0}) == 0


def test_versions_count_as_published_with_their_steps_while_they_can_be_read(tmp_path):
  workdir = Workdir(tmp_path)
  log = ServiceLog(workdir.services, "publisher")
  for version, step in ((4, 1), (8, 2), (12, 3)):
    log.now("publishes", version=version, step=step)
  differences = manifest_lib.differences(workdir.weights)
  for folder, version in ((workdir.weights, 4), (differences, 8)):
    folder.mkdir(exist_ok=True)
    manifest_lib.write(folder, manifest_lib.Manifest(version, None, ()))
  assert evaluator.published(workdir) == {0: 0, 4: 1, 8: 2}


def test_an_evaluator_beside_the_run_ends_with_the_learner(tmp_path):
  assert not evaluator.learner_ended(tmp_path)
  log = ServiceLog(tmp_path, "learner")
  log.now("stopped")  # it may be resumed
  assert not evaluator.learner_ended(tmp_path)
  log.now("ended")
  assert evaluator.learner_ended(tmp_path)
