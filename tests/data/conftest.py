"""A small corpus of real source for tests of synthesis: some packages of the running Python."""

import pathlib
import shutil
import sysconfig

import pytest

from jaxrl_agents.data import task_sets
from jaxrl_agents.retrieval import chunks

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
LIMITS = {"train": 120, "dev": 40, "test": 60}


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
  return task_sets.make(
    folder, count_tokens=chunks.count_words_and_marks, chunk_tokens=48, seed=seed, limits=LIMITS
  )


@pytest.fixture(scope="session")
def made(source_folder):
  """(task set, chains by split) of the folder."""
  return make(source_folder)


@pytest.fixture(scope="session")
def remade(source_folder):
  """The same again."""
  return make(source_folder)
