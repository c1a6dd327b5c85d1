"""Snapshots as files, for another process or a later one: changes in full, bases by digest."""

from __future__ import annotations

import os
import pathlib

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
  part = path.with_name(f"{path.name}.{os.getpid()}.part")
  try:
    root = os.open(store.folder / merged, os.O_RDONLY | os.O_DIRECTORY)
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
      with open(part, "xb", buffering=0) as file:
        file.write(wire.encode(header, total))
        delta.send_files(root, entries, file.fileno())
    finally:
      os.close(root)
    part.rename(path)
  finally:
    overlay.remove(str(store.folder / merged))
    part.unlink(missing_ok=True)


def load(store: Store, path: pathlib.Path) -> Snapshot:
  """The snapshot in a file that `save` wrote; it is not held yet.

  Raises:
    ValueError: no such file, or its base is not in this store.
  """
  try:
    content = path.read_bytes()
    header_bytes, body_bytes = wire.LENGTHS.unpack_from(content)
    header = wire.decode(content[wire.LENGTHS.size : wire.LENGTHS.size + header_bytes])
    body = content[wire.LENGTHS.size + header_bytes :]
    below = tuple(header["below"])
    if len(body) != body_bytes:
      raise ValueError(f"{len(body)} bytes of {body_bytes} are there")
  except (OSError, KeyError, TypeError, ValueError, wire.WireError) as error:
    raise ValueError(f"{path} is no saved snapshot: {error}") from None
  missing = [name for name in below if not store.has_base(name)]
  if missing:
    raise ValueError(f"{path} stands on {missing}; make the same base() here first")
  layers, digest = store.add(header["entries"], body, below)
  return Snapshot(
    layers=layers,
    mask=tuple(header["mask"]),
    env=header["env"],
    shell=header["shell"],
    cwd=header["cwd"],
    digest=digest,
  )
