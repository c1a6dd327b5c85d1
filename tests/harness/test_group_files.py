"""Groups survive a file."""

import dataclasses

import numpy as np
import pytest

from jaxrl_agents.harness.group_files import (
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
    "segments": (segment(n), segment(2, routed=False)),
    "log": log,
    "rewards": {"f1": 0.5, "nothing": float("nan")},
    "stop": "answer",
    "metrics": {"turns": 2.0},
  }
  return Trajectory(**fields | changes)


def group(n=5):
  task = Task("t", "search", "which?", {"facts": [{"chunk_ids": ["1_0"]}]}, split="test", seed=4)
  lost = Trajectory("t", (), (), {}, "", error="EpisodeError: late")
  child = trajectory(3, stop="turn_limit")
  return Group(task, (trajectory(n, children=(child,)), lost), "g 7")


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


def without_routing(value):
  segments = tuple(dataclasses.replace(s, routing=None) for s in value.segments)
  children = tuple(map(without_routing, value.children))
  return dataclasses.replace(value, segments=segments, children=children)


def test_groups_come_back_from_a_file_as_they_went_in_but_for_their_routing(tmp_path):
  groups = [group(), group(17)]
  save_groups(tmp_path / "deep" / "step_3.npz", groups)
  expected = [
    dataclasses.replace(g, trajectories=tuple(map(without_routing, g.trajectories))) for g in groups
  ]
  assert plain(load_groups(tmp_path / "deep" / "step_3.npz")) == plain(expected)
  assert [p.name for p in (tmp_path / "deep").iterdir()] == ["step_3.npz"]


def test_a_file_without_groups_is_fine(tmp_path):
  save_groups(tmp_path / "a.npz", [])
  assert load_groups(tmp_path / "a.npz") == []


def test_a_file_cut_short_is_refused_by_name(tmp_path):
  path = tmp_path / "a.npz"
  save_groups(path, [group()])
  path.write_bytes(path.read_bytes()[:-200])
  with pytest.raises(ValueError, match=r"a\.npz is damaged, or not a file of groups .* remove it"):
    load_groups(path)


def test_facts_that_json_cannot_hold_are_refused_and_leave_no_file(tmp_path):
  odd = dataclasses.replace(group().task, facts={"set": {1, 2}})
  with pytest.raises(ValueError, match="what JSON cannot"):
    save_groups(tmp_path / "a.npz", [Group(odd, ())])
  assert list(tmp_path.iterdir()) == []
