"""Serves an environment of `verifiers` to a training run: its tasks, and rollouts with rewards.

    python -m venv V && V/bin/pip install verifiers==0.4.0 reasoning-gym==0.1.25
    V/bin/python examples/verifiers_env/server.py --env=examples/verifiers_env/divisors.toml

Runs in a Python environment of its own, and never imports jaxrl_agents. `GET /tasks` gives the
tasks as JSON lines, for `external.tasks`. `POST /` is the `external.hook`: it plays one task with
the agent of the environment, whose model is the address in the body, attaches the rewards, and ends
the session. An error of verifiers ends it as an error, never as a reward of 0.
"""

import argparse
import asyncio
import http.server
import itertools
import json
import math
import pathlib
import sys
import threading
import tomllib
import urllib.error
import urllib.request

import verifiers.v1 as vf

EPISODES = 256
"""Rollouts after which the resources of an environment are renewed: it keeps a client for each."""

TRIES, TRY_S = 3, 30.0
"""How often, and for how many seconds, the session is told of its rewards and its end."""


class Serving:
  """An environment with its resources. Invariant: they last while a rollout uses them."""

  def __init__(self, config: vf.EnvConfig):
    self.env = vf.load_environment(config)
    self.begun = self._running = 0
    self._ready = asyncio.get_running_loop().create_future()
    self._over = asyncio.Event()
    self._task = asyncio.create_task(self._serve())

  async def _serve(self) -> None:
    try:
      async with self.env.serving():
        self._ready.set_result(None)
        await self._over.wait()
    except Exception as error:
      if self._ready.done():
        raise
      self._ready.set_exception(error)

  async def play(self, task: vf.Task, model: vf.ModelContext) -> vf.Episode:
    """One rollout of a task."""
    self.begun += 1
    self._running += 1
    try:
      await asyncio.shield(self._ready)
      return await self.env.run_episode(task, model)
    finally:
      self._running -= 1
      if self.begun >= EPISODES and not self._running:
        self._over.set()


class Player:
  """Plays tasks of one environment. Lives in the event loop."""

  def __init__(self, config: vf.EnvConfig, limit: int | None):
    self._config = config
    self._serving = Serving(config)
    taskset = self._serving.env.taskset
    if limit is None and taskset.INFINITE:
      raise ValueError(f"taskset {config.taskset.id} is infinite; bound it with --tasks")
    self.tasks = list(itertools.islice(taskset, limit))

  def rows(self) -> list[dict]:
    """The tasks as rows of `external.tasks`; what verifiers knows of one is its gold."""
    return [
      {
        "id": f"{self._config.env_id} {i}",
        "prompt": task.data.prompt_text or task.data.description or f"task {i}",
        "index": i,
        "gold": task.data.model_dump(mode="json", exclude_defaults=True),
      }
      for i, task in enumerate(self.tasks)
    ]

  async def play(self, told: dict) -> None:
    """Plays what the body of a hook asks for, and tells its session how it ended."""
    end = {}
    try:
      async with asyncio.timeout(told["timeout_s"]):
        parts = await self._rewards(told)
      await asyncio.to_thread(tell, told, "rewards", {"parts": parts, "event_id": "verifiers"})
    except Exception as error:
      end = {"error": f"verifiers: {type(error).__name__}: {error}"[:2_000]}
    try:
      await asyncio.to_thread(tell, told, "finish", end)
    except OSError as error:  # the training run ended it at its deadline, or is gone
      print(f"{told['task']['id']}: {end.get('error', '')} {error}", file=sys.stderr, flush=True)

  async def _rewards(self, told: dict) -> dict[str, float]:
    # Clients of verifiers read keys from variables, of which there is one for the whole process,
    # so that the key of the session is in the path.
    url = told["base_url"].removesuffix("/v1") + f"/s/{told['api_key']}/v1"
    client = vf.EvalClientConfig(base_url=url, api_key_var="NO_API_KEY")
    if self._serving.begun >= EPISODES:
      self._serving = Serving(self._config)
    task = self.tasks[told["task"]["index"]]
    episode = await self._serving.play(task, vf.ModelContext(model="policy", client=client))
    return rewards_of(episode, url)


