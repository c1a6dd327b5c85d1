"""Short exercises in hops: which name of a hit goes into the query of the clue that refers to it.

Quoting from the hits, in the middle of a query that began with words of the question, is a pattern
of attention of its own, and episodes have few tokens of it. A drill has the hits of the first clue
in its prompt, and its reply searches for the second clue with the name. In most drills the names of
the hits are replaced by made-up ones, so that they cannot be memorised. Naming drills, which are
most of them, have a passage of a hit alone, and the reply searches for its first name.

Which name of a hit is the right one nobody can tell who does not know the gold. So names are tried
in the order of the hits of the first clue: a drill may show searches with the first ones, and its
reply goes on with the next.
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
from jaxrl_agents.agents.search.tasks import code_names
from jaxrl_agents.chat import Chat
from jaxrl_agents.corpus.chunks import Chunk
from jaxrl_agents.types import Message, Task, ToolCall

RENAMED = 0.75
"""Share of the drills with made-up names."""

NAMING = 0.6
"""Share of the naming drills."""

NAMING_WORDS = (6, 9, 12)
"""A naming drill shows one of these numbers of words of a hit."""

PIECE_WORDS = (12, 20, 40, 80)
"""The other drills show one of these numbers of words of each hit."""

WHOLE_QUESTION = 0.3
"""Share of the other drills with the whole question; the rest has the two clues alone."""

TRIES = (0, 0, 1, 2)
"""A drill shows one of these numbers of searches with earlier names."""

SHOWN = 2
"""Hits of the first clue."""

_SYLLABLES = tuple(
  c + v + end for c in "bdfghjklmnprstvwz" for v in "aeiou" for end in ("", "n", "r")
)


class HopDrill(NamedTuple):
  """A drill.

  Attributes:
    prompt: token ids, int32 [P].
    reply: token ids, int32 [R].
    name_at: index in `reply` of the first token of the name.
    naming: whether the prompt has no question.
  """

  prompt: np.ndarray
  reply: np.ndarray
  name_at: int
  naming: bool


def hop_drills(
  tasks: Sequence[Task],
  chunk_text: Callable[[str], str],
  search: Callable[[str], Sequence[Chunk]],
  chat: Chat,
  *,
  count: int,
  seed: int,
) -> Iterator[HopDrill]:
  """Yields `count` drills.

  Args:
    tasks: with hops; see `agents.search.tasks.hops`.
    chunk_text: the text of a chunk by its id.
    search: the chunks that a query finds, best first.
    chat: template and tokenizer.
    count: how many.
    seed: of all that is random.

  Raises:
    ValueError: no task has a hop.
  """
  hits_of = functools.cache(lambda query: tuple(search(query)[:SHOWN]))
  hops = [
    (task, i) for task in tasks for i, clue in enumerate(task.facts["clues"]) if _refers(clue)
  ]
  if not hops:
    raise ValueError(
      "none of the tasks has a clue that refers to another one; set search.hops=True"
    )
  words = sorted({w for task, i in hops for w in re.findall("[a-z]{3,}", _text(task, i))})
  for number in range(count):
    draw = random.Random(f"{seed}/{number}")
    task, place = draw.choice(hops)
    if draw.random() < NAMING:
      yield _naming(task, place, chunk_text, words, chat, draw)
    else:
      yield _hop(task, place, chunk_text, hits_of, words, chat, draw)


def _refers(clue: Mapping[str, Any]) -> bool:
  return "names" in clue


def _text(task: Task, place: int) -> str:
  return task.facts["clues"][place]["text"]


def _naming(
  task: Task,
  place: int,
  chunk_text: Callable[[str], str],
  words: Sequence[str],
  chat: Chat,
  draw: random.Random,
) -> HopDrill:
  """A few words of a passage; the reply searches for their first name."""
  clue = task.facts["clues"][place]
  source = task.facts["clues"][clue["refers_to"]]
  ids = ShortIds(task)
  texts = {i: chunk_text(i) for i in source["chunk_ids"]}
  chunk_id, text = draw.choice([pair for pair in texts.items() if code_names.names(pair[1])])
  name = draw.choice(code_names.names(text))
  piece = _piece(text, name, draw.choice(NAMING_WORDS), draw)
  if draw.random() < RENAMED:
    piece = _renamed([piece], words, draw)[0][0]
  first = code_names.names(piece)[0]
  result = Message("tool", view.hit(ids.name(chunk_id), piece, chat.count(piece)))
  quoted = code_names.quoted(first, piece)
  return _drill(chat, [result], "" if quoted[0] == " " else quoted[0], first, naming=True)


def _hop(
  task: Task,
  place: int,
  chunk_text: Callable[[str], str],
  hits_of: Callable[[str], Sequence[Chunk]],
  words: Sequence[str],
  chat: Chat,
  draw: random.Random,
) -> HopDrill:
  """A question, the search for a clue and its hits, maybe searches with the first names of these;
  the reply searches with the next name.
  """
  clues, ids = task.facts["clues"], ShortIds(task)
  clue = clues[place]
  source = clues[clue["refers_to"]]
  query = source["text"]
  if _refers(source):
    query += f" {draw.choice(source['names'])}"
  shown = {chunk.id: chunk.text for chunk in hits_of(query)}
  right = [i for i in shown if i in source["chunk_ids"] and code_names.names(shown[i])]
  if not right:
    right = [i for i in source["chunk_ids"] if code_names.names(chunk_text(i))][:1]
    shown = {i: chunk_text(i) for i in right}
  length = draw.choice(PIECE_WORDS)
  cut = lambda text: _piece(text, (code_names.names(text) or text.split()[:1])[0], length, draw)
  pieces = {i: cut(text) for i, text in shown.items()}
  names = code_names.names("\n".join(pieces[i] for i in right))
  found: list[dict[str, str]] = []  # what the searches with the first names found
  for name in names[: min(draw.choice(TRIES), len(names) - 1)]:
    seen = {*pieces, *(i for each in found for i in each)}
    later = hits_of(f"{clue['text']} {name}")
    found.append({hit.id: cut(hit.text) for hit in later if hit.id not in seen})
  new: Mapping[str, str] = {}
  if draw.random() < RENAMED:
    every = [*pieces.values(), *(piece for each in found for piece in each.values())]
    texts, new = _renamed(every, words, draw)
    renamed = iter(texts)
    pieces = {i: next(renamed) for i in pieces}
    found = [{i: next(renamed) for i in each} for each in found]
  mark = lambda name: code_names.quoted(name, "\n".join(pieces[i] for i in right))[0]
  result = lambda hits: "\n".join(view.hit(ids.name(i), p, chat.count(p)) for i, p in hits.items())
  call = lambda text: Message("assistant", "", (ToolCall("", *expert.search(text)),))
  messages = [
    Message("user", _question(task, place, draw)),
    call(query),
    Message("tool", result(pieces)),
  ]
  named = [new.get(name, name) for name in names]
  for name, hits in zip(named, found, strict=False):
    messages += [
      call(clue["text"] + mark(name) + name),
      Message("tool", result(hits) or view.NO_RESULTS),
    ]
  name = named[len(found)]
  return _drill(chat, messages, clue["text"] + mark(name), name, naming=False)


def _drill(
  chat: Chat, messages: Sequence[Message], before: str, name: str, *, naming: bool
) -> HopDrill:
  """A drill whose reply searches for `before` and `name`."""
  search = lambda query: Message("assistant", "", (ToolCall("", *expert.search(query)),))
  reply = chat.encode_reply(search(before + name), messages)
  other = chat.encode_reply(search(f"{before}\N{SECTION SIGN}"), messages)
  name_at = next(i for i, pair in enumerate(zip(reply, other, strict=False)) if pair[0] != pair[1])
  return HopDrill(chat.render(messages), reply, name_at, naming)


def _question(task: Task, place: int, draw: random.Random) -> str:
  """The question of the task, or one of the clue and of that it refers to alone."""
  if draw.random() < WHOLE_QUESTION:
    return task.prompt
  first = task.facts["clues"][place]["refers_to"]
  sentence = lambda i: task.facts["facts"][i]["fact"].partition(". ")[2]
  head, _, text = sentence(place).partition(":")
  head = re.sub(rf"\b{first + 1}\b", "1", head)
  earlier, _, described = sentence(first).partition(":")
  kind, asked = earlier.split()[0], head.split()[0].lower()
  return f"1. {kind}:{described} 2. {head}:{text} Question: which {asked} is 2?"


def _piece(text: str, name: str, length: int, draw: random.Random) -> str:
  """About `length` words of a text that hold its first `name`, white space as it stands; the whole
  text if the name is none without what was cut (`class` before it, say).
  """
  spans = [match.span() for match in re.finditer(r"\S+", text)]
  found = re.search(rf"(?<!\w){re.escape(name)}(?!\w)", text)
  at = next((i for i, (_, end) in enumerate(spans) if found and end > found.start()), 0)
  first = max(0, at - draw.randrange(max(1, length - 1)))
  piece = text[spans[first][0] : spans[min(first + length, len(spans)) - 1][1]]
  return piece if name in code_names.names(piece) else text


def _renamed(
  texts: Sequence[str], words: Sequence[str], draw: random.Random
) -> tuple[list[str], dict[str, str]]:
  """The texts with a made-up name for each of their names; also {name: made-up name}."""
  names = sorted({name for text in texts for name in code_names.names(text)})
  new = {name: _made_up(name, words, draw) for name in names}
  pattern = "|".join(re.escape(name) for name in sorted(names, key=len, reverse=True))
  if not names:
    return list(texts), new
  change = lambda text: re.sub(rf"(?<!\w)(?:{pattern})(?!\w)", lambda m: new[m[0]], text)
  return [change(text) for text in texts], new


def _made_up(name: str, words: Sequence[str], draw: random.Random) -> str:
  """A name of random words or syllables, in the form of `name`."""
  parts = max(2, min(3, len(re.findall("[A-Z]?[a-z0-9]+|[A-Z]+", name))))
  syllables = lambda: "".join(draw.choices(_SYLLABLES, k=draw.randint(2, 3)))
  made = [draw.choice(words) if draw.random() < 0.5 else syllables() for _ in range(parts)]
  if name.isupper():
    return "_".join(made).upper()
  if name[0].isupper():
    return "".join(part.capitalize() for part in made)
  if "_" in name:
    return name[: len(name) - len(name.lstrip("_"))] + "_".join(made)
  return made[0] + "".join(part.capitalize() for part in made[1:])
