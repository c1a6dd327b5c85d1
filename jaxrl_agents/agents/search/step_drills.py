"""Short exercises in what to do next: the next search of an episode, what to prune, or the answer.

A drill is the beginning of an episode with hits cut to a few words, and with usage lines as of
longer ones, so that many turns fit a row. All turns that the context of the last one still shows
are trained.
"""

from __future__ import annotations

import dataclasses
import functools
import random
from collections.abc import Callable, Iterator, Mapping, Sequence

import numpy as np

from jaxrl_agents.agents.search import expert, hop_drills, reward, rewording, view
from jaxrl_agents.agents.search.config import SearchConfig
from jaxrl_agents.agents.search.short_ids import ShortIds
from jaxrl_agents.agents.search.tasks import code_names, hops
from jaxrl_agents.chat import Chat
from jaxrl_agents.corpus.chunks import Chunk
from jaxrl_agents.harness.tools import problem_with
from jaxrl_agents.types import Message, Task, ToolCall

ANSWERS = 0.5
"""Share of the drills that go on to the answer, if there is room for so many turns."""

FULL = 0.25
"""How often a turn ends above the threshold of the context, if a wrong hit is in sight."""

HINTED = 0.5
"""How often a prompt above the threshold has the notice, where training tasks alone show it."""

PIECE_WORDS = (8, 20, 40, 100, 100)
"""A drill shows one of these numbers of words of each hit."""

REWORDED = 0.5
"""Share of the drills in which words of clues are replaced, in the hits too, and mostly names."""

FAILED = 0.12
"""How often a search fails and is made again: it finds nothing, or the context is too full. What a
list has does not change then.
"""

MISSED = 0.06
"""How often the search for a clue to which no other one refers finds nothing and is not made again,
so that the list is shorter than the number of clues says.
"""

REPEATED = 0.15
"""How often a turn or an answer names documents again. The repetition is not trained, but what
follows is: a policy that has begun to repeat itself must learn to stop.
"""

GARBLED = 0.1
"""How often a turn or an answer is first written without an end: a query repeats some of its words,
or a list its documents, until the limit of a reply. That reply is not trained, and what the
environment says of it stands before the one that is.
"""

GARBLED_TOKENS = (60, 160)
"""Fewest and most tokens of such a reply."""

TWIN = 0.5
"""Share of the reworded drills in which one or more clues have most of their words from an earlier
one, so that only their numbers say which of them is meant.
"""

TWIN_WORDS = 0.2
"""How often a word of such a clue is replaced."""

ECHO = 0.15
"""Share of the clues of reworded drills that say some of their own words again, after which the
query must go on where the clue does.
"""

HITS = (1, 2, 2, 2)
"""A search of a drill has one of these numbers of hits."""


def step_drills(
  tasks: Sequence[Task],
  chunk_text: Callable[[str], str],
  search: Callable[[str], Sequence[Chunk]],
  chat: Chat,
  limits: SearchConfig,
  *,
  count: int,
  seed: int,
) -> Iterator[tuple[np.ndarray, np.ndarray]]:
  """Yields `count` drills: token ids, int32 [T], and which of them are trained, bool [T].

  Args:
    tasks, chunk_text, search, chat: as of `hop_drills.hop_drills`.
    limits: of the context, whether it can be pruned, and how often all hits are listed. A drill
      ends before it fills the context so that tools would refuse.
    count: how many.
    seed: of all that is random.
  """
  hits_of = functools.cache(lambda query: tuple(search(query)))
  words = rewording.plain_words(clue["text"] for task in tasks for clue in task.facts["clues"])
  for number in range(count):
    draw = random.Random(f"{seed}/steps/{number}")
    yield _Drill(draw.choice(tasks), words, chat, limits, draw).played(chunk_text, hits_of)


