"""A scripted expert for the search environment: the demonstrations that a policy starts from.

It knows which chunks support which clue, searches as a policy would, and answers only from what it
can see. It errs on purpose, in some episodes more, and others are hasty, so that reinforcement
learning has room.
"""

from __future__ import annotations

import dataclasses
import hashlib
import random
import re
from collections.abc import Mapping, Sequence
from typing import Any

from jaxrl_agents.agents.search import reward
from jaxrl_agents.agents.search.env import make
from jaxrl_agents.agents.search.short_ids import ShortIds
from jaxrl_agents.agents.search.tools import SearchServices
from jaxrl_agents.harness.scripted_player import Scripted
from jaxrl_agents.types import Context, Message, Task, ToolCall

_USAGE = re.compile(r"\[Token usage: ([\d,]+)/")
_WORD = re.compile(r"[A-Za-z][\w'-]*")
_IDENTIFIER = re.compile(r"[A-Za-z_]\w{3,}")
_FILLERS = frozenset(  # words that say nothing about a clue
  re.findall(
    r"\w+",
    "a an the of to in on for and or is are be by as at it its this that with from said something "
    "certain number there which one given hand back",
  )
)


@dataclasses.dataclass(frozen=True)
class ExpertNoise:
  """How often the expert errs or varies: probabilities unless a unit is named.

  Each episode draws one of `scales`; the rates of real errors (the first six) are multiplied by it.
  """

  early_answer: float = 0.08  # a turn, with clues still open
  give_up: float = 0.25  # a clue, each time it was missed
  forget: float = 0.05  # a gold chunk seen, in the answer
  wrong_document: float = 0.1  # one more wrong chunk in the answer, again and again
  wrong_prune: float = 0.08  # a gold chunk, in a prune call
  skip_prune: float = 0.15  # a turn above the threshold
  guess: float = 0.6  # a clue that was missed: the answer names the best hit of its first search
  whole_question: float = 0.02  # a first query is the whole question
  cut_query: float = 0.05  # a first query is only the first half of its clue
  same_query: float = 0.95  # a miss is followed by the whole clue again, which finds further chunks
  named: float = 0.1  # a miss is followed by its words and a shared name, if one is in sight
  grep: float = 0.05  # a miss is followed by grep of a shared name, if one is in sight
  read: float = 0.04  # a turn reads a document on the side
  one_by_one: float = 0.35  # an episode asks for one clue a turn
  hasty: float = 0.3  # an episode asks for one clue and answers
  generous: float = 0.5  # an episode's answer lists all that is in sight
  max_tries: int = 2  # of a clue
  scales: tuple[float, ...] = (0.0, 0.5, 1.0, 1.5)


