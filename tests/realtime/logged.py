"""Calls of a log that tests make up."""

import numpy as np

from jaxrl_agents.realtime.calls import LoggedCall, to_record
from jaxrl_agents.types import Generation

FIGURES = dict.fromkeys(
  ("invalid_tool", "question", "refusal", "edit_size", "length", "latency_s", "entropy"), 0.0
)


def call(name, session="s", user="u", *, parent="", prompt=(1, 2), tokens=(3, 4), **fields):
  """A call; `time_s` is 0 and `version` 0 unless given."""
  n = len(tokens)
  version = fields.pop("version", 0)
  made = Generation(
    np.array(tokens, np.int32),
    -np.arange(n, dtype=np.float32) / 10,
    np.full(n, version, np.int32),
    fields.pop("routing", None),
    "stop",
    began=version,
  )
  common = {"arm": "stable", "digest": "d", "time_s": 0.0, "latency_s": 0.1, "tools": ""}
  return LoggedCall(
    id=name,
    session=session,
    user=user,
    parent=parent,
    prompt=np.array(prompt, np.int32),
    generation=made,
    **{**common, "behaviour": FIGURES, "features": {}, **fields},
  )


def record(name, *args, **fields):
  """The record of such a call."""
  return to_record(call(name, *args, **fields))
