"""Serves a policy over HTTP: an engine in a thread of its own, a gateway in the event loop."""

from __future__ import annotations

import asyncio
import contextlib
import pathlib
import queue
import secrets
import signal
import threading
from collections.abc import Callable, Iterator
from typing import Any

import jax
import numpy as np

from jaxrl_agents import chat as chat_lib
from jaxrl_agents.config import RunConfig
from jaxrl_agents.gateway.registry import Registry
from jaxrl_agents.gateway.server import MISSING, Server
from jaxrl_agents.gateway.sessions import Served
from jaxrl_agents.runs import evaluation, setup
from jaxrl_agents.runs.engines import make_engine
from jaxrl_agents.sampler.core_engines import AnyEngine
from jaxrl_agents.sampler.sequence import Failure
from jaxrl_agents.types import Generation, SamplingLimits, Watch

_IDLE_S = 0.2
"""Longest wait for a request, after which the thread looks whether it is to end."""

_ENDED = "the engine has ended; start the server again"

_Request = tuple[np.ndarray, SamplingLimits, Watch | None, "asyncio.Future[Generation]"]
_Call = tuple[Callable[[], Any], "asyncio.Future[Any]"]


class EngineSampler:
  """A sampler over an engine that steps in a thread of its own.

  Invariant: the thread alone calls the engine; each request is answered, fails with the engine's
  words, or was given up by its caller, whose sequence is then dropped.

  Args:
    engine: of the policy, used by nobody else, and made under the mesh that is ambient here.
    loop: in which requests are made and answered.
  """

  def __init__(self, engine: AnyEngine, loop: asyncio.AbstractEventLoop):
    self._engine, self._loop = engine, loop
    self._mesh = jax.sharding.get_mesh()
    self._inbox: queue.SimpleQueue[_Request | _Call | None] = queue.SimpleQueue()
    self._asked: dict[int, asyncio.Future[Generation]] = {}
    self._thread = threading.Thread(target=self._run, name="engine", daemon=True)
    self._entering = threading.Lock()
    self._ended = False
    self.failed = asyncio.Event()
    """Whether the engine failed, after which no request is answered any more."""

  @contextlib.contextmanager
  def running(self) -> Iterator[EngineSampler]:
    """Steps the engine while the context lasts."""
    self._thread.start()
    try:
      yield self
    finally:
      self._inbox.put(None)
      self._thread.join(timeout=60.0)

  async def generate(self, prompt: np.ndarray, limits: SamplingLimits) -> Generation:
    """Asks for a generation; the caller sets the deadline.

    Raises:
      ValueError: the engine refuses it.
      RuntimeError: the engine failed.
    """
    return await self.watched(prompt, limits, None)

  async def watched(
    self, prompt: np.ndarray, limits: SamplingLimits, watch: Watch | None
  ) -> Generation:
    """`generate`, and `watch` is called in the thread of the engine."""
    future: asyncio.Future[Generation] = self._loop.create_future()
    self._enter((prompt, limits, watch, future))
    return await future

  async def between_steps(self, function: Callable[[], Any]) -> Any:
    """Calls a function in the thread of the engine, between two of its steps.

    Raises:
      RuntimeError: the engine has ended. And what the function raises.
    """
    future: asyncio.Future[Any] = self._loop.create_future()
    self._enter((function, future))
    return await future

  def _enter(self, request: _Request | _Call) -> None:
    with self._entering:
      if self._ended:
        raise RuntimeError(_ENDED)
      self._inbox.put(request)

  @property
  def version(self) -> int:
    """The version of the engine's weights."""
    return self._engine.version

  async def set_params(self, params: dict[str, Any], version: int) -> None:
    """Replaces the weights between two steps, see `Engine.set_params`.

    Raises:
      ValueError: the version goes back, or the parameters have other shapes.
      RuntimeError: the engine has ended.
    """
    await self.between_steps(lambda: self._engine.set_params(params, version))

  def playing(self, more: int) -> None:
    """The engine waits for nobody."""

  def _run(self) -> None:
    # A mesh is ambient in one thread alone.
    with contextlib.nullcontext() if self._mesh.empty else jax.set_mesh(self._mesh):
      self._serve()

  def _serve(self) -> None:
    why = RuntimeError(_ENDED)
    try:
      while self._receive():
        self._drop_abandoned()
        for request_id, result in self._engine.step() if self._engine.num_unfinished else ():
          self._answer(self._asked.pop(request_id), result)
    except Exception as error:
      why = RuntimeError(f"the engine failed: {type(error).__name__}: {error}")
      self._loop.call_soon_threadsafe(self.failed.set)
      raise
    finally:
      with self._entering:
        self._ended = True
      left = [self._inbox.get_nowait() for _ in range(self._inbox.qsize())]
      for future in (*self._asked.values(), *(request[-1] for request in left if request)):
        self._answer(future, why)

  def _receive(self) -> bool:
    """Takes all requests that came; waits for one if there is nothing to sample."""
    wait = not self._engine.num_unfinished
    while True:
      try:
        request = self._inbox.get(wait, _IDLE_S)
      except queue.Empty:
        return True
      if request is None:
        return False
      if len(request) == 2:
        self._call(*request)
      else:
        prompt, limits, watch, future = request
        try:
          self._asked[self._engine.submit(prompt, limits, watch)] = future
        except ValueError as error:
          self._answer(future, error)
      wait = not self._engine.num_unfinished

  def _call(self, function: Callable[[], Any], future: asyncio.Future[Any]) -> None:
    try:
      self._answer(future, function())
    except Exception as error:  # the caller's, who gets it
      self._answer(future, error)

  def _drop_abandoned(self) -> None:
    for request_id in [each for each, future in self._asked.items() if future.done()]:
      self._engine.cancel(request_id)
      del self._asked[request_id]

  def _answer(self, future: asyncio.Future[Any], result: Any) -> None:
    def deliver() -> None:
      if future.done():
        return
      if isinstance(result, Failure):
        future.set_exception(RuntimeError(result.text))
      elif isinstance(result, Exception):
        future.set_exception(result)
      else:
        future.set_result(result)

    self._loop.call_soon_threadsafe(deliver)


