"""Saves that are killed between any two of their file operations, or run out of disk.

What a kill leaves is what lies in the folder at that moment. An audit hook copies the folder before
every operation of Python on a file in it; each copy is then started from like a killed run.
"""

import contextlib
import itertools
import pathlib
import shutil
import sys
import threading

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl_agents.corpus import frozen_sets
from jaxrl_agents.corpus.chunks import Chunk
from jaxrl_agents.corpus.index import hybrid
from jaxrl_agents.full_disk import FullDiskError
from jaxrl_agents.harness import group_files
from jaxrl_agents.learner import checkpoint, segment_files
from jaxrl_agents.policy import params as params_lib
from jaxrl_agents.runs import report_page, weight_files
from jaxrl_agents.runs.workdir import Workdir
from jaxrl_agents.weights import store
from tests.file_limits import no_file_beyond
from tests.harness.test_group_files import group, plain
from tests.learner.test_checkpoint import assert_equal, make
from tests.runs.small_run import CFG

pytestmark = pytest.mark.slow

OPERATIONS = {"open", "os.rename", "os.remove", "os.rmdir", "os.mkdir", "os.truncate"}


class Recorder:
  """Copies `watched` before each operation on a file in it, while `active`."""

  def __init__(self):
    self.watched, self.copies, self.active = "", pathlib.Path(), False
    self._number, self._lock = itertools.count(), threading.RLock()
    self._copying = False

  def __call__(self, event, arguments):
    if not self.active or event not in OPERATIONS:
      return
    with self._lock:
      if self._copying or not str(arguments[0]).startswith(self.watched):
        return
      self._copying = True
      try:
        target = self.copies / f"{next(self._number):03d}"
        with contextlib.suppress(shutil.Error, OSError):  # another thread writes there, too
          shutil.copytree(self.watched, target)
      finally:
        self._copying = False


RECORDER = Recorder()
sys.addaudithook(RECORDER)  # cannot be removed


@contextlib.contextmanager
def recorded(folder, copies):
  copies.mkdir(exist_ok=True)
  RECORDER.watched, RECORDER.copies, RECORDER.active = str(folder), copies, True
  try:
    yield
  finally:
    RECORDER.active = False


def images(copies, at_least):
  found = sorted(copies.iterdir())
  assert len(found) >= at_least
  return found


def test_a_checkpoint_killed_at_any_moment_leaves_the_step_before_or_itself(tmp_path, capfd):
  folder, copies = tmp_path / "rl", tmp_path / "copies"
  with checkpoint.open_manager(folder) as manager:
    for step in (1, 2):
      checkpoint.save(manager, step, make(seed=step), {"step": step}, keep=2)
    with recorded(folder, copies):
      checkpoint.save(manager, 3, make(seed=3), {"step": 3}, keep=2)
  steps = []
  for image in images(copies, 12):
    capfd.readouterr()
    with checkpoint.open_manager(image) as manager:
      state, progress, step = checkpoint.restore(manager, make())
      assert progress == {"step": step}
      assert_equal(state, make(seed=step))
      assert ("checkpoint 3 is damaged" in capfd.readouterr().err) == (
        step == 2 and (image.parent / f"{image.name}-damaged").exists()
      )
      checkpoint.save(manager, step + 1, make(seed=step + 1), {"step": step + 1}, keep=2)
      assert checkpoint.restore(manager, make())[2] == step + 1
    steps.append(step)
  assert steps == sorted(steps) and set(steps) == {2, 3}


def test_weights_killed_at_any_moment_are_published_whole_or_not_at_all(tmp_path):
  folder, copies = tmp_path / "weights", tmp_path / "copies"
  version = lambda n: {"embed": jnp.full((8, 4), n, jnp.float32), "out": {"w": jnp.ones(n)}}
  for n in (1, 2):
    store.publish(version(n), n, folder)
  with recorded(folder, copies):
    store.publish(version(3), 3, folder)
  found = []
  for image in images(copies, 8):
    latest = max(store.manifest_lib.versions(image), default=None)
    for n in (latest - 1, latest) if latest == 2 else (latest,):
      np.testing.assert_array_equal(store.fetch(image, n)["embed"], version(n)["embed"])
    store.withdraw_after(latest, image)
    store.publish(version(latest + 1), latest + 1, image)
    assert store.fetch(image, latest + 1)["out"]["w"].shape == (latest + 1,)
    found.append(latest)
  assert found == sorted(found) and set(found) == {2, 3}


