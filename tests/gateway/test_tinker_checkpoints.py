"""Saved weights of Tinker's API."""

import pytest

from jaxrl_agents.gateway.tinker import checkpoints as checkpoints_lib


def test_a_checkpoint_is_there_until_the_one_that_replaces_it_is_whole(tmp_path):
  kept = checkpoints_lib.Checkpoints(tmp_path)
  begin = lambda: kept.begin("m", "weights", "latest", overwrite=True)
  for text in ("old", "new"):
    folder = begin()
    (folder / "w").write_text(text)
    path = kept.complete(folder, checkpoints_lib.Lora(), {})
    assert path == "tinker://m/weights/latest"
    (begin() / "w").write_text("half")  # of a process that died here
    again = checkpoints_lib.Checkpoints(tmp_path)
    (found,) = again.all()
    assert (found.path, (found.folder / "w").read_text()) == (path, text)
  place = tmp_path / "m" / "weights"
  (place / "latest").rename(place / ".latest.before")  # as a process leaves it that dies just then
  (found,) = checkpoints_lib.Checkpoints(tmp_path).all()
  assert (found.folder / "w").read_text() == "new"
  with pytest.raises(ValueError, match="exists; save with overwrite"):
    kept.begin("m", "weights", "latest", overwrite=False)
