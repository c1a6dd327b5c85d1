"""Follows the published versions of the weights by their differences.

    stage(version)   while sampling goes on: fetches, decodes and verifies what leads to a version,
                     and places it on the devices
    swap(staged, held)   between two steps: one elementwise program, and digests of its result

What goes wrong in either is named, and repaired from the newest complete version that works.
"""

from __future__ import annotations

import concurrent.futures
import dataclasses
import os
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxrl_agents.weights import boxes, chain, ordered_bits, places, store
from jaxrl_agents.weights import manifest as manifest_lib
from jaxrl_agents.weights.delta_files import Differences
from jaxrl_agents.weights.manifest import CorruptWeights, Manifest
from jaxrl_agents.weights.places import Folder

Tree = Any
Digests = Mapping[str, tuple[int, int]]

_THREADS = min(8, os.cpu_count() or 1)


@dataclasses.dataclass(frozen=True)
class Staged:
  """What leads to a version, on the devices.

  Attributes:
    version: to which it leads.
    base: from which.
    changes: differences, as the parameters are placed; None where `whole` is that version.
    before, after: digests of the parameters of both versions, as far as they were published.
    whole: the parameters of `base`; None if the receiver holds them.
  """

  version: int
  base: int
  changes: Tree
  before: Digests
  after: Digests
  whole: Tree | None = None


