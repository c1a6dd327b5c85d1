"""Random histories of agents through sessions of the gateway, and what must hold of what is left.

`play` is one session of one agent, which edits, forgets, forks, compacts, repeats and asks at the
same time; `problems` compares what would be trained with what was sampled. scripts/fuzz_gateway.py
plays thousands of them, and test_histories.py some.
"""

import asyncio
import collections
import copy
import dataclasses
import json
import pathlib
import random

import numpy as np

from jaxrl_agents import chat as chat_lib
from jaxrl_agents.gateway.requests import Refusal
from jaxrl_agents.gateway.sessions import Limits, Served, Session
from jaxrl_agents.harness.rollout import Sampling
from jaxrl_agents.types import NOT_ROUTED, Generation, Message, ToolCall
from tests.chat import families
from tests.gateway.agent_wire import (
  SYSTEM,
  ChatAgent,
  MessagesAgent,
  ResponsesAgent,
  as_javascript,
  written_anew,
)

TEXTS = ("yes", "no", "maybe so", "", "ünïcode ok", "yes\n\nno", " spaced ", "Stop here, now")
VALUES = (0, 3, 1.0, 2.5, 1e30, 2**53 + 1, "é", 'say "x"', None, True, [1, {"b": 2.0, "a": 1}])
TOOLS = ("look", "go")
CONTEXT_TOKENS = 2_048
MOST_CALLS, REPLY_TOKENS = 25, 64
_ODD = np.random.default_rng(0).integers(0, 2**63, 2 * CONTEXT_TOKENS, np.uint64) * 2 + 1


class Says:
  """A sampler that says whatever a policy may: texts, thoughts, calls, broken ones, any tokens.

  Each sampled token has a log-probability of its own, and rows of experts name their generation.
  """

  def __init__(self, chat, draw):
    self.chat, self.draw, self.drawn, self.count = chat, draw, 0, 0

  async def generate(self, prompt, limits):
    number, self.count = self.count, self.count + 1
    tokens = self._tokens(limits)
    for _ in range(self.draw.choice((0, 0, 1, 3, 9))):
      await asyncio.sleep(0)
    n = len(tokens)
    logprobs = -np.arange(self.drawn, self.drawn + n, dtype=np.float32) / 1024
    self.drawn += n
    rows = np.full((len(prompt) + n - limits.routed_tokens, 1, 1), number, np.uint16)
    rows[-1] = NOT_ROUTED  # the last token was sampled, and not read
    stop = "stop" if int(tokens[-1]) in limits.stop_tokens else "length"
    return Generation(tokens, logprobs, np.full(n, number, np.int32), rows, stop)

  def playing(self, more):
    """Nobody waits."""

  def _tokens(self, limits):
    draw, chat = self.draw, self.chat
    kind = draw.random()
    if kind < 0.15:  # whatever a policy that has learned nothing says
      tokens = np.asarray([draw.randrange(chat.vocab_size) for _ in range(draw.randint(1, 12))])
    elif kind < 0.3:  # ids that the tokenizer would not choose
      parts = [chat.encode(letter) for letter in draw.choice(TEXTS)]
      tokens = np.concatenate([*parts, np.asarray(chat.stop_tokens[:1])])
    else:
      tokens = chat.encode_reply(self._message())
      if kind < 0.4 and len(tokens) > 3:  # something is missing
        tokens = np.delete(tokens, draw.randrange(len(tokens) - 1))
    tokens = tokens.astype(np.int32)
    ends = np.flatnonzero(np.isin(tokens, limits.stop_tokens))
    if len(ends):
      return tokens[: ends[0] + 1][: limits.max_new_tokens]
    if len(tokens) < limits.max_new_tokens:
      tokens = np.append(tokens, np.int32(limits.stop_tokens[0]))
    return tokens[: limits.max_new_tokens]

  def _message(self):
    draw = self.draw
    made = ()
    if draw.random() < 0.5:
      arguments = lambda: {
        draw.choice("abé"): draw.choice(VALUES) for _ in range(draw.randint(0, 3))
      }
      made = tuple(ToolCall("", draw.choice(TOOLS), arguments()) for _ in range(draw.randint(1, 2)))
    thought = draw.choice(("", "", "hm", "think\nso"))
    return Message("assistant", draw.choice(TEXTS), made, reasoning=thought)


@dataclasses.dataclass
class Branch:
  """A history of the agent.

  Attributes:
    items: as the dialect sends them.
    marks: (number of items, call) after each reply whose history and text still stand as they were.
    tools: that are offered.
  """

  items: list
  marks: list
  tools: tuple = TOOLS

  def copy(self):
    return Branch(copy.deepcopy(self.items), list(self.marks), self.tools)


@dataclasses.dataclass
class Played:
  """A session, and what its agent knows.

  Attributes:
    trajectory: what the session left.
    taken: ids of the calls whose replies the agent got.
    expected: {id of a call: tokens of the call that it goes on from}.
    counts: how often what happened.
    scripted: whether the replies are, and rows of experts name their generation.
  """

  session: Session
  trajectory: object
  taken: set
  expected: dict
  counts: collections.Counter
  scripted: bool


