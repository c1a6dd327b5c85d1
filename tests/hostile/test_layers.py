"""Layers of files as a hostile policy makes them: deep, many, in any order; and their removal."""

import os
import pathlib
import random
import stat
import time

import pytest

from jaxrl_agents.sandbox import overlay


def deep(folder, depth, name="x"):
  """A chain of folders, whose path may be longer than the kernel takes."""
  there = os.open(folder, os.O_RDONLY)
  for _ in range(depth):
    os.mkdir(name, dir_fd=there)
    inner = os.open(name, os.O_RDONLY, dir_fd=there)
    os.close(there)
    there = inner
  os.close(os.open("end", os.O_CREAT | os.O_WRONLY, dir_fd=there))
  os.close(there)


@pytest.mark.parametrize(("depth", "name"), [(3_000, "x"), (200, "y" * 200)])
def test_a_tree_of_any_depth_is_removed(tmp_path, depth, name):
  folder = tmp_path / "layer"
  (folder / "work" / "locked").mkdir(parents=True)
  deep(folder / "work", depth, name)
  (folder / "link").symlink_to(tmp_path)
  os.chmod(folder / "work" / "locked", 0)
  overlay.remove(str(folder))
  assert list(tmp_path.iterdir()) == []
  overlay.remove(str(folder))  # what is gone already is no error


def random_layer(folder, draw, depth=0):
  for name in draw.sample("abcd", draw.randint(0, 4)):
    kind = draw.choice("ffdddlp")
    path = folder / name
    if kind == "f":
      path.write_text(draw.choice("xyz"))
    elif kind == "l":
      path.symlink_to(draw.choice(["a", "../b", "/etc"]))
    elif kind == "p":
      os.mkfifo(path)
    elif depth < 4:
      path.mkdir()
      random_layer(path, draw, depth + 1)


@pytest.mark.parametrize("seed", range(30))
def test_one_pass_over_layers_finds_the_files_that_a_walk_finds(tmp_path, seed):
  """Whiteouts need a right that not every user has: folders and files that hide stand for them."""
  draw = random.Random(seed)
  names = tuple(f"l{i}" for i in range(4))
  for name in names:
    (tmp_path / name / "work").mkdir(parents=True)
    random_layer(tmp_path / name / "work", draw)
  walked = {}
  for path in overlay.walk(tmp_path, names, "work"):
    place, found = overlay.find(tmp_path, names, path)
    if stat.S_ISREG(found.st_mode):
      walked[path.removeprefix("work/")] = place
  assert overlay.files(tmp_path, names, "work") == walked


def test_forty_thousand_files_and_deep_folders_are_listed_soon(tmp_path):
  work = tmp_path / "l" / "work"
  work.mkdir(parents=True)
  for i in range(40_000):
    (work / str(i)).touch()
  deep(work, 60)
  start = time.process_time()
  found = overlay.files(pathlib.Path(tmp_path), ("l",) * 3, "work")
  assert len(found) == 40_001
  assert time.process_time() - start < 5.0
