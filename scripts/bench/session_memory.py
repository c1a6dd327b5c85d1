"""Memory of a gateway that many sessions are opened at over HTTP, in a process of its own."""

import asyncio
import concurrent.futures
import gc
import json
import multiprocessing
import subprocess
import sys

import numpy as np
import psutil

from jaxrl_agents import chat as chat_lib
from jaxrl_agents.gateway.app import make_app
from jaxrl_agents.gateway.registry import KEPT_S, Registry
from jaxrl_agents.gateway.server import Server
from jaxrl_agents.gateway.sessions import Limits, Served
from jaxrl_agents.harness.rollout import Sampling
from jaxrl_agents.runs import entry_point
from jaxrl_agents.types import Generation, Message, SamplingLimits

CLIENT_S, PROCESS_S = 300.0, 1_800.0
"""Most seconds for the sessions of one client, and for all of them."""

HELD_S = Limits().ttl_s + Limits().reward_s + KEPT_S + 1.0
"""Seconds after which a gateway has forgotten a session."""

KEY = "service key"
CLIENT = """
import http.client, json, sys
host, port, service_key, sessions, is_used = json.load(sys.stdin)
def post(path, body, key):
  head = {"authorization": "Bearer " + key, "content-type": "application/json"}
  connection.request("POST", path, json.dumps(body), head)
  reply = connection.getresponse()
  found = json.loads(reply.read())
  assert reply.status == 200, found
  return found
for i in range(sessions):
  connection = http.client.HTTPConnection(host, port, timeout=60)
  opened = post("/sessions", {"task_id": f"task {i}"}, service_key)
  if is_used:
    messages = [{"role": "user", "content": f"Find the function that joins {i} paths."}]
    for _ in range(2):
      body = {"model": "m", "messages": messages}
      found = post("/v1/chat/completions", body, opened["api_key"])
      messages += [found["choices"][0]["message"], {"role": "user", "content": "Go on."}]
    place = "/sessions/" + opened["session_id"]
    post(place + "/rewards", {"parts": {"reward": 1.0}}, opened["control_key"])
    post(place + "/finish", {}, opened["control_key"])
  connection.close()
"""


class AtOnce:
  """A sampler that answers at once with a word."""

  def __init__(self, tokens: np.ndarray):
    self._tokens = tokens

  async def generate(self, prompt: np.ndarray, limits: SamplingLimits) -> Generation:
    """The word."""
    n = len(self._tokens)
    return Generation(self._tokens, np.zeros(n, np.float32), np.zeros(n, np.int32), None, "stop")

  def playing(self, more: int) -> None:
    """Nobody waits."""


def null(chat: chat_lib.Chat) -> Served:
  """What serves sessions whose replies cost nothing."""
  quick = AtOnce(chat.encode_reply(Message("assistant", "x")))
  return Served(chat, quick, Sampling(), 1 << 20, training=True)


def measure(
  tokenizer: str, thinking: str, *, sessions: int = 1_000, rounds: int = 4
) -> dict[str, float]:
  """KiB of the resident memory of a server for each session that is opened at it.

  Returns `session_kib` of a session that waits, `kept_session_kib` of one that was used for two
  calls, rewarded and finished, and is kept, and `growth_kib` of a further one of that kind, for
  which an old one is forgotten.

  Args:
    tokenizer, thinking: of the chat format.
    sessions: opened one after another, first those that wait, then in each round used ones.
    rounds: of which `growth_kib` is the mean. The clock of the server jumps between them.
  """
  spawn = multiprocessing.get_context("spawn")
  with concurrent.futures.ProcessPoolExecutor(1, mp_context=spawn) as pool:
    asked = pool.submit(in_this_process, tokenizer, thinking, sessions, rounds)
    return asked.result(timeout=PROCESS_S)


def in_this_process(tokenizer: str, thinking: str, sessions: int, rounds: int) -> dict[str, float]:
  """`measure`, with a server in this process."""
  entry_point.limit_malloc_arenas()
  return asyncio.run(_measure(null(chat_lib.load(tokenizer, thinking)), sessions, rounds))


async def _measure(served: Served, sessions: int, rounds: int) -> dict[str, float]:
  now_s = 0.0
  server = Server(make_app(Registry(lambda: now_s), service_key=KEY, served=served))
  await server.start()
  await _opened(server.url, 20, is_used=True)  # what is made once is made
  sizes = [_resident_kib()]
  await _opened(server.url, sessions, is_used=False)
  sizes.append(_resident_kib())
  await _opened(server.url, sessions, is_used=True)
  sizes.append(_resident_kib())
  for _ in range(rounds + 1):
    now_s += HELD_S  # with the first session all of before are forgotten, idle ones in round 0 too
    await _opened(server.url, sessions, is_used=True)
    sizes.append(_resident_kib())
  await server.stop()
  return {
    "session_kib": (sizes[1] - sizes[0]) / sessions,
    "kept_session_kib": (sizes[2] - sizes[1]) / sessions,
    "growth_kib": (sizes[-1] - sizes[3]) / sessions / rounds,
  }


async def _opened(url: str, sessions: int, *, is_used: bool) -> None:
  """Opens sessions by a client in another process."""
  host, port = url.removeprefix("http://").split(":")
  told = json.dumps([host, int(port), KEY, sessions, is_used])
  client = await asyncio.create_subprocess_exec(
    sys.executable, "-c", CLIENT, stdin=subprocess.PIPE, stdout=subprocess.PIPE
  )
  try:
    async with asyncio.timeout(CLIENT_S):
      await client.communicate(told.encode())
  finally:
    if client.returncode is None:
      client.kill()
  if client.returncode:
    raise RuntimeError("the client failed, see above")


def _resident_kib() -> float:
  gc.collect()
  return psutil.Process().memory_info().rss / 1024