@dataclasses.dataclass
class _Asked:
  branch: Branch
  asked: object
  task: asyncio.Task
  name: str
  expected: object
  repeated: asyncio.Task | None = None


class _Agent:
  """One agent with its branches and the requests that are under way."""

  def __init__(self, session, wire, draw):
    self.session, self.wire, self.draw = session, wire, draw
    self.counts, self.taken, self.expected = collections.Counter(), set(), {}
    self.under_way, self.number = [], 0
    first = [{"role": SYSTEM, "content": "Be an agent."}, *wire.user("begin")]
    self.branches = [Branch(first, [])]

  async def play(self):
    for _ in range(self.draw.randint(3, MOST_CALLS)):
      self.ask()
      while self.under_way and (len(self.under_way) > 3 or self.draw.random() < 0.7):
        await self.take(self.under_way.pop(self.draw.randrange(len(self.under_way))))
    while self.under_way:
      await self.take(self.under_way.pop())

  def ask(self):
    draw, wire = self.draw, self.wire
    branch = draw.choice(self.branches[-6:]).copy()
    self.change(branch)
    n = 2 if wire.route == ChatAgent.route and draw.random() < 0.1 else 1
    stop = ["here"] if draw.random() < 0.15 else []
    most = draw.choice((4, REPLY_TOKENS, REPLY_TOKENS, REPLY_TOKENS))
    body = wire.body(branch.items, branch.tools, most, stop, n)
    asked = wire.dialect.parse(json.loads(json.dumps(body)), self.session.served.chat)
    self.number += 1
    name = f"request {self.number}"
    task = self.session.begin(asked.request, name)
    expected = branch.marks[-1][1] if branch.marks else None
    again = None
    if draw.random() < 0.1:  # the connection broke, and the client repeats its request
      self.counts["repeated"] += 1
      again = self.session.begin(asked.request, name, repeated=True)
    self.counts["requests"] += 1
    self.under_way.append(_Asked(branch, asked, task, name, expected, again))

  async def take(self, under_way):
    draw, branch = self.draw, under_way.branch
    try:
      replies = await under_way.task
    except Refusal as refusal:
      if refusal.status != 400:
        raise
      self.counts["refused"] += 1
      return
    if under_way.repeated is not None:
      assert await under_way.repeated is replies
    if under_way.expected is not None:
      for reply in replies:
        self.expected[reply.id] = under_way.expected
    if draw.random() < 0.1:  # the agent never learns of the reply
      self.counts["lost"] += 1
      return
    self.session.delivered(replies)
    self.taken |= {reply.id for reply in replies}
    body = json.loads(json.dumps(self.wire.dialect.body_of(under_way.asked, replies)))
    for i, reply in enumerate(replies):
      grown = branch.copy()
      grown.items += self.kept(self.wire.said(body, i))
      grown.marks.append((len(grown.items), reply))
      ids = [each[0] for item in self.wire.said(body, i) for each in self.wire.calls(item)]
      if ids:
        grown.items += self.wire.results(ids, [draw.choice(("r", "nothing", "")) for _ in ids])
      if not ids or draw.random() < 0.1:
        grown.items += self.wire.user(draw.choice(("more", "go on", "why?")))
      self.branches.append(grown)

  def kept(self, items):
    """A reply as the agent keeps it: the same, in other words."""
    draw, items = self.draw, copy.deepcopy(items)
    if draw.random() < 0.4:
      items = self.wire.without_thought(items)
    if draw.random() < 0.4:
      items = self.wire.in_other_words(items, draw)
    if draw.random() < 0.4:
      for item in items:
        for _, text, write in self.wire.calls(item):
          write(written_anew(text, draw))
    return items

  def change(self, branch):
    """What agents do to histories before they send them; marks keep what still stands."""
    draw, items = self.draw, branch.items
    kind = draw.choices(
      ("none", "edit", "compact", "fork", "prune", "own", "system", "no tools"),
      (12, 2, 1, 2, 1, 1, 1, 1),
    )[0]
    place = draw.randrange(1, len(items))
    self.counts[kind] += 1
    if kind == "edit":
      self.wire.edit(items[place], f"edited {draw.random():.3f}")
    elif kind == "compact":
      items[1:] = self.wire.user(f"summary {draw.random():.3f}")
    elif kind == "fork":
      del items[place + 1 :]
      if self.wire.is_assistant(items[-1]):
        items += self.wire.user("else?")
      branch.marks = [mark for mark in branch.marks if mark[0] <= place + 1]
    elif kind == "prune" and len(items) > 2:
      del items[place]
      if self.wire.is_assistant(items[place - 1]):  # two turns of a policy in a row are one
        items[place:place] = self.wire.user("else?")
    elif kind == "own":  # words in the mouth of the policy
      items += self.wire.assistant(draw.choice(TEXTS)) + self.wire.user("more")
    elif kind == "system":
      items[0]["content"] = draw.choice(("Be small.", "Be an agent. "))
    elif kind == "no tools":
      branch.tools = ()
    if kind in ("edit", "prune"):
      branch.marks = [mark for mark in branch.marks if mark[0] <= place]
    if kind in ("compact", "system", "no tools"):
      branch.marks = []


