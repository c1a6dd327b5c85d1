"""Joining a Ray cluster: what is missing is named with its remedy."""

import sys

import pytest

from jaxrl_agents.fleet import cluster


def test_without_the_extra_the_error_has_the_line_that_installs_it(monkeypatch):
  monkeypatch.setitem(sys.modules, "ray", None)  # as if it were not installed
  monkeypatch.setenv("RAY_AUTH_MODE", "token")
  monkeypatch.setenv("RAY_USAGE_STATS_ENABLED", "0")
  with pytest.raises(ValueError, match=r"needs Ray .*: pip install -e '\.\[ray\]'"):
    with cluster.joined("auto"):
      pass


def test_a_node_with_other_code_is_refused():
  cluster.check_code(cluster.code())
  with pytest.raises(ValueError, match="than the run .0123.; copy the run's checkout"):
    cluster.check_code("0123")
