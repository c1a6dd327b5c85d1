"""Logs the states of remote workers and sampler slices, which write no files themselves."""

from __future__ import annotations

import pathlib
from collections.abc import Mapping

from jaxrl_agents import service_log
from jaxrl_agents.service_log import ServiceLog

SERVES = "serves"


class RemoteStates:
  """Tells, once a step, what the run knows of each place. Use as a context manager.

  Args:
    folder: of the services of the run.
  """

  def __init__(self, folder: pathlib.Path):
    self._folder = folder
    self._logs: dict[str, ServiceLog] = {}

  def __enter__(self) -> RemoteStates:
    return self

  def __exit__(self, *_: object) -> None:
    for log in self._logs.values():
      log.now(service_log.ENDED)

  def tell(self, places: Mapping[str, Mapping[str, int]]) -> None:
    """Tells {service: counts} of all places that there are now; those that are lost are stopped."""
    for service, counts in places.items():
      if service not in self._logs:
        self._logs[service] = ServiceLog(self._folder, service)
      self._logs[service].now(SERVES, on="", **counts)
    for service in self._logs.keys() - places.keys():
      self._logs[service].now(service_log.STOPPED)
