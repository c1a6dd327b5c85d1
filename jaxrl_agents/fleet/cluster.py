"""The Ray cluster of a run on several machines: how a run joins it, and which nodes it has.

Ray starts processes on other nodes, notices that they or their nodes are gone, and carries
messages. It is an extra. Whoever can connect to a cluster can run code on it, so Ray asks for a
token (`RAY_AUTH_MODE=token`), which all nodes and the run must have.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import hashlib
import os
import pathlib
import signal
import threading
from collections.abc import Iterator, Mapping
from typing import Any

NAMESPACE = "jaxrl_agents"


class ClusterError(ValueError):
  """The cluster cannot be used; the message says why and what to do."""


def package() -> Any:
  """The package ray.

  Raises:
    ClusterError: it is not installed.
  """
  # Ray reads it when it is imported; whoever has a closed network may set it to "disabled".
  os.environ.setdefault("RAY_AUTH_MODE", "token")
  os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
  try:
    import ray
  except ImportError as error:
    raise ClusterError(
      f"fleet.backend=ray needs Ray ({error}): pip install -e '.[ray]', on every machine"
    ) from None
  return ray


@contextlib.contextmanager
def joined(address: str) -> Iterator[Any]:
  """Connects this process to the cluster at `address` while the context lasts; yields package ray.

  Everything that was started on the cluster meanwhile ends with the context, or with this process.
  Inside another such context it changes nothing.

  Args:
    address: "HOST:PORT" of the head node, or "auto" on a machine where a node of it was started.

  Raises:
    ClusterError: Ray is not installed, nothing answers, or the token is missing or wrong.
  """
  ray = package()
  if ray.is_initialized():
    yield ray
    return
  before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
  try:
    ray.init(address=address, namespace=NAMESPACE, log_to_driver=False, logging_level="ERROR")
  except (OSError, RuntimeError, ValueError, ray.exceptions.RayError) as error:
    raise ClusterError(
      f"cannot join the Ray cluster at fleet.address={address}: {error}; start its head with "
      "RAY_AUTH_MODE=token ray start --head --port=6379 and other nodes (this machine must be one) "
      "with --address=HOST:6379, and give all and this process one token (RAY_AUTH_TOKEN_PATH)"
    ) from error
  if threading.current_thread() is threading.main_thread():
    for number, handler in before.items():  # Ray has put its own in their place
      if handler is not None:  # a handler that was not set by Python
        signal.signal(number, handler)
  try:
    yield ray
  finally:
    ray.shutdown()


@dataclasses.dataclass(frozen=True)
class Node:
  """A living node.

  Attributes:
    id: as Ray knows it.
    name: for messages.
    address: of its host.
    resources: {name: amount} that it was started with.
  """

  id: str
  name: str
  address: str
  resources: Mapping[str, float]

  def strategy(self, ray: Any) -> Any:
    """The scheduling strategy of an actor on this node and no other."""
    return ray.util.scheduling_strategies.NodeAffinitySchedulingStrategy(self.id, soft=False)


def nodes(ray: Any, **resources: float) -> list[Node]:
  """The living nodes that were started with at least these resources, in the order of their ids."""
  alive = [
    Node(
      node["NodeID"],
      f"{node['NodeManagerHostname']} ({node['NodeID'][:8]})",
      node["NodeManagerAddress"],
      node["Resources"],
    )
    for node in ray.nodes()
    if node["Alive"]
  ]
  fits = lambda node: all(node.resources.get(name, 0) >= n for name, n in resources.items())
  return sorted(filter(fits, alive), key=lambda node: node.id)


def whole_node(ray: Any, node: Node, place: str, **options: Any) -> Any:
  """The decorator for an actor that takes all accelerators of a node, and its resource `place`.

  Args:
    ray: the package.
    node: was started with the resource.
    place: name of the resource.
    options: further ones of the actor.
  """
  tpus = {"TPU": node.resources["TPU"]} if node.resources.get("TPU") else {}
  return ray.remote(
    num_cpus=0,
    num_gpus=node.resources.get("GPU", 0),
    resources={place: 1, **tpus},
    scheduling_strategy=node.strategy(ray),
    **options,
  )


@functools.cache
def code() -> str:
  """A digest of this package's code, which all nodes of a run must share."""
  digest = hashlib.sha256()
  folder = pathlib.Path(__file__).parents[1]
  for path in sorted(folder.rglob("*.py")):
    digest.update(f"{path.relative_to(folder)}\0".encode() + path.read_bytes() + b"\0")
  return digest.hexdigest()[:16]


def check_code(wanted: str) -> None:
  """Raises ClusterError, on a node, if its code is not the run's."""
  if code() != wanted:
    folder = pathlib.Path(__file__).parents[1]
    raise ClusterError(
      f"the node has other code in {folder} ({code()}) than the run ({wanted}); "
      "copy the run's checkout to every node, and restart Ray there"
    )
