"""Kills a server with kill -9, again and again, while users talk and candidates come and go."""

import collections
import http.client
import json
import pathlib
import random
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Sequence

from jaxrl_agents import record_log
from jaxrl_agents.realtime.deployment import Deployer
from jaxrl_agents.realtime.feedback import Join

START_S = 60.0
KEY = "key of the simulation"


def measured(kills: int, seed: int = 0) -> dict[str, float]:
  """Events that were lost or joined twice, and deployments that were broken, over so many kills.

  Every kill comes a random time after the server answers. A sender that got no reply sends its
  event again, with its id; each event is also sent twice on purpose.
  """
  rng = random.Random(seed)
  acknowledged: dict[str, str] = {}
  broken = torn = 0
  with tempfile.TemporaryDirectory() as folder:
    waiting: list[tuple[str, str, str]] = []
    for _ in range(kills):
      process = subprocess.Popen(
        [sys.executable, str(pathlib.Path(__file__).with_name("crash_server.py")), folder],
        stdout=subprocess.PIPE,
      )
      assert process.stdout
      told = json.loads(process.stdout.readline())
      torn += told["torn"]
      killer = threading.Timer(rng.uniform(0.05, 0.8), process.kill)
      killer.start()
      talk(told["url"], waiting, acknowledged, rng)
      killer.join(10)
      process.wait(START_S)
      try:
        Deployer(pathlib.Path(folder) / "weights")  # checks what it names
      except (ValueError, OSError) as error:
        print(f"broken deployment: {error}", flush=True)
        broken += 1
    path = pathlib.Path(folder) / "traffic.log"
    record_log.Log(path).close()
    records = list(record_log.scan(path))
  join = Join()
  for record in records:
    join.apply(record)
  written = collections.Counter(
    record["event"]["event_id"] for record in records if record["kind"] == "event"
  )
  values = collections.Counter(j.call.session for j in join.calls.values() if j.values)
  lost = [name for name, session in acknowledged.items() if not values[session]]
  return {
    "kills": float(kills),
    "kills_torn_tails": float(torn),
    "kills_events_acknowledged": float(len(acknowledged)),
    "kills_events_lost": float(len(lost)),
    "kills_events_doubled": float(sum(n > 1 for n in written.values())),
    "kills_deployments_broken": float(broken),
  }


def talk(
  url: str,
  waiting: list[tuple[str, str, str]],
  acknowledged: dict[str, str],
  rng: random.Random,
  prompts: Sequence[str] = ("hello",),
  pause_s: float = 0.0,
) -> None:
  """Sessions and their feedback until the server is killed.

  Args:
    url: of the server.
    waiting: (id, session, user) of events that are to be sent; what is not acknowledged stays.
    acknowledged: {id of an event: its session}; what the server acknowledges is added.
    rng: chooses users, prompts and values.
    prompts: what users ask.
    pause_s: from one session to the next.
  """
  connection = http.client.HTTPConnection(url.removeprefix("http://"), timeout=10)

  def post(path: str, body: dict, key: str = KEY) -> dict:
    head = {"authorization": f"Bearer {key}"}
    connection.request("POST", path, json.dumps(body), head)
    reply = connection.getresponse()
    content = json.loads(reply.read())
    if reply.status != 200:
      raise RuntimeError(f"{path} was answered with {reply.status}: {content}")
    return content

  try:
    while True:
      for name, session, user in list(waiting):
        value = float(rng.random() < 0.5)
        event = {"event_id": name, "session": session, "user": user}
        for _ in range(2):
          post("/feedback", {**event, "kind": "persist", "value": value})
        acknowledged[name] = session
        waiting.remove((name, session, user))
      user = f"user {rng.randrange(50)}"
      opened = post("/sessions", {"metadata": {"user": user}})
      said = {"role": "user", "content": rng.choice(prompts)}
      asked = {"model": "m", "messages": [said]}
      post("/v1/chat/completions", asked, opened["api_key"])
      session = opened["session_id"]
      waiting.append((f"event of {session}", session, user))
      time.sleep(pause_s)
  except (OSError, http.client.HTTPException):
    pass  # it was killed