class _Drill:
  """The beginning of an episode of the expert.

  `_changed`: replaces words and names; `_shown_clues`: the clues in the words of the question, with
  the name that the demonstrator takes for each; `_twins`: places of clues with the words of other
  ones. `_seen`: {chunk in sight: whether it supports a clue}; `_found`: those in sight, and pruned
  ones, in their order; `_hits`: those of each clue's search. A `_generous` drill lists them all,
  and prunes all but those of the last search. `_missed`: clues whose search found nothing and was
  not made again. `_used`: tokens by the last usage line; `_most`: above so many, tools refuse.
  `_trained_from`: index of the first message that may be trained: the one after the last reply that
  pruned, whose ids are gone. `_failed`: indexes of the turns with a mistake, which are not trained.
  `_clean`: {index of a reply that repeats documents: the same reply without the repetition}.
  """

  def __init__(
    self,
    task: Task,
    words: Sequence[str],
    chat: Chat,
    limits: SearchConfig,
    draw: random.Random,
  ):
    self._clues, self._ids, self._chat = task.facts["clues"], ShortIds(task), chat
    self._limits, self._draw = limits, draw
    self._most = view.rejection_budget(
      limits.token_budget, limits.threshold_tokens, limits.spillage_fraction
    )
    self._is_reworded, self._twins = draw.random() < REWORDED, set[int]()
    if self._is_reworded and draw.random() < TWIN:
      places = range(1, len(self._clues))
      self._twins = {*draw.sample(places, draw.randint(1, len(places)))}
    texts = [clue["text"] for clue in self._clues]
    share = draw.choice(hop_drills.WORD_SHARES) if self._is_reworded else 0.0
    renames = self._is_reworded and draw.random() < hop_drills.RENAMED
    self._changed = rewording.Rewording(texts, words, share=share, renames=renames, draw=draw)
    shown = self._shown(texts, words)
    known = lambda c, text: {**c, "text": text, "name": self._changed.name(c["name"])}
    self._shown_clues = [known(c, text) for c, text in zip(self._clues, shown, strict=True)]
    question = rewording.with_clues(task.prompt, texts, shown)
    self._messages = [Message("user", question)]
    self._trained_from = 0
    self._failed: set[int] = set()
    self._clean: dict[int, Message] = {}
    self._missed: set[int] = set()
    self._gold = {i for clue in self._clues for i in clue["chunk_ids"]}
    self._referred = {clue["refers_to"] for clue in self._clues if "refers_to" in clue}
    self._seen: dict[str, bool] = {}
    self._found: dict[str, None] = {}
    self._hits: list[list[str]] = []
    self._generous = draw.random() < limits.generous
    self._used = 0

  def _shown(self, texts: Sequence[str], words: Sequence[str]) -> list[str]:
    """What the question says for the clues."""
    draw, shown = self._draw, list[str]()
    for place, text in enumerate(texts):
      text = self._changed(text)
      if place in self._twins:
        known, own = draw.choice(shown).split(), text.split()
        if draw.random() < 0.5:  # they begin alike
          known = known[: draw.randint(1, len(known))] + own[draw.randrange(len(own)) :]
        text = " ".join(draw.choice(words) if draw.random() < TWIN_WORDS else w for w in known)
      if self._is_reworded and draw.random() < ECHO:
        text = _echoed(text, draw)
      shown.append(text)
    return shown

  def played(
    self, chunk_text: Callable[[str], str], hits_of: Callable[[str], Sequence[Chunk]]
  ) -> tuple[np.ndarray, np.ndarray]:
    """The token ids of the drill, and which of them are trained."""
    draw, number, place = self._draw, len(self._clues), 0
    end = number if draw.random() < ANSWERS else draw.randrange(number)
    length = draw.choice(PIECE_WORDS)
    while place < end:
      clue = self._clues[place]
      found = hits_of(hops.query_of(self._clues, place))[: draw.choice(HITS)]
      hits = {hit.id: hit.text for hit in found}
      right = clue["chunk_ids"]
      if place in self._referred:  # the next search quotes the name that one of them defines
        defines = lambda i, name=clue["name"]: name in code_names.defined(chunk_text(i))
        right = [i for i in right if defines(i)] or right
      if place in self._twins:  # its words say nothing about its hits
        hits = {}
      if self._can_miss(place) and draw.random() < MISSED:
        self._missed.add(place)
        hits = {}
      elif not any(i in hits or i in self._found for i in right):
        hits = {right[0]: chunk_text(right[0]), **dict(list(hits.items())[:-1])}
      shown = [i for i in right if i in self._found]
      if place in self._referred and shown and not any(i in self._seen for i in shown):
        break  # what names the next entity was pruned, and no search shows it again
      fresh = [i for i in hits if i not in self._found]
      cut = {i: hop_drills.piece(hits[i], clue["name"], length, draw) for i in fresh}
      pieces = {i: self._changed(text) for i, text in cut.items()}
      if draw.random() < FAILED:
        self._fail(place)
      if draw.random() < GARBLED:
        self._garble(place)
      if not self._turn(place, pieces):
        break
      place += 1
    if draw.random() < GARBLED:
      self._garble(place)
    prompt = list(self._messages)
    above = self._used > self._limits.threshold_tokens
    share = {"none": 0.0, "training": HINTED, "all": 1.0}[self._limits.show_hint]
    if above and draw.random() < share:
      notice = view.over_threshold_notice(
        self._used, self._limits.threshold_tokens, can_prune=self._limits.can_prune
      )
      prompt.append(Message("user", notice, ephemeral=True))
    return self._tokens(prompt, self._maybe_repeating(self._reply(place), len(prompt)))

  def _can_miss(self, place: int) -> bool:
    """Whether the drill can go on without hits for a clue, and has something to list."""
    was_shown = any(i in self._found for i in self._clues[place]["chunk_ids"])
    return place not in self._referred and any(self._hits) and not was_shown

  def _tokens(self, prompt: Sequence[Message], reply: Message) -> tuple[np.ndarray, np.ndarray]:
    """Trained are the reply and the turns from `_trained_from` on, but for repetitions."""
    turns = [*prompt, reply]
    tokens = np.concatenate([self._chat.render(prompt), self._chat.encode_reply(reply, prompt)])
    trained = np.zeros(len(tokens), bool)
    for i, message in enumerate(turns):
      if message.role == "assistant" and i >= self._trained_from and i not in self._failed:
        start = len(self._chat.render(turns[:i]))
        ids = self._chat.encode_reply(message, turns[:i])
        trained[start : start + len(ids)] = True
        if i in self._clean:
          clean = self._chat.encode_reply(self._clean[i], turns[:i])
          trained[start : start + len(ids)] = ~_inserted(ids, clean)
    return tokens, trained

  def _fail(self, place: int) -> None:
    """A search for half of a clue that finds nothing, or that is refused because the context is
    full of what could be pruned.
    """
    limits, words = self._limits, self._query(place).split()
    if len(words) < 3:
      return
    half = " ".join(words[: len(words) // 2 + 1])
    turn, result = expert.searches([half], self._running_list(place)), view.NO_RESULTS
    grown = [*self._messages, turn, Message("tool", result)]
    used = max(self._used, len(self._chat.render(grown)))
    if limits.can_prune and self._wrong() and self._draw.random() < 0.5:
      used = self._draw.randint(self._most + 1, max(self._most + 1, int(0.9 * limits.token_budget)))
      result = view.rejection(used, limits.threshold_tokens, limits.can_prune)
    elif used > self._most:
      return
    self._failed.add(len(self._messages))
    line = view.usage_line(used, limits.threshold_tokens)
    self._messages += [turn, Message("tool", result + line)]
    self._used = used

  def _garble(self, place: int) -> None:
    """A reply without an end, and what the environment says of it; none if there is no room."""
    draw, reply = self._draw, self._reply(place)
    words = self._query(place).split() if place < len(self._clues) else []
    marks = [line for line in reply.content.splitlines() if reward.ANSWER_PATTERN.fullmatch(line)]
    if len(words) > 2 and (not marks or draw.random() < 0.5):
      query = " ".join(_endless(words, draw))
      turn = expert.searches([query], self._running_list(place))
    elif marks:
      turn = Message("assistant", "\n".join(_endless(marks, draw)))
    else:
      return
    ids = self._chat.encode_reply(turn, self._messages)[: draw.randint(*GARBLED_TOKENS)]
    said = dataclasses.replace(self._chat.parse(ids), tokens=ids)
    *results, last = [Message("tool", problem_with({}, call)) for call in said.tool_calls] or [
      Message("user", view.CUT_OFF)
    ]
    used = max(self._used, len(self._chat.render([*self._messages, said, *results, last])))
    if used > self._most:
      return
    line = view.usage_line(used, self._limits.threshold_tokens)
    last = dataclasses.replace(last, content=last.content + line)
    self._failed.add(len(self._messages))
    self._messages += [said, *results, last]
    self._used = used

  def _maybe_repeating(self, reply: Message, index: int) -> Message:
    """The reply, the message `index` of the drill; `REPEATED` says how often with marks of its list
    again, mostly the last ones in the place where the list should end.
    """
    draw = self._draw
    lines = reply.content.splitlines()
    marks = [line for line in lines if reward.ANSWER_PATTERN.fullmatch(line)]
    if not marks or draw.random() >= REPEATED:
      return reply
    end = len(marks) if draw.random() < 0.7 else draw.randint(1, len(marks))
    first = draw.randrange(end)
    again = marks[first : min(end, first + draw.randint(1, 4))] * draw.choice((1, 1, 2, 4))
    self._clean[index] = reply
    return dataclasses.replace(reply, content="\n".join([*lines[:end], *again, *lines[end:]]))

  def _turn(self, place: int, hits: Mapping[str, str]) -> bool:
    """Searches for a clue and shows its hits, {chunk: text}; False if there is no room for them."""
    limits, index = self._limits, len(self._messages)
    reply = self._maybe_repeating(self._reply(place), index)
    pruned = self._wrong() if len(reply.tool_calls) > 1 else []
    names = [self._ids.name(i) for i in pruned]
    kept = [
      dataclasses.replace(m, content=view.without_spans(m.content, names))
      if m.role == "tool"
      else m
      for m in self._messages
    ]
    shown = "\n".join(
      view.hit(self._ids.name(i), text, self._chat.count(text)) for i, text in hits.items()
    )
    results = [view.PRUNED] * bool(pruned) + [shown or view.NO_RESULTS]
    messages = [*kept, reply, *(Message("tool", text) for text in results)]
    used, most = len(self._chat.render(messages)), self._most
    if used > most:
      self._clean.pop(index, None)
      return False
    self._found |= dict.fromkeys(hits)
    if named := code_names.first_defined(hits.values()):
      self._shown_clues[place]["name"] = named
    self._hits.append(list(hits))
    self._seen = {i: right for i, right in self._seen.items() if i not in pruned}
    self._seen |= {i: i in self._gold for i in hits}
    low, high = used, limits.threshold_tokens
    if limits.can_prune and self._wrong() and self._draw.random() < FULL:
      low, high = max(used, limits.threshold_tokens + 1), most
    self._used = self._draw.randint(low, max(low, high))
    line = view.usage_line(self._used, limits.threshold_tokens)
    if pruned:
      self._trained_from = len(self._messages) + 1
    self._messages = [*messages[:-1], Message("tool", results[-1] + line)]
    return True

  def _reply(self, place: int) -> Message:
    """The search for a clue, above the threshold with a prune; after the last clue the answer."""
    if place == len(self._clues):
      found = {i: self._listed(i) for i in range(place)}
      return expert.final_list(found, self._limits.max_documents)
    reply = expert.searches([self._query(place)], self._running_list(place))
    names = [self._ids.name(i) for i in self._wrong()]
    above = self._used > self._limits.threshold_tokens
    if not (above and names and self._limits.can_prune):
      return reply
    prune = ToolCall("", view.PRUNE.name, {"chunk_ids": names})
    return dataclasses.replace(reply, tool_calls=(prune, *reply.tool_calls))

  def _query(self, place: int) -> str:
    return hops.query_of(self._shown_clues, place)

  def _running_list(self, place: int) -> str:
    return expert.running_list({i: self._listed(i) for i in range(place)}, place)

  def _listed(self, place: int) -> list[str]:
    """Names of what the list has for a clue."""
    if place in self._missed:
      return []
    right = next(i for i in self._found if i in self._clues[place]["chunk_ids"])
    listed = dict.fromkeys([*self._hits[place], right] if self._generous else [right])
    return list(map(self._ids.name, listed))

  def _wrong(self) -> list[str]:
    """What to prune."""
    if self._generous:
      kept = next(filter(None, reversed(self._hits)), [])
      return [chunk_id for chunk_id in self._seen if chunk_id not in kept]
    return [chunk_id for chunk_id, right in self._seen.items() if not right]


def _endless(parts: Sequence[str], draw: random.Random) -> list[str]:
  """The parts up to one of them, and then some of these without an end."""
  end = draw.randint(1, len(parts))
  first = draw.randrange(max(0, end - 6), end)
  return [*parts[:end], *list(parts[first:end]) * max(GARBLED_TOKENS)]


def _echoed(text: str, draw: random.Random) -> str:
  """A text that says up to four of its words in a row again, later."""
  words = text.split()
  first = draw.randrange(len(words))
  again = words[first : first + draw.randint(1, 4)]
  at = draw.randint(first + len(again), len(words))
  return " ".join([*words[:at], *again, *words[at:]])


def _inserted(tokens: np.ndarray, clean: np.ndarray) -> np.ndarray:
  """Which of the tokens were inserted into the clean ones, bool [T]; all, if more was changed."""
  extra = len(tokens) - len(clean)
  if extra < 0:
    return np.ones(len(tokens), bool)
  differs = np.flatnonzero(tokens[: len(clean)] != clean)
  start = int(differs[0]) if len(differs) else len(clean)
  inserted = np.zeros(len(tokens), bool)
  inserted[start : start + extra] = True
  return inserted if np.array_equal(tokens[~inserted], clean) else np.ones(len(tokens), bool)
