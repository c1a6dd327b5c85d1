"""A process of a sampler slice: when it reads the weights that are published."""

import shutil

import jax
import pytest

from jaxrl_agents.fleet import cluster
from jaxrl_agents.policy import params as params_lib
from jaxrl_agents.runs.slice_member import SliceMember
from jaxrl_agents.weights import manifest, store
from tests.runs.small_run import CFG, configured


def publish(folder, version):
  store.publish(params_lib.init(CFG, jax.random.key(version)), version, folder)


def removed(folder, version):
  manifest.path(folder, version).unlink()
  shutil.rmtree(manifest.files(folder, version))


@pytest.mark.slow
def test_a_version_is_read_once_whether_it_is_fetched_before_its_swap_or_after(tmp_path):
  member = SliceMember(cluster.code(), configured(sampler={"slices": 1}), tmp_path)
  publish(tmp_path, 0)
  member.prepare(0)  # too early: the engine begins later
  member.begin(0)
  publish(tmp_path, 1)
  member.prepare(1)
  removed(tmp_path, 1)
  member.prepare(1)
  member.load(1)
  publish(tmp_path, 2)
  member.load(2)  # the call to fetch it comes late
  removed(tmp_path, 2)
  member.prepare(2)
  with pytest.raises(FileNotFoundError):
    member.load(2)