async def until_signal(engine: EngineSampler) -> None:
  """Waits for SIGINT or SIGTERM.

  Raises:
    RuntimeError: the engine failed; whoever watches the server starts it again.
  """
  loop, signalled = asyncio.get_running_loop(), asyncio.Event()
  for number in (signal.SIGINT, signal.SIGTERM):
    loop.add_signal_handler(number, signalled.set)
  waits = [asyncio.create_task(event.wait()) for event in (signalled, engine.failed)]
  _, pending = await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
  for wait in pending:
    wait.cancel()
  if not signalled.is_set():
    raise RuntimeError("the engine failed, see above; start the server again")


def service_key(file: str) -> str:
  """The service key in a file, which is made with a random one if it is not there.

  Raises:
    ValueError: the file is empty.
  """
  place = pathlib.Path(file).expanduser()
  if not place.exists():
    place.touch(mode=0o600)
    place.write_text(f"{secrets.token_urlsafe(24)}\n")
  key = place.read_text("utf-8").strip()
  if not key:
    raise ValueError(f"{place} is empty; write a key into it, or remove it to get a random one")
  return key


def serve(config: RunConfig, checkpoint: str, *, host: str, port: int, key_file: str) -> None:
  """Serves a checkpoint until a signal ends it.

  Args:
    config: sizes, tokenizer, sampler; `agent_config` bounds contexts and replies.
    checkpoint: a shipped policy (weight_files.SHIPPED), a folder of weights, or a workdir.
    host, port: where to listen; 127.0.0.1 is reached from this machine alone.
    key_file: of the service key.

  Raises:
    ValueError: there is no such policy, or starlette and uvicorn are not installed.
    OSError: the address is taken.
    RuntimeError: the engine failed.
  """
  try:
    from jaxrl_agents.gateway import app as app_lib
  except ModuleNotFoundError as error:
    raise ValueError(MISSING) from error
  key = service_key(key_file)
  params = setup.loaded(config, str(evaluation.newest_policy(checkpoint)))
  engine = make_engine(config, params, version=0)
  engine.warm_up()

  async def run() -> None:
    with EngineSampler(engine, asyncio.get_running_loop()).running() as sampler:
      served = Served(
        chat_lib.load(config.policy.tokenizer, config.policy.thinking),
        sampler,
        setup.eval_sampling(config),
        config.agent_config.token_budget,
        training=False,
        model=config.name,
      )
      server = Server(app_lib.make_app(Registry(), service_key=key, served=served), host, port)
      await server.start()
      print(f"serving {checkpoint} at {server.url}/v1 (key in {key_file})", flush=True)
      try:
        await until_signal(sampler)
      finally:
        await server.stop()

  asyncio.run(run())
