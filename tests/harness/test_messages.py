"""Messages of workers: random records come back equal; any other bytes give the named error."""

import contextlib
import dataclasses
import pickle

import msgpack
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jaxrl_agents.harness import messages, schema
from jaxrl_agents.harness.schema import MessageError
from jaxrl_agents.types import Message, SamplingLimits, Segment, ToolCall, Trajectory

TEXT = st.text(st.characters(), max_size=8)  # lone surrogates too, which a policy can write
NUMBER = st.floats(allow_nan=False) | st.integers(-(2**40), 2**40)
JSON = st.recursive(
  st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | TEXT,
  lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXT, inner, max_size=3),
  max_leaves=6,
)


def arrays(dtype, *shape):
  count = int(np.prod(shape))
  return st.binary(min_size=4 * count, max_size=4 * count).map(
    lambda data: (np.frombuffer(data, np.uint8).view(np.uint32) % 251).astype(dtype).reshape(shape)
  )


@st.composite
def segments(draw):
  length, layers, experts = draw(st.integers(0, 5)), draw(st.integers(0, 2)), 2
  return Segment(
    tokens=draw(arrays(np.int32, length)),
    loss_mask=draw(arrays(np.int32, length)) > 100,
    logprobs=draw(arrays(np.float32, length)),
    versions=draw(arrays(np.int32, length)),
    routing=draw(arrays(np.uint16, length, layers, experts)) if layers else None,
    began=draw(st.integers(-1, 9)),
    kept=draw(arrays(np.int32, length)) > 0 if layers else None,
  )


CALLS = st.builds(ToolCall, TEXT, TEXT, st.dictionaries(TEXT, JSON, max_size=3), TEXT, TEXT, TEXT)
LOGS = st.builds(
  Message,
  st.sampled_from(["system", "user", "assistant", "tool"]),
  TEXT,
  st.lists(CALLS, max_size=2).map(tuple),
  TEXT,
  st.none() | arrays(np.int32, 3),
  st.booleans(),
  TEXT,
)


def trajectories(children):
  return st.builds(
    Trajectory,
    TEXT,
    st.lists(segments(), max_size=2).map(tuple),
    st.lists(LOGS, max_size=2).map(tuple),
    st.dictionaries(TEXT, NUMBER, max_size=2),
    TEXT,
    st.dictionaries(TEXT, NUMBER, max_size=2),
    children,
    TEXT,
  )


TRAJECTORIES = trajectories(st.lists(trajectories(st.just(())), max_size=1).map(tuple))
LIMITS = st.builds(
  SamplingLimits,
  st.integers(1, 100),
  st.lists(st.integers(0, 99), max_size=3).map(tuple),
  st.floats(0, 2),
  st.floats(0, 1),
  st.integers(0, 2**31 - 1),
  st.floats(0, 100),
  TEXT,
  st.integers(0, 9),
)
MESSAGES = st.one_of(
  st.just(("ready",)),
  st.tuples(st.just("error"), TEXT),
  st.tuples(st.just("playing"), st.integers(-5, 5)),
  st.tuples(st.just("cancel"), st.integers(0, 2**40)),
  st.tuples(st.just("generate"), st.integers(0, 2**40), arrays(np.int32, 4), LIMITS, st.text()),
  st.tuples(st.just("group"), TEXT, st.lists(TRAJECTORIES, max_size=2).map(tuple)),
)


def assert_equal(found, expected):
  assert type(found) is type(expected) or isinstance(expected, int | float)
  if dataclasses.is_dataclass(expected):
    for field in dataclasses.fields(expected):
      assert_equal(getattr(found, field.name), getattr(expected, field.name))
  elif isinstance(expected, np.ndarray):
    assert (found.dtype, found.shape) == (expected.dtype, expected.shape)
    assert found.tobytes() == expected.tobytes()
  elif isinstance(expected, tuple):
    assert len(found) == len(expected)
    for one, other in zip(found, expected, strict=True):
      assert_equal(one, other)
  else:
    assert found == expected


@settings(deadline=None, max_examples=150)
@given(MESSAGES)
def test_what_was_encoded_is_decoded(message):
  assert_equal(messages.decode(schema.encode(message)), message)


@settings(deadline=None, max_examples=300)
@given(MESSAGES, st.data())
def test_changed_bytes_are_another_message_or_the_named_error(message, data):
  packed = bytearray(schema.encode(message))
  for _ in range(data.draw(st.integers(1, 4))):
    at = data.draw(st.integers(0, len(packed) - 1))
    packed[at : at + data.draw(st.integers(0, 3))] = data.draw(st.binary(max_size=3))
    if not packed:
      break
  try:
    found = messages.decode(bytes(packed))
  except MessageError:
    return
  assert found[0] in messages._KINDS


