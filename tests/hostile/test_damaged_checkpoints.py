"""Damaged checkpoints: the damage is found before a restore, and the step before is used."""

import pathlib
import random
import shutil

import pytest

from jaxrl_agents.learner import checkpoint
from tests.learner.test_checkpoint import assert_equal, make

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
  folder = tmp_path_factory.mktemp("saved") / "rl"
  with checkpoint.open_manager(folder) as manager:
    for step in (1, 2):
      checkpoint.save(manager, step, make(seed=step), {"step": step}, keep=2)
  return folder


def files_of(folder, step):
  return sorted(path for path in (folder / str(step)).rglob("*") if path.is_file())


def flip(path, draw):
  content = bytearray(path.read_bytes())
  content[draw.randrange(len(content))] ^= 1 << draw.randrange(8)
  path.write_bytes(content)


def cut(path, draw):
  path.write_bytes(path.read_bytes()[: draw.randrange(path.stat().st_size)])


def remove(path, draw):
  path.unlink()


@pytest.mark.parametrize("fault", [flip, cut, remove])
def test_a_fault_in_any_file_of_the_newest_step_restores_the_one_before_and_says_so(
  saved, tmp_path, capfd, fault
):
  draw = random.Random(fault.__name__)
  count = len(files_of(saved, 2))
  assert count > 5
  for trial in range(2 * count):
    folder = tmp_path / str(trial) / "rl"
    shutil.copytree(saved, folder)
    path = files_of(folder, 2)[trial % count]
    if not path.stat().st_size:
      continue
    fault(path, draw)
    with checkpoint.open_manager(folder) as manager:
      state, progress, step = checkpoint.restore(manager, make())
      assert (step, progress) == (1, {"step": 1}), path
      assert_equal(state, make(seed=1))
      error = capfd.readouterr().err
      named = path.name if not path.name.startswith("digests") else ""
      assert "checkpoint 2 is damaged" in error and named in error
      checkpoint.save(manager, 2, make(seed=2), {"step": 2}, keep=2)
    assert [p.name for p in (tmp_path / str(trial) / "rl-damaged").iterdir()] == ["2-0"]
    with checkpoint.open_manager(folder) as manager:
      assert checkpoint.restore(manager, make())[2] == 2
    shutil.rmtree(tmp_path / str(trial))


def test_a_save_that_ended_before_its_digests_is_not_used(saved, tmp_path, capfd):
  shutil.copytree(saved, tmp_path / "rl")
  (tmp_path / "rl" / "2" / "digests-0.json").unlink()
  with checkpoint.open_manager(tmp_path / "rl") as manager:
    assert checkpoint.restore(manager, make())[2] == 1
  assert "the save did not end" in capfd.readouterr().err


def test_damage_of_every_step_or_of_the_one_asked_for_is_an_error_with_the_files(saved, tmp_path):
  folder = tmp_path / "rl"
  shutil.copytree(saved, folder)
  for step in (1, 2):
    flip(pathlib.Path(folder, str(step), "progress", "metadata"), random.Random(step))
  with checkpoint.open_manager(folder) as manager:
    text = "checkpoint 2 in .* is damaged: progress/metadata has other.*take another one"
    with pytest.raises(ValueError, match=text):
      checkpoint.restore(manager, make(), 2)
    text = "every checkpoint in .*2: progress/metadata has other.*remove it to"
    with pytest.raises(ValueError, match=text):
      checkpoint.restore(manager, make())
  assert sorted(path.name for path in folder.iterdir()) == ["1", "2"]
