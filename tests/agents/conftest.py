"""Fixtures: a small corpus that is indexed once, and a folder of real source for task synthesis."""

import dataclasses
import pathlib
import shutil
import sysconfig

import pytest

from jaxrl_agents import chat
from jaxrl_agents.agents.search import tools
from jaxrl_agents.agents.search.tasks import make_tasks
from jaxrl_agents.corpus import chunks
from jaxrl_agents.corpus.index import hybrid
from tests.agents.search.arena import LIMITS, corpus
from tests.agents.swarm.library import library

PARTS = (
  "json",
  "email",
  "logging",
  "http",
  "urllib",
  "configparser.py",
  "zipfile.py",
  "tarfile.py",
)
TASK_LIMITS = {"train": 120, "dev": 40, "test": 60}


@pytest.fixture(scope="session")
def source_folder(tmp_path_factory):
  """A folder of python files."""
  folder = tmp_path_factory.mktemp("source")
  library = pathlib.Path(sysconfig.get_paths()["stdlib"])
  for name in PARTS:
    if (library / name).is_dir():
      ignored = shutil.ignore_patterns("__pycache__")
      shutil.copytree(library / name, folder / name, ignore=ignored)
    elif (library / name).is_file():
      shutil.copy(library / name, folder / name)
  return folder


def make(folder, seed=0):
  return make_tasks.make(
    folder,
    count_tokens=chunks.count_words_and_marks,
    chunk_tokens=48,
    seed=seed,
    limits=TASK_LIMITS,
  )


@pytest.fixture(scope="session")
def made(source_folder):
  """(task set, chains by split) of the folder."""
  return make(source_folder)


@pytest.fixture(scope="session")
def remade(source_folder):
  """The same again."""
  return make(source_folder)


@pytest.fixture(scope="session")
def services(tmp_path_factory):
  built = hybrid.build(corpus(), tmp_path_factory.mktemp("index"), rank=8)
  return tools.SearchServices(chat.load(), built, LIMITS)


@pytest.fixture(scope="session")
def limited(services):
  """services with some limits changed."""
  return lambda **changes: dataclasses.replace(
    services, limits=dataclasses.replace(LIMITS, **changes)
  )


@pytest.fixture(scope="session")
def tables(tmp_path_factory):
  """(index, tasks) of `tests.agents.swarm.library`."""
  return library(tmp_path_factory.mktemp("library"))
