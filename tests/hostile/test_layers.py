"""Layers of files as a hostile policy makes them: deep, many, in any order; and their removal."""

import os
import pathlib
import random
import stat
import time

import pytest

from jaxrl_agents.sandbox import overlay
from jaxrl_agents.sandbox.host.merged_layers import Layers
from tests.hostile.conftest import nest


def deep(folder, depth, name="x"):
  """A chain of folders, whose path may be longer than the kernel takes, with a file in the last."""
  there = nest(folder, depth, name)
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
    kind = draw.choice("ffdddolpww")
    path = folder / name
    if kind == "f":
      path.write_text(draw.choice("xyz"))
    elif kind == "l":
      path.symlink_to(draw.choice(["a", "../b", "/etc"]))
    elif kind == "p":
      os.mkfifo(path)
    elif kind == "w":
      os.mknod(path, stat.S_IFCHR, 0)
    elif depth < 4:
      path.mkdir()
      if kind == "o":
        os.setxattr(path, overlay.OPAQUE, b"y")
      random_layer(path, draw, depth + 1)


def seen_slowly(root, layers, path):
  """What an overlay shows at `path`: (kind, layer), or None. It follows the rules of overlayfs."""
  for layer in layers:
    at = root / layer
    for part in pathlib.PurePath(path).parts:
      at = at / part
      if not os.path.lexists(at):
        break
      mode = os.lstat(at).st_mode
      if stat.S_ISCHR(mode):
        return None
      if not stat.S_ISDIR(mode):
        return (stat.S_IFMT(mode), layer) if at == root / layer / path else None
      try:
        hides = os.getxattr(at, overlay.OPAQUE) == b"y"
      except OSError:
        hides = False
      if hides and not os.path.lexists(root / layer / path):
        return None
    else:
      return stat.S_IFMT(mode), layer
  return None


def all_paths(root, layers):
  found = set()
  for layer in layers:
    for folder, folders, names in os.walk(root / layer):
      found.update(os.path.relpath(os.path.join(folder, n), root / layer) for n in folders + names)
  return sorted(found)


KINDS = {"f": stat.S_IFREG, "d": stat.S_IFDIR, "l": stat.S_IFLNK, "p": stat.S_IFIFO}


def shown(root, layers):
  with Layers(root, layers) as together:
    work = together.find("work")
    every = [work, *together.below(work)]
    return {found.path: (KINDS[found.kind], layers[found.layer]) for found in every}


@pytest.mark.parametrize("seed", range(30))
def test_layers_show_what_the_rules_of_overlays_say_path_by_path(tmp_path, seed):
  draw = random.Random(seed)
  names = tuple(f"l{i}" for i in range(4))
  for name in names:
    (tmp_path / name / "work").mkdir(parents=True)
    random_layer(tmp_path / name / "work", draw)
  slowly = {path: seen_slowly(tmp_path, names, path) for path in all_paths(tmp_path, names)}
  assert shown(tmp_path, names) == {path: found for path, found in slowly.items() if found}


def test_forty_thousand_files_and_deep_folders_are_listed_soon(tmp_path):
  work = tmp_path / "l" / "work"
  work.mkdir(parents=True)
  for i in range(40_000):
    (work / str(i)).touch()
  deep(work, 60)
  start = time.process_time()
  assert len(shown(tmp_path, ("l",) * 3)) == 40_062
  assert time.process_time() - start < 2.0
