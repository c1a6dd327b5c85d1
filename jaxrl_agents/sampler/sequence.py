"""One request on its way through the engine, and the checks that it must pass first. No jax."""

from __future__ import annotations

import dataclasses
from typing import Literal

import numpy as np

from jaxrl_agents.types import SamplingLimits, Watch


@dataclasses.dataclass(frozen=True)
class Failure:
  """Why a request got no Generation.

  Attributes:
    kind: "deadline" (SamplingLimits.deadline_s passed).
    text: the request, the cause and the remedy.
  """

  kind: Literal["deadline"]
  text: str


@dataclasses.dataclass(slots=True, eq=False)
class Sequence:
  """One request and all that the host knows of it.

  Attributes:
    id: counts up in order of submission.
    tokens: prompt and sampled ids, int32 [capacity], of which `num_tokens` are known.
    num_tokens: known ids.
    num_prompt: how many of them are the prompt.
    max_tokens: prompt and reply together never exceed this.
    limits: of the request.
    deadline: on the engine's clock, seconds.
    watch: sees what was sampled after each program, and says whether the reply ends; None if nobody
      watches.
    pages: cache pages in order of position.
    num_cached: positions whose keys and values are written.
    num_shared: leading pages that other sequences may use.
    slot: row of the decode batch; -1 while waiting.
    decoding: whether the prefill is complete.
    cache_version: weight version of all its pages, or -1 once weights changed under it.
    began: weight version of its pages when it was last started with no id sampled.
    kept: whether no part of its cache was computed again by other weights since.
    logprobs: of the sampled ids.
    versions: weight version of each sampled id.
    routing: experts of leading positions as they were when first computed, uint16 [n, L, K]; kept
      when the pages are given up.
  """

  id: int
  tokens: np.ndarray
  num_tokens: int
  num_prompt: int
  max_tokens: int
  limits: SamplingLimits
  deadline: float
  watch: Watch | None = None
  pages: list[int] = dataclasses.field(default_factory=list)
  num_cached: int = 0
  num_shared: int = 0
  slot: int = -1
  decoding: bool = False
  cache_version: int = -1
  began: int = -1
  kept: bool = True
  logprobs: list[float] = dataclasses.field(default_factory=list)
  versions: list[int] = dataclasses.field(default_factory=list)
  routing: np.ndarray | None = None

  @property
  def prefill_end(self) -> int:
    """Positions to compute before decoding: the prompt; again all but the newest id when
    resumed."""
    return self.num_prompt if self.num_tokens == self.num_prompt else self.num_tokens - 1

  @property
  def known_tokens(self) -> np.ndarray:
    """Prompt and sampled ids, int32 [num_tokens]."""
    return self.tokens[: self.num_tokens]

  def is_ended_by_watch(self) -> bool:
    """Whether whoever watches the sampled ids ends the reply with the newest one."""
    if self.watch is None or not self.decoding or self.num_tokens == self.num_prompt:
      return False
    sampled = self.known_tokens[self.num_prompt :]
    return self.watch(sampled, np.asarray(self.versions, np.int32))


@dataclasses.dataclass(frozen=True)
class Chunk:
  """`count` prompt positions of a sequence from `start`, to be computed in one step."""

  sequence: Sequence
  start: int
  count: int


def check(
  prompt: np.ndarray, limits: SamplingLimits, *, max_context_tokens: int, vocab_size: int
) -> None:
  """Raises ValueError, with the values and the remedy, for a request that cannot be served."""
  if prompt.ndim != 1 or len(prompt) == 0:
    raise ValueError(f"prompt of shape {prompt.shape}: give at least one token id, int32 [P]")
  if len(prompt) >= max_context_tokens:
    raise ValueError(
      f"a prompt of {len(prompt)} tokens leaves no room for a reply within max_context_tokens="
      f"{max_context_tokens}; shorten the prompt or raise max_context_tokens (in a run it is the "
      "token_budget of the agent)"
    )
  if prompt.min() < 0 or prompt.max() >= vocab_size:
    raise ValueError(
      f"prompt ids from {prompt.min()} to {prompt.max()} do not fit vocab_size={vocab_size}; "
      "use the tokenizer of this policy"
    )
  if limits.max_new_tokens < 1:
    raise ValueError(f"max_new_tokens={limits.max_new_tokens}; ask for at least 1")
  if not limits.temperature >= 0:
    raise ValueError(f"temperature={limits.temperature}; give 0 (greedy) or more")
  if not 0 <= limits.routed_tokens < len(prompt):
    raise ValueError(
      f"routed_tokens={limits.routed_tokens} of a prompt of {len(prompt)}; give 0 or more, and "
      "fewer than the prompt has"
    )
  if not 0 < limits.top_p <= 1:
    raise ValueError(f"top_p={limits.top_p}; give more than 0 and at most 1 (everything)")
  if unknown := [token for token in limits.stop_tokens if not 0 <= token < 2**31]:
    raise ValueError(f"stop_tokens hold {unknown[0]}, which is no token id; use this policy's ids")
