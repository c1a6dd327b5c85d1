"""What the log keeps of one call to a policy, and the training segment that it makes.

A call stores the ids of its prompt that its parent does not have: the call whose prompt and reply
its prompt extends. A conversation therefore costs its own length and not the sum of its prompts.
"""

from __future__ import annotations

import base64
import dataclasses
import hashlib
import json
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from jaxrl_agents.gateway.token_tree import Call
from jaxrl_agents.harness.segments import Turn, segment_of
from jaxrl_agents.types import Generation, Segment

KIND = "call"
"""The kind of the records of calls."""


@dataclasses.dataclass(frozen=True)
class LoggedCall:
  """One call.

  Attributes:
    id: of the call.
    session: in which it was made.
    user: keyed hash of the user, see `arms.user_hash`.
    parent: the call that its prompt extends; "" if none.
    arm: "stable" or "canary", see `arms`.
    digest: of the manifest of the weights of its arm as the session was opened.
    time_s: when it ended, by the clock of the server.
    latency_s: from the request to the reply.
    tools: digest of the tools that were offered; "" if none.
    prompt: ids that the parent does not have, int32 [P'].
    generation: what was sampled.
    behaviour: see `behaviour.figures`.
    features: numbers of the session that the baseline of the reward may use.
    errors: what was wrong with its tool calls. Such calls are trained like all others: a policy
      whose broken calls are left out learns to make them where all else would be punished.
  """

  id: str
  session: str
  user: str
  parent: str
  arm: str
  digest: str
  time_s: float
  latency_s: float
  tools: str
  prompt: np.ndarray
  generation: Generation
  behaviour: Mapping[str, float]
  features: Mapping[str, float]
  errors: tuple[str, ...] = ()

  @property
  def versions(self) -> tuple[int, ...]:
    """The versions that sampled its tokens, ascending."""
    return tuple(sorted({int(v) for v in self.generation.versions}))


def tools_digest(call: Call) -> str:
  """A digest of the tools that a call offers; "" if none."""
  if not call.tools:
    return ""
  tools = [[tool.name, tool.description, dict(tool.parameters)] for tool in call.tools]
  text = json.dumps(sorted(tools, key=lambda tool: tool[0]), sort_keys=True)
  return hashlib.blake2b(text.encode(), digest_size=8).hexdigest()


def to_record(call: LoggedCall) -> dict[str, Any]:
  """The record of a call."""
  made = call.generation
  plain = {
    field.name: getattr(call, field.name)
    for field in dataclasses.fields(call)
    if field.name not in ("prompt", "generation", "behaviour", "features", "errors")
  }
  return {
    "kind": KIND,
    **plain,
    "behaviour": dict(call.behaviour),
    "features": dict(call.features),
    "errors": list(call.errors),
    "prompt": _packed(call.prompt, np.int32),
    "tokens": _packed(made.tokens, np.int32),
    "logprobs": _packed(made.logprobs, np.float32),
    "versions": _packed(made.versions, np.int32),
    "routing": None if made.routing is None else _packed(made.routing, np.uint16),
    "stop": made.stop,
    "began": made.began,
  }


def from_record(record: Mapping[str, Any]) -> LoggedCall:
  """The call of a record."""
  rest = {k: v for k, v in record.items() if k != "kind"}
  routing = rest.pop("routing")
  generation = Generation(
    tokens=_unpacked(rest.pop("tokens")),
    logprobs=_unpacked(rest.pop("logprobs")),
    versions=_unpacked(rest.pop("versions")),
    routing=None if routing is None else _unpacked(routing),
    stop=rest.pop("stop"),
    began=rest.pop("began"),
  )
  prompt, errors = _unpacked(rest.pop("prompt")), tuple(rest.pop("errors"))
  return LoggedCall(**rest, prompt=prompt, generation=generation, errors=errors)


def prompt(call: LoggedCall, of_id: Callable[[str], LoggedCall]) -> np.ndarray:
  """All ids that a call was sampled from, int32 [P]; `of_id` as of `segment`."""
  return segment(call, of_id).tokens[: -len(call.generation.tokens) or None]


def segment(call: LoggedCall, of_id: Callable[[str], LoggedCall]) -> Segment:
  """The whole context of a call as a training segment, in which its own tokens alone have a loss.

  Args:
    call: of the log.
    of_id: the call of an id, for its parents.
  """
  path = [call]
  while path[-1].parent:
    path.append(of_id(path[-1].parent))
  turns: list[tuple[Turn, bool]] = []
  seen = np.zeros(0, np.int32)
  for step in reversed(path):
    prompt = np.concatenate([seen, step.prompt])
    turns.append((Turn(prompt, step.generation), step is call))
    seen = np.concatenate([prompt, step.generation.tokens])
  return segment_of(turns)


def _packed(array: np.ndarray, dtype: type[np.generic]) -> dict[str, Any]:
  rows = np.ascontiguousarray(array, dtype)
  kind = rows.dtype.newbyteorder("<").str
  data = base64.b64encode(rows.astype(kind).tobytes()).decode("ascii")
  return {"dtype": kind, "shape": list(rows.shape), "data": data}


def _unpacked(packed: Mapping[str, Any]) -> np.ndarray:
  kind = np.dtype(packed["dtype"])
  rows = np.frombuffer(base64.b64decode(packed["data"]), kind).reshape(packed["shape"])
  return rows.astype(kind.newbyteorder("="))
