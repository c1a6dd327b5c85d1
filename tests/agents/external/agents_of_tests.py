"""Agents that the tests start: a function, and a program of its own."""

import json
import os
import sys
import time
import urllib.error
import urllib.request

import openai

from jaxrl_agents.types import Message


def talk(base_url, api_key, prompt, turns=2):
  """A conversation of `turns` requests; returns the last reply."""
  client = openai.OpenAI(base_url=base_url, api_key=api_key, max_retries=0, timeout=20)
  messages, text = [{"role": "user", "content": prompt}], ""
  for _ in range(turns):
    reply = client.chat.completions.create(model="policy", messages=messages)
    text = reply.choices[0].message.content
    messages += [{"role": "assistant", "content": text}, {"role": "user", "content": "go on"}]
  return text


def function(task, base_url, api_key, folder):
  """Talks in a thread."""
  if "gold" in task.facts:
    raise AssertionError("the agent sees what is for the reward alone")
  (folder / "note").write_text("x")
  return talk(base_url, api_key, task.prompt)


MEETING = None
"""A barrier that `meets` waits at."""


def meets(task, base_url, api_key, folder):
  """Talks when all others that a test starts have begun, too."""
  MEETING.wait(15)
  return talk(base_url, api_key, task.prompt, turns=1)


def yields():
  """Rows, one after another."""
  yield {"id": "a", "prompt": "p"}
  yield {"id": "b", "prompt": "p"}


def yields_more():
  """The same and one more."""
  yield from yields()
  yield {"id": "c", "prompt": "p"}


def exits(task, base_url, api_key, folder):
  """Talks, and ends as programs do."""
  talk(base_url, api_key, task.prompt)
  sys.exit(3)


async def exits_later(task, base_url, api_key, folder):
  """The same in a coroutine."""
  import asyncio

  await asyncio.to_thread(talk, base_url, api_key, task.prompt)
  sys.exit(3)


def exits_in_reward(task, outcome, trajectory):
  """A reward that ends its process."""
  sys.exit("no reward")


async def sleeps(task, base_url, api_key, folder):
  """Never ends."""
  import asyncio

  await asyncio.sleep(1_000)


def raises(task, base_url, api_key, folder):
  """Fails after a call."""
  talk(base_url, api_key, task.prompt, turns=1)
  raise KeyError("nothing of that name")


def loses_patience(task, base_url, api_key, folder):
  """Fails after a call, since a tool of its own took too long."""
  talk(base_url, api_key, task.prompt, turns=1)
  raise TimeoutError("the tool did not answer")


async def loses_patience_later(task, base_url, api_key, folder):
  """The same in a coroutine."""
  import asyncio

  await asyncio.to_thread(loses_patience, task, base_url, api_key, folder)


def impatient(task, outcome, trajectory):
  """A reward that fails, since its judge took too long."""
  raise TimeoutError("the judge did not answer")


def asks_too_often(task, base_url, api_key, folder):
  """Asks until it is refused, of which its client makes an exception."""
  talk(base_url, api_key, task.prompt, turns=50)


def failed(task, outcome, trajectory):
  """Whether the agent failed, with a reason."""
  return {"reward": float(outcome.exit_status == 1 and "Error" in outcome.errors)}


def silent(task, base_url, api_key, folder):
  """Makes no call."""


def cheat(task, base_url, api_key, folder):
  """Tries to reward itself with its own key and with none; returns what it was told."""
  client = openai.OpenAI(base_url=base_url, api_key=api_key)
  raw = client.chat.completions.with_raw_response.create(
    model="policy", messages=[{"role": "user", "content": task.prompt}]
  )
  place = f"{base_url.removesuffix('/v1')}/sessions/{raw.headers['x-session-id']}/rewards"
  body = json.dumps({"parts": {"reward": 100.0}}).encode()
  told = []
  for head in ({}, {"authorization": "Bearer "}, {"authorization": f"Bearer {api_key}"}):
    try:
      urllib.request.urlopen(urllib.request.Request(place, body, head), timeout=10)
      told.append(200)
    except urllib.error.HTTPError as error:
      told.append(error.code)
  return told


def told(task, outcome, trajectory):
  """What the cheat was told, and what is attached to its session."""
  return {"reward": float(outcome.result == [401] * 3), "attached": float(len(trajectory.rewards))}


def length(task, outcome, trajectory):
  """Parts of a reward."""
  if outcome.timed_out:
    return 0.0
  return {"reward": len(outcome.result or outcome.output), "is_gold": float("gold" in task.facts)}


def wrong(task, outcome, trajectory):
  """No reward."""
  return float("nan")


def rows():
  """Tasks."""
  return [{"id": f"t{i}", "prompt": f"say {i}", "split": "train", "gold": i} for i in range(3)]


def player(task, messages, tools, seed):
  """Answers in the place of the policy."""
  return Message("assistant", f"{len(messages)} {seed}")


if __name__ == "__main__":
  with open(sys.argv[1].removeprefix("--task=")) as file:
    told = json.load(file)
  if told["prompt"] == "sleep":
    time.sleep(1_000)
  if told["prompt"] == "fail":
    sys.exit("I cannot work today")
  if told["prompt"] == "tidy":
    for name in os.listdir():
      os.remove(name)
  names = sorted(n for n in os.environ if n.endswith("_KEY") or n == "SECRET_OF_TRAINING")
  print(talk(os.environ["OPENAI_BASE_URL"], os.environ["OPENAI_API_KEY"], told["prompt"]), names)
