"""A scripted player for the search environment, whose episodes the warm-up imitates.

The expert knows which chunks support which clue, searches as a policy would, and answers only from
what it can see. In tasks without hops it makes random mistakes (`ExpertNoise`), so that
reinforcement learning can improve on it. In tasks with hops (`CAREFUL`) it makes none, except that
it takes the first name that hits define, and lists the best hit of a search that missed.
`search.hasty` and `search.generous` change either.
"""

from __future__ import annotations

import dataclasses
import itertools
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from jaxrl_agents.agents.random_draws import Draws
from jaxrl_agents.agents.search import reward, view
from jaxrl_agents.agents.search.env import make
from jaxrl_agents.agents.search.short_ids import ShortIds
from jaxrl_agents.agents.search.tasks import code_names, hops
from jaxrl_agents.agents.search.tools import SearchServices
from jaxrl_agents.chat import Chat
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
  """How often the expert makes a mistake or varies: probabilities, but for the last two.

  Each episode draws one of `scales`, which multiplies the probabilities of mistakes (early_answer
  to skip_prune, and whole_question).
  """

  early_answer: float = 0.08  # per turn: answers with clues still open
  give_up: float = 0.25  # per failed search: gives the clue up
  forget: float = 0.05  # per gold chunk in sight: leaves it out of the answer
  wrong_document: float = 0.1  # adds a wrong chunk to the answer; drawn again after each
  wrong_prune: float = 0.08  # per gold chunk in sight: prunes it with the others
  skip_prune: float = 0.15  # per turn above the threshold: does not prune
  guess: float = 0.6  # per clue not found: the answer names the best hit of its first search
  whole_question: float = 0.02  # the first query is the whole question
  cut_query: float = 0.05  # the first query is only the first half of its clue
  same_query: float = 0.95  # a miss is followed by the whole clue again, which finds further chunks
  named: float = 0.1  # a miss is followed by its words and a shared name, if one is in sight
  grep: float = 0.05  # a miss is followed by grep of a shared name, if one is in sight
  read: float = 0.04  # per turn: also reads a document
  one_by_one: float = 0.35  # per episode: searches for one clue a turn
  hasty: float = 0.3  # per episode: searches for one clue and answers
  generous: float = 0.25  # per episode: lists all hits, not only the right ones
  first_name: float = 0.0  # per episode: takes the first name that hits define, right or wrong
  max_tries: int = 2  # searches for one clue
  scales: tuple[float, ...] = (0.0, 0.5, 1.0, 1.5)


CAREFUL = ExpertNoise(
  scales=(0.0,),
  guess=1.0,
  cut_query=0.0,
  read=0.0,
  hasty=0.0,
  generous=0.0,
  first_name=1.0,
  max_tries=1,
)
"""The demonstrator of tasks with hops, but for `search.hasty` and `search.generous`. It takes the
first name that the hits of a search define, which a small policy can learn and is mostly the right
one; which of several is the right one, the policy did not learn. Of a search that missed it lists
the best hit. A second search for a clue would teach the policy, which cannot see whether the first
one failed, to repeat itself.
"""