def whole_file(write, read, folder, copies, at_least):
  """Writes 0, then records a write of 1; every image must read as one of them, and be writable."""
  folder.mkdir()
  write(folder, 0)
  values = [read(folder)]
  with recorded(folder, copies):
    write(folder, 1)
  values.append(read(folder))
  assert values[0] != values[1]
  for image in images(copies, at_least):
    assert read(image) in values
    write(image, 1)
    assert read(image) == values[1]


def test_groups_summary_and_metrics_killed_at_any_moment_are_the_old_or_the_new_ones(tmp_path):
  groups = lambda folder, n: group_files.save_groups(folder / "g.npz", [group(5 + n)])
  read_groups = lambda folder: plain(group_files.load_groups(folder / "g.npz"))
  whole_file(groups, read_groups, tmp_path / "g", tmp_path / "g_copies", 2)
  summary = lambda folder, n: Workdir(folder).merge_summary({"n": n})
  whole_file(
    summary, lambda folder: Workdir(folder).read_summary(), tmp_path / "s", tmp_path / "s_copies", 2
  )

  def metrics(folder, n):
    workdir = Workdir(folder)
    workdir.drop_metrics_from("rl", 0)
    workdir.log("rl", 0, {"n": n})

  read = lambda folder: [line["n"] for line in Workdir(folder).lines()]
  folder, copies = tmp_path / "m", tmp_path / "m_copies"
  metrics(folder, 0)
  with recorded(folder, copies):
    metrics(folder, 1)
  for image in images(copies, 2):
    assert read(image) in ([0], [], [1])
    metrics(image, 1)
    assert read(image) == [1]


def test_a_warm_start_killed_at_any_moment_is_whole_refused_or_not_there(tmp_path):
  folder, copies = tmp_path / "run", tmp_path / "copies"
  params = [params_lib.init(CFG, jax.random.key(seed)) for seed in (0, 1)]
  flat = lambda tree: [np.asarray(x).tobytes() for x in jax.tree.leaves(tree)]
  weight_files.save(params[0], CFG, folder)
  with recorded(folder, copies):
    weight_files.save(params[1], CFG, folder)
  refused = 0
  for image in images(copies, 6):
    try:
      assert flat(weight_files.load(str(image), CFG)) in map(flat, params)
    except ValueError as error:
      refused += 1
      assert "run the script that wrote it again" in str(error)
    weight_files.save(params[1], CFG, image)
    assert flat(weight_files.load(str(image), CFG)) == flat(params[1])
    assert not list(image.glob("*.partial"))
  assert refused < len(list(copies.iterdir()))


def test_folders_of_a_cache_killed_at_any_moment_are_whole_or_made_again(tmp_path):
  chunks = [Chunk(f"{i}_0", str(i), "a title", f"text {i} of words w{i}", 0) for i in range(6)]
  drills = lambda: segment_files.copy_segments(5, 12, ids=np.arange(9), max_period=4, seed=0)
  files = {"a.jsonl": b"x\n" * 9, "b.jsonl.gz": b"y\n" * 9}

  def write(folder):
    segment_files.write_segments(folder / "drills", drills())
    frozen_sets.write(folder / "set", files, {"seed": 1})
    return hybrid.build(chunks, folder, rank=2).search("w3 text")

  def check(folder):
    assert len(segment_files.read_segments(folder / "drills")) == 5
    manifest = frozen_sets.read_manifest(folder / "set", maker="make.py")
    assert {
      n: frozen_sets.read(folder / "set", n, manifest, maker="make.py") for n in files
    } == files

  folder, copies = tmp_path / "cache", tmp_path / "copies"
  folder.mkdir()
  with recorded(folder, copies):
    hits = write(folder)
  for image in images(copies, 20):
    assert write(image) == hits
    check(image)


