"""The records that flow between rooms: plain frozen dataclasses of strings, numbers and numpy
arrays.

Nothing here imports jax, so that the worker processes that play episodes stay small. Token ids are
authoritative: `Message.tokens` holds what was sampled, and text is a view of it.

Alphabet: T tokens of a sequence, P tokens of a prompt, L mixture-of-experts layers, K experts per
token.
"""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, Protocol, runtime_checkable

import numpy as np

Role = Literal["system", "user", "assistant", "tool"]
Split = Literal["train", "dev", "test"]

NOT_ROUTED = np.uint16(65535)
"""In a routing array: the expert of this token was not recorded, so the router chooses."""

LARGEST_REWARD = 1e15
"""Its square, which the norm of a gradient may have, is far from the largest float32."""


@dataclasses.dataclass(frozen=True)
class ToolCall:
  """One tool call of a policy.

  Attributes:
    id: unique in the episode; a tool message names the call that it answers by it.
    name: of the tool.
    arguments: parsed JSON.
    error: non-empty when the call could not be parsed.
    label: the name of the call in the policy's own format, which its result quotes
      ("functions.search:0").
    raw: the arguments as they were written, where they are no JSON object.
  """

  id: str
  name: str
  arguments: Mapping[str, Any]
  error: str = ""
  label: str = ""
  raw: str = ""


@dataclasses.dataclass(frozen=True)
class Message:
  """One turn of a conversation.

  Attributes:
    role: of the author.
    content: text; for an assistant, the text outside of tool calls and thinking.
    tool_calls: the calls of an assistant turn, in order.
    tool_call_id: for a tool message, the call that it answers.
    tokens: for a sampled assistant turn, the ids as sampled, int32 [T]; rendering emits these.
    ephemeral: shown once and not kept in the conversation, such as a budget warning.
    reasoning: the thinking of an assistant, if its format separates it.
  """

  role: Role
  content: str
  tool_calls: tuple[ToolCall, ...] = ()
  tool_call_id: str = ""
  tokens: np.ndarray | None = None
  ephemeral: bool = False
  reasoning: str = ""


@dataclasses.dataclass(frozen=True)
class ToolSpec:
  """A tool as described to the policy. `parameters` is a JSON schema of type object."""

  name: str
  description: str
  parameters: Mapping[str, Any]


@dataclasses.dataclass(frozen=True)
class Task:
  """One problem. `facts` holds what only the environment and its rewards may see."""

  id: str
  env: str
  prompt: str
  facts: Mapping[str, Any]
  split: Split = "train"
  seed: int = 0


@dataclasses.dataclass(frozen=True)
class Context:
  """The policy's next input: all of it, already pruned or summarised.

  `stop` names why the episode ended ("" while it runs): "answer", "turn_limit", "context_overflow",
  "malformed", "sandbox_lost". `children` are the episodes of sub-agents that were played since the
  last context.
  """

  messages: tuple[Message, ...]
  tools: tuple[ToolSpec, ...] = ()
  max_new_tokens: int = 0
  done: bool = False
  stop: str = ""
  children: tuple[Trajectory, ...] = ()


@dataclasses.dataclass(frozen=True)
class SamplingLimits:
  """How one generation is sampled and when it ends.

  `seed` makes the draw a pure function of (weights, prompt, seed), whatever else is in the batch.
  `top_p` < 1 records the renormalised log-probability of the truncated distribution. `policy` names
  the policy to sample if there are several: "" is the policy in training. The caller already has
  the experts of the first `routed_tokens` of the prompt, so they are not returned again.
  """

  max_new_tokens: int
  stop_tokens: tuple[int, ...]
  temperature: float = 1.0
  top_p: float = 1.0
  seed: int = 0
  deadline_s: float = 120.0
  policy: str = ""
  routed_tokens: int = 0

  def key(self, prompt: np.ndarray) -> str:
    """A digest of all that decides the reply to a prompt (int32 [P]), but for the weights."""
    decides = (self.max_new_tokens, *self.stop_tokens, self.temperature, self.top_p)
    text = repr((decides, self.seed, self.policy, self.routed_tokens)).encode()
    content = text + b"\0" + np.asarray(prompt, np.int32).tobytes()
    return hashlib.blake2b(content, digest_size=16).hexdigest()