@settings(deadline=None, max_examples=300)
@given(
  st.binary(max_size=40)
  | JSON.map(lambda value: msgpack.packb(value, default=str) if _packs(value) else b"")
)
def test_any_bytes_are_a_message_or_the_named_error(packed):
  with contextlib.suppress(MessageError):
    messages.decode(packed)


def _packs(value):
  try:
    msgpack.packb(value)
  except (OverflowError, ValueError):
    return False
  return True


SEGMENT = [["int32", [2], b"\0" * 8], ["bool", [2], b"\1\0"], ["float32", [2], b"\0" * 8],
           ["int32", [2], b"\0" * 8], None, 0, None]  # fmt: skip


def group(segment, **fields):
  trajectory = {
    "task_id": "t", "segments": [segment], "log": [], "rewards": {}, "stop": "", "metrics": {},
    "children": [], "error": "",
  }  # fmt: skip
  return ["group", "g", [list((trajectory | fields).values())]]


def changed(at, value):
  return [value if i == at else each for i, each in enumerate(SEGMENT)]


@pytest.mark.parametrize(
  ("message", "error"),
  [
    (["launch"], "a message of the kind 'launch'; known are"),
    ([["ready"]], "where a message begins with the name of its kind"),
    ({"ready": 1}, "where a message begins with the name of its kind"),
    (["ready", 1], "ready: 1 parts where it has 0"),
    (["playing", "many"], r"playing\[0\]: an integer .* is needed, not 'many'"),
    (["playing", True], r"playing\[0\]: an integer .* is needed, not True"),
    (group(changed(0, ["int64", [1], b"\0" * 8])), "tokens.dtype: int32 is needed, not 'int64'"),
    (group(changed(0, ["object", [1], b"\0" * 8])), "tokens.dtype: int32 is needed, not 'object'"),
    (group(changed(0, ["int32", [3], b"\0" * 8])), r"tokens.bytes: 12 bytes for the shape \(3,\)"),
    (group(changed(0, ["int32", [-2], b"\0" * 8])), "tokens.shape: an integer from 0"),
    (group(changed(0, ["int32", [2, 1], b"\0" * 8])), "tokens.shape: 1 lengths is needed"),
    (group(changed(1, ["bool", [2], b"\1\2"])), "loss_mask.bytes: flags other than 0 and 1"),
    (
      group(changed(3, ["int32", [1], b"\0" * 4])),
      r"group\[1\]\[0\].segments\[0\].versions: a length of 2, as of its tokens is needed, not 1",
    ),
    (group(changed(6, ["bool", [1], b"\1"])), r"kept: a length of 2, as of its tokens is needed"),
    (group(SEGMENT, rewards={"r": "high"}), r"rewards\['r'\]: a number is needed, not 'high'"),
    (group(SEGMENT, rewards=[1]), r"rewards: a map of numbers is needed"),
    (group(SEGMENT, log=[["robot", "", [], "", None, False, ""]]), "system or user or assistant"),
    (
      group(SEGMENT, log=[["user", "", [["1", "f", "[1]", "", "", ""]], "", None, False, ""]]),
      "arguments: a JSON object is needed",
    ),
    (
      group(
        SEGMENT, log=[["user", "", [["1", "f", "[" * 10**5, "", "", ""]], "", None, False, ""]]
      ),
      "arguments: not JSON",
    ),
  ],
)
def test_a_message_that_does_not_fit_names_the_place_and_what_it_needs(message, error):
  with pytest.raises(MessageError, match=error):
    messages.decode(msgpack.packb(message))


def test_a_pickle_is_no_message_and_is_not_run(tmp_path):
  class Touches:
    def __reduce__(self):
      return (open, (str(tmp_path / "ran"), "w"))

  for protocol in range(pickle.HIGHEST_PROTOCOL + 1):
    with pytest.raises(MessageError):
      messages.decode(pickle.dumps(Touches(), protocol))
  assert not (tmp_path / "ran").exists()


def test_generations_of_sub_agents_are_limited_and_nesting_is_no_crash():
  trajectory = Trajectory("t", (), (), {}, "")
  for _ in range(4):
    trajectory = dataclasses.replace(trajectory, children=(trajectory,))
  messages.decode(schema.encode(("group", "g", (trajectory,))))
  more = dataclasses.replace(trajectory, children=(trajectory,))
  with pytest.raises(MessageError, match="more than 4 generations of sub-agents"):
    messages.decode(schema.encode(("group", "g", (more,))))
  with pytest.raises(MessageError, match="not msgpack"):
    messages.decode(b"\x91" * 100_000)


def test_what_no_message_can_hold_is_named_before_it_is_sent():
  call = ToolCall("1", "f", {"x": {1, 2}})
  lost = Trajectory("t", (), (Message("assistant", "", (call,)),), {}, "")
  with pytest.raises(MessageError, match="a 'group' message cannot be sent: .*set"):
    schema.encode(("group", "g", (lost,)))