def rewards_of(episode: vf.Episode, url: str) -> dict[str, float]:
  """The parts of the reward: "reward" is the weighted sum, which is trained; the others are the
  scores and metrics by name.

  Raises:
    ValueError: the session of address `url` cannot be trained on this episode.
  """
  errors = [*episode.errors, *(error for trace in episode.traces for error in trace.errors)]
  if errors or not episode.ok:  # after a retry, too: the session has the calls of both attempts
    said = "; ".join(f"{error.type}: {error.message}" for error in errors[-3:])
    raise ValueError(said or "the episode is not ok")
  for agent in (trace.agent for trace in episode.traces):
    if not agent.trainable and agent.config.client.base_url == url:
      raise ValueError(f"agent {agent.name} is frozen; give it a model by env.{agent.name}.client")
  trained = [trace for trace in episode.traces if trace.agent.trainable]
  if len(trained) != 1:
    raise ValueError(f"{len(trained)} trained agents played, and a session is of one")
  (trace,) = trained
  unknown = [name for name, reward in trace.rewards.items() if reward is None]
  if unknown or not trace.rewards:
    raise ValueError(f"the task gave no {', '.join(unknown) or 'reward'}")
  parts = {name: value for name, value in trace.metrics.items() if value is not None}
  parts |= {name: reward.score for name, reward in trace.rewards.items()}
  parts["reward"] = trace.reward
  if odd := {name: value for name, value in parts.items() if not math.isfinite(value)}:
    named = ", ".join(f"parts.{name}={value}" for name, value in odd.items())
    raise ValueError(f"{named} is not finite; let the task raise where it cannot judge")
  return parts


def tell(told: dict, what: str, content: dict) -> None:
  """One request to the control plane of the session.

  Raises:
    OSError: it was refused, or nobody answered.
  """
  head = {"authorization": f"Bearer {told['control_key']}"}
  url, body = f"{told['control_url']}/{what}", json.dumps(content).encode()
  for i in range(TRIES):
    try:
      request = urllib.request.Request(url, body, head)
      with urllib.request.urlopen(request, timeout=TRY_S) as reply:
        reply.read()
      return
    except urllib.error.HTTPError as error:
      raise OSError(f"{error}: {error.read(2_000).decode('utf-8', 'replace')}") from error
    except OSError:
      if i == TRIES - 1:
        raise


def handler(player: Player, loop: asyncio.AbstractEventLoop) -> type:
  """The HTTP handler, which hands rollouts to the event loop."""
  rows = player.rows()

  class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self) -> None:
      if self.path != "/tasks":
        return self._answer(404, "only GET /tasks and POST / are here")
      self._answer(200, "".join(json.dumps(row) + "\n" for row in rows))

    def do_POST(self) -> None:
      try:
        told = json.loads(self.rfile.read(int(self.headers["content-length"])))
        index, name = told["task"]["index"], told["task"]["id"]
        if rows[index]["id"] != name:
          raise ValueError(f"task {index} is {rows[index]['id']!r} here, not {name!r}")
      except (ValueError, KeyError, IndexError, TypeError) as error:
        return self._answer(400, f"{type(error).__name__}: {error}; is this another taskset?")
      asyncio.run_coroutine_threadsafe(player.play(told), loop)
      self._answer(202, "started")

    def _answer(self, status: int, text: str) -> None:
      body = text.encode()
      self.send_response(status)
      self.send_header("content-length", str(len(body)))
      self.end_headers()
      self.wfile.write(body)

    def log_message(self, *arguments: object) -> None:
      pass

  return Handler


class Server(http.server.ThreadingHTTPServer):
  """A thread for each request. All rollouts of a step connect at once (`external.at_once`), and a
  connection that finds the queue full is reset, which fails its rollout.
  """

  request_queue_size = 1_024


async def serve(config: vf.EnvConfig, host: str, port: int, limit: int | None) -> None:
  """Serves until the process is ended."""
  player = Player(config, limit)
  here = handler(player, asyncio.get_running_loop())
  server = Server((host, port), here)
  threading.Thread(target=server.serve_forever, daemon=True).start()
  print(f"{len(player.tasks)} tasks at http://{host}:{server.server_address[1]}", flush=True)
  await asyncio.Event().wait()


def main() -> None:
  """Reads the flags and serves."""
  flags = argparse.ArgumentParser(description=__doc__.splitlines()[0])
  flags.add_argument("--env", required=True, help="TOML file with the section [env] of verifiers")
  flags.add_argument("--host", default="127.0.0.1")
  flags.add_argument("--port", type=int, default=8765)
  flags.add_argument("--tasks", type=int, help="how many tasks; all by default")
  given = flags.parse_args()
  file = pathlib.Path(given.env)
  sys.path.insert(0, str(file.resolve().parent))  # tasksets and harnesses beside the file
  config = vf.resolve_env_config(tomllib.loads(file.read_text("utf-8"))["env"])
  asyncio.run(serve(config, given.host, given.port, given.tasks))


if __name__ == "__main__":
  main()
