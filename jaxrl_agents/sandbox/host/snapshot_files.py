"""Snapshots as files, for another process or a later one: changes in full, bases by digest."""

from __future__ import annotations

import contextlib
import os
import pathlib
import secrets
import stat
import struct
from typing import Any, BinaryIO

from jaxrl_agents.sandbox import delta, overlay, wire
from jaxrl_agents.sandbox.host.layer_store import Store
from jaxrl_agents.sandbox.records import Snapshot

_MAX_BYTES = 1 << 31


def save(store: Store, snapshot: Snapshot, path: pathlib.Path) -> None:
  """Writes `snapshot` to the new file `path`, which is there only once it is whole.

  Raises:
    Refused: an ordinary user may not read a folder that a sandbox closed to its owner.
  """
  changed = tuple(name for name in snapshot.layers if name.startswith("live/"))
  below = snapshot.layers[len(changed) :]
  merged = store.squash(changed, below)
  part = path.with_name(f".{secrets.token_hex(8)}.part")
  try:
    root = os.open(store.folder / merged, overlay.FOLDER)
    try:
      entries, total = delta.gather(root, _MAX_BYTES, is_whole=False)
      header = {
        "entries": entries,
        "below": below,
        "mask": snapshot.mask,
        "env": dict(snapshot.env),
        "shell": snapshot.shell,
        "cwd": snapshot.cwd,
      }
      with open(part, "xb") as file:
        file.write(wire.encode(header, total))
        file.flush()
        delta.send_files(root, entries, file.fileno())
    finally:
      os.close(root)
    part.rename(path)
  except OSError as error:
    raise OSError(
      error.errno,
      f"{error.strerror}: {path} cannot be written; make room on its disk, check the rights of its "
      "folder, or name another file",
    ) from error
  finally:
    store.discard(store.folder / merged)
    part.unlink(missing_ok=True)


def load(store: Store, path: pathlib.Path) -> Snapshot:
  """The snapshot in a file that `save` wrote; it is not held yet.

  Raises:
    ValueError: no such file, or its base is not in this store.
    OSError: the disk of the store is full, say.
  """
  with contextlib.ExitStack() as opened:
    try:
      file = opened.enter_context(open(os.open(path, os.O_RDONLY | os.O_NONBLOCK), "rb"))
      header, body_bytes = _header(file)
      below = tuple(header["below"])
      records = (tuple(header["mask"]), dict(header["env"]), header["shell"], header["cwd"])
    except (OSError, KeyError, TypeError, ValueError, struct.error, wire.WireError) as error:
      raise ValueError(f"{path} is no saved snapshot: {error}") from None
    missing = [name for name in below if not store.has_base(name)]
    if missing:
      raise ValueError(f"{path} stands on {missing}; make the same base() here first")

    def following(count: int) -> bytes:
      part = file.read(count)
      if not part:
        raise ValueError(f"{path} became shorter while it was read")
      return part

    layers, digest = store.add(header["entries"], following, body_bytes, below=below)
  mask, env, shell, cwd = records
  return Snapshot(layers=layers, mask=mask, env=env, shell=shell, cwd=cwd, digest=digest)


def _header(file: BinaryIO) -> tuple[dict[str, Any], int]:
  """The header, and how many bytes follow it. Only as much is read as the file says it has."""
  status = os.fstat(file.fileno())
  if not stat.S_ISREG(status.st_mode):
    raise ValueError("no regular file")
  header_bytes, body_bytes = wire.LENGTHS.unpack(file.read(wire.LENGTHS.size))
  expected = wire.LENGTHS.size + header_bytes + body_bytes
  if header_bytes > wire.MAX_HEADER_BYTES or status.st_size != expected:
    raise ValueError(f"{status.st_size} bytes of {expected} are there")
  header = wire.decode(file.read(header_bytes))
  if not isinstance(header.get("entries"), list):
    raise ValueError("it has no list of entries")
  return header, body_bytes