def chats(folder):
  """A chat of each format, by name; tokenizers are written to `folder`."""
  made = {"own": chat_lib.load("base")}
  for name in families.FAMILIES:
    made[name] = families.load(pathlib.Path(folder) / name, name)
  return made


AGENTS = (ChatAgent, MessagesAgent, ResponsesAgent)


async def play(seed, chat, sampler=None):
  """One session of one agent; what it says is scripted if there is no sampler."""
  draw = random.Random(seed)
  sampling = Sampling(max_new_tokens=REPLY_TOKENS, seed=seed)
  served = Served(chat, sampler or Says(chat, draw), sampling, CONTEXT_TOKENS, training=True)
  session = Session(served, Limits(), id=f"s{seed}")
  agent = _Agent(session, draw.choice(AGENTS)(), draw)
  await agent.play()
  await session.finish()
  left = session.trajectory("t")
  agent.counts |= {
    "sampled_tokens": int(left.metrics["sampled_tokens"]),
    "trained_tokens": int(left.metrics["trained_tokens"]),
    "segments": len(left.segments),
  }
  return Played(session, left, agent.taken, agent.expected, agent.counts, sampler is None)


def problems(played):
  """What is wrong with what a session left, as sentences; nothing if each sampled token that the
  agent got is trained once, under the ids that it was sampled after, and no other token is."""
  calls = {call.id: call for call in played.session.tree.calls}
  segments = played.trajectory.segments
  found = [played.trajectory.error] if played.trajectory.error else []
  trained = collections.Counter()
  for segment in segments:
    if played.scripted:
      found += _wrong_experts(segment, calls)
    heads = _heads(segment.tokens)
    for i in np.flatnonzero(segment.loss_mask):
      trained[heads[i], float(segment.logprobs[i]), int(segment.versions[i])] += 1
  with_tools = any(call.tools for call in calls.values())
  least, most, names = collections.Counter(), collections.Counter(), {}
  sent_back = _sent_back(calls.values())
  for call in calls.values():
    side = with_tools and not call.tools
    must = not side and call.id in played.taken
    may = not side and (must or call.id in sent_back)
    heads, first, made = _heads(call.tokens), len(call.turn.prompt), call.turn.generation
    for i, (logprob, version) in enumerate(zip(made.logprobs, made.versions, strict=True)):
      key = heads[first + i], float(logprob), int(version)
      names[key] = call.id
      least[key] += must
      most[key] += may
  for key, count in trained.items():
    if key not in names:
      found.append("a token is trained that was never sampled so")
    elif count > most[key]:
      found.append(f"a token of call {names[key]} is trained {count} times, not {most[key]}")
  missing = {names[key] for key, count in least.items() if trained[key] < count}
  found += [f"tokens of call {call} are not trained" for call in sorted(missing)]
  for id, reply in played.expected.items():
    prompt = calls[id].turn.prompt
    if not any(_begins(c.tokens, prompt) for c in calls.values() if _same(c, calls[reply.id])):
      found.append(f"call {id} goes on from {reply.id} but does not begin with its ids")
  return found


def _heads(tokens):
  """A number for the tokens up to each position, that position's included: a sum of random odd
  multiples, which two prefixes share by a chance of one in 2^63."""
  return np.cumsum((np.asarray(tokens, np.uint64) + np.uint64(1)) * _ODD[: len(tokens)]).tolist()


def _sent_back(calls):
  """Ids of the calls whose tokens begin the prompt of another."""
  return {a.id for a in calls for b in calls if _begins(a.tokens, b.turn.prompt)}


def _begins(tokens, prompt):
  n = len(tokens)
  return n <= len(prompt) and tokens[-1] == prompt[n - 1] and np.array_equal(tokens, prompt[:n])


def _same(a, b):
  """Whether an agent that keeps no thoughts cannot tell the replies of two calls apart."""
  said = lambda call: (
    [(m.role, m.content.strip()) for m in (*call.history, call.reply)],
    [as_javascript(dict(each.arguments)) for each in call.reply.tool_calls],
  )
  return a is b or said(a) == said(b)


def _wrong_experts(segment, calls):
  """Experts of a segment that come from no call which read the same tokens."""
  if segment.routing is None:
    return []
  heads = {int(c.turn.generation.versions[0]): _heads(c.tokens) for c in calls.values()}
  own, numbers = _heads(segment.tokens), segment.routing[:, 0, 0].tolist()
  for i, number in enumerate(numbers[:-1]):
    if number == NOT_ROUTED:
      return [f"token {i} of {len(numbers)} has no experts"]
    if heads[number][i : i + 1] != own[i : i + 1]:
      return [f"token {i} has the experts of a call that did not read it"]
  return []