def test_demonstrations_that_are_replaced_are_lost_at_no_moment(tmp_path):
  folder, copies = tmp_path / "cache", tmp_path / "copies"
  drills = lambda n: segment_files.copy_segments(n, 12, ids=np.arange(9), max_period=4, seed=0)
  segment_files.write_segments(folder / "drills", drills(3))
  with recorded(folder, copies):
    segment_files.write_segments(folder / "drills", drills(5))
  for image in images(copies, 5):
    wholes = [path.parent for path in image.rglob("manifest.json")]
    assert any(len(segment_files.read_segments(whole)) in (3, 5) for whole in wholes)


def writers(folder):
  workdir = Workdir(folder / "run")
  params = params_lib.init(CFG, jax.random.key(0))
  chunks = [Chunk(f"{i}_0", str(i), "a title", f"text {i} of words w{i}", 0) for i in range(300)]
  drills = [*segment_files.copy_segments(500, 120, ids=np.arange(9), max_period=4, seed=0)]
  return {
    "metrics": lambda: [workdir.log("rl", i, {f"x{j}": 1.0 for j in range(99)}) for i in range(20)],
    "summary": lambda: workdir.merge_summary({"text": "x" * 20_000}),
    "groups": lambda: group_files.save_groups(workdir.trajectories / "g.npz", [group(9_000)]),
    "warm_start": lambda: weight_files.save(params, CFG, workdir.warm_start),
    "set": lambda: frozen_sets.write(folder / "set", {"a.jsonl": b"x" * 100_000}, {}),
    "drills": lambda: segment_files.write_segments(folder / "drills", drills),
    "index": lambda: hybrid.build(chunks, folder / "index", rank=8),
    "weights": lambda: store.publish(
      {"w": np.random.default_rng(0).random((99, 99))}, 2, workdir.weights
    ),
    "report": lambda: report_page.write(workdir.path),
  }


@pytest.mark.parametrize(
  "name",
  ["metrics", "summary", "groups", "warm_start", "set", "drills", "index", "weights", "report"],
)
def test_a_full_disk_is_one_error_with_the_folder_and_the_remedy(tmp_path, name):
  write = writers(tmp_path)[name]
  Workdir(tmp_path / "run").log("rl", 0, {"reward": 1.0})
  with no_file_beyond(8_192), pytest.raises(FullDiskError, match="Free some space there") as found:
    write()
  assert str(tmp_path) in str(found.value) and "\n" not in str(found.value)
  left = [p for p in tmp_path.rglob("*") if p.is_file() and p.stat().st_size > 8_192]
  assert left == []
  write()  # once there is room


def test_a_checkpoint_on_a_full_disk_leaves_the_earlier_one_usable(tmp_path):
  wide = lambda seed: make(width=4_000, seed=seed)
  with checkpoint.open_manager(tmp_path / "rl") as manager:
    checkpoint.save(manager, 1, wide(1), {"step": 1}, keep=1)
    with no_file_beyond(50_000), pytest.raises(FullDiskError, match=r"rl/2 could not be written"):
      checkpoint.save(manager, 2, wide(2), {"step": 2}, keep=1)
  with checkpoint.open_manager(tmp_path / "rl") as manager:
    state, progress, step = checkpoint.restore(manager, wide(0))
    assert (step, progress) == (1, {"step": 1})
    assert_equal(state, wide(1))
    checkpoint.save(manager, 2, wide(2), {"step": 2}, keep=1)
  assert [path.name for path in (tmp_path / "rl").iterdir()] == ["2"]


def test_a_report_that_cannot_be_written_does_not_end_the_run(tmp_path, capfd):
  workdir = Workdir(tmp_path)
  workdir.log("rl", 0, {"reward": 1.0})
  with no_file_beyond(8_192):
    report_page.write_if_possible(workdir.path)
  assert "the report was not written: " in (error := capfd.readouterr().err)
  assert "python scripts/view.py --workdir=" in error
