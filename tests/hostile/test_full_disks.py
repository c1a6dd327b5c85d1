"""A disk that is full: nothing half-written is left, and the error says what helps."""

import errno

import pytest

from jaxrl_agents.sandbox.host.layer_store import Store
from tests.file_limits import no_file_beyond
from tests.hostile.conftest import (
  WORK,
  added,
  file,
  is_swept_clean,
  session_entries,
  tmpfs,
  wait_until,
)


def full(store, size):
  entries = [WORK, ["d", "work/d", 0o755, 0, 0], file("work/d/f", bytes(1 << 20)), file("work/g")]
  entries += [file(f"work/n{i}", bytes(1 << 20)) for i in range(size)]
  return entries, bytes((1 + size) << 20)


def test_a_layer_that_finds_no_room_leaves_nothing_and_says_what_helps(tmp_path):
  with tmpfs(tmp_path / "small", "size=4m") as small:
    store = Store(small / "store", (0, 0))
    entries, body = full(store, 8)
    with pytest.raises(OSError, match=r"No space left.*make room on its disk, or choose") as caught:
      added(store, entries, (store.ground,), body)
    assert caught.value.errno == errno.ENOSPC
    with pytest.raises(OSError, match="has no room for a base; make room on its disk"):
      store.base({"big": bytes(8 << 20)})
    wait_until(lambda: is_swept_clean(store))
    entries, body = full(store, 1)
    layers = added(store, entries, (store.ground,), body)  # and it goes on
    assert (store.folder / layers[0] / "work/d/f").stat().st_size == 1 << 20
    store.close()


def test_a_store_without_any_room_is_an_error_with_a_remedy(tmp_path):
  with tmpfs(tmp_path / "small", "nr_inodes=8") as small, pytest.raises(OSError, match="No space"):
    Store(small / "store", (0, 0))


def test_a_file_that_may_not_grow_is_an_error_with_a_remedy(store):
  with no_file_beyond(1 << 16), pytest.raises(OSError, match="File too large: .* has no room"):
    added(store, [WORK, file("work/f", bytes(1 << 20))], (store.ground,), bytes(1 << 20))
  assert session_entries(store) == []


@pytest.mark.slow
def test_a_snapshot_that_cannot_be_saved_leaves_no_file(play, tmp_path):
  async def body(boxes, base):
    async with await boxes.create(base) as box:
      await box.exec("head -c 1000000 /dev/urandom > f")
      snapshot = await box.snapshot()
    with no_file_beyond(1 << 16), pytest.raises(OSError, match="File too large: .* make room on"):
      await boxes.save(snapshot, tmp_path / "state")
    assert list(tmp_path.iterdir()) == []
    await boxes.save(snapshot, tmp_path / "state")
    boxes.drop(snapshot)
    loaded = await boxes.load(tmp_path / "state")
    boxes.drop(loaded)
    return [path.name for path in tmp_path.iterdir()]

  assert play(body) == ["state"]
