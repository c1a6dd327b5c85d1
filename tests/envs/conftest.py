"""Fixtures: the small corpus, indexed once."""

import dataclasses

import pytest

from jaxrl_agents import chat
from jaxrl_agents.envs import search_tools
from jaxrl_agents.retrieval import index
from tests.envs.arena import LIMITS, corpus


@pytest.fixture(scope="session")
def services(tmp_path_factory):
  built = index.build(corpus(), tmp_path_factory.mktemp("index"), rank=8)
  return search_tools.SearchServices(chat.load(), built, LIMITS)


@pytest.fixture(scope="session")
def limited(services):
  """services with some limits changed."""
  return lambda **changes: dataclasses.replace(
    services, limits=dataclasses.replace(LIMITS, **changes)
  )
