"""The sandboxes of tests/sandbox, for policies that mean harm."""

import os

import pytest

from jaxrl_agents.sandbox import overlay
from tests.sandbox.conftest import in_box, play, report

__all__ = ["deep_folder", "in_box", "play", "report"]


@pytest.fixture
def deep_folder(tmp_path):
  """A folder that may be filled with a tree of any depth, which pytest could not remove."""
  folder = tmp_path / "deep"
  folder.mkdir()
  yield folder
  overlay.remove(str(folder))


def nest(folder, depth, name="d"):
  """A chain of folders below `folder`; the descriptor of the last."""
  there = os.open(folder, os.O_RDONLY)
  for _ in range(depth):
    os.mkdir(name, dir_fd=there)
    inner = os.open(name, os.O_RDONLY, dir_fd=there)
    os.close(there)
    there = inner
  return there
