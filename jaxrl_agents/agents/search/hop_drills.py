"""Short exercises in hops: the name that a hit defines goes into the query of the next clue.

Quoting from the hits, in the middle of a query that began with words of the question, is a pattern
of attention of its own, and episodes have few tokens of it. A drill has a question and the search
for one of its clues in its prompt, and its reply lists the hit that defines the name and searches
for the clue that refers to that one. Like the demonstrator it takes the first name that hits
define. In most drills names and words are other ones (see `rewording`), so that they cannot be
memorised.
"""

from __future__ import annotations

import functools
import random
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from jaxrl_agents.agents.search import expert, rewording, view
from jaxrl_agents.agents.search.short_ids import ShortIds
from jaxrl_agents.agents.search.tasks import code_names, hops
from jaxrl_agents.chat import Chat
from jaxrl_agents.corpus.chunks import Chunk
from jaxrl_agents.types import Message, Task

RENAMED = 0.75
"""Share of the drills with made-up names."""

REWORDED = 0.7
"""Share of the drills in which words of clues are replaced, in the hits too."""

WORD_SHARES = (0.5, 1.0)
"""How often a word of such a drill is replaced."""

PIECE_WORDS = (12, 20, 40, 80, 80)
"""A drill shows one of these numbers of words of each hit."""

WHOLE_QUESTION = 0.3
"""Share of the drills with the whole question; the rest has the two clues alone."""

HITS = (1, 2, 2)
"""A search of a drill has one of these numbers of hits."""


class HopDrill(NamedTuple):
  """A drill.

  Attributes:
    prompt: token ids, int32 [P].
    reply: token ids, int32 [R].
    name_at: index in `reply` of the first token of the name.
    renamed: whether its names are made up.
  """

  prompt: np.ndarray
  reply: np.ndarray
  name_at: int
  renamed: bool


def hop_drills(
  tasks: Sequence[Task],
  chunk_text: Callable[[str], str],
  search: Callable[[str], Sequence[Chunk]],
  chat: Chat,
  *,
  generous: float,
  count: int,
  seed: int,
) -> Iterator[HopDrill]:
  """Yields `count` drills.

  Args:
    tasks: with hops; see `agents.search.tasks.hops`.
    chunk_text: the text of a chunk by its id.
    search: the chunks that a query finds, best first.
    chat: template and tokenizer.
    generous: share of the drills whose reply lists all hits.
    count: how many.
    seed: of all that is random.

  Raises:
    ValueError: no task has a clue that refers to what a chunk defines.
  """
  hits_of = functools.cache(lambda query: tuple(search(query)))
  defines = lambda clue: any(
    clue["name"] in code_names.defined(chunk_text(i)) for i in clue["chunk_ids"]
  )
  places = [
    (task, i)
    for task in tasks
    for i, clue in enumerate(task.facts["clues"])
    if _refers(clue) and defines(task.facts["clues"][clue["refers_to"]])
  ]
  if not places:
    raise ValueError(
      "none of the tasks has a clue that refers to what a passage defines; set search.hops=True"
    )
  words = rewording.plain_words(task.facts["clues"][i]["text"] for task, i in places)
  for number in range(count):
    draw = random.Random(f"{seed}/{number}")
    task, place = draw.choice(places)
    yield _drill(task, place, chunk_text, hits_of, words, chat, generous, draw)


def _refers(clue: Mapping[str, Any]) -> bool:
  return "refers_to" in clue


def _drill(
  task: Task,
  place: int,
  chunk_text: Callable[[str], str],
  hits_of: Callable[[str], Sequence[Chunk]],
  words: Sequence[str],
  chat: Chat,
  generous: float,
  draw: random.Random,
) -> HopDrill:
  """A question, the search for the clue that clue `place` refers to, and its hits, of which the
  reply lists the one that defines the name, or all.
  """
  clues, ids = task.facts["clues"], ShortIds(task)
  source = clues[clues[place]["refers_to"]]
  name, query = source["name"], hops.query_of(clues, clues[place]["refers_to"])
  right = [i for i in source["chunk_ids"] if name in code_names.defined(chunk_text(i))]
  shown = {chunk.id: chunk.text for chunk in hits_of(query)[: draw.choice(HITS)]}
  if not any(i in shown for i in right):
    others = list(shown)[:-1]
    shown = {i: chunk_text(i) for i in [right[0], *others]}
  length, renamed = draw.choice(PIECE_WORDS), draw.random() < RENAMED
  changed = rewording.Rewording(
    [clue["text"] for clue in clues],
    words,
    share=draw.choice(WORD_SHARES) if draw.random() < REWORDED else 0.0,
    renames=renamed,
    draw=draw,
  )
  pieces = {i: changed(piece(text, name, length, draw)) for i, text in shown.items()}
  named = code_names.first_defined(pieces.values()) or changed.name(name)
  result = "\n".join(view.hit(ids.name(i), text, chat.count(text)) for i, text in pieces.items())
  question, first, second = _question(task, place, changed, draw)
  messages = [
    Message("user", question),
    expert.searches([changed(query)], expert.running_list({}, first)),
    Message("tool", result),
  ]
  defining = next(i for i in right if i in shown)
  listed = list(shown) if draw.random() < generous else [defining]
  text = expert.running_list({first: map(ids.name, listed)}, second)
  clue = changed(clues[place]["text"])
  reply = lambda name: chat.encode_reply(expert.searches([hops.query(clue, name)], text), messages)
  wanted, other = reply(named), reply("\N{SECTION SIGN}")
  name_at = next(i for i, pair in enumerate(zip(wanted, other, strict=False)) if pair[0] != pair[1])
  return HopDrill(chat.render(messages), wanted, name_at, renamed)


def _question(
  task: Task, place: int, changed: rewording.Rewording, draw: random.Random
) -> tuple[str, int, int]:
  """The question of the task, or one of the clue and of that it refers to alone; the places in it,
  from 0, of the clue that is referred to and of the one that refers to it.
  """
  texts = [clue["text"] for clue in task.facts["clues"]]
  source, new = task.facts["clues"][place]["refers_to"], [changed(text) for text in texts]
  if draw.random() < WHOLE_QUESTION:
    return rewording.with_clues(task.prompt, texts, new), source, place
  sentence = lambda i: task.facts["facts"][i]["fact"].partition(". ")[2].partition(texts[i])
  kind, _, _ = sentence(source)
  asked, _, tie = sentence(place)
  tie = re.sub(rf"\b{source + 1}\.$", "1.", tie)
  question = f"Question: which {asked.partition(':')[0].lower()} is 2?"
  return f"1. {kind}{new[source]}. 2. {asked}{new[place]}{tie} {question}", 0, 1


def piece(text: str, name: str, length: int, draw: random.Random) -> str:
  """About `length` words of a text that hold the line which defines a name, or else the text's
  first one; all of a shorter text; white space as it stands.
  """
  spans = [match.span() for match in re.finditer(r"\S+", text)]
  defined = code_names.defined(text)
  wanted = name if name in defined else "".join(defined[:1])
  found = wanted and re.search(rf"\b(?:def|class)\s+{re.escape(wanted)}\b", text)
  at = next((i for i, (start, _) in enumerate(spans) if found and start >= found.start()), 0)
  first = max(0, at - draw.randrange(max(1, length // 3))) if length < len(spans) else 0
  return text[spans[first][0] : spans[min(first + length, len(spans)) - 1][1]]
