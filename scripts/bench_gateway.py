"""What the gateway costs beside the engine that it serves.

    python scripts/bench_gateway.py --config=configs/search_cpu.py --json=FILE

Prints `throughput_share` (tokens/s of --sessions agents over HTTP, in a process of their own, over
those of the same requests made to the engine directly), `call_ms` (median of a call to a sampler
that answers at once, the client's part in it), `first_text_ms` and `streamed_ms` (medians of the
time to the first text and to the end of a streamed reply to one agent), `first_token_ms` (median of
the time to the first tokens of such a reply from the engine directly; 20 streams and 20 such
requests alternate), `first_overhead_ms` (the difference), `match_ms` (finding the replies in a
history of 200 turns), and of a server's resident memory `session_kib` (of each of 1,000 idle
sessions that were opened over HTTP), `kept_session_kib` (of each of 1,000 short ones that were used
and finished, and are kept for their rewards) and `growth_kib` (with each of 4,000 further ones, for
which old ones are forgotten: 0 if the memory does not grow).
"""

import asyncio
import dataclasses
import json
import pathlib
import statistics
import subprocess
import sys
import time

import numpy as np
from absl import flags
from bench import session_memory

from jaxrl_agents import chat as chat_lib
from jaxrl_agents.gateway.app import make_app
from jaxrl_agents.gateway.registry import Registry
from jaxrl_agents.gateway.server import Server
from jaxrl_agents.gateway.sessions import Limits, Served, Session
from jaxrl_agents.gateway.token_tree import Call, TokenTree
from jaxrl_agents.harness.rollout import generate
from jaxrl_agents.harness.segments import Turn
from jaxrl_agents.runs import config_flags, entry_point, evaluation, setup
from jaxrl_agents.runs.engines import make_engine
from jaxrl_agents.runs.serving import EngineSampler
from jaxrl_agents.types import Generation, Message, SamplingLimits

_config = config_flags.define()
_SESSIONS = flags.DEFINE_integer("sessions", 64, "agents at once")
_CALLS = flags.DEFINE_integer("calls", 4, "requests of each, with a history that grows")
_TOKENS = flags.DEFINE_integer("tokens", 64, "tokens of each reply")
_ROUNDS = flags.DEFINE_integer("rounds", 3, "rounds, in which gateway and engine alternate")
_JSON = flags.DEFINE_string("json", None, "also write the figures to this file")

CLIENT = """
import concurrent.futures, http.client, json, statistics, sys, time
host, port, calls, tokens, keys = json.load(sys.stdin)
def agent(key):
  connection, times = http.client.HTTPConnection(host, port, timeout=600), []
  messages = [{"role": "user", "content": "Find the function that joins two paths."}]
  head = {"authorization": "Bearer " + key, "content-type": "application/json"}
  for _ in range(calls):
    began = time.perf_counter()
    body = json.dumps({"model": "m", "messages": messages, "max_tokens": tokens})
    connection.request("POST", "/v1/chat/completions", body, head)
    reply = json.loads(connection.getresponse().read())
    times.append(time.perf_counter() - began)
    messages += [{**reply["choices"][0]["message"]}, {"role": "user", "content": "Go on."}]
  return times
with concurrent.futures.ThreadPoolExecutor(len(keys)) as pool:
  print(json.dumps([t for each in pool.map(agent, keys) for t in each]))
"""

STREAMS = """
import http.client, json, sys, time
host, port, calls, tokens, (key,) = json.load(sys.stdin)
connection, times = http.client.HTTPConnection(host, port, timeout=600), []
head = {"authorization": "Bearer " + key, "content-type": "application/json"}
for i in range(calls):
  body = {"model": "m", "prompt": f"{time.time()}. Class: a", "max_tokens": tokens, "stream": True}
  began = time.perf_counter()
  connection.request("POST", "/v1/completions", json.dumps(body), head)
  arrived = [time.perf_counter() - began for line in connection.getresponse() if line.strip()]
  times.append((arrived[0], arrived[-1]))
print(json.dumps(times))
"""


async def over_http(served: Served, sessions: int, calls: int, tokens: int, client: str = CLIENT):
  """(trajectories, seconds of each call, wall seconds) of agents in another process."""
  registry = Registry()
  server = Server(make_app(registry, service_key="k"))
  await server.start()
  opened = [registry.add(Session(served, Limits())) for _ in range(sessions)]
  host, port = server.url.removeprefix("http://").split(":")
  told = json.dumps([host, int(port), calls, tokens, [session.key for session in opened]])
  began = time.perf_counter()
  process = await asyncio.create_subprocess_exec(
    sys.executable, "-c", client, stdin=subprocess.PIPE, stdout=subprocess.PIPE
  )
  out, _ = await process.communicate(told.encode())
  wall_s = time.perf_counter() - began
  await server.stop()
  return [session.trajectory("t") for session in opened], json.loads(out), wall_s


