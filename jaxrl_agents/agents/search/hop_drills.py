"""Short exercises in hops: the name that a hit defines goes into the query of the next clue.

Quoting from the hits, in the middle of a query that began with words of the question, is a pattern
of attention of its own, and episodes have few tokens of it. A drill has a question and the search
for one of its clues in its prompt, and its reply lists the hit that defines the name and searches
for the clue that refers to that one. In most drills the names are replaced by made-up ones, so that
they cannot be memorised.
"""

from __future__ import annotations

import functools
import random
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from jaxrl_agents.agents.search import expert, view
from jaxrl_agents.agents.search.short_ids import ShortIds
from jaxrl_agents.agents.search.tasks import code_names, hops
from jaxrl_agents.chat import Chat
from jaxrl_agents.corpus.chunks import Chunk
from jaxrl_agents.types import Message, Task

RENAMED = 0.75
"""Share of the drills with made-up names."""

PIECE_WORDS = (8, 12, 20, 40, 80)
"""A drill shows one of these numbers of words of each hit."""

WHOLE_QUESTION = 0.3
"""Share of the drills with the whole question; the rest has the two clues alone."""

HITS = (1, 1, 2)
"""A search of a drill has one of these numbers of hits."""

_SYLLABLES = tuple(
  c + v + end for c in "bdfghjklmnprstvwz" for v in "aeiou" for end in ("", "n", "r")
)


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
  words = sorted(
    {w for task, i in places for w in re.findall("[a-z]{3,}", task.facts["clues"][i]["text"])}
  )
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
    shown = {right[0]: chunk_text(right[0])}
  length = draw.choice(PIECE_WORDS)
  pieces = {i: piece(text, name, length, draw) for i, text in shown.items()}
  texts, new = [*pieces.values(), query], dict[str, str]()
  if draw.random() < RENAMED:
    texts, new = _renamed(texts, name, words, draw)
  result = "\n".join(
    view.hit(ids.name(i), text, chat.count(text)) for i, text in zip(pieces, texts, strict=False)
  )
  question, first, second = _question(task, place, draw)
  messages = [
    Message("user", question),
    expert.searches([texts[-1]], expert.running_list({}, first)),
    Message("tool", result),
  ]
  defining = next(i for i in right if i in shown)
  listed = list(shown) if draw.random() < generous else [defining]
  text = expert.running_list({first: map(ids.name, listed)}, second)
  search = lambda named: expert.searches([hops.query(clues[place]["text"], named)], text)
  reply = lambda named: chat.encode_reply(search(named), messages)
  wanted, other = reply(new.get(name, name)), reply("\N{SECTION SIGN}")
  name_at = next(i for i, pair in enumerate(zip(wanted, other, strict=False)) if pair[0] != pair[1])
  return HopDrill(chat.render(messages), wanted, name_at, bool(new))


def _question(task: Task, place: int, draw: random.Random) -> tuple[str, int, int]:
  """The question of the task, or one of the clue and of that it refers to alone; the places in it,
  from 0, of the clue that is referred to and of the one that refers to it.
  """
  source = task.facts["clues"][place]["refers_to"]
  if draw.random() < WHOLE_QUESTION:
    return task.prompt, source, place
  sentence = lambda i: task.facts["facts"][i]["fact"].partition(". ")[2]
  first = sentence(source).partition("; ")[0].rstrip(".")
  second = re.sub(rf"\b{source + 1}\.$", "1.", sentence(place))
  asked = second.partition(":")[0].lower()
  return f"1. {first}. 2. {second} Question: which {asked} is 2?", 0, 1


def piece(text: str, name: str, length: int, draw: random.Random) -> str:
  """About `length` words of a text that hold the line which defines a name, or else the text's
  first one; white space as it stands.
  """
  spans = [match.span() for match in re.finditer(r"\S+", text)]
  defined = code_names.defined(text)
  wanted = name if name in defined else "".join(defined[:1])
  found = wanted and re.search(rf"\b(?:def|class)\s+{re.escape(wanted)}\b", text)
  at = next((i for i, (start, _) in enumerate(spans) if found and start >= found.start()), 0)
  first = max(0, at - draw.randrange(max(1, length // 3)))
  return text[spans[first][0] : spans[min(first + length, len(spans)) - 1][1]]


def _renamed(
  texts: Sequence[str], name: str, words: Sequence[str], draw: random.Random
) -> tuple[list[str], dict[str, str]]:
  """The texts with made-up names for `name` and all that they define; {name: made-up name}."""
  names = sorted({name, *(each for text in texts for each in code_names.defined(text))})
  new = {each: _made_up(each, words, draw) for each in names}
  pattern = "|".join(re.escape(each) for each in sorted(names, key=len, reverse=True))
  change = lambda text: re.sub(rf"(?<!\w)(?:{pattern})(?!\w)", lambda m: new[m[0]], text)
  return [change(text) for text in texts], new


def _made_up(name: str, words: Sequence[str], draw: random.Random) -> str:
  """A name of random words or syllables, in the form of `name`."""
  parts = min(3, len(re.findall("[A-Z]?[a-z0-9]+|[A-Z]+", name))) or 1
  syllables = lambda: "".join(draw.choices(_SYLLABLES, k=draw.randint(2, 3)))
  made = [draw.choice(words) if draw.random() < 0.5 else syllables() for _ in range(parts)]
  if name.isupper():
    return "_".join(made).upper()
  if name[0].isupper():
    return "".join(part.capitalize() for part in made)
  if "_" in name:
    return name[: len(name) - len(name.lstrip("_"))] + "_".join(made)
  return made[0] + "".join(part.capitalize() for part in made[1:])
