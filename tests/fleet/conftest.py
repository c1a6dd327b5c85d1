"""A Ray cluster of nodes that this machine pretends to be."""

import contextlib
import importlib.util
import os

import pytest

from jaxrl_agents.fleet import cluster as cluster_lib
from tests import forced_devices

STORE = {"object_store_memory": 80 << 20}
TOKEN = "a secret of the tests alone"

needs_ray = pytest.mark.skipif(
  importlib.util.find_spec("ray") is None, reason="needs the extra 'ray'"
)
whole_run = pytest.mark.skipif(
  "JAXRL_WHOLE_RUNS" not in os.environ, reason="plays whole runs: set JAXRL_WHOLE_RUNS=1"
)


@pytest.fixture(scope="package")
def cluster():
  """A cluster with a head node that has no CPUs for workers, and its token."""
  before = dict(os.environ)
  os.environ |= {
    "RAY_AUTH_MODE": "token",
    "RAY_AUTH_TOKEN": TOKEN,
    "RAY_USAGE_STATS_ENABLED": "0",
    **forced_devices.environment(1),
  }
  cluster_lib.package()  # which reads the environment once
  made = importlib.import_module("ray.cluster_utils").Cluster(
    initialize_head=True, head_node_args={"num_cpus": 0, "include_dashboard": False, **STORE}
  )
  try:
    with cluster_lib.joined(made.address) as made.ray:
      yield made
  finally:
    made.shutdown()
    os.environ.clear()
    os.environ.update(before)


@pytest.fixture(scope="package")
def ray(cluster):
  """The node that all tests have; the package."""
  cluster.add_node(num_cpus=2, **STORE)
  return cluster.ray


@contextlib.contextmanager
def another_node(cluster, **options):
  """A node while the context lasts; it may be removed before."""
  added = cluster.add_node(**{"num_cpus": 2, **STORE, **options})
  try:
    yield added
  finally:
    if added in cluster.list_all_nodes():
      cluster.remove_node(added)
