"""Random changes in many layers, as overlayfs would write them, against plain dicts of files."""

import os
import random
import stat

import pytest

from jaxrl_agents.agents.coding.judge import changes as judge_changes
from jaxrl_agents.sandbox.host import changes
from jaxrl_agents.sandbox.host.layer_store import MAX_SNAPSHOT_LAYERS
from jaxrl_agents.sandbox.host.merged_layers import Layers
from jaxrl_agents.sandbox.records import Change
from tests.hostile.conftest import added

NAMES = ["a", "b", "c", "\udcff", "n" * 255, "new\nline"]
BASE = {"work": ("folder", 0o755, None), "work/a": ("file", 0o644, b"base")}


def below(tree, path):
  return [other for other in tree if other.startswith(path + "/")]


def random_step(draw, tree):
  """Changes the dict; the path of a folder that was made anew in the place of another, or ""."""
  folders = [path for path, entry in tree.items() if entry[0] == "folder"]
  folder = draw.choice([path for path in folders if path.count("/") < 5])
  path = f"{folder}/{draw.choice(NAMES)}"
  kind = draw.choice(["file", "file", "folder", "link", "pipe", "gone", "gone", "move", "anew"])
  if kind == "move":
    source = draw.choice(sorted(set(tree) - {"work"} | {path}))
    if source not in tree or (path + "/").startswith(source + "/") or path in tree:
      return ""
    for old in [source, *below(tree, source)]:
      tree[path + old.removeprefix(source)] = tree.pop(old)
    return ""
  if kind == "folder" and tree.get(path, ("",))[0] == "folder":
    return ""
  was = tree.get(path, ("",))[0]
  for old in [path, *below(tree, path)]:
    tree.pop(old, None)
  if kind in ("folder", "anew"):
    tree[path] = ("folder", draw.choice([0o755, 0o700]), None)
    return path if was == "folder" else ""
  if kind != "gone":
    content = {"file": draw.choice([b"", b"1", b"22"]), "link": draw.choice([b"x", b"../y"])}
    mode = {"file": draw.choice([0o644, 0o600, 0]), "link": 0o777, "pipe": 0o644}
    tree[path] = (kind, mode[kind], content.get(kind))
  return ""


def upper(old, new, anew):
  """(entries, body) that turn one dict into the other; folders of `anew` hide what was there."""
  entries, body = [], b""
  touched = {path for path in old.keys() | new.keys() if old.get(path) != new.get(path)}
  touched |= {inner for path in anew if path in new for inner in [path, *below(new, path)]}
  parents = {"/".join(path.split("/")[:end]) for path in touched for end in range(1, 9)}
  hidden = set()  # folders of which nothing old is to be seen
  for path in sorted(touched | (parents & new.keys()), key=lambda path: path.split("/")):
    parent = path.rpartition("/")[0]
    kind, mode, content = new.get(path, ("", 0, None))
    if not kind:
      if parent in new and parent not in hidden and new[parent][0] == "folder":
        entries.append(["w", path, 0, 0, 0])
      continue
    if kind == "folder":
      is_other = path in old and old[path][0] != "folder"
      hides = path in anew or is_other
      hidden |= {path} if hides or parent in hidden or path not in old else set()
      entries.append(["d", path, mode, 0, int(hides)])
    elif kind == "file":
      body += content
      entries.append(["f", path, mode, 0, [[0, len(content)], [len(content), 0]]])
    else:
      entries.append([kind[0], path, mode, 0, os.fsdecode(content) if content else 0])
  return entries, body


def differences(old, new):
  found = {}
  for path in old.keys() | new.keys():
    if old.get(path) != new.get(path):
      kind, mode, content = new.get(path, ("gone", 0, None))
      found[path] = Change(kind, old[path][2] if path in old else None, content, mode)
  return found


KINDS = {"f": "file", "d": "folder", "l": "link", "p": "pipe"}


def shown(store, layers):
  seen = {}
  with Layers(store.folder, layers) as together:
    work = together.find("work")
    for found in [work, *together.below(work)]:
      content = None
      if found.kind == "f":
        fd = together.open(found)
        content = os.read(fd, 100)
        os.close(fd)
      elif found.kind == "l":
        content = os.fsencode(together.target(found))
      seen[found.path] = (KINDS[found.kind], together.mode(found), content)
  return seen


def of_folder(top):
  seen = {}
  for folder, folders, names in os.walk(top):
    for name in folders + names:
      path = os.path.join(folder, name)
      mode = os.lstat(path).st_mode
      content = None
      if stat.S_ISLNK(mode):
        content = os.fsencode(os.readlink(path))
      elif stat.S_ISREG(mode):
        with open(path, "rb") as file:
          content = file.read()
      letter = {stat.S_IFREG: "file", stat.S_IFDIR: "folder", stat.S_IFLNK: "link"}
      kind = letter.get(stat.S_IFMT(mode), "pipe")
      seen[os.path.relpath(path, top)] = (kind, stat.S_IMODE(mode), content)
  return {path: entry for path, entry in seen.items() if path.startswith("work")}


@pytest.mark.parametrize("seed", range(12))
def test_layers_changes_merges_and_copies_agree_with_dicts(store, tmp_path, seed):
  draw = random.Random(seed)
  layers = (store.base({"a": "base"})[0], store.ground)
  tree = dict(BASE)
  states = [(layers, dict(tree))]
  for turn in range(MAX_SNAPSHOT_LAYERS + 4):
    before = dict(tree)
    anew = {random_step(draw, tree) for _ in range(draw.randint(1, 6))} - {""}
    entries, body = upper(before, tree, anew)
    found = changes.changes_of(store, layers, entries, body)
    assert found == differences(before, tree)
    layers = added(store, entries, layers, body)
    assert shown(store, layers) == tree
    states.append((layers, dict(tree)))
    if turn % 6 == 5:
      (tmp_path / str(turn)).mkdir()
      if os.geteuid() == 0:  # an ordinary user may not read back what is closed
        store.copy_out(layers, tmp_path / str(turn))
        assert of_folder(tmp_path / str(turn)) == tree
    (older, then), (newer, now) = draw.choice(states), draw.choice(states)
    files = lambda state: {p: e[2] for p, e in state.items() if e[0] == "file"}
    one, other = files(then), files(now)
    expected = {p: other.get(p) for p in one.keys() | other.keys() if one.get(p) != other.get(p)}
    judged = judge_changes.changes_between(store, older, newer)
    assert {f"work/{path}": content for path, content in judged.items()} == expected
