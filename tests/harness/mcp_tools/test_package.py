"""A package that is missing or has another interface is an error with the line that installs it."""

import importlib.metadata

import pytest

from jaxrl_agents.harness import mcp_tools


@pytest.mark.parametrize("version", ["1.26.0", "2.2.9", "3.0.0rc1"])
def test_another_version_is_an_error(version, monkeypatch):
  monkeypatch.setattr(importlib.metadata, "version", lambda name: version)
  with pytest.raises(ValueError, match=rf"than {version}; run: pip install 'mcp>=2.3,<3'"):
    mcp_tools.require()


def test_a_missing_package_is_an_error(monkeypatch):
  def missing(name):
    raise importlib.metadata.PackageNotFoundError(name)

  monkeypatch.setattr(importlib.metadata, "version", missing)
  with pytest.raises(ValueError, match="which is not installed; run: pip install 'mcp>=2.3,<3'"):
    mcp_tools.require()


@pytest.mark.parametrize("version", ["2.3.0", "2.10.1"])
def test_versions_from_2_3_on_are_taken(version, monkeypatch):
  monkeypatch.setattr(importlib.metadata, "version", lambda name: version)
  mcp_tools.require()
