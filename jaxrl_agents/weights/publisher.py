"""Publishes versions of the weights as differences from the one before, some also complete."""

from __future__ import annotations

import contextlib
import functools
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import jax
import jax.numpy as jnp

from jaxrl_agents.weights import chain, delta_files, ordered_bits, places, store
from jaxrl_agents.weights import manifest as manifest_lib
from jaxrl_agents.weights.manifest import Tensor
from jaxrl_agents.weights.places import Folder

Tree = Any

ANCHORS_KEPT = 2
"""Complete versions that are kept: a receiver of the one before may still be at it."""


class Publisher:
  """The sender's end of a chain of versions. Use as a context manager.

  It holds a copy of the newest version, 2 bytes a parameter, sharded as the parameters are. A
  version is durable when `publish`, or what `begin` returns, has returned. Complete copies of a
  version that is published as differences are written in a thread, as every `anchor_every`-th is
  and those that a receiver asks for (weights.chain). Of several processes, `publish` writes every
  `anchor_every`-th; a thread of each writes its shards of what a receiver asks for.

  Invariant: while nothing is being published, `_held` is the newest durable version, bit by bit, or
  None.

  Args:
    folder: of the versions.
    anchor_every: publications from one complete version to the next.
    part, parts: number of this process, and of all that hold shards.
    meet: (name) returns when all of them have called it.
    timeout_s: longest that `publish` waits for another version that is being written.
  """

  def __init__(
    self,
    folder: Folder,
    *,
    anchor_every: int = 25,
    part: int = 0,
    parts: int = 1,
    meet: Callable[[str], None] = lambda name: None,
    timeout_s: float = 600.0,
  ):
    self._folder, self._every = folder, anchor_every
    self._part, self._parts, self._meet = part, parts, meet
    self._timeout_s = timeout_s
    self._held: Tree = None
    self._version = -1
    self._digests: dict[str, tuple[int, int]] | None = None  # of the newest version
    self._since = 0  # publications since the newest complete one
    self._due = False
    self._called: int | None = None  # the version whose shards the others were asked for
    self._advance: Any = None
    self._digest: Any = None
    self._lock = threading.Lock()  # of all of the above, and of the files
    self._closed = threading.Event()
    self._error: BaseException | None = None
    self._thread = threading.Thread(target=self._complete_when_due, name="anchors", daemon=True)

  def __enter__(self) -> Publisher:
    self._thread.start()
    return self

  def __exit__(self, *_: object) -> None:
    """Waits for the complete version that is being written."""
    self._closed.set()
    self._thread.join(self._timeout_s)
    if self._thread.is_alive():
      raise TimeoutError(self._slow())

  def publish(self, params: Tree, version: int) -> None:
    """Publishes a version: as differences, or complete where there is nothing to differ from.

    Args:
      params: nested dicts of floating-point arrays of 16 or 32 bits; may be donated afterwards.
      version: above all that were published.

    Raises:
      ValueError: the version exists or goes back, or an array has no differences.
      TimeoutError: a complete version was not written within timeout_s.
      OSError: of the disk. The version was not published; the next one will be complete.
    """
    self.begin(params, version)()

  def begin(self, params: Tree, version: int) -> Callable[[], None]:
    """The part of `publish` for which the devices are needed, which does not wait for them; returns
    the rest, to be called once, by any thread. Until it has returned nothing else is published.

    Args and errors are those of `publish`.
    """
    with contextlib.ExitStack() as stack:
      stack.enter_context(self._locked())
      if self._held is not None and version <= self._version:
        raise ValueError(f"version {version} after {self._version}: versions count up")
      stack.enter_context(self._or_forgotten())
      base, self._version = self._version, version
      write: Callable[[], None] = self._write_complete
      if self._held is None:
        self._held, self._digests = jax.tree.map(jnp.copy, params), None
      else:
        write = functools.partial(self._write_differences, *self._differences(params), base)
      rest = stack.pop_all()

    def finish() -> None:
      with rest:
        write()

    return finish

  def restart(self, params: Tree, version: int) -> None:
    """Publishes a complete version in the place of what was published under its number or later."""
    with self._locked():
      self._held = None
      if not self._part:
        store.withdraw_after(version - 1, self._folder)
    self.publish(params, version)

  def _differences(self, params: Tree) -> tuple[Tree, Tree, Tree]:
    """(the differences of `params`, which are held from now on, from what was held; digests of what
    was held; those of `params`).
    """
    if self._advance is None:
      spread = jax.tree.map(lambda x: x.sharding, self._held)
      self._advance = jax.jit(advanced, donate_argnums=0, out_shardings=(spread, spread))
      self._digest = ordered_bits.digests_program(
        self._held, {name: leaf.shape for name, leaf in store.flatten(self._held)}
      )
    params = jax.tree.map(lambda x, held: jax.device_put(x, held.sharding), params, self._held)
    before = self._digest(self._held)
    self._held, changes = self._advance(self._held, params)
    return changes, before, self._digest(self._held)

  def _write_differences(self, changes: Tree, before: Tree, after: Tree, base: int) -> None:
    last, found, self._digests = self._digests, _pairs(before), _pairs(after)
    if last is not None and last != found:
      name = next(name for name in last if last[name] != found[name])
      _say(f"{name} of version {base} changed in memory: {self._version} is published complete")
      self._write_complete()
      return
    tensors = [
      Tensor(name, leaf.shape, leaf.dtype.name, (), found[name], self._digests[name])
      for name, leaf in store.flatten(self._held)
    ]
    place = manifest_lib.differences(self._folder)
    if not self._part:
      store.begin(self._version, place)
    self._meet("differences begun")
    pieces = (
      (name, offset, values)
      for name, leaf in store.flatten(changes)
      for offset, values in store.shards_of(leaf)
    )
    delta_files.write_part(pieces, tensors, self._version, place, part=self._part)
    self._meet("differences written")
    if not self._part:
      store.join_parts(self._version, place, parts=self._parts, base=base)
    self._meet("differences published")
    self._since += 1
    self._due = self._since >= self._every
    if self._due and self._parts > 1:
      self._write_complete()

  def _write_complete(self) -> None:
    store.publish(
      self._held,
      self._version,
      self._folder,
      keep=ANCHORS_KEPT,
      part=self._part,
      parts=self._parts,
      meet=self._meet,
    )
    if not self._part:
      self._tidy()
    self._since, self._due, self._called = 0, False, None

  def _tidy(self) -> None:
    """Deletes what the newest complete versions have made superfluous."""
    kept = manifest_lib.versions(self._folder)[-ANCHORS_KEPT:]
    store.delete_before(min(kept), self._folder)
    store.delete_before(min(kept) + 1, manifest_lib.differences(self._folder))
    chain.answered(self._folder, self._version)

  def _complete_when_due(self) -> None:
    """The thread that writes complete versions; a later error is that of the next `publish`."""
    while not self._closed.wait(places.poll_s(self._folder)):
      with self._lock:
        if self._held is None or self._error:
          continue
        try:
          if self._parts == 1 and self._is_wanted():
            self._write_complete()
          elif self._parts > 1:
            self._write_shards_on_request()
        except BaseException as error:
          self._error = error

  def _write_shards_on_request(self) -> None:
    """One look of a process of several. The first one calls for all shards of the newest version
    when a receiver asks, and makes the version visible once they are there. Others write theirs.

    Publishing waits only while a process writes its shards. If another version is the newest
    then, what was begun is removed, and the receiver is told that it has come.
    """
    version, called = self._version, self._called
    if self._part:
      self._write_called(version)
    elif called is not None and called != version:
      self._called = None
      chain.stop_calling(self._folder, called)
      places.remove_tree(manifest_lib.files(self._folder, called))
    elif called == version:
      target = manifest_lib.files(self._folder, version)
      if all(manifest_lib.part(target, i).exists() for i in range(self._parts)):
        chain.stop_calling(self._folder, version)
        store.join_parts(version, self._folder, parts=self._parts)
        self._called = None
        self._tidy()
    elif self._is_wanted():
      store.begin(version, self._folder)
      store.write_part(self._held, version, self._folder, self._part)
      chain.call(self._folder, version)
      self._called = version

  def _write_called(self, version: int) -> None:
    """Writes this process's shards of a version, once, if the first process calls for them."""
    mine = manifest_lib.part(manifest_lib.files(self._folder, version), self._part)
    if mine.exists() or not chain.is_called(self._folder, version):
      return
    try:
      store.write_part(self._held, version, self._folder, self._part)
    except (OSError, ValueError):
      if chain.is_called(self._folder, version):
        raise  # else the first process has removed the folder meanwhile

  def _is_wanted(self) -> bool:
    """Whether the newest version has to be written complete."""
    if self._version in manifest_lib.versions(self._folder):  # asked for by several
      chain.answered(self._folder, self._version)
      self._due = False
      return False
    asked = chain.is_asked_for(self._folder, self._version)
    if asked:
      _say(f"version {self._version} is written complete, as a receiver asked")
    return self._due or asked

  @contextlib.contextmanager
  def _locked(self) -> Iterator[None]:
    if not self._lock.acquire(timeout=self._timeout_s):
      raise TimeoutError(self._slow())
    try:
      if self._error:
        raise self._error
      yield
    finally:
      self._lock.release()

  @contextlib.contextmanager
  def _or_forgotten(self) -> Iterator[None]:
    """Where the body fails, nothing is held any more: the next version will be complete."""
    try:
      yield
    except BaseException:
      self._held = None
      raise

  def _slow(self) -> str:
    return (
      f"version {self._version} was not written within {self._timeout_s:g} s to {self._folder}; "
      "check that its disk has room or its bucket answers, then run the same command again"
    )


def advanced(old: Tree, new: Tree) -> tuple[Tree, Tree]:
  """(a copy of `new`, the differences from `old`)."""
  return jax.tree.map(jnp.copy, new), jax.tree.map(ordered_bits.difference, new, old)


def _pairs(digests: Mapping[str, jax.Array]) -> dict[str, tuple[int, int]]:
  return {name: tuple(pair.tolist()) for name, pair in jax.device_get(digests).items()}


def _say(what: str) -> None:
  print(what, file=sys.stderr, flush=True)
