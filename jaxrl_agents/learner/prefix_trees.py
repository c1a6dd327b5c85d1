"""Trees of sequences that begin alike: what they share stands once. numpy only: no jax.

Rollouts of a group share their prompt, turns of an episode share what came before, and segments of
a pruned or summarised context share the request. Sequences are sorted, so that those that begin
alike follow one another, and each is written from the place on where it differs from the one
before: depth-first order. A token is shared only if its experts and its version agree as well, so
that every loss token keeps the context under which it was sampled.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import numpy as np

from jaxrl_agents.types import NOT_ROUTED, Segment

MIN_SHARED_TOKENS = 16
"""Sequences that share fewer tokens are packed apart: small trees fill rows better."""


@dataclasses.dataclass(frozen=True)
class Branch:
  """A sequence of a tree, and how many of its first tokens the one before it has.

  Attributes:
    rollout: index of its rollout in the step.
    segment: the sequence.
    shared: tokens that stand in the tree already.
  """

  rollout: int
  segment: Segment
  shared: int


@dataclasses.dataclass(frozen=True)
class Tree:
  """Sequences in the order in which they are written.

  Attributes:
    branches: the first of them shares nothing.
    tokens: that stand in a row.
    loss_tokens: that are trained; where sequences share sampled tokens, they can be more.
  """

  branches: tuple[Branch, ...]

  @property
  def tokens(self) -> int:
    return sum(len(b.segment.tokens) - b.shared for b in self.branches)

  @property
  def loss_tokens(self) -> int:
    return sum(int(b.segment.loss_mask.sum()) for b in self.branches)

  @property
  def size(self) -> int:
    """Places of a row that it needs: both its tokens and its loss tokens have one each."""
    return max(self.tokens, self.loss_tokens)


def alone(rollout: int, segment: Segment) -> Tree:
  """The tree of one sequence."""
  return Tree((Branch(rollout, segment, 0),))


def grow(segments: Sequence[tuple[int, Segment]], row_tokens: int) -> list[Tree]:
  """Trees of sequences, each small enough for a row; a tree that is not is cut at a fork.

  Args:
    segments: (rollout, sequence), none longer than a row.
    row_tokens: T.
  """
  order = sorted(segments, key=lambda item: item[1].tokens.astype(">i4").tobytes())
  trees: list[list[Branch]] = []
  used = loss = 0
  for rollout, segment in order:
    shared = shared_tokens(trees[-1][-1].segment, segment) if trees else 0
    more, more_loss = len(segment.tokens) - shared, int(segment.loss_mask.sum())
    fits = used + more <= row_tokens and loss + more_loss <= row_tokens
    if shared < MIN_SHARED_TOKENS or not fits:
      trees.append([Branch(rollout, segment, 0)])
      used, loss = len(segment.tokens), more_loss
    else:
      trees[-1].append(Branch(rollout, segment, shared))
      used, loss = used + more, loss + more_loss
  return [Tree(tuple(branches)) for branches in trees]


def shared_tokens(first: Segment, second: Segment) -> int:
  """How many tokens two sequences begin with that may stand once.

  Experts and versions must agree, except versions of tokens that are context in one of the two,
  and the experts of a sequence's last token: nothing is predicted from it. The last token of
  `second` is never shared, so that each sequence has one of its own.
  """
  n = min(len(first.tokens), len(second.tokens) - 1)
  same = first.tokens[:n] == second.tokens[:n]
  versions = first.versions[:n], second.versions[:n]
  same &= (versions[0] == versions[1]) | (np.minimum(*versions) < 0)
  if first.routing is not None and second.routing is not None:
    agrees = (first.routing[:n] == second.routing[:n]).all(axis=(1, 2))
    if n == len(first.tokens):
      agrees[n - 1] = True
    same &= agrees
  elif first.routing is not second.routing:  # one of them has none
    return 0
  return n if same.all() else int(np.argmin(same))


def write(tree: Tree, start: int) -> dict[str, np.ndarray]:
  """The arrays of a tree whose first token stands at place `start` of its row.

  Returns:
    tokens, depths, ends int32 [N]; routing [N, L, K], if the sequences have it; and for each loss
    token, in the order of the branches: sources int32 [E], the place that predicts it, and targets,
    logprobs, rollouts, versions (those of Batch.versions).
  """
  tokens = np.empty(tree.tokens, np.int32)
  depths, ends = np.empty_like(tokens), np.empty_like(tokens)
  known = [b.segment.routing for b in tree.branches if b.segment.routing is not None]
  routing = np.full((len(tokens), *known[0].shape[1:]), NOT_ROUTED) if known else None
  path = np.empty(0, np.int64)  # the place of each token of the branch before
  sources, targets, logprobs, rollouts, versions = [], [], [], [], []
  used = 0
  for branch in tree.branches:
    segment, n = branch.segment, len(branch.segment.tokens)
    ends[path[branch.shared :]] = used
    new = np.arange(used, used + n - branch.shared)
    path = np.concatenate([path[: branch.shared], new])
    tokens[new], depths[new] = segment.tokens[branch.shared :], np.arange(branch.shared, n)
    if routing is not None and segment.routing is not None:
      unknown = (routing[path] == NOT_ROUTED).all(axis=(1, 2))
      routing[path[unknown]] = segment.routing[unknown]
    (at,) = np.nonzero(segment.loss_mask)
    sources.append(path[at - 1])
    targets.append(segment.tokens[at])
    logprobs.append(segment.logprobs[at])
    rollouts.append(np.full(len(at), branch.rollout))
    alone = segment.versions[at] == segment.began
    versions.append(np.where(alone, segment.versions[at], -1))
    used += len(new)
  ends[path] = used
  written = {
    "tokens": tokens,
    "depths": depths,
    "ends": ends + start,
    "sources": np.concatenate(sources).astype(np.int32) + start,
    "targets": np.concatenate(targets),
    "logprobs": np.concatenate(logprobs),
    "rollouts": np.concatenate(rollouts),
    "versions": np.concatenate(versions),
  }
  return written if routing is None else written | {"routing": routing}