async def directly(served: Served, sessions: int, calls: int, tokens: int):
  """(tokens, wall seconds) of the same requests without HTTP, sessions and trees."""
  sampled = 0

  async def agent(number: int) -> None:
    nonlocal sampled
    messages = [Message("user", "Find the function that joins two paths.")]
    for turn in range(calls):
      prompt = served.chat.render(messages)
      seed = number * calls + turn
      limits = SamplingLimits(
        tokens, served.chat.stop_tokens, served.sampling.temperature, seed=seed
      )
      generation = await served.sampler.generate(prompt, limits)
      sampled += len(generation.tokens)
      reply = served.chat.parse(generation.tokens)
      messages += [reply, Message("user", "Go on.")]

  began = time.perf_counter()
  await asyncio.gather(*(agent(i) for i in range(sessions)))
  return sampled, time.perf_counter() - began


async def first_tokens_s(served: Served, calls: int, tokens: int) -> list[float]:
  """Seconds until the engine itself has the first tokens of requests as those of `STREAMS`."""
  times = list[float]()
  for i in range(calls):
    prompt = served.chat.encode(f"{time.time()}. Class: a")
    limits = SamplingLimits(tokens, served.chat.stop_tokens, served.sampling.temperature, seed=i)
    began, seen = time.perf_counter(), list[float]()

    def watch(tokens: np.ndarray, versions: np.ndarray, seen: list[float] = seen) -> bool:
      seen.append(time.perf_counter())
      return False

    await generate(served.sampler, prompt, limits, watch)
    times.append(seen[0] - began)
  return times


def match_ms(chat: chat_lib.Chat, turns: int = 200) -> float:
  """Milliseconds of processor time to find replies in a history, and the call that it extends."""
  tree, history, times = TokenTree(), [Message("user", "begin")], []
  for i in range(turns):
    began = time.process_time()
    prompt = chat.render(tree.with_ids(history))
    tree.parent_of(prompt)
    times.append(time.process_time() - began)
    tokens = chat.encode_reply(Message("assistant", f"reply {i}"))
    n = len(tokens)
    found = Generation(tokens, np.zeros(n, np.float32), np.zeros(n, np.int32), None, "stop")
    reply = Message("assistant", f"reply {i}", tokens=tokens)
    tree.add(Call(str(i), tuple(history), (), Turn(prompt, found), reply))
    history += [Message("assistant", f"reply {i}"), Message("user", f"go on {i}")]
  return 1e3 * statistics.median(times[-10:])


async def measure(served: Served, null: Served) -> dict[str, float]:
  """All figures but those of memory."""
  size = _SESSIONS.value, _CALLS.value, _TOKENS.value
  shares, speeds = [], []
  for _ in range(_ROUNDS.value):
    left, _, http_s = await over_http(served, *size)
    sampled, direct_s = await directly(served, *size)
    speeds.append(sum(t.metrics["sampled_tokens"] for t in left) / http_s)
    shares.append(speeds[-1] / (sampled / direct_s))
  _, call_s, _ = await over_http(null, 1, 200, 4)
  asked = dataclasses.replace(served, training=False)  # as scripts/serve.py
  streamed, firsts = list[tuple[float, float]](), list[float]()
  for _ in range(_ROUNDS.value):
    _, times, _ = await over_http(asked, 1, 20, _TOKENS.value, STREAMS)
    streamed += times
    firsts += await first_tokens_s(asked, 20, _TOKENS.value)
  first_s, whole_s = (statistics.median(each) for each in zip(*streamed, strict=True))
  token_s = statistics.median(firsts)
  return {
    "tokens_per_s": statistics.median(speeds),
    "throughput_share": statistics.median(shares),
    "call_ms": 1e3 * statistics.median(call_s),
    "first_text_ms": 1e3 * first_s,
    "streamed_ms": 1e3 * whole_s,
    "first_token_ms": 1e3 * token_s,
    "first_overhead_ms": 1e3 * (first_s - token_s),
    "match_ms": match_ms(served.chat),
  }


def main() -> None:
  """Measures and prints."""
  config = _config()
  setup.compilation_cache(config)
  chat = chat_lib.load(config.policy.tokenizer, config.policy.thinking)
  with setup.devices(config):
    engine = make_engine(
      config, setup.loaded(config, str(evaluation.newest_policy(config.policy.init))), version=0
    )
    engine.warm_up()

    async def run() -> dict[str, float]:
      with EngineSampler(engine, asyncio.get_running_loop()).running() as sampler:
        budget = config.agent_config.token_budget
        served = Served(chat, sampler, setup.sampling(config, 0), budget, training=True)
        return await measure(served, session_memory.null(chat))

    found = asyncio.run(run())
  found |= session_memory.measure(config.policy.tokenizer, config.policy.thinking)
  for name, value in found.items():
    print(f"{name:20} {value:,.3f}")
  if _JSON.value:
    pathlib.Path(_JSON.value).write_text(json.dumps(found, indent=2) + "\n")


if __name__ == "__main__":
  entry_point.run(main)