@dataclasses.dataclass(frozen=True)
class Generation:
  """What a sampler returns for one prompt.

  Attributes:
    tokens: sampled ids, the stop token included, int32 [T].
    logprobs: natural-log probability of each sampled token at the sampling temperature, float32
      [T].
    versions: weight version that sampled each token, int32 [T].
    routing: experts of the tokens of prompt and reply from SamplingLimits.routed_tokens on, uint16
      [P + T - routed_tokens, L, K]; NOT_ROUTED where a token never went through a forward pass (the
      last one) or was not recorded. None for dense models.
    stop: "stop" (a stop token or text), "length" (max_new_tokens, or whoever watched ended it).
    trained: whether the sampled tokens carry loss; False for the deliberate mistakes of a scripted
      player.
    began: weight version that computed the first positions of the cache which the first token was
      sampled from, and all others unless `versions` says more; -1 if the sampler has no weights.
    kept: whether the cache stayed as it was first computed: no part of it was computed again by
      other weights.
  """

  tokens: np.ndarray
  logprobs: np.ndarray
  versions: np.ndarray
  routing: np.ndarray | None
  stop: str
  trained: bool = True
  began: int = -1
  kept: bool = True


@dataclasses.dataclass(frozen=True)
class Segment:
  """A training sequence: the ids as the sampler saw them, and which of them the policy sampled.

  Attributes:
    tokens: int32 [T].
    loss_mask: bool [T], True where the trainable policy sampled the token.
    logprobs: behaviour log-probabilities, float32 [T], 0 where loss_mask is False.
    versions: int32 [T], -1 where loss_mask is False.
    routing: uint16 [T, L, K] or None.
    began: `Generation.began` of the first call: a token of this version was sampled from keys and
      values of the same version alone. Others may have seen those of several.
    kept: bool [T], True for sampled tokens of calls whose cache is known: `began` computed it up to
      the last token of the prompt, and the weights that sampled each reply token the position
      before it. None: of no call.
  """

  tokens: np.ndarray
  loss_mask: np.ndarray
  logprobs: np.ndarray
  versions: np.ndarray
  routing: np.ndarray | None = None
  began: int = -1
  kept: np.ndarray | None = None


@dataclasses.dataclass(frozen=True)
class Trajectory:
  """One episode, finished or failed.

  `log` is every message ever shown, in order and never pruned; rewards and viewers read it. A
  failed episode carries `error` (non-empty) and no rewards: it never counts as a reward of 0.
  """

  task_id: str
  segments: tuple[Segment, ...]
  log: tuple[Message, ...]
  rewards: Mapping[str, float]
  stop: str
  metrics: Mapping[str, float] = dataclasses.field(default_factory=dict)
  children: tuple[Trajectory, ...] = ()
  error: str = ""

  @property
  def reward(self) -> float:
    """The scalar reward of a finished episode, which `agents.agent.rewarded` computes once."""
    return self.metrics["reward"]


@dataclasses.dataclass(frozen=True)
class Group:
  """The rollouts of one task: the unit of work and of the advantage. `id` names it in its run."""

  task: Task
  trajectories: tuple[Trajectory, ...]
  id: str = ""


class Env(Protocol):
  """One single-use episode. Tools run inside it, and `step` never raises because of a tool call."""

  async def start(self) -> Context: ...

  async def step(self, reply: Message) -> Context: ...

  def rewards(self, trajectory: Trajectory) -> dict[str, float]: ...

  async def close(self) -> None: ...


class EnvWithTools(Env, Protocol):
  """An environment whose policy may be given tools (`harness.tools.Tool`) that are not its own.

  `add_tools` is called once, before `start`. The environment lists them in its contexts, runs their
  calls like those of its own tools, and shortens their results to its own limit.
  """

  def add_tools(self, tools: Sequence[Any]) -> None: ...


class EnvWithSandbox(EnvWithTools, Protocol):
  """An environment with a sandbox, in which programs whose tools it offers can run.

  `add_sandboxed_tools` is called once, after `add_tools`. The sandbox then shows those Python
  packages to programs that are started in it. A call belongs to the state of the sandbox: where
  that is restored, the call is repeated like those of the environment's own tools.
  """

  def add_sandboxed_tools(self, tools: Sequence[Any], packages: Sequence[str]) -> None: ...

  @property
  def sandbox(self) -> Any:
    """The present sandbox (`sandbox.host.sandbox.Sandbox`); None before `start`, after `close`."""


class Sampler(Protocol):
  """Samples tokens from tokens.

  `playing` reports players that are added (or, below 0, removed) besides the one that holds the
  sampler: a player that makes several requests at once reports it, so that a sampler can wait for
  all of them.
  """

  async def generate(self, prompt: np.ndarray, limits: SamplingLimits) -> Generation: ...

  def playing(self, more: int) -> None: ...


Watch = Callable[[np.ndarray, np.ndarray], bool]
"""(tokens sampled so far, int32 [T], and their versions, int32 [T]) -> whether the reply is to end.
Called in the thread of an engine, after each of its programs; must be quick and must not raise."""


@runtime_checkable
class WatchedSampler(Sampler, Protocol):
  """A sampler whose replies can be watched while they are sampled, and ended."""

  async def watched(
    self, prompt: np.ndarray, limits: SamplingLimits, watch: Watch
  ) -> Generation: ...
