"""Short exercises in reading results: which of the hits belong to the question, quoted by id.

Of an episode most tokens are read and few of the trained ones quote. A drill begins where the
results are in, with hits cut to a few words, and trains the quoting alone.
"""

from __future__ import annotations

import functools
import random
import re
from collections.abc import Callable, Iterator, Sequence

import numpy as np

from jaxrl_agents.agents.search import reward, view
from jaxrl_agents.agents.search.short_ids import ShortIds
from jaxrl_agents.chat import Chat
from jaxrl_agents.corpus.chunks import Chunk
from jaxrl_agents.types import Message, Task, ToolCall

MAX_CLUES = 5
"""Most clues of a drill's question: looking up gets harder the longer the context is."""

PIECE_WORDS = (8, 12, 20, 40)
"""Words of a chunk that a drill shows: one of these, the same for all its hits."""

LISTING = 0.25
"""How often there is no question, and the first hit of every result is listed."""

GENEROUS = 0.25
"""How often, with a question, all hits are listed."""

PRUNING = 0.25
"""How often, among other drills with a question and a wrong hit, the wrong ones are pruned."""

FIRST = 0.5
"""How often the right hit stands first for sure."""

MAX_WRONG = 2
"""Most wrong hits of a result."""

MISSED = 0.2
"""How often, where there are wrong hits, the right one is missing: the first stands in for it."""


def reading_drills(
  tasks: Sequence[Task],
  chunk_text: Callable[[str], str],
  search: Callable[[str], Sequence[Chunk]],
  chat: Chat,
  *,
  seed: int,
) -> Iterator[tuple[np.ndarray, np.ndarray]]:
  """Yields one drill a task: the ids of its prompt and of the reply, int32 [P] and [R].

  Each clue of the task brings a result: a chunk that states it, and up to `MAX_WRONG` of those that
  a search for it finds besides.

  Args:
    tasks: with clues; see `agents.search.tasks.practice`.
    chunk_text: the text of a chunk by its id.
    search: the chunks that a query finds, best first.
    chat: template and tokenizer.
    seed: of all that is random.
  """
  found = functools.cache(search)
  for task in tasks:
    draw = random.Random(f"{seed}/{task.id}")
    ids, length = ShortIds(task), draw.choice(PIECE_WORDS)
    right: list[str] = []
    wrong: list[str] = []
    results = []
    for clue in task.facts["clues"]:
      gold = draw.choice(clue["chunk_ids"])
      others = [c for c in found(clue["text"]) if c.id not in clue["chunk_ids"]]
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
      yield chat.render(results), chat.encode_reply(_answer(firsts))
      continue
    wrong = [name for name in wrong if name not in right]
    if draw.random() < GENEROUS:
      reply = _answer([name for result in results for name in reward.hit_ids(result.content)])
    elif wrong and draw.random() < PRUNING:
      reply = _prune(wrong)
    else:
      reply = _answer(right)
    yield chat.render([Message("user", task.prompt), *results]), chat.encode_reply(reply)


def _answer(chunk_ids: Sequence[str]) -> Message:
  listed = dict.fromkeys(chunk_ids)
  return Message("assistant", "\n".join(f"<Document id={name}>" for name in listed))


def _prune(chunk_ids: Sequence[str]) -> Message:
  call = ToolCall("", view.PRUNE.name, {"chunk_ids": list(dict.fromkeys(chunk_ids))})
  return Message("assistant", "", (call,))


def _best_piece(text: str, clue: str, length: int) -> str:
  """The `length` words in a row of `text` that share most with `clue`."""
  words, wanted = text.split(), set(re.findall(r"\w+", clue.lower()))
  hits = [bool(wanted & set(re.findall(r"\w+", word.lower()))) for word in words]
  starts = range(max(1, len(words) - length + 1))
  best = max(starts, key=lambda start: sum(hits[start : start + length]))
  return " ".join(words[best : best + length])
