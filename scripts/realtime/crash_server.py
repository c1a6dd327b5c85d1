"""A gateway with a scripted policy, for tests that kill it: python crash_server.py FOLDER

Candidates are proposed, advanced and rolled back all the time. Prints its address as JSON.
"""

import asyncio
import json
import pathlib
import random
import sys

from published import publish

from jaxrl_agents import chat as chat_lib
from jaxrl_agents.gateway.app import make_app
from jaxrl_agents.gateway.registry import Registry
from jaxrl_agents.gateway.server import Server
from jaxrl_agents.gateway.sessions import Served
from jaxrl_agents.harness.rollout import Sampling
from jaxrl_agents.realtime.arms import CANARY, STABLE
from jaxrl_agents.realtime.deployment import FILE, Deployer
from jaxrl_agents.realtime.traffic import Traffic
from jaxrl_agents.types import Generation, Message, SamplingLimits
from jaxrl_agents.weights import manifest as manifest_lib

KEY = "key of the simulation"


class Nobody:
  """A sampler that is not asked."""

  async def generate(self, prompt, limits: SamplingLimits) -> Generation:
    """Fails."""
    raise RuntimeError("the scripted policy answers in the place of a sampler")

  def playing(self, more: int) -> None:
    """Nobody waits."""


async def deploys(deployer: Deployer) -> None:
  """Tries candidates, one after another."""
  rng = random.Random()
  while True:
    await asyncio.sleep(0.002)
    if deployer.now.trial is None:
      if deployer.now.candidate and rng.random() < 0.3:
        deployer.roll_back()
        continue
      version = max(deployer.now.newest, *manifest_lib.versions(deployer.folder)) + 1
      publish(deployer.folder, version)
      deployer.propose(version)
    elif rng.random() < 0.2:
      deployer.roll_back()
    else:
      deployer.advance()


async def main() -> None:
  """Serves until it is killed."""
  folder = pathlib.Path(sys.argv[1])
  (folder / "weights").mkdir(exist_ok=True)
  if not (folder / "weights" / FILE).exists():
    publish(folder / "weights", 0)
  deployer = Deployer(folder / "weights")
  traffic = Traffic(folder, deployer, {STABLE: Nobody(), CANARY: Nobody()})
  says = lambda messages, tools: Message("assistant", "hello " * random.randrange(1, 50))
  sampling = Sampling(max_new_tokens=100)
  chat = chat_lib.load("base")
  served = Served(chat, Nobody(), sampling, 512, training=True, answer=says)
  server = Server(make_app(Registry(), service_key=KEY, served=served, traffic=traffic))
  await server.start()
  print(json.dumps({"url": server.url, "torn": int(traffic.log.torn is not None)}), flush=True)
  await deploys(deployer)


if __name__ == "__main__":
  asyncio.run(main())
