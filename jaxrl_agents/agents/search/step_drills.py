"""Short exercises in what to do next: the next search of an episode, or the answer.

Whether every clue was searched for is told by all turns so far, and an episode has few tokens that
depend on it: a policy that learns from episodes alone repeats its last search until its context is
full. The prompt of such a drill is the beginning of an episode with hits cut to a few words.
"""

from __future__ import annotations

import functools
import random
from collections.abc import Callable, Iterator, Sequence

import numpy as np

from jaxrl_agents.agents.search import expert, hop_drills, reward, view
from jaxrl_agents.agents.search.short_ids import ShortIds
from jaxrl_agents.agents.search.tasks import hops
from jaxrl_agents.chat import Chat
from jaxrl_agents.corpus.chunks import Chunk
from jaxrl_agents.types import Message, Task

ANSWERS = 0.4
"""Share of the drills whose reply is the answer."""

PIECE_WORDS = (6, 10, 20)
"""A drill shows one of these numbers of words of each hit."""

MAX_HITS = 2
"""Most hits of a search."""


def step_drills(
  tasks: Sequence[Task],
  chunk_text: Callable[[str], str],
  search: Callable[[str], Sequence[Chunk]],
  chat: Chat,
  *,
  count: int,
  seed: int,
  threshold_tokens: int,
) -> Iterator[tuple[np.ndarray, np.ndarray]]:
  """Yields `count` drills: the token ids of a prompt and of the reply, int32 [P] and [R].

  Args:
    tasks, chunk_text, search, chat: as of `hop_drills.hop_drills`.
    count: how many.
    seed: of all that is random.
    threshold_tokens: above which chunks should be pruned. A drill ends before it.
  """
  hits_of = functools.cache(lambda query: tuple(search(query)))
  for number in range(count):
    draw = random.Random(f"{seed}/steps/{number}")
    yield _drill(draw.choice(tasks), chunk_text, hits_of, chat, threshold_tokens, draw)


def _drill(
  task: Task,
  chunk_text: Callable[[str], str],
  hits_of: Callable[[str], Sequence[Chunk]],
  chat: Chat,
  threshold_tokens: int,
  draw: random.Random,
) -> tuple[np.ndarray, np.ndarray]:
  clues, ids, length = task.facts["clues"], ShortIds(task), draw.choice(PIECE_WORDS)
  order = expert.order(clues)
  played = len(order) if draw.random() < ANSWERS else draw.randrange(len(order))
  messages = [Message("user", task.prompt)]
  seen: dict[str, bool] = {}  # {chunk: whether a clue is about it}
  for i in order[:played]:
    query = hops.query_of(clues, i)
    hits = {hit.id: hit.text for hit in hits_of(query)[: draw.randint(1, MAX_HITS)]}
    gold = clues[i]["chunk_ids"]
    if not any(chunk_id in hits or chunk_id in seen for chunk_id in gold):
      hits = {gold[0]: chunk_text(gold[0]), **dict(list(hits.items())[:-1])}
    hits = {chunk_id: text for chunk_id, text in hits.items() if chunk_id not in seen}
    seen |= {chunk_id: chunk_id in gold for chunk_id in hits}
    cut = {j: hop_drills.piece(text, clues[i]["name"], length, draw) for j, text in hits.items()}
    shown = "\n".join(view.hit(ids.name(j), text, chat.count(text)) for j, text in cut.items())
    before = [*messages, expert.searches([query])]
    used = chat.count(shown or view.NO_RESULTS) + len(chat.render(before))
    if used > threshold_tokens:
      return chat.render(messages), chat.encode_reply(before[-1], messages)
    line = view.usage_line(used, threshold_tokens)
    messages = [*before, Message("tool", (shown or view.NO_RESULTS) + line)]
  right = [ids.name(chunk_id) for chunk_id, is_right in seen.items() if is_right]
  reply = reward.answer(right)
  if played < len(order):
    reply = expert.searches([hops.query_of(clues, order[played])])
  return chat.render(messages), chat.encode_reply(reply, messages)
