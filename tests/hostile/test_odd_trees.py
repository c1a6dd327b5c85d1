"""Entries that no honest agent sends, and odd trees that one may send."""

import os

import pytest

from jaxrl_agents.agents.coding.judge import changes as judge_changes
from jaxrl_agents.sandbox import overlay
from jaxrl_agents.sandbox.host import changes
from tests.hostile.conftest import (
  WORK,
  added,
  file,
  is_swept_clean,
  session_entries,
  wait_until,
)

LINK_FARM = [
  file("work/f", b"x" * 100),
  *(["h", f"work/h{i}", 0o644, 0, "work/f"] for i in range(9)),
]


@pytest.mark.parametrize(
  "entries",
  [
    [["d", "work", 0o755, 0]],
    [7],
    [["d", "elsewhere", 0o755, 0, 0]],
    [["w", "work", 0, 0, 0]],
    [["p", "tmp", 0o644, 0, 0]],
    [WORK, ["", "work/x", 0o644, 0, 0]],
    [WORK, ["fl", "work/x", 0o644, 0, [[0, 0]]]],
    [WORK, [["f"], "work/x", 0o644, 0, [[0, 0]]]],
    [WORK, ["f", "work/x", 0o644, 0, []]],
    [WORK, ["f", "work/x", 0o644, 0, [0]]],
    [WORK, ["f", "work/x", 0o644, 0, [[0, 0, 0]]]],
    [WORK, ["f", "work/x", 0o644, 0, 7]],
    [WORK, ["f", "work/x", 0o644, 0, [["0", 0]]]],
    [WORK, ["f", "work/x", 0o644, 1.5, [[0, 0]]]],
    [WORK, ["f", "work/" + "n" * 256, 0o644, 0, [[0, 0]]]],
    [WORK, ["f", "work/" + "é" * 128, 0o644, 0, [[0, 0]]]],
    [WORK, ["f", "work/\ud800", 0o644, 0, [[0, 0]]]],
    [WORK, ["l", "work/l", 0o777, 0, ""]],
    [WORK, ["l", "work/l", 0o777, 0, "t" * 4096]],
    [WORK, ["l", "work/l", 0o777, 0, "a\0b"]],
    [WORK, ["l", "work/l", 0o777, 0, "\ud800"]],
    [WORK, ["h", "work/h", 0o644, 0, "work"]],
    [WORK, ["h", "work/h", 0o644, 0, ["work/f"]]],
    [WORK, ["p", "work/p", 0o644, 0, 0], ["h", "work/h", 0o644, 0, "work/p"]],
    [WORK, ["l", "work/l", 0o777, 0, "x"], ["h", "work/h", 0o644, 0, "work/l"]],
    [WORK, *(["d", "work/" + "/".join(["n" * 250] * i), 0o755, 0, 0] for i in range(1, 18))],
  ],
  ids=range(26),
)
def test_no_entries_break_the_store(store, entries):
  for call in (
    lambda: added(store, entries, (store.ground,)),
    lambda: changes.changes_of(store, (store.ground,), entries, b""),
  ):
    with pytest.raises(ValueError, match="of a delta|a delta has"):
      call()
  assert session_entries(store) == []


LINKS = [["h", f"work/h{i}", 0o644, 0, "work/f"] for i in range(9)]
ODD_TREES = {
  "names of 255 bytes": [file("work/" + "n" * 255), ["d", "work/" + "é" * 127, 0o755, 0, 0]],
  "newlines": [file("work/a\nb"), ["l", "work/\n", 0o777, 0, "\n"]],
  "names that are no text": [file("work/\udcff\udcfe"), ["d", "work/\udc80", 0o700, 0, 0]],
  "names like options": [file("work/-rf"), file("work/*"), file("work/ "), file("work/.gone")],
  "names of the store": [file("work/.removing-0"), file("work/s1.gone"), file("work/x.lock")],
  "a farm of links": [file("work/f", b"x" * 100), *LINKS],
  "circles of links": [["l", "work/a", 0o777, 0, "b"], ["l", "work/b", 0o777, 0, "a"]],
  "links that lead out": [["l", "work/l", 0o777, 0, "/"], ["l", "work/m", 0o777, 0, "../../.."]],
  "long targets": [["l", "work/l", 0o777, 0, "t" * 4095]],
  "pipes": [["p", "work/p", 0, 0, 0], ["p", "work/q", 0o1777, 0, 0]],
  "no rights": [["d", "work/d", 0, 0, 0], file("work/d/f", mode=0), file("work/g", mode=0)],
  "no right to enter": [["d", "work/d", 0o600, 0, 1], ["d", "work/d/e", 0o200, 0, 1]],
  "sticky folders": [["d", "work/d", 0o1777, 0, 0], file("work/d/f", mode=0o1000)],
  "whiteouts of nothing": [["w", "work/x", 0, 0, 0], ["w", "work/y", 0, 0, 0]],
  "hiding folders": [["d", "work/x", 0o755, 0, 1], ["d", "work/x/y", 0o755, 0, 1]],
  "whiteouts in a hiding folder": [["d", "work/x", 0o755, 0, 1], ["w", "work/x/y", 0, 0, 0]],
  "times at both ends": [["f", "work/a", 0o644, -(1 << 33), [[0, 0]]],
                         ["d", "work/b", 0o755, 1 << 61, 0]],
  "nothing": [],
  "folders alone": [["d", "work/" + "/".join("d" * i), 0o755, 0, 0] for i in range(1, 64)],
  "holes": [["f", "work/h", 0o644, 0, [[1 << 40, 0]]]],
  "a hole before and after data": [["f", "work/h", 0o644, 0, [[1 << 20, 100], [1 << 30, 0]]]],
  "the longest path": [["d", "work/" + "/".join(["n" * 254] * i), 0o755, 0, 0]
                       for i in range(1, 16)],
}  # fmt: skip


@pytest.mark.parametrize("entries", ODD_TREES.values(), ids=ODD_TREES)
def test_odd_trees_are_unpacked_merged_compared_copied_and_removed(store, tmp_path, entries):
  entries = [WORK, *entries]
  body = bytes(sum(length for e in entries if e[0] == "f" for _, length in e[4]))
  under = added(store, [WORK, file("work/x", b"old"), ["d", "work/z", 0o755, 0, 0]],
                (store.ground,), b"old")  # fmt: skip
  layers = added(store, entries, under, body)
  merged = (store.squash(layers[:2], layers[2:]), *layers[2:])
  again = added(store, entries, merged, body)
  whole = [entry for entry in entries if entry[0] in "dlpw"]
  for seen in (merged, again):
    assert set(changes.changes_of(store, seen, whole, b"")) <= set()
  judged = judge_changes.changes_between(store, layers, again)
  assert set(judged.values()) <= {None}  # a file too long to be compared
  assert set(judged) <= {"h"}
  huge = any(e[0] == "f" and sum(e[4][-1]) > 1 << 35 for e in entries)
  out = tmp_path / "out"
  out.mkdir()
  store.copy_out(again, out)
  used = sum(os.lstat(p).st_blocks * 512 for p in map(str, [out / "work/h"]) if os.path.exists(p))
  assert used < 1 << 20 and (not huge or (out / "work/h").stat().st_size == 1 << 40)
  overlay.remove(str(out))
  for made in (under, layers, merged, again):
    store.release(made[:1], held=False)
  wait_until(lambda: is_swept_clean(store))
