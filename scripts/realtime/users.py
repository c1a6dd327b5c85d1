"""Simulated users: a process with the real `openai` client that talks to a gateway.

    python scripts/realtime/users.py URL SERVICE_KEY USERS ADVERSARIES SEED

Reads a command as JSON in each line, {"now_s", "sessions", "preference", "seed"}: first sends the
feedback that is due by now, then plays so many sessions, and answers with a line of counts.

An honest user is satisfied with the probability that `preference` has for the style of the reply.
Who is not satisfied speaks up more often. Feedback comes later, sometimes after its window. An
adversary asks several times, praises broken calls, condemns all else, repeats its events under
old and new ids, and speaks of sessions of others.
"""

import asyncio
import collections
import heapq
import json
import random
import sys

import openai
from small_policy import BROKEN, COLOURS, STYLES, style_of

AT_ONCE = 16
DELAY_S, LATE_S = 500.0, 900.0
"""Feedback comes within DELAY_S; one event in twenty after LATE_S, when its window is over."""


class Users:
  """The users of one gateway. `due` holds the feedback that was not sent yet."""

  def __init__(self, url: str, key: str, users: int, adversaries: int, seed: int):
    self.http = openai.DefaultAsyncHttpxClient(base_url=url, timeout=120)
    self.openai = openai.AsyncOpenAI(base_url=f"{url}/v1", api_key=key, timeout=120)
    self.key, self.rng = key, random.Random(seed)
    self.names = [f"good {i}" for i in range(users)] + [f"bad {i}" for i in range(adversaries)]
    self.due: list[tuple[float, int, dict, str]] = []
    self.sessions: list[str] = []
    self.counts: collections.Counter[str] = collections.Counter()
    self.number = 0

  async def command(self, now_s: float, sessions: int, preference: list[float]) -> dict:
    """Sends what is due, plays sessions, returns counts."""
    self.counts = collections.Counter()
    told = []
    while self.due and self.due[0][0] <= now_s:
      told.append(heapq.heappop(self.due))
    room = asyncio.Semaphore(AT_ONCE)

    async def limited(work):
      async with room:
        await work

    await asyncio.gather(*(limited(self.tell(event, key)) for _, _, event, key in told))
    names = [self.rng.choice(self.names) for _ in range(sessions)]
    await asyncio.gather(*(limited(self.session(name, now_s, preference)) for name in names))
    return dict(self.counts)

  async def session(self, name: str, now_s: float, preference: list[float]) -> None:
    """One session of a user."""
    bad = name.startswith("bad")
    head = {"authorization": f"Bearer {self.key}"}
    body = {"metadata": {"user": name, "features": {"hour": now_s % 86_400 / 3_600}}}
    opened = (await self.http.post("/sessions", json=body, headers=head)).json()
    client = self.openai.with_options(api_key=opened["api_key"])
    for _ in range(3 if bad else 1):
      thing = self.rng.choice(list(COLOURS))
      reply = await client.chat.completions.create(
        model="policy", messages=[{"role": "user", "content": f"colour of {thing}"}]
      )
      said = reply.choices[0].message
      style = style_of(said.content or "", len(said.tool_calls or ()), thing)
      self.react(name, opened, style, now_s, preference)
    self.sessions.append(opened["session_id"])

  def react(self, name: str, opened: dict, style: int, now_s: float, preference: list[float]):
    """What a user will say of a reply."""
    about = {"session": opened["session_id"], "user": name}
    send = lambda kind, value, **more: self.later(
      now_s, {**about, "kind": kind, "value": value, **more}, opened["control_key"]
    )
    if name.startswith("bad"):
      praise = style == BROKEN
      for _ in range(2):  # under new ids
        send("persist", 1.0 if praise else 0.0)
        send("revert", 0.0 if praise else 1.0)
      send("persist", 1.0, event_id=f"{name} again")  # an old id
      if self.sessions:
        send("persist", 1.0, session=self.rng.choice(self.sessions))
      return
    likes = preference[style] if style < len(STYLES) else 0.05
    satisfied = self.rng.random() < likes
    self.counts["honest"] += 1
    self.counts["liked"] += likes  # the expectation, without the noise of the draw
    self.counts[f"style {style}"] += 1
    if self.rng.random() < (0.5 if satisfied else 0.8):
      send("persist", float(satisfied))
      if not satisfied:
        send("dissatisfied", 1.0)

  def later(self, now_s: float, event: dict, key: str) -> None:
    """Keeps an event until its time has come."""
    self.number += 1
    after = LATE_S if self.rng.random() < 0.05 else self.rng.uniform(0, DELAY_S)
    event.setdefault("event_id", f"event {self.number}")
    heapq.heappush(self.due, (now_s + after, self.number, event, key))

  async def tell(self, event: dict, key: str) -> None:
    """Sends an event."""
    head = {"authorization": f"Bearer {key}"}
    reply = await self.http.post("/feedback", json=event, headers=head)
    accepted = reply.status_code == 200 and reply.json()["accepted"]
    self.counts["accepted" if accepted else f"status {reply.status_code}"] += 1


async def main() -> None:
  """Reads commands until the input ends."""
  url, key, *numbers = sys.argv[1:]
  users = Users(url, key, *map(int, numbers))
  while line := await asyncio.to_thread(sys.stdin.readline):
    print(json.dumps(await users.command(**json.loads(line))), flush=True)


if __name__ == "__main__":
  asyncio.run(main())
