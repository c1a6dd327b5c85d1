"""The log: a torn end is cut at every byte, damage elsewhere is named, one process writes."""

import json
import os
import signal
import subprocess
import sys
import time

import pytest

from jaxrl_agents import record_log
from jaxrl_agents.record_log import DamagedLog, Log, Torn

RECORDS = [{"n": 1, "text": "a"}, {"n": 2, "text": "é\n"}, {"n": 3, "tokens": [1, 2, 3]}]


def written(path, records=RECORDS):
  """The log of `records`, and where each ends."""
  ends = []
  with Log(path) as log:
    ends.append(path.stat().st_size)
    for record in records:
      log.append(record, durable=True)
      ends.append(path.stat().st_size)
  return ends


def test_records_come_back_in_order(tmp_path):
  written(tmp_path / "log")
  assert list(record_log.scan(tmp_path / "log")) == RECORDS


def test_a_record_is_mark_length_digest_and_json(tmp_path):
  assert record_log.packed({"a": 1})[:8] == record_log.MARK + b"\x07\0\0\0"
  assert json.loads(record_log.packed({"a": 1})[16:]) == {"a": 1}


def test_a_log_that_is_cut_at_any_byte_keeps_the_whole_records_and_goes_on(tmp_path):
  ends = written(tmp_path / "whole")
  content = (tmp_path / "whole").read_bytes()
  path = tmp_path / "cut"
  for size in range(len(content) + 1):
    path.write_bytes(content[:size])
    whole = sum(end <= size for end in ends[1:])
    with Log(path) as log:
      # What the file keeps before the first record is whole only with all of MAGIC.
      kept = ends[whole] if size >= ends[0] else 0
      assert log.torn == (Torn(kept, size - kept) if size > kept else None)
      log.append({"n": "next"})
    assert list(record_log.scan(path)) == [*RECORDS[:whole], {"n": "next"}]


def test_zeros_that_a_loss_of_power_left_at_the_end_are_cut(tmp_path):
  path = tmp_path / "log"
  end = written(path)[-1]
  with path.open("ab") as file:
    file.write(bytes(100))
  with Log(path) as log:
    assert log.torn == Torn(end, 100)
  assert list(record_log.scan(path)) == RECORDS


def test_damage_before_the_last_record_is_an_error_that_names_the_byte(tmp_path):
  path = tmp_path / "log"
  ends = written(path)
  content = bytearray(path.read_bytes())
  for place in range(ends[0], ends[-2]):
    damaged = content.copy()
    damaged[place] ^= 0x55
    path.write_bytes(damaged)
    begin = max(end for end in ends if end <= place)
    with pytest.raises(DamagedLog, match=f"damaged at byte {begin}, and whole records follow"):
      Log(path)
    with pytest.raises(DamagedLog):
      list(record_log.scan(path))


def test_a_file_that_is_no_log_is_refused_and_left_alone(tmp_path):
  path = tmp_path / "notes"
  path.write_text("these are my notes, and no log")
  with pytest.raises(DamagedLog, match="does not begin as a log"):
    Log(path)
  assert path.read_text() == "these are my notes, and no log"


def test_one_process_at_a_time_writes(tmp_path):
  told = "another process has it open; end that one, or name another file: .*/log'"
  with Log(tmp_path / "log"), pytest.raises(BlockingIOError, match=told):
    Log(tmp_path / "log")
  Log(tmp_path / "log").close()


def test_a_rewritten_log_takes_the_place_of_the_old_one_and_goes_on(tmp_path):
  path = tmp_path / "log"
  written(path)
  log = Log(path)
  log, begins = record_log.rewritten(log, (RECORDS[n] for n in (2, 0)))
  with pytest.raises(BlockingIOError):
    Log(path)
  log.append({"n": 4})
  log.close()
  assert list(record_log.scan(path)) == [RECORDS[2], RECORDS[0], {"n": 4}]
  assert [record_log.read_at(path, begin) for begin in begins] == [RECORDS[2], RECORDS[0]]


def test_a_log_that_cannot_be_rewritten_goes_on_as_it_was(tmp_path):
  path = tmp_path / "log"
  written(path)
  with Log(path) as log:
    with pytest.raises(ZeroDivisionError):
      record_log.rewritten(log, ({"n": 1 // n} for n in (1, 0)))
    log.append({"n": 4})
  assert list(record_log.scan(path)) == [*RECORDS, {"n": 4}]
  assert [file.name for file in tmp_path.iterdir()] == ["log"]


WRITER = """
import sys
from jaxrl_agents.record_log import Log
log = Log(sys.argv[1])
n = 0
while True:
  log.append({"n": n, "text": "x" * 5000})
  print(n, flush=True)
  n += 1
"""


def test_what_was_acknowledged_is_there_after_kill_9(tmp_path):
  path = tmp_path / "log"
  process = subprocess.Popen([sys.executable, "-c", WRITER, path], stdout=subprocess.PIPE)
  assert process.stdout.readline() == b"0\n"
  time.sleep(0.05)
  os.kill(process.pid, signal.SIGKILL)
  told = process.stdout.read().split(b"\n")
  acknowledged = int(told[-2]) if len(told) > 1 else 0
  process.wait(10)
  Log(path).close()
  found = [record["n"] for record in record_log.scan(path)]
  assert found == list(range(len(found))) and len(found) > acknowledged
