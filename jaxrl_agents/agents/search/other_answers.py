"""What finished rollouts would have earned with other answers.

fused      several rollouts of a question as one answer: their lists fused by reciprocal rank
all_shown  each answer lists all that its searches showed: what a policy's searches alone are worth

Context-1 reports four independent rollouts, fused, as a mode of evaluation
(https://www.trychroma.com/research/context-1); constants as in https://github.com/pat-jj/harness-1.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence

import numpy as np

from jaxrl_agents.agents.search import reward, view
from jaxrl_agents.agents.search.config import SearchReward
from jaxrl_agents.corpus.index import fusion
from jaxrl_agents.types import Group, Message, Trajectory


def fused(groups: Sequence[Group], *, max_documents: int, weights: SearchReward) -> list[Group]:
  """Each group as a group of one trajectory, whose answer fuses those of the group.

  score(d) = sum over the rollouts that list d of 1 / (60 + rank of d), ranks from 1, ties by id.
  The fused answer is as long as the answers are on average, rounded up, so that it gains nothing by
  its length. Ids that no tool of their rollout showed are left out. Of a group without an answer
  the first finished trajectory stays, of one whose rollouts all failed the first.

  Args:
    groups: finished, with their rewards.
    max_documents: the most documents of an answer that count.
    weights: of the reward, with the last of its betas.

  Returns:
    Groups whose trajectory has the parts precision, output_recall, f1, answer_found and num_output
    of the fused answer, the trajectory_recall of all rollouts together, the mean of every other
    part, and the reward of these.
  """
  return [_fused(group, max_documents, weights) for group in groups]


def all_shown(groups: Sequence[Group], *, max_documents: int, weights: SearchReward) -> list[Group]:
  """The groups with answers that list all ids which a tool showed, the first `max_documents` of
  them. Rollouts that failed or gave no answer stay as they are. A judge's grades stay those of the
  rollouts' own answers, which it saw; its weight is for `agents.agent.rewarded` to add.

  Args:
    groups, max_documents, weights: see `fused`.
  """

  def listing(group: Group, each: Trajectory) -> Trajectory:
    if each.error or not each.rewards["completed"]:
      return each
    short = {name: chunk_id for chunk_id, name in group.task.facts.get("short_ids", {}).items()}
    log = (*each.log[:-1], reward.answer(reward.shown_ids(each.log)[:max_documents]))
    parts = reward.search_parts(
      log,
      each.stop,
      group.task.facts,
      ids=short,
      was_shown=lambda name: True,
      max_documents=max_documents,
    )
    total = reward.search_total(parts, beta=weights.betas[-1], weights=weights)
    parts |= {name: grade for name, grade in each.rewards.items() if name.startswith("judged")}
    return dataclasses.replace(
      each, log=log, rewards=parts, metrics={**each.metrics, "reward": total}
    )

  return [
    dataclasses.replace(group, trajectories=tuple(listing(group, t) for t in group.trajectories))
    for group in groups
  ]


def _fused(group: Group, max_documents: int, weights: SearchReward) -> Group:
  finished = [each for each in group.trajectories if not each.error]
  answered = [each for each in finished if each.rewards["completed"]]
  if not answered:
    return dataclasses.replace(group, trajectories=tuple((finished or group.trajectories)[:1]))
  facts = group.task.facts
  gold = {name: chunk_id for chunk_id, name in facts.get("short_ids", {}).items()}
  lists = [_listed(each, gold)[:max_documents] for each in answered]
  length = -(-sum(map(len, lists)) // len(lists))
  output = [name for name, _ in fusion.reciprocal_rank(lists)][:length]
  shown = [name for each in finished for name in _names(each.log, gold).values()]
  p, r = reward.precision(output, facts), reward.recall(output, facts)
  parts = {
    key: float(np.mean([each.rewards[key] for each in answered if key in each.rewards]))
    for key in answered[0].rewards
  } | {
    "precision": p,
    "output_recall": r,
    "f1": reward.f_beta(p, r, 1.0),
    "answer_found": reward.answer_found(output, facts),
    "trajectory_recall": reward.recall(shown, facts),
    "num_output": float(len(output)),
    "unseen_output": 0.0,
    "repeated_output": 0.0,
    "repeat_penalty": 0.0,
  }
  total = reward.search_total(parts, beta=weights.betas[-1], weights=weights)
  first = answered[0]
  one = dataclasses.replace(first, rewards=parts, metrics={**first.metrics, "reward": total})
  return dataclasses.replace(group, trajectories=(one,))


def _listed(trajectory: Trajectory, gold: Mapping[str, str]) -> list[str]:
  """What the answer lists and a tool showed, by names that mean the same in every rollout."""
  names = _names(trajectory.log, gold)
  answer = reward.final_answer(trajectory.log, trajectory.stop)
  return list(dict.fromkeys(names[i] for i in reward.answer_ids(answer) if i in names))


def _names(log: Sequence[Message], gold: Mapping[str, str]) -> dict[str, str]:
  """{id in this log: the chunk's own id if it is gold or ids are not short, else its text}.

  Short ids are drawn as chunks appear, so that one number is another chunk in another rollout.
  """
  tools = {call.id: call.name for call in reward.calls(log)}
  found: dict[str, str] = {}
  for message in log:
    if message.role == "tool" and tools.get(message.tool_call_id) in reward.SHOWING_TOOLS:
      for name, text in view.hits(message.content):
        if gold:
          found.setdefault(name, gold.get(name, text))
        else:
          found |= {name: name, reward.document_of(name): reward.document_of(name)}
  return found
