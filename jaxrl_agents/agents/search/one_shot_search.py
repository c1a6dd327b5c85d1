"""The baseline of a single hybrid search, scored as an episode of the search agent."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable

import numpy as np

from jaxrl_agents.agents.search import reward, view
from jaxrl_agents.corpus.index.hybrid import Fusion, Index
from jaxrl_agents.types import Group, Message, ToolCall, Trajectory


def one_shot_hybrid(
  groups: Iterable[Group],
  index: Index,
  *,
  count_tokens: Callable[[str], int],
  max_documents: int,
  settings: Fusion = Fusion(),
) -> list[Group]:
  """What one hybrid search with the whole question would have scored, as groups of one rollout.

  The baseline answers with the first n hits, best first. n is the mean number of chunks that the
  policy returned for the task over its finished rollouts, rounded half up and at least 1, so that
  neither side has the larger output. A task of which every rollout failed is left out.
  `reward.search_parts` measures both sides.

  Args:
    groups: the policy's groups ("num_output" among the rewards).
    index: the corpus that the policy searched.
    count_tokens: for the sizes in the shown hits.
    max_documents: further ids of the answer are ignored, as in the environment.
    settings: rank fusion, as in the policy's own searches.
  """
  baseline = []
  for group in groups:
    returned = [t.rewards["num_output"] for t in group.trajectories if not t.error]
    if not returned:
      continue
    count = max(1, math.floor(float(np.mean(returned)) + 0.5))
    hits = index.search(group.task.prompt, limit=count, settings=settings)
    chunks = [hit.chunk for hit in hits]
    call = ToolCall("0.0", "search_corpus", {"query": group.task.prompt})
    shown = "\n".join(view.hit(chunk.id, chunk.text, count_tokens(chunk.text)) for chunk in chunks)
    log = (
      Message("user", group.task.prompt),
      Message("assistant", "", (call,)),
      Message("tool", shown or view.NO_RESULTS, tool_call_id=call.id),
      reward.answer(chunk.id for chunk in chunks),
    )
    was_shown = {chunk.id for chunk in chunks}.__contains__
    parts = reward.search_parts(
      log, "answer", group.task.facts, was_shown=was_shown, max_documents=max_documents
    )
    rollout = Trajectory(group.task.id, (), log, parts, "answer")
    baseline.append(Group(group.task, (rollout,)))
  return baseline