class SearchExpert:
  """Plays one episode; called with each context. Invariant: `_tries` counts the calls per clue.

  In tasks with hops each search comes after the running list of what was found, and the answer
  lists the same. All texts call chunks by the names of `ids`; the code calls them by their own ids.
  """

  def __init__(
    self, task: Task, services: SearchServices, noise: ExpertNoise, seed: int, ids: ShortIds
  ):
    self._draws = draws = Draws(seed, task.id, noise.scales)
    self._task, self._services, self._noise, self._ids = task, services, noise, ids
    self._index, self._limits = services.index, services.limits
    self._cutoff = view.rejection_budget(
      self._limits.token_budget, self._limits.threshold_tokens, self._limits.spillage_fraction
    )
    self._clues: Sequence[Mapping[str, Any]] = task.facts["clues"]
    of_clues = {i for clue in self._clues for i in clue["chunk_ids"]}
    self._has_hops = any("refers_to" in clue for clue in self._clues)
    self._lists_guess = [self._has_hops and draws.happens(noise.guess) for _ in self._clues]
    self._gold = reward.gold_ids(task.facts) if "facts" in task.facts else of_clues
    self._hasty = draws.happens(noise.hasty)
    self._generous = draws.happens(noise.generous)
    self._lists_all = self._generous and self._has_hops
    self._takes_first = draws.happens(noise.first_name)
    self._one_by_one = self._hasty or draws.happens(noise.one_by_one)
    self._tries = [0] * len(self._clues)
    self._asked: list[int | None] = []  # the clue that each call of the last turn was for
    self._hits: dict[int, tuple[str, ...]] = {}  # {clue: hits of its first search, best first}
    self._last_hits: tuple[str, ...] = ()
    self._shown: dict[str, None] = {}  # in the order of their first sight
    self._given_up: set[int] = set()
    self._named: set[tuple[int, str]] = set()
    self._turn = 0

  def __call__(self, context: Context) -> Message:
    """The expert's next turn."""
    names = [i for m in context.messages if m.role == "tool" for i in reward.hit_ids(m.content)]
    visible = [self._ids.chunk_id(name) for name in dict.fromkeys(names)]
    self._shown |= dict.fromkeys(visible)
    self._note_hits(context)
    self._turn += 1
    used = usage(context, self._services.chat)
    known = self._known(visible)
    open_clues = [i for i in self._open_clues(known) if self._can_try(i, visible)]
    done = not open_clues or self._turn >= self._limits.max_turns
    hasty = self._hasty or self._draws.errs(self._noise.early_answer)
    if done or (self._turn > 1 and hasty):
      return self._answer(visible)
    calls: list[tuple[str, dict[str, Any]]] = []
    if used > self._limits.threshold_tokens and not self._draws.errs(self._noise.skip_prune):
      unneeded = self._unneeded(visible) if self._limits.can_prune else []
      unneeded = unneeded[: context.max_new_tokens // 8]  # an id is about 7 tokens of the reply
      if not unneeded and used > self._cutoff:
        return self._answer(visible)
      if unneeded:
        calls.append(("prune_chunks", {"chunk_ids": [self._ids.name(i) for i in unneeded]}))
      used -= sum(self._services.chat.count(self._index.chunk(i).text) + 10 for i in unneeded)
    attempts = {i: self._attempt(i, visible) for i in open_clues[: self._width(used)]}
    made = {i: call for i, call in attempts.items() if call is not None}
    self._asked = [*(None for _ in calls), *made]
    calls += made.values()
    text = ""
    if self._has_hops and made:
      text = running_list(self._found(known), next(iter(made)))
    if visible and self._draws.happens(self._noise.read):
      name = self._ids.name(self._draws.random.choice(visible))
      calls.append(("read_document", {"doc_id": reward.document_of(name)}))
    return self._fitting_turn(text, calls, visible, context)

  def _fitting_turn(
    self,
    text: str,
    calls: list[tuple[str, dict[str, Any]]],
    visible: Sequence[str],
    context: Context,
  ) -> Message:
    """The first of the calls that fit the token limit of a reply; if none does, an answer."""
    while calls:
      reply = Message("assistant", text, tuple(ToolCall("", name, args) for name, args in calls))
      tokens = self._services.chat.encode_reply(reply, context.messages)
      if len(tokens) <= context.max_new_tokens:
        return reply
      calls = calls[:-1]
    return self._answer(visible)

  def _note_hits(self, context: Context) -> None:
    """Records the hits of each clue's first search from the results of the last turn."""
    results: list[Message] = []
    for message in context.messages:
      if message.role == "assistant":
        results = []
      elif message.role == "tool":
        results.append(message)
    for clue, result in zip(self._asked, results, strict=False):
      hits = reward.hit_ids(result.content)
      if clue is not None and hits:
        self._last_hits = tuple(map(self._ids.chunk_id, hits))
        self._hits.setdefault(clue, self._last_hits)

  def _width(self, used: int) -> int:
    """The number of searches in this turn: as many as fill the budget with their results."""
    if self._one_by_one or self._has_hops:
      return 1
    return max(1, (self._limits.token_budget - used) // self._limits.tool_output_tokens)

  def _unneeded(self, visible: Sequence[str]) -> list[str]:
    """What to prune: all that is neither gold nor a guess, and by mistake some of the others. A
    generous episode with hops lists all hits anyway, so it keeps those of the last search alone,
    and what names the entity that the next clue refers to.
    """
    if self._lists_all:
      untried = (clue for clue, tries in zip(self._clues, self._tries, strict=True) if not tries)
      wanted = [self._clues[clue["refers_to"]] for clue in untried if "refers_to" in clue]
      kept = {*self._last_hits, *(i for clue in wanted for i in clue["chunk_ids"])}
      return [i for i in visible if i not in kept]
    kept = {*self._gold, *self._guesses(visible)}
    return [i for i in visible if i not in kept or self._draws.errs(self._noise.wrong_prune)]

  def _known(self, visible: Sequence[str]) -> Sequence[str]:
    """What may be listed: what is in sight; in a generous episode with hops, all that ever was."""
    return list(self._shown) if self._lists_all else visible

  def _missing(self, visible: Sequence[str]) -> list[int]:
    """The clues without a chunk in sight."""
    seen = set(visible)
    return [i for i, clue in enumerate(self._clues) if not seen & set(clue["chunk_ids"])]

  def _guesses(self, visible: Sequence[str]) -> list[str]:
    """The best hits of missing clues, where they are still in sight."""
    best = (self._hits[i][0] for i in self._missing(visible) if i in self._hits)
    return [i for i in best if i in visible]

  def _found(self, visible: Sequence[str]) -> dict[int, list[str]]:
    """{clue: name of a chunk of `visible` that supports it, or of a guess}; in a generous episode
    of all hits of its search, in their order.
    """
    found: dict[int, list[str]] = {}
    for i, clue in enumerate(self._clues):
      hits = self._hits.get(i, ())
      listed = [chunk_id for chunk_id in visible if chunk_id in clue["chunk_ids"]][:1]
      if not listed and self._lists_guess[i]:
        listed = [chunk_id for chunk_id in hits[:1] if chunk_id in visible]
      if listed:
        all_listed = dict.fromkeys([*hits, *listed] if self._generous else listed)
        found[i] = list(map(self._ids.name, all_listed))
    return found

  def _open_clues(self, visible: Sequence[str]) -> list[int]:
    """Missing clues that are worth another try."""
    missing = self._missing(visible)
    for i in missing:
      tired = self._tries[i] >= self._noise.max_tries
      if tired or (self._tries[i] and self._draws.errs(self._noise.give_up)):
        self._given_up.add(i)
    return [i for i in missing if i not in self._given_up]

  def _can_try(self, i: int, visible: Sequence[str]) -> bool:
    """False for a clue that refers to another one while no name of that one is in sight."""
    clue = self._clues[i]
    if "refers_to" not in clue:
      return True
    return code_names.stands_in(self._clues[clue["refers_to"]]["name"], self._texts(visible))

  def _texts(self, visible: Sequence[str]) -> str:
    return "\n".join(self._index.chunk(chunk_id).text for chunk_id in visible)

  def _attempt(self, i: int, visible: Sequence[str]) -> tuple[str, dict[str, Any]] | None:
    """The next call for clue i: its words first, then fewer of them, or a name seen elsewhere. A
    clue that refers to another one is searched for with the name of that one.

    A clue without a description can only be looked up by a name in sight: None if there is none.
    """
    clue = self._clues[i]
    text, happens = clue["text"], self._draws.happens
    self._tries[i] += 1
    if "refers_to" in clue:
      return search(hops.query(text, self._name_of(clue["refers_to"])))
    if not text:
      name = self._seen_name(i, visible)
      return search(name) if name else None
    if self._tries[i] == 1:
      if self._draws.errs(self._noise.whole_question):
        return search(self._task.prompt[:400])
      words = text.split()
      half = happens(self._noise.cut_query) and len(words) > 8
      return search(" ".join(words[: len(words) // 2 + 2]) if half else text)
    words = [w for w in _WORD.findall(text) if w.lower() not in _FILLERS] or text.split()
    name = self._seen_name(i, visible)
    if name and happens(self._noise.grep):
      return "grep_corpus", {"pattern": name}
    if name and happens(self._noise.named):
      return search(" ".join([name, *words]))
    return search(text if happens(self._noise.same_query) else " ".join(words))

  def _name_of(self, i: int) -> str:
    """The name of clue i's entity, or what is taken for it."""
    texts = (self._index.chunk(hit).text for hit in self._hits.get(i, ()))
    first = code_names.first_defined(texts) if self._takes_first else None
    return first or self._clues[i]["name"]

  def _seen_name(self, i: int, visible: Sequence[str]) -> str:
    """A name in sight that a gold chunk of clue i also has; "" if there is none.

    A clue without a description is looked up by its own name, where it is in sight. Else names of
    other clues' entities come first, then longer names before shorter ones.
    """
    clue = self._clues[i]
    wanted = [self._index.chunk(chunk_id).text for chunk_id in clue["chunk_ids"]]
    names = {name for text in wanted for name in _IDENTIFIER.findall(text)}
    if clue["text"]:
      names -= {clue.get("name")}
    seen = [self._index.chunk(chunk_id).text for chunk_id in visible if chunk_id in self._gold]
    shared = {name for text in seen for name in _IDENTIFIER.findall(text) if name in names}
    titles = {clue.get("name") for clue in self._clues}
    own = clue.get("name")
    best = sorted(shared, key=lambda name: (name != own, name not in titles, -len(name), name))
    untried = [name for name in best if (i, name) not in self._named]
    self._named.update((i, name) for name in untried[:1])
    return untried[0] if untried else ""

  def _answer(self, visible: Sequence[str]) -> Message:
    """Lists, in the order shown, gold chunks in sight, guesses and wrong chunks; in a generous
    episode all chunks in sight. In a task with hops it lists what was found, in the order of clues.
    """
    draws, found = self._draws, self._found(self._known(visible)) if self._has_hops else {}
    if found:
      return final_list(found, self._limits.max_documents)
    gold = [i for i in visible if i in self._gold]
    listed = {i for i in gold if not draws.errs(self._noise.forget)}
    listed |= {i for i in self._guesses(visible) if draws.happens(self._noise.guess)} - {*gold}
    others = [i for i in visible if i not in {*listed, *gold}]
    draws.random.shuffle(others)
    while others and (not listed or draws.errs(self._noise.wrong_document)):
      listed.add(others.pop())
    if self._generous:
      listed = set(visible[: self._limits.max_documents])
    if not listed:
      return Message("assistant", "No documents found")
    return reward.answer(self._ids.name(i) for i in visible if i in listed)


def usage(context: Context, chat: Chat) -> int:
  """Tokens of a context by its last usage line; before the first one, of its messages."""
  shown = [used for m in context.messages for used in _USAGE.findall(m.content)]
  if shown:
    return int(shown[-1].replace(",", ""))
  return sum(chat.count(m.content) for m in context.messages)


def search(query: str) -> tuple[str, dict[str, Any]]:
  """A search call. The query begins with a space, because a word and the space before it are one
  token: the policy can copy the first word from the question.
  """
  return "search_corpus", {"query": f" {query}"}


def final_list(found: Mapping[int, Iterable[str]], most: int) -> Message:
  """The answer that lists what was found, {clue: names}, in the order of the clues."""
  names = dict.fromkeys(name for i in sorted(found) for name in found[i])
  return reward.answer(itertools.islice(names, most))


def running_list(found: Mapping[int, Iterable[str]], place: int) -> str:
  """The text of a turn that searches for the clue `place`, from 0: the marks of the documents that
  were found for the clues before it, and its number ("<Document id=79>\\n<Document id=64>\\n3.").

  It splits what is hard to learn at once into small steps: which hit of the last search is right,
  which clue comes next, and in the end the answer, which repeats the list. Its marks are those of
  the answer, so that a policy has only to copy them.
  """
  marks = reward.answer(name for i in sorted(found) if i < place for name in found[i]).content
  return f"{marks}\n{place + 1}." if marks else f"{place + 1}."


def searches(queries: Iterable[str], text: str = "") -> Message:
  """The turn that says `text` and searches for the queries."""
  return Message("assistant", text, tuple(ToolCall("", *search(query)) for query in queries))


def make_player(task: Task, services: SearchServices, noise: ExpertNoise, seed: int) -> Scripted:
  """An episode that the expert plays: environment and sampler in one.

  The episode is a function of the arguments; its tokens have version -1 and logprob 0.
  """
  env = make(task, services)
  return Scripted(env, services.chat, SearchExpert(task, services, noise, seed, env.ids))