class SearchExpert:
  """Plays one episode; called with each context. Invariant: `_tries` counts the calls per clue.

  It thinks in chunk ids; what it reads and says goes through the names of the episode, `ids`.
  """

  def __init__(
    self, task: Task, services: SearchServices, noise: ExpertNoise, seed: int, ids: ShortIds
  ):
    digest = hashlib.blake2b(f"{seed}\0{task.id}".encode(), digest_size=8).digest()
    self._random = random.Random(int.from_bytes(digest, "little"))
    self._task, self._services, self._noise, self._ids = task, services, noise, ids
    self._index, self._limits = services.index, services.limits
    self._scale = self._random.choice(noise.scales)
    self._clues: Sequence[Mapping[str, Any]] = task.facts["clues"]
    self._gold = reward.gold_ids(task.facts)
    self._hasty = self._draws(noise.hasty)
    self._generous = self._draws(noise.generous)
    self._one_by_one = self._hasty or self._draws(noise.one_by_one)
    self._tries = [0] * len(self._clues)
    self._asked: list[int | None] = []  # of each call of the last turn, the clue it was for
    self._best: dict[int, str] = {}  # the best hit of a clue's first search
    self._given_up: set[int] = set()
    self._named: set[tuple[int, str]] = set()
    self._turn = 0

  def __call__(self, context: Context) -> Message:
    """The expert's next turn."""
    names = [i for m in context.messages if m.role == "tool" for i in reward.hit_ids(m.content)]
    visible = [self._ids.chunk_id(name) for name in dict.fromkeys(names)]
    self._note_best_hits(context)
    self._turn += 1
    usage = self._usage(context)
    open_clues = self._open_clues(visible)
    done = not open_clues or self._turn >= self._limits.max_turns
    hasty = self._hasty or self._errs(self._noise.early_answer)
    if done or (self._turn > 1 and hasty):
      return self._answer(visible)
    calls: list[tuple[str, dict[str, Any]]] = []
    if usage > self._limits.threshold_tokens and not self._errs(self._noise.skip_prune):
      doomed = self._doomed(visible) if self._limits.can_prune else []
      doomed = doomed[: context.max_new_tokens // 8]  # an id is about 7 tokens of the reply
      if not doomed:
        return self._answer(visible)
      calls.append(("prune_chunks", {"chunk_ids": [self._ids.name(i) for i in doomed]}))
      usage -= sum(self._services.chat.count(self._index.chunk(i).text) + 10 for i in doomed)
    wanted = open_clues[: self._width(usage)]
    self._asked = [*(None for _ in calls), *wanted]
    calls += [self._attempt(i, visible) for i in wanted]
    if visible and self._draws(self._noise.read):
      name = self._ids.name(self._random.choice(visible))
      calls.append(("read_document", {"doc_id": reward.document_of(name)}))
    return self._that_fits(calls, visible, context)

  def _that_fits(
    self, calls: list[tuple[str, dict[str, Any]]], visible: Sequence[str], context: Context
  ) -> Message:
    """The turn with as many of its calls as the reply may have tokens for; else an answer."""
    while calls:
      reply = Message("assistant", "", tuple(ToolCall("", name, args) for name, args in calls))
      tokens = self._services.chat.encode_reply(reply, context.messages)
      if len(tokens) <= context.max_new_tokens:
        return reply
      calls = calls[:-1]
    return self._answer(visible)

  def _note_best_hits(self, context: Context) -> None:
    """Remembers the first hit of each clue's first search from the results of the last turn."""
    results: list[Message] = []
    for message in context.messages:
      if message.role == "assistant":
        results = []
      elif message.role == "tool":
        results.append(message)
    for clue, result in zip(self._asked, results, strict=False):
      hits = reward.hit_ids(result.content)
      if clue is not None and hits:
        self._best.setdefault(clue, self._ids.chunk_id(hits[0]))

  def _errs(self, rate: float) -> bool:
    return self._random.random() < self._scale * rate

  def _draws(self, rate: float) -> bool:
    return self._random.random() < rate

  def _usage(self, context: Context) -> int:
    """Tokens used, as the last usage line says; before there is one, those of the messages."""
    shown = [used for m in context.messages for used in _USAGE.findall(m.content)]
    if shown:
      return int(shown[-1].replace(",", ""))
    return sum(self._services.chat.count(m.content) for m in context.messages)

  def _width(self, usage: int) -> int:
    """How many searches at once: as many as fill the budget with their results."""
    if self._one_by_one:
      return 1
    return max(1, (self._limits.token_budget - usage) // self._limits.tool_output_tokens)

  def _doomed(self, visible: Sequence[str]) -> list[str]:
    """What to prune: all that is neither gold nor a guess, and by mistake some that is."""
    kept = {*self._gold, *self._guesses(visible)}
    return [i for i in visible if i not in kept or self._errs(self._noise.wrong_prune)]

  def _guesses(self, visible: Sequence[str]) -> list[str]:
    """The best hits, if still in sight, of the clues of which no chunk is."""
    seen = set(visible)
    missed = [i for i, clue in enumerate(self._clues) if not seen & set(clue["chunk_ids"])]
    best = (self._best.get(i) for i in missed)
    return [i for i in best if i in seen]

  def _open_clues(self, visible: Sequence[str]) -> list[int]:
    """Clues without a chunk in sight that are worth another try."""
    seen = set(visible)
    missing = [i for i, clue in enumerate(self._clues) if not seen & set(clue["chunk_ids"])]
    for i in missing:
      tired = self._tries[i] >= self._noise.max_tries
      if tired or (self._tries[i] and self._errs(self._noise.give_up)):
        self._given_up.add(i)
    return [i for i in missing if i not in self._given_up]

  def _attempt(self, i: int, visible: Sequence[str]) -> tuple[str, dict[str, Any]]:
    """The next call for clue i: its words first, then fewer of them, or a name seen elsewhere."""
    text = self._clues[i]["text"]
    self._tries[i] += 1
    if self._tries[i] == 1:
      if self._errs(self._noise.whole_question):
        return _search(self._task.prompt[:400])
      words = text.split()
      half = self._draws(self._noise.cut_query) and len(words) > 8
      return _search(" ".join(words[: len(words) // 2 + 2]) if half else text)
    words = [w for w in _WORD.findall(text) if w.lower() not in _FILLERS] or text.split()
    name = self._seen_name(i, visible)
    if name and self._draws(self._noise.grep):
      return "grep_corpus", {"pattern": name}
    if name and self._draws(self._noise.named):
      return _search(" ".join([name, *words]))
    again = self._draws(self._noise.same_query)
    return _search(text if again else " ".join(words))

  def _seen_name(self, i: int, visible: Sequence[str]) -> str:
    """A name in sight that also stands in a chunk wanted for clue i; "" if there is none.

    First the name of what another clue found, then the longest of the gold chunks in sight.
    """
    clue = self._clues[i]
    wanted = [self._index.chunk(chunk_id).text for chunk_id in clue["chunk_ids"]]
    names = {name for text in wanted for name in _IDENTIFIER.findall(text)} - {clue.get("name")}
    seen = [self._index.chunk(chunk_id).text for chunk_id in visible if chunk_id in self._gold]
    shared = {name for text in seen for name in _IDENTIFIER.findall(text) if name in names}
    titles = {clue.get("name") for clue in self._clues}
    best = sorted(shared, key=lambda name: (name not in titles, -len(name), name))
    untried = [name for name in best if (i, name) not in self._named]
    self._named.update((i, name) for name in untried[:1])
    return untried[0] if untried else ""

  def _answer(self, visible: Sequence[str]) -> Message:
    """The gold chunks in sight less the forgotten, guesses and wrong ones, as they were shown;
    all in sight if the episode is generous.
    """
    gold = [i for i in visible if i in self._gold]
    listed = {i for i in gold if not self._errs(self._noise.forget)}
    listed |= {i for i in self._guesses(visible) if self._draws(self._noise.guess)} - {*gold}
    others = [i for i in visible if i not in {*listed, *gold}]
    self._random.shuffle(others)
    while others and (not listed or self._errs(self._noise.wrong_document)):
      listed.add(others.pop())
    if self._generous:
      listed = set(visible[: self._limits.max_documents])
    text = "\n".join(f"<Document id={self._ids.name(i)}>" for i in visible if i in listed)
    return Message("assistant", text or "No documents found")


def _search(query: str) -> tuple[str, dict[str, Any]]:
  """A search call. The query begins with a space: a word and its space are one token, so that the
  first word is the token that stands in the question, and can be copied.
  """
  return "search_corpus", {"query": f" {query}"}


def make_player(task: Task, services: SearchServices, noise: ExpertNoise, seed: int) -> Scripted:
  """An episode that the expert plays: environment and sampler in one.

  Its tokens carry version -1 and logprob 0. All it does is a function of the arguments.
  """
  env = make(task, services)
  return Scripted(env, services.chat, SearchExpert(task, services, noise, seed, env.ids))
