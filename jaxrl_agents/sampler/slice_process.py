"""The sampler slice's side of the connection to the learner (`sampler.slices`)."""

from __future__ import annotations

import time
from collections.abc import Callable
from multiprocessing.connection import Connection

from jaxrl_agents.sampler.engine_protocol import EngineProtocol
from jaxrl_agents.wire.listener import BEAT_S


def serve(
  connection: Connection, make_engine: Callable[[int], EngineProtocol], load: Callable[[int], None]
) -> None:
  """Serves a learner; returns when the learner closes the connection.

  Args:
    connection: to the learner.
    make_engine: version -> an engine that holds it, warmed up.
    load: gives that engine the weights of another published version.
  """
  try:
    _, version, deterministic = connection.recv()
    engine = make_engine(version)
    connection.send(("at", version, engine.stats))
    _work(connection, engine, load, deterministic)
  except (EOFError, ConnectionError, TimeoutError):
    return


def _work(
  connection: Connection, engine: EngineProtocol, load: Callable[[int], None], deterministic: bool
) -> None:
  ids: dict[int, int] = {}  # the learner's, by the engine's
  running, said = not deterministic, time.monotonic()
  while True:
    while connection.poll(0.0 if running and engine.num_unfinished else BEAT_S):
      kind, *content = connection.recv()
      if kind == "submit":
        request_id, *request = content
        ids[engine.submit(*request)] = request_id
      elif kind == "cancel":
        for own in [own for own, theirs in ids.items() if theirs == content[0]]:
          engine.cancel(own)
          del ids[own]
      elif kind == "run":
        running = True
      elif kind == "load":
        load(content[0])
        connection.send(("at", content[0], engine.stats))
    if running and engine.num_unfinished:
      ended = [(ids.pop(own), result) for own, result in engine.step()]
      if ended:
        connection.send(("ended", ended, engine.stats))
        running, said = not deterministic, time.monotonic()
    if time.monotonic() - said > BEAT_S:
      connection.send(("alive",))
      said = time.monotonic()
