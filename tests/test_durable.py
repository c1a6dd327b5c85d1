"""What a resumed run needs is on the disk, with its name, before the run goes on."""

import os

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from jaxrl_agents import durable, file_digests, record_log
from jaxrl_agents.harness.group_files import save_groups
from jaxrl_agents.learner import checkpoint, segment_files
from jaxrl_agents.learner.state import make_state
from jaxrl_agents.policy.config import PolicyConfig
from jaxrl_agents.runs import demonstrations, weight_files
from jaxrl_agents.runs.workdir import Workdir
from jaxrl_agents.types import Segment
from jaxrl_agents.weights import manifest


@pytest.fixture
def happened(monkeypatch):
  """What was written out and renamed, in order: ("sync", inode) and ("rename", inode, target)."""
  found = []
  fsync = os.fsync

  def synced(descriptor):
    fsync(descriptor)
    found.append(("sync", os.fstat(descriptor).st_ino))

  def renaming(rename):
    def renamed(source, target, **more):
      inode = os.stat(source).st_ino
      rename(source, target, **more)
      found.append(("rename", inode, str(target)))

    return renamed

  monkeypatch.setattr(os, "fsync", synced)
  for name in ("rename", "replace"):
    monkeypatch.setattr(os, name, renaming(getattr(os, name)))
  return found


def is_durable(happened, target):
  """Whether `target` was renamed into place after all of it was written out, and its folder was
  written out after that.
  """
  at = max(i for i, each in enumerate(happened) if each[0] == "rename" and each[2] == str(target))
  before, after = happened[:at], happened[at:]
  parts = [target, *(target.rglob("*") if target.is_dir() else ())]
  content = all(("sync", part.stat().st_ino) in before for part in parts)
  return content and ("sync", target.parent.stat().st_ino) in after


def written_log(folder):
  log = record_log.Log(folder / "log")
  log.append({"n": 1})
  log, _ = record_log.rewritten(log, [{"n": 2}])
  log.close()
  return folder / "log"


def digests(folder):
  (folder / "a").write_text("a")
  file_digests.write(folder)
  return folder / file_digests.NAME


def groups(folder):
  save_groups(folder / "groups.npz", [])
  return folder / "groups.npz"


def summary(folder):
  workdir = Workdir(folder / "w")
  workdir.merge_summary({"a": {"b": 1}})
  return workdir.summary


def sizes(folder):
  heads = {"num_heads": 1, "num_kv_heads": 1, "head_dim": 4}
  dense = {"num_dense_layers": 1, "dense_ffw_dim": 4}
  cfg = PolicyConfig(vocab_size=11, embed_dim=4, num_layers=1, **heads, **dense)
  weight_files.save_sizes(cfg, folder)
  return folder / weight_files.SIZES


def weights(folder):
  weight_files._write({"a": ((2,), np.float32)}, [("a", ..., np.zeros(2, np.float32))], folder)
  return folder / weight_files.WEIGHTS


def segments(folder):
  mask = np.array([False, True])
  segment = Segment(np.arange(2, dtype=np.int32), mask, np.zeros(2, np.float32), -mask.astype("i4"))
  segment_files.write_segments(folder / "segments", [segment])
  return folder / "segments"


def copied(folder):
  demonstrations._copy_whole(segments(folder), folder / "copy")
  return folder / "copy"


def version(folder):
  made = manifest.Manifest(3, None, ())
  manifest.write(folder, made)
  return manifest.path(folder, 3)


WRITERS = (written_log, digests, groups, summary, sizes, weights, segments, copied, version)


@pytest.mark.parametrize("write", WRITERS)
def test_what_is_renamed_into_place_is_on_the_disk_and_its_name_too(tmp_path, happened, write):
  assert is_durable(happened, write(tmp_path))


def test_a_checkpoint_is_on_the_disk_before_its_digests_are(tmp_path, happened):
  state = make_state({"w": jnp.zeros(4)}, optax.sgd(0.1), jax.random.key(0))
  with checkpoint.open_manager(tmp_path) as manager:
    checkpoint.save(manager, 1, state, {}, keep=1)
  digest_file = tmp_path / "1" / file_digests.NAME
  assert is_durable(happened, digest_file)
  at = happened.index(("rename", digest_file.stat().st_ino, str(digest_file)))
  parts = [tmp_path, tmp_path / "1", *(tmp_path / "1").rglob("*")]
  assert all(("sync", part.stat().st_ino) in happened[:at] for part in parts)


def test_a_new_log_has_a_name_on_the_disk(tmp_path, happened):
  record_log.Log(tmp_path / "log").close()
  assert ("sync", tmp_path.stat().st_ino) in happened


def test_a_file_that_moves_to_another_folder_is_named_durably_in_both(tmp_path, happened):
  for name in ("one", "two"):
    (tmp_path / name).mkdir()
  (tmp_path / "one" / "a").write_text("a")
  durable.replace(tmp_path / "one" / "a", tmp_path / "two" / "a")
  assert is_durable(happened, tmp_path / "two" / "a")
  assert ("sync", (tmp_path / "one").stat().st_ino) in happened
