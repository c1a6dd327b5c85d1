"""Short exercises in quoting: which hits of a result belong to the question, and clues as queries.

Only few of an episode's trained tokens quote an id. The prompt of such a drill already has the
results, with hits cut to a few words, so that the reply trains the quoting only. The other drills
have a question alone, and the reply searches for each of its clues, word for word.
"""

from __future__ import annotations

import functools
import random
import re
from collections.abc import Callable, Iterator, Sequence

import numpy as np

from jaxrl_agents.agents.search import expert, reward, view
from jaxrl_agents.agents.search.short_ids import ShortIds
from jaxrl_agents.chat import Chat
from jaxrl_agents.corpus.chunks import Chunk
from jaxrl_agents.types import Message, Task, ToolCall

MAX_CLUES = 5
"""Most clues of a drill's question: quoting gets harder the longer the context is."""

PIECE_WORDS = (8, 12, 20, 40)
"""A drill shows one of these numbers of words of each hit."""

QUERIES = 0.5
"""Share of drills whose reply searches for the clues."""

STRANGE = 0.5
"""Share of the words of their clues that are replaced by words of other clues, so that no language
model helps to copy them; 0 in half of these drills.
"""

LISTING = 0.25
"""Share of the other drills without a question, whose reply lists the first hit of every result."""

GENEROUS = 0.25
"""Share of the drills with a question whose reply lists all hits."""

PRUNING = 0.25
"""Share of the remaining drills with a wrong hit whose reply prunes the wrong hits."""

FIRST = 0.5
"""How often the right hit certainly comes first; else the hits are shuffled."""

MAX_WRONG = 2
"""Most wrong hits of a result."""

MISSED = 0.2
"""How often a result with wrong hits lacks the right one; the first hit then counts as right."""


def reading_drills(
  tasks: Sequence[Task],
  chunk_text: Callable[[str], str],
  search: Callable[[str], Sequence[Chunk]],
  chat: Chat,
  *,
  can_prune: bool,
  seed: int,
) -> Iterator[tuple[np.ndarray, np.ndarray]]:
  """Yields one drill a task: the token ids of its prompt and of the reply, int32 [P] and [R].

  Each clue of the task gives one result: a chunk that states it, and up to `MAX_WRONG` others that
  a search for it finds.

  Args:
    tasks: with clues; see `agents.search.tasks.practice`.
    chunk_text: the text of a chunk by its id.
    search: the chunks that a query finds, best first.
    chat: template and tokenizer.
    can_prune: whether the policy has the tool that prunes; no drill prunes without it.
    seed: of all that is random.
  """
  hits_of = functools.cache(search)
  words = sorted(
    {w for task in tasks for clue in task.facts["clues"] for w in clue["text"].split()}
  )
  for task in tasks:
    draw = random.Random(f"{seed}/{task.id}")
    if draw.random() < QUERIES:
      yield _queries(task, words, chat, draw)
      continue
    ids, length = ShortIds(task), draw.choice(PIECE_WORDS)
    right: list[str] = []
    wrong: list[str] = []
    results = []
    for clue in task.facts["clues"]:
      gold = draw.choice(clue["chunk_ids"])
      others = [c for c in hits_of(clue["text"]) if c.id not in clue["chunk_ids"]]
      others = others[: draw.randint(0, MAX_WRONG)]
      hits = [(chunk.id, chunk.text) for chunk in others]
      if others and draw.random() < MISSED:
        gold = hits[0][0]
      else:
        hits.insert(0, (gold, chunk_text(gold)))
        if draw.random() > FIRST:
          draw.shuffle(hits)
      right.append(ids.name(gold))
      wrong += [ids.name(chunk_id) for chunk_id, _ in hits if chunk_id != gold]
      pieces = [(i, _best_piece(text, clue["text"], length)) for i, text in hits]
      shown = (view.hit(ids.name(i), text, chat.count(text)) for i, text in pieces)
      results.append(Message("tool", "\n".join(shown)))
    if draw.random() < LISTING:
      firsts = [reward.hit_ids(result.content)[0] for result in results]
      yield chat.render(results), chat.encode_reply(reward.answer(firsts))
      continue
    wrong = [name for name in dict.fromkeys(wrong) if name not in right]
    if draw.random() < GENEROUS:
      reply = reward.answer(i for result in results for i in reward.hit_ids(result.content))
    elif can_prune and wrong and draw.random() < PRUNING:
      call = ToolCall("", view.PRUNE.name, {"chunk_ids": wrong})
      reply = Message("assistant", "", (call,))
    else:
      reply = reward.answer(right)
    yield chat.render([Message("user", task.prompt), *results]), chat.encode_reply(reply)


def _queries(
  task: Task, words: Sequence[str], chat: Chat, draw: random.Random
) -> tuple[np.ndarray, np.ndarray]:
  """A question, and the searches for its clues; some of their words may be drawn from `words`."""
  strange = draw.choice((0.0, STRANGE))
  prompt, rest = "", task.prompt
  clues: list[str] = []
  for clue in task.facts["clues"]:
    text = " ".join(
      draw.choice(words) if draw.random() < strange else word for word in clue["text"].split()
    )
    before, _, rest = rest.partition(clue["text"])
    prompt += before + text
    clues.append(text)
  reply = expert.searches(clues)
  return chat.render([Message("user", prompt + rest)]), chat.encode_reply(reply)


def _best_piece(text: str, clue: str, length: int) -> str:
  """The `length` consecutive words of `text` of which most stand in `clue`."""
  words, wanted = text.split(), set(re.findall(r"\w+", clue.lower()))
  hits = [bool(wanted & set(re.findall(r"\w+", word.lower()))) for word in words]
  starts = range(max(1, len(words) - length + 1))
  best = max(starts, key=lambda start: sum(hits[start : start + length]))
  return " ".join(words[best : best + length])
