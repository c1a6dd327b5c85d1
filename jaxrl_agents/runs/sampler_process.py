"""A sampler slice: an engine on devices of its own, which serves the learner at an address."""

from __future__ import annotations

import contextlib
import pathlib
import sys
import time

from jaxrl_agents import config as config_lib
from jaxrl_agents.config import RunConfig
from jaxrl_agents.runs import processes
from jaxrl_agents.runs.published_weights import Loader, read
from jaxrl_agents.runs.rollout_workers import make_engine
from jaxrl_agents.sampler import lockstep, slice_process
from jaxrl_agents.sampler.engine import Engine
from jaxrl_agents.sampler.lockstep import Clock, Leader
from jaxrl_agents.wire import key as key_lib
from jaxrl_agents.wire import listener as listener_lib
from jaxrl_agents.wire.control_channel import ControlChannel

_AGAIN_S = 2.0


def serve(config: RunConfig, weights: pathlib.Path, address: str, patience_s: float) -> None:
  """Serves one learner after the other; returns when none has answered for `patience_s`.

  Every process of the slice calls this function under the slice's mesh; the first one is connected
  to the learner.

  Args:
    config: the learner's own.
    weights: folder of the versions that the learner publishes.
    address: where it listens, "host:port".
    patience_s: seconds to wait for a learner.

  Raises:
    ValueError: there is no key, or the learner's key or config is another.
    TimeoutError: no learner ever answered.
  """
  with processes.bound(config) as channel:
    one = _Slice(config, weights, channel)
    if not channel.is_first:
      one.follow()
      return
    key, runs = (
      key_lib.read(),
      {**listener_lib.code(), "config": config_lib.sha256(config)},
    )
    served = False
    while True:
      try:
        connection = listener_lib.connect(
          address, key, role="sampler", runs=runs, patience_s=patience_s
        )
      except TimeoutError:
        channel.broadcast(("end", 0))
        if not served:
          raise
        return
      print(f"sampling for {address}", flush=True)
      with contextlib.closing(connection):
        try:
          slice_process.serve(connection, one.make, one.load)
        except FileNotFoundError as error:  # the learner went on meanwhile: it has a newer version
          print(f"joining again: {error}", file=sys.stderr, flush=True)
          time.sleep(_AGAIN_S)
      served = True


class _Slice:
  """The engine of this process, as part of the slice's.

  Invariant: the other processes of the slice do what the first does, in the same order.
  """

  def __init__(self, config: RunConfig, weights: pathlib.Path, channel: ControlChannel):
    self._config, self._weights, self._channel = config, weights, channel
    self._clock = Clock()
    self._engine: Engine | None = None
    self._loader: Loader | None = None

  def make(self, version: int, start: int | None = None) -> Leader:
    """A fresh engine with a published version, read from the complete one at `start`, warmed up."""
    start, params = read(self._config, self._weights, version, start)
    self._channel.broadcast(("make", (version, start)))
    self._engine = make_engine(self._config, params(), version, self._clock)
    self._engine.warm_up()
    self._loader = Loader(self._config, self._weights, self._engine)
    self._loader.warm_up()
    return Leader(
      self._engine, self._clock, lambda calls: self._channel.broadcast(("calls", calls))
    )

  def load(self, version: int) -> None:
    """Gives the engine another published version between two steps."""
    assert self._loader is not None
    swap = self._loader.prepare(version)
    self._channel.broadcast(("load", version))
    swap()

  def follow(self) -> None:
    """Repeats the calls of the first process until it ends."""
    while True:
      kind, content = self._channel.receive()
      if kind == "make":
        self.make(*content)
      elif kind == "load":
        self.load(content)
      elif kind == "calls":
        assert self._engine is not None
        lockstep.replay(content, self._engine, self._clock)
      else:
        return