class Receiver:
  """The receiving end of a chain of versions, for one holder of parameters.

  `stage` may be called in any one thread; what it returned must be swapped in the same order.

  Invariant: after `swap`, what it returned is the version, bit by bit.

  Args:
    folder: of the versions.
    version: that is held; -1 for none (`read` and `whole` alone).
    like: parameters, or their shapes and dtypes, as they are published.
    places: tree of shardings like them; None: the first device.
    hold: (parameters as published) -> as they are held, in buffers of their own.
    layout: the same as a function that can be compiled, of any arrays of these shapes.
    any_of: whether something is true in any process that holds a part of the parameters; each must
      call it.
    timeout_s: longest wait for a complete version that was asked for.
  """

  def __init__(
    self,
    folder: Folder,
    version: int,
    like: Tree,
    *,
    places: Tree | None = None,
    hold: Callable[[Tree], Tree] = lambda params: jax.tree.map(jnp.asarray, params),
    layout: Callable[[Tree], Tree] = lambda params: params,
    any_of: Callable[[bool], bool] = lambda happened: happened,
    timeout_s: float = 600.0,
  ):
    self._folder = folder
    self._held_version = self._staged_version = version
    self._like = dict(store.flatten(jax.eval_shape(lambda x: x, like)))
    self._places = None if places is None else dict(store.flatten(places))
    self._shardings = places
    self._hold, self._layout, self._any_of = hold, layout, any_of
    self._timeout_s = timeout_s
    self._programs: dict[Any, Any] = {}

  def warm_up(self, held: Tree) -> None:
    """Compiles what `swap` runs, so that the first one does not take longer."""
    changes = {
      name: jax.ShapeDtypeStruct(x.shape, ordered_bits.bits_of(x.dtype), sharding=self._place(name))
      for name, x in self._like.items()
    }
    self._compiled(held, store.tree_of(changes))

  def stage(self, version: int) -> Staged:
    """What leads to a version: from the one that is held, if differences do, or a complete one.

    Raises:
      FileNotFoundError: it is not kept any more, and a later one has come.
      CorruptWeights: no way leads to it, and the publisher did not write it complete in time.
    """
    if version <= self._staged_version:
      # A run that goes on from an earlier checkpoint has published this number again.
      staged = self._from_complete(version)
    else:
      staged = self._following(version)
    self._staged_version = version
    return staged

  def _following(self, version: int) -> Staged:
    """What leads to a version from an earlier one."""
    try:
      return self._read(self._staged_version, version)
    except (CorruptWeights, FileNotFoundError) as error:
      if version in manifest_lib.versions(manifest_lib.differences(self._folder)):
        _report(version, error)  # else it was published complete
      return self._from_complete(version)

  def read(self, version: int, start: int | None = None) -> Staged:
    """Any version, for `whole`; what is held does not change.

    Args:
      version: complete, or at the end of differences.
      start: the complete version to begin with; None for the newest that leads to it.

    Raises:
      FileNotFoundError: no such version (it may have been deleted since).
      CorruptWeights: it is damaged.
    """
    starts = chain.anchors(self._folder, version) if start is None else [start]
    for each in starts:
      try:
        return self._read(each, version, complete=True)
      except FileNotFoundError:
        continue
    raise FileNotFoundError(
      f"no weights of version {version} in {self._folder}: no differences lead to it from the "
      f"complete versions {starts}"
    )

  def whole(self, staged: Staged) -> Tree:
    """The parameters of what `read` returned, as they are held, verified. Of several processes that
    hold parts each must call it, with what begins with the same version.

    Raises:
      CorruptWeights: their digest differs.
    """
    if staged.base == staged.version:
      return self._hold(staged.whole)
    params, problem = self._moved(staged, None)
    if problem:
      raise CorruptWeights(f"version {staged.version} of the weights is damaged: {problem}")
    return params

  def swap(self, staged: Staged, held: Tree) -> Tree:
    """The version that was staged, as it is held; `held` is donated.

    Raises:
      CorruptWeights: see `stage`.
    """
    problem: str | None = None
    if staged.whole is None and staged.base != self._held_version:
      problem = f"it leads from version {staged.base}, and {self._held_version} is held"
    if self._any_of(problem is not None or staged.whole is not None) and staged.whole is None:
      problem = problem or "another process could not use the differences"
    else:
      held, problem = self._moved(staged, held)
    tried = list[int]()
    while problem:
      _report(staged.version, problem)
      staged = self._from_complete(staged.version, tried)
      tried.append(staged.base)
      held, problem = self._moved(staged, held)
    self._held_version = staged.version
    return held

  def _moved(self, staged: Staged, held: Tree) -> tuple[Tree, str | None]:
    """(the parameters, what is wrong with them)."""
    start = held if staged.whole is None else self._hold(staged.whole)
    changes = self._changes([]) if staged.changes is None else staged.changes  # one program for all
    move, digest = self._compiled(start, changes)
    new = move(start, changes)
    if not (names := _others(digest(new), staged.after)):
      return new, None
    # Which side is wrong? Differences can be taken back.
    back = move(new, jax.tree.map(jnp.negative, changes))
    if wrong := _others(digest(back), staged.before):
      return back, f"{wrong[0]} before it is not that of version {staged.base} (its digest differs)"
    return back, f"{names[0]} after it is not that of version {staged.version} (its digest differs)"

  def _compiled(self, held: Tree, changes: Tree) -> tuple[Any, Any]:
    """Programs: (held, changes) -> the parameters after them; (parameters) -> their digests."""
    key = jax.tree.structure(held)
    if key not in self._programs:
      move = lambda held, changes: jax.tree.map(ordered_bits.moved, held, self._layout(changes))
      places = jax.tree.map(lambda x: x.sharding, held)
      jitted = jax.jit(move, donate_argnums=0, out_shardings=places)
      digest = ordered_bits.digests_program(held, {n: x.shape for n, x in self._like.items()})
      self._programs[key] = jitted.lower(held, changes).compile(), digest
    return self._programs[key]

  def _from_complete(self, version: int, tried: Sequence[int] = ()) -> Staged:
    """What leads to a version from a complete one, if need be from that version itself."""
    anchors = [v for v in chain.anchors(self._folder, version) if v not in tried]
    for start in anchors:
      try:
        return self._read(start, version, complete=True)
      except (CorruptWeights, FileNotFoundError) as error:
        _report(version, error)
    if manifest_lib.path(self._folder, version).exists():
      raise CorruptWeights(
        f"version {version} in {self._folder} is damaged, complete as it is; publish another one"
      )
    chain.ask_for(self._folder, version)
    deadline = time.monotonic() + self._timeout_s
    while version not in manifest_lib.versions(self._folder):
      both = (self._folder, manifest_lib.differences(self._folder))
      newest = max((v for place in both for v in manifest_lib.versions(place)), default=version)
      if newest > version:  # only the newest is written complete
        raise FileNotFoundError(
          f"version {version} in {self._folder} cannot be rebuilt from differences, and version "
          f"{newest} has come"
        )
      if time.monotonic() > deadline:
        raise CorruptWeights(
          f"version {version} in {self._folder} cannot be rebuilt: no complete version leads to it "
          "by differences, and its publisher did not write it complete within "
          f"{self._timeout_s:g} s; check that the learner runs"
        )
      time.sleep(places.poll_s(self._folder))
    return self._read(version, version, complete=True)

  def _read(self, start: int, version: int, *, complete: bool = False) -> Staged:
    manifests = chain.route(self._folder, start, version)
    whole = store.fetch(self._folder, start, self._shardings) if complete else None
    try:
      changes = self._changes(manifests) if manifests else None
    except CorruptWeights as error:
      place = manifest_lib.differences(self._folder)
      if all(manifest_lib.path(place, each.version).exists() for each in manifests):
        raise
      raise FileNotFoundError(
        f"version {version} in {self._folder} was deleted while it was read"
      ) from error
    before = _digests(manifests[0], "before") if manifests else {}
    after = _digests(manifests[-1], "after") if manifests else {}
    return Staged(version, start, changes, before, after, whole)

  def _changes(self, manifests: Sequence[Manifest]) -> Tree:
    """The sum of differences, as the parameters are placed; 0 of none."""
    for manifest in manifests:
      self._check(manifest)
    place = manifest_lib.differences(self._folder)
    read = [Differences(place, manifest) for manifest in manifests]
    placed = lambda name: self._placed(name, read)
    with concurrent.futures.ThreadPoolExecutor(_THREADS) as pool:
      arrays = dict(zip(self._like, pool.map(placed, self._like), strict=True))
    return jax.block_until_ready(store.tree_of(arrays))

  def _placed(self, name: str, read: Sequence[Differences]) -> jax.Array:
    """The differences of one tensor; each box that several devices have is decoded once."""
    shape = self._like[name].shape
    dtype = ordered_bits.bits_of(self._like[name].dtype)
    decoded = dict[str, np.ndarray]()

    def box_of(index: Any) -> np.ndarray:
      box = tuple(slice(*s.indices(n)) for s, n in zip(index, shape, strict=True))
      if str(box) not in decoded:
        plane = np.zeros([s.stop - s.start for s in box], dtype)
        for differences in read:
          differences.add(name, box, plane)
        decoded[str(box)] = plane
      return decoded[str(box)]

    if (place := self._place(name)) is None:
      return jnp.asarray(box_of(boxes.of([0] * len(shape), shape)))
    return jax.make_array_from_callback(shape, place, box_of)

  def _place(self, name: str) -> jax.sharding.Sharding | None:
    return None if self._places is None else self._places[name]

  def _check(self, manifest: Manifest) -> None:
    found = {t.name: (t.shape, t.dtype) for t in manifest.tensors}
    wanted = {name: (x.shape, x.dtype.name) for name, x in self._like.items()}
    if found != wanted:
      other = next(n for n in {**wanted, **found} if found.get(n) != wanted.get(n))
      raise CorruptWeights(
        f"differences of version {manifest.version}: {other} is {found.get(other)}, and the "
        f"receiver holds {wanted.get(other)}; it follows another policy"
      )


def _others(found: Mapping[str, jax.Array], wanted: Digests) -> list[str]:
  """Names of tensors whose digests differ from those that were published."""
  digests = jax.device_get(found)
  return [name for name, pair in wanted.items() if tuple(digests[name].tolist()) != pair]


def _digests(manifest: Manifest, what: str) -> Digests:
  return {tensor.name: getattr(tensor, what) for tensor in manifest.tensors}


def _report(version: int, problem: Any) -> None:
  print(
    f"version {version} of the weights is read from a complete version: {problem}",
    file=sys.stderr,
    flush=True,
  )
