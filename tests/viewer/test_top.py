"""The look at a run in the terminal: from files that are being written, without obeying them."""

import io
import json
import os
import socket

import pytest
import rich.console

from jaxrl_agents.service_log import State
from jaxrl_agents.viewer import inputs, live, spans, top


def state(time, does, on="", pid=None, **facts):
  return State("learner", time, does, on, facts, socket.gethostname(), pid or os.getpid())


def write(path, *records, rest=b""):
  path.parent.mkdir(parents=True, exist_ok=True)
  path.write_bytes(b"".join(json.dumps(each).encode() + b"\n" for each in records) + rest)


def told(service, time, does, on="", **more):
  who = {"host": socket.gethostname(), "pid": os.getpid()}
  return {"service": service, "time": time, "does": does, "on": on} | who | more


def drawn(workdir):
  console = rich.console.Console(width=120, record=True, file=io.StringIO())
  console.print(top.frame(live.read(workdir)))
  return console.export_text()


def test_spans_end_with_the_next_state_and_the_last_one_with_now():
  states = [state(0, "waits", "sampler", step=1), state(6, "learns", step=1), state(8, "ended")]
  assert spans.of(states[:2], 10) == [
    spans.Span(0, 6, "waits", "sampler", 1),
    spans.Span(6, 10, "learns", "", 1),
  ]
  assert spans.waits(spans.of(states, 100)) == {"sampler": 0.75, "": 0.25}
  assert spans.waits(spans.of(states, 100), since=5) == {"sampler": 1 / 3, "": 2 / 3}


def test_a_state_that_a_crash_ended_has_no_span():
  crashed = [state(0, "learns"), state(50, "starts"), state(51, "learns")]
  assert [(s.began, s.ended) for s in spans.of(crashed, 60)] == [(50, 51), (51, 60)]
  assert spans.of([state(0, "learns", pid=2**22 + 1)], 60) == []


def test_a_sparkline_spans_from_the_smallest_to_the_largest_value():
  assert top.sparkline([0, 7, 3.5]) == "▁█▅"
  assert top.sparkline([2, 2]) == "▁▁"


def test_a_run_that_is_being_written_is_shown_with_its_services_queue_and_scores(tmp_path):
  rows = [
    {"phase": "rl", "step": i, "time": 1e9 + i, "reward": i / 10, "groups_ready": 3 + i}
    for i in range(3)
  ]
  write(tmp_path / "metrics.jsonl", *rows, rest=b'{"phase": "rl", "st')
  write(tmp_path / "summary.json", {"config": {"learner.steps": 8}})
  for name, on in (("learner", "sampler"), ("sampler", "")):
    write(tmp_path / f"services/{name}.jsonl", told(name, 1e9, "waits" if on else "plays", on))
  score = {"version": 4, "step": 2, "time": 1e9, "scores": {"reward": 0.625}}
  write(tmp_path / "evaluations/v0000000004.json", score)
  write(tmp_path / "evaluations/v0000000008.json", rest=b'{"version": 8, "st')
  text = drawn(tmp_path)
  assert "rl: 3 of 8 steps" in text
  assert "waits for sampler" in text and "plays" in text
  assert [line.split()[-2:] for line in text.splitlines() if "groups ready" in line] == [
    ["5", "▁▅█"]
  ]
  assert [line.split()[-2] for line in text.splitlines() if "held out" in line] == ["0.625"]


def test_the_time_left_does_not_count_a_pause_of_the_run_nor_rows_without_a_time(tmp_path):
  times = [60 * i for i in range(10)] + [43_200 + 60 * i for i in range(3)]
  rows = [{"phase": "rl", "step": i, "time": t} for i, t in enumerate(times)]
  write(tmp_path / "metrics.jsonl", *rows, {"phase": "rl", "step": 13})
  write(tmp_path / "summary.json", {"config": {"learner.steps": 74}})
  assert "rl: 14 of 74 steps, about 1 h" in " ".join(drawn(tmp_path).split())


def test_what_a_file_holds_cannot_move_the_cursor(tmp_path):
  write(tmp_path / "services/learner.jsonl", told("learner", 1e9, "\x1b[2Jlearns", "[red]x"))
  text = drawn(tmp_path)
  assert "\x1b" not in text and "[red]x" in text


def test_an_empty_folder_is_shown_and_a_missing_one_is_an_error(tmp_path):
  assert "no step has ended yet" in drawn(tmp_path)
  with pytest.raises(ValueError, match="no folder"):
    live.read(tmp_path / "nowhere")


def test_scores_that_are_damaged_are_left_out(tmp_path):
  good = {"version": 4, "step": 2, "time": 1.0, "scores": {}}
  write(tmp_path / "v0000000004.json", good)
  write(tmp_path / "v0000000005.json", good | {"record_sha256": "0"})
  write(tmp_path / "v0000000006.json", good | {"scores": None})
  assert inputs.read_held_out(tmp_path) == [good]
