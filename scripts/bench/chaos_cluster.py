"""A Ray cluster of one node, for samplers, workers and evaluator of `scripts/chaos.py`."""

from __future__ import annotations

import contextlib
import importlib
import os
import pathlib
import secrets
from collections.abc import Iterator

from jaxrl_agents.fleet import cluster

STORE_BYTES = 80 << 20
"""Bytes of shared memory for Ray's messages."""


@contextlib.contextmanager
def started_cluster(slices: int, workers: int) -> Iterator[tuple[str, ...]]:
  """One node for sampler slices, workers and the evaluator, while the context lasts. Yields the
  options of a run on it. Its processes are children of this one, and have its environment.

  Args:
    slices: their number.
    workers: CPUs for worker processes.

  Raises:
    ClusterError: Ray is not installed.
  """
  os.environ |= {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": secrets.token_hex(32)}
  os.environ["PYTHONPATH"] = str(pathlib.Path(__file__).parents[2])  # where the agent lies
  cluster.package()
  node = {
    "num_cpus": workers,
    "resources": {"evaluator": 1, **{f"slice{i}": 1 for i in range(slices)}},
    "object_store_memory": STORE_BYTES,
    "include_dashboard": False,
  }
  utils = importlib.import_module("ray.cluster_utils")
  made = utils.Cluster(initialize_head=True, head_node_args=node)
  try:
    yield (
      "fleet.backend=ray",
      f"fleet.address={made.address}",
      f"sampler.slices={slices}",
      "evaluator.on_node=True",
    )
  finally:
    made.shutdown()
