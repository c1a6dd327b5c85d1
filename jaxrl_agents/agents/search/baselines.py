"""Scripted players that a search policy is compared with, in the same environment and limits.

The expert knows the gold and makes no mistakes: what it earns is the most that the clues and the
search tool allow. The others see what a policy sees. They keep every id that a tool ever showed
them, so a full context costs them nothing: they prune all of it and go on.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from jaxrl_agents.agents.search import reward
from jaxrl_agents.agents.search.config import SearchConfig
from jaxrl_agents.agents.search.env import make
from jaxrl_agents.agents.search.expert import ExpertNoise, make_player, search, usage
from jaxrl_agents.agents.search.search_plans import HopPlan, Plan, untied
from jaxrl_agents.agents.search.tools import SearchServices
from jaxrl_agents.harness.scripted_player import Scripted
from jaxrl_agents.types import Context, Message, Task, ToolCall

BASELINES = ("expert", "hops", "heuristic", "one_search", "guesser")
"""Names of the players, of which the first is the ceiling."""

HEURISTIC = (1, 2)
"""Searches for each clue, and hits of each search in the answer: the best on the dev tasks of
configs/search_cpu.py (scripts/evaluate.py --split=dev --player=heuristic_1x1, and so on).
"""

ONE_SEARCH = 6
"""Searches with the whole question: the best on the same tasks (--player=one_search_2, ...)."""

HOPS = (2, 2)
"""Names that each clue which refers to another one is searched with, and hits of each search in
the answer: the best on the dev tasks of configs/search_cpu.py (--player=hops_2x1, ...).
"""

FAULTLESS = ExpertNoise(
  scales=(0.0,),
  whole_question=0.0,
  cut_query=0.0,
  guess=0.0,
  named=1.0,
  read=0.0,
  one_by_one=0.0,
  hasty=0.0,
  generous=0.0,
  max_tries=6,
)
"""The expert makes no mistakes and tries longer than the demonstrator, also with names in sight."""

_CLUE = re.compile(
  r"(?:^|(?<=\. ))\d+\. ([^:]*?)(?:: (.*?))?\.(?= \d+\. | Question: |$)", re.DOTALL
)
_N = r"([1-9]\d*)"
_HEURISTIC, _ONE_SEARCH = re.compile(rf"heuristic_{_N}x{_N}"), re.compile(rf"one_search_{_N}")
_HOPS = re.compile(rf"hops_{_N}x{_N}")


def clues(prompt: str) -> list[str]:
  """The descriptions in a question, without the clues that only refer to others: "2. Class holding
  1: <description>." and "2. Class: <description>; built on 1." have one, "3. Module holding 2."
  has none.
  """
  return [untied(description)[0] for _, description in _CLUE.findall(prompt) if description]


def player(name: str, task: Task, services: SearchServices, seed: int) -> Scripted | None:
  """An episode of a baseline; None if there is no player of this name.

  Names are those of `BASELINES`, "heuristic_SxH" (S searches for each clue, H hits of each in the
  answer), "hops_NxH" (each clue that refers to another one with N names, H hits of each search) and
  "one_search_S" (S searches with the whole question). A question without numbered clues is one
  clue.
  """
  if name == "expert":
    return make_player(task, services, FAULTLESS, seed)
  limits = services.limits
  if name == "guesser":
    guess = reward.answer(map(str, range(limits.max_documents)))
    return Scripted(make(task, services), services.chat, lambda context: guess)
  plan = _plan(name, task.prompt, limits)
  if plan is None:
    return None
  return Scripted(make(task, services), services.chat, Searcher(plan, services))


def is_plan(name: str) -> bool:
  """Whether the name is one of "heuristic_SxH", "hops_NxH" and "one_search_S"."""
  return any(form.fullmatch(name) for form in (_HEURISTIC, _HOPS, _ONE_SEARCH))


def _plan(name: str, prompt: str, limits: SearchConfig) -> Plan | HopPlan | None:
  name = {
    "heuristic": "heuristic_{}x{}".format(*HEURISTIC),
    "hops": "hops_{}x{}".format(*HOPS),
    "one_search": f"one_search_{ONE_SEARCH}",
  }.get(name, name)
  if found := _HEURISTIC.fullmatch(name):
    searches, listed = map(int, found.groups())
    return Plan(tuple(clues(prompt) or [prompt]) * searches, listed)
  if found := _HOPS.fullmatch(name):
    return HopPlan(prompt, _CLUE.findall(prompt) or [("", prompt)], *map(int, found.groups()))
  if found := _ONE_SEARCH.fullmatch(name):
    return Plan((prompt,) * int(found[1]), limits.max_shown)
  return None


class Searcher:
  """Carries a plan out, as many searches a turn as the context has room for."""

  def __init__(self, plan: Plan | HopPlan, services: SearchServices):
    self._plan, self._services = plan, services
    self._asked = 0  # searches of the last turn
    self._turns = 0

  def __call__(self, context: Context) -> Message:
    """The next turn: searches, with a prune of all in sight where they need the room."""
    limits = self._services.limits
    if self._asked:
      results = [message.content for message in _last_results(context.messages)]
      self._plan.learn(results[-self._asked :])
    self._turns += 1
    queries = self._plan.queries
    if not queries or self._turns >= limits.max_turns:
      return self._answer(context)
    calls: list[ToolCall] = []
    used = usage(context, self._services.chat)
    room = (limits.threshold_tokens - used) // limits.tool_output_tokens
    if room < 1 and limits.can_prune:
      shown = dict.fromkeys(
        i for m in context.messages if m.role == "tool" for i in reward.hit_ids(m.content)
      )
      if shown:
        calls.append(ToolCall("", "prune_chunks", {"chunk_ids": list(shown)}))
    elif room < 1 and used >= limits.threshold_tokens:
      return self._answer(context)
    wanted = max(1, min(room, limits.max_calls - len(calls)))
    calls += [ToolCall("", *search(query)) for query in queries[:wanted]]
    while calls:
      reply = Message("assistant", "", tuple(calls))
      tokens = self._services.chat.encode_reply(reply, context.messages)
      if len(tokens) <= context.max_new_tokens:
        self._asked = sum(call.name == "search_corpus" for call in calls)
        self._plan.ask(self._asked)
        return reply
      calls.pop()
    return self._answer(context)

  def _answer(self, context: Context) -> Message:
    """Lists as many of the ids as fit the reply."""
    ids = self._plan.listed[: self._services.limits.max_documents]
    while ids:
      reply = reward.answer(ids)
      tokens = self._services.chat.encode_reply(reply, context.messages)
      if len(tokens) <= context.max_new_tokens:
        return reply
      ids.pop()
    return Message("assistant", "No documents found")


def _last_results(messages: Sequence[Message]) -> Iterator[Message]:
  """The tool results after the last turn of the player."""
  last = max((i for i, m in enumerate(messages) if m.role == "assistant"), default=len(messages))
  return (message for message in messages[last:] if message.role == "tool")
