"""A gateway in a thread of its own, over a sampler that says what it is told."""

import asyncio
import contextlib
import dataclasses
import json
import threading

import numpy as np

from jaxrl_agents import chat as chat_lib
from jaxrl_agents.gateway.app import make_app
from jaxrl_agents.gateway.registry import Registry
from jaxrl_agents.gateway.server import Server
from jaxrl_agents.gateway.sessions import Limits, Served, Session
from jaxrl_agents.harness.rollout import Sampling
from jaxrl_agents.types import Generation, Message, ToolCall

SERVICE_KEY = "service key of the tests"
CHAT = chat_lib.load("base")


class Says:
  """A sampler that says `replies` (texts, messages, ids or exceptions) one after another, the last
  one for ever.

  The log-probability of token i of a reply is -i / 100, its version the number of the reply.
  """

  def __init__(self, *replies, delay_s=0.0):
    self.replies = [Message("assistant", r) if isinstance(r, str) else r for r in replies]
    self.delay_s, self.asked, self.players = delay_s, [], 0

  async def generate(self, prompt, limits):
    number = len(self.asked)
    self.asked.append((prompt, limits))
    await asyncio.sleep(self.delay_s)
    reply = self.replies[min(number, len(self.replies) - 1)]
    if isinstance(reply, Exception):
      raise reply
    tokens = reply if isinstance(reply, np.ndarray) else CHAT.encode_reply(reply)
    stop = "stop" if len(tokens) <= limits.max_new_tokens else "length"
    tokens = tokens[: limits.max_new_tokens]
    rows = len(prompt) + len(tokens) - limits.routed_tokens
    routing = np.full((rows, 1, 2), number, np.uint16)
    logprobs = -np.arange(len(tokens), dtype=np.float32) / 100
    versions = np.full(len(tokens), number, np.int32)
    return Generation(tokens, logprobs, versions, routing, stop)

  def playing(self, more):
    self.players += more


class Grows(Says):
  """Says replies token by token to whoever watches, and ends them where that one says so.

  `most` is how many tokens it says before `go` is set.
  """

  def __init__(self, *replies, most=10_000):
    super().__init__(*replies)
    self.most, self.go, self.said = most, threading.Event(), []

  async def watched(self, prompt, limits, watch):
    whole = await self.generate(prompt, limits)
    for n in range(1, len(whole.tokens) + 1):
      while n > self.most and not self.go.is_set():
        await asyncio.sleep(0.005)
      await asyncio.sleep(0.003)
      if watch(whole.tokens[:n], whole.versions[:n]):
        break
    self.said.append(n)
    first = lambda x: x[: len(x) - len(whole.tokens) + n]
    parts = {k: first(getattr(whole, k)) for k in ("tokens", "logprobs", "versions", "routing")}
    stop = whole.stop if n == len(whole.tokens) else "length"
    return dataclasses.replace(whole, stop=stop, **parts)


def calls(*pairs, text=""):
  """A reply that calls tools."""
  made = tuple(ToolCall("", name, arguments) for name, arguments in pairs)
  return Message("assistant", text, made)


@dataclasses.dataclass
class Gateway:
  """A running gateway. `run` runs a coroutine in its event loop."""

  url: str
  registry: Registry
  served: Served
  loop: asyncio.AbstractEventLoop

  def open(self, limits=Limits(), **changes):
    return self.registry.add(Session(dataclasses.replace(self.served, **changes), limits))

  def run(self, coroutine):
    return asyncio.run_coroutine_threadsafe(coroutine, self.loop).result(30)

  def left(self, session):
    """The trajectory of a session that ends now."""
    self.run(session.finish())
    return session.trajectory("t")


@contextlib.contextmanager
def serving(sampler, *, limits=Limits(), max_context_tokens=512, traffic=None, **sampling):
  """A gateway over a sampler while the context lasts."""
  served = Served(CHAT, sampler, Sampling(**sampling), max_context_tokens, training=True)
  registry, loop = Registry(), asyncio.new_event_loop()
  thread = threading.Thread(target=loop.run_forever, daemon=True)
  thread.start()
  app = make_app(registry, service_key=SERVICE_KEY, served=served, limits=limits, traffic=traffic)
  server = Server(app)
  gateway = Gateway("", registry, served, loop)
  gateway.run(server.start())
  gateway.url = server.url
  try:
    yield gateway
  finally:
    gateway.run(server.stop())
    loop.call_soon_threadsafe(loop.stop)
    thread.join(10)


def words(tokens):
  """The text of ids."""
  return CHAT.decode(tokens)


def tool(name="look"):
  """A function with one text argument, as the chat dialect declares it."""
  schema = {"type": "object", "properties": {"what": {"type": "string"}}}
  return {"type": "function", "function": {"name": name, "parameters": schema}}


def body(*messages, **fields):
  """A request of the chat dialect."""
  return json.dumps({"model": "m", "messages": list(messages), **fields}).encode()
