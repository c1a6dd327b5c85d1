"""Groups survive a file; the queue is bounded in bytes and every wait ends."""

import dataclasses
import threading
import time

import numpy as np
import pytest

from jaxrl_agents.harness.group_files import (
  GroupQueue,
  QueueClosed,
  QueueTimeout,
  group_bytes,
  load_groups,
  save_groups,
)
from jaxrl_agents.types import Group, Message, Segment, Task, ToolCall, Trajectory


def segment(n, routed=True):
  return Segment(
    tokens=np.arange(n, dtype=np.int32),
    loss_mask=np.arange(n) % 2 == 0,
    logprobs=-np.arange(n, dtype=np.float32),
    versions=np.full(n, 3, np.int32),
    routing=np.arange(n * 4, dtype=np.uint16).reshape(n, 2, 2) if routed else None,
  )


def trajectory(n=5, **changes):
  log = (
    Message("user", "find it \ud800 ü"),
    Message(
      "assistant",
      "",
      (ToolCall("0.0", "search_corpus", {"query": "a", "n": [1, None]}, "odd", "functions.s:0"),),
      tokens=np.arange(3, dtype=np.int32),
      reasoning="hm",
    ),
    Message("tool", "No results found", tool_call_id="0.0"),
    Message("user", "hurry", ephemeral=True),
  )
  fields = {
    "task_id": "t",
    "group_id": "g",
    "segments": (segment(n), segment(2, routed=False)),
    "log": log,
    "rewards": {"f1": 0.5, "nothing": float("nan")},
    "stop": "answer",
    "metrics": {"turns": 2.0},
  }
  return Trajectory(**fields | changes)


def group(n=5):
  task = Task("t", "search", "which?", {"facts": [{"chunk_ids": ["1_0"]}]}, split="test", seed=4)
  lost = Trajectory("t", "g", (), (), {}, "", error="EpisodeError: late")
  child = trajectory(3, stop="turn_limit")
  return Group(task, (trajectory(n, children=(child,)), lost))


def plain(value):
  """A record as nested lists, so that arrays can be compared by ==."""
  if dataclasses.is_dataclass(value):
    return {f.name: plain(getattr(value, f.name)) for f in dataclasses.fields(value)}
  if isinstance(value, np.ndarray):
    return [value.dtype.name, value.tolist()]
  if isinstance(value, dict):
    return {k: plain(v) for k, v in value.items()}
  if isinstance(value, (list, tuple)):
    return [plain(v) for v in value]
  return repr(value)


def test_groups_come_back_from_a_file_as_they_went_in(tmp_path):
  groups = [group(), group(17)]
  save_groups(tmp_path / "deep" / "step_3.npz", groups)
  assert plain(load_groups(tmp_path / "deep" / "step_3.npz")) == plain(groups)
  assert [p.name for p in (tmp_path / "deep").iterdir()] == ["step_3.npz"]


def test_a_file_without_groups_is_fine(tmp_path):
  save_groups(tmp_path / "a.npz", [])
  assert load_groups(tmp_path / "a.npz") == []


def test_a_file_cut_short_is_refused_by_name(tmp_path):
  path = tmp_path / "a.npz"
  save_groups(path, [group()])
  path.write_bytes(path.read_bytes()[:-200])
  with pytest.raises(ValueError, match=r"a\.npz is not a file of groups"):
    load_groups(path)


def test_facts_that_json_cannot_hold_are_refused_and_leave_no_file(tmp_path):
  odd = dataclasses.replace(group().task, facts={"set": {1, 2}})
  with pytest.raises(ValueError, match="what JSON cannot"):
    save_groups(tmp_path / "a.npz", [Group(odd, ())])
  assert list(tmp_path.iterdir()) == []


def test_a_group_weighs_its_arrays_and_texts():
  alone = Trajectory("t", "g", (segment(2, routed=False),), (Message("user", "abc"),), {}, "answer")
  # tokens 8, loss mask 2, logprobs 8, versions 8, text 3
  assert group_bytes(Group(group().task, (alone,))) == 29


def test_the_queue_is_first_in_first_out_and_bounded_in_bytes():
  small, large = group(5), group(500)
  line = GroupQueue(max_bytes=group_bytes(small) * 2)
  line.put(small, timeout_s=1)
  with pytest.raises(QueueTimeout, match="the queue holds 1 groups"):
    line.put(large, timeout_s=0.02)
  line.put(small, timeout_s=1)
  assert len(line) == 2
  line.get(timeout_s=1)
  line.get(timeout_s=1)
  line.put(large, timeout_s=1)  # alone, a group of any size fits
  assert line.get(timeout_s=1) is large
  assert line.num_bytes == 0


def test_waiting_for_a_group_ends_at_the_deadline():
  with pytest.raises(QueueTimeout, match="no group came within"):
    GroupQueue(max_bytes=10).get(timeout_s=0.02)


def test_closing_the_queue_ends_every_wait():
  line = GroupQueue(max_bytes=10)
  caught = []

  def take():
    try:
      line.get(timeout_s=30)
    except QueueClosed as error:
      caught.append(error)

  thread = threading.Thread(target=take)
  thread.start()
  time.sleep(0.05)
  line.close()
  thread.join(timeout=5)
  assert len(caught) == 1
  with pytest.raises(QueueClosed):
    line.put(group(), timeout_s=1)
