"""Serves Tinker's API: a learner in one thread, an engine in another, routes in the event loop."""

from __future__ import annotations

import asyncio
import contextlib
import functools
from collections.abc import AsyncIterator, Callable
from typing import Any

from jaxrl_agents import chat as chat_lib
from jaxrl_agents.config import RunConfig
from jaxrl_agents.gateway.server import MISSING, Server
from jaxrl_agents.gateway.tinker.checkpoints import Checkpoints
from jaxrl_agents.gateway.tinker.service import Served, Service
from jaxrl_agents.runs import evaluation, setup
from jaxrl_agents.runs.engines import make_engine
from jaxrl_agents.runs.serving import EngineSampler, service_key, until_signal
from jaxrl_agents.runs.tinker_learner import TinkerLearner
from jaxrl_agents.runs.tinker_sampler import TinkerSampler


@contextlib.asynccontextmanager
async def running(
  config: RunConfig,
  base: Callable[[], dict[str, Any]],
  directory: str,
  *,
  key: str,
  host: str = "127.0.0.1",
  port: int = 0,
) -> AsyncIterator[tuple[Server, EngineSampler]]:
  """A server of Tinker's API while the context lasts; it listens when the context begins.

  Args:
    config: sizes, tokenizer, sampler, and shapes of the learner's rows; its name is that of the
      base model.
    base: makes the parameters that models begin with, each time anew.
    directory: of checkpoints.
    key: of the server, without "tml-".
    host, port: where to listen.

  Raises:
    ValueError: starlette and uvicorn are not installed.
    OSError: the address is taken.
  """
  try:
    from jaxrl_agents.gateway.tinker import app as app_lib
  except ModuleNotFoundError as error:
    raise ValueError(MISSING) from error
  engine = make_engine(config, base(), version=0)
  engine.warm_up()
  learner = TinkerLearner(config, base)
  with EngineSampler(engine, asyncio.get_running_loop()).running() as stepped:
    served = Served(
      base_model=config.name,
      tokenizer=str(chat_lib.tokenizer_files(config.policy.tokenizer)[0].parent.resolve()),
      max_context=config.agent_config.token_budget,
      chat=chat_lib.load(config.policy.tokenizer, config.policy.thinking),
      learner=learner,
      sampler=TinkerSampler(config, engine, stepped, base),
      checkpoints=Checkpoints(directory),
    )
    server = Server(app_lib.make_app(Service(served), key=key), host, port)
    await server.start()
    try:
      yield server, stepped
    finally:
      await server.stop()
      learner.close()


def serve(
  config: RunConfig, checkpoint: str, *, directory: str, host: str, port: int, key_file: str
) -> None:
  """Serves Tinker's API until a signal ends it.

  Args:
    config: see `running`.
    checkpoint: of the base model: a shipped policy (weight_files.SHIPPED), a folder, or a
      workdir.
    directory: of the checkpoints of models.
    host, port: where to listen.
    key_file: of the key, made with a random one if it is not there.

  Raises:
    ValueError: there is no such policy, or a package is missing.
    OSError: the address is taken.
  """
  key = service_key(key_file)
  base = functools.partial(setup.loaded, config, str(evaluation.newest_policy(checkpoint)))

  async def run() -> None:
    async with running(config, base, directory, key=key, host=host, port=port) as (server, engine):
      print(
        f"serving {config.name} at TINKER_BASE_URL={server.url} with "
        f"TINKER_API_KEY=tml-$(cat {key_file})",
        flush=True,
      )
      await until_signal(engine)

  asyncio.run(run())
