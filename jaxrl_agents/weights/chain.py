"""Chains of versions: complete ones (anchors), and differences that lead from one to the next.

    folder/manifest_v..., v.../                complete versions (weights.store)
    folder/differences/manifest_v..., v.../    differences (weights.delta_files), each from its base
    folder/differences/wanted_v...             a receiver asks for this version to be complete
    folder/differences/called_v...             the first of several processes that publish asks the
                                               others for their shards of it

A version exists where either of its manifests does, and many have both.
"""

from __future__ import annotations

import re

from jaxrl_agents.weights import manifest as manifest_lib
from jaxrl_agents.weights import places
from jaxrl_agents.weights.manifest import Manifest
from jaxrl_agents.weights.places import Folder, Place

_NEWEST = 10**10 - 1  # the largest number that a name has room for

_REQUESTS = re.compile(r"(wanted|called)_v\d{10}")


def anchors(folder: Folder, version: int) -> list[int]:
  """The complete versions from which differences may lead to `version`, the newest first."""
  return [v for v in reversed(manifest_lib.versions(folder)) if v <= version]


def route(folder: Folder, start: int, version: int) -> list[Manifest]:
  """The differences that lead from a version to another, in their order; [] if they are equal.

  Raises:
    FileNotFoundError: there is no such chain (any more).
    CorruptWeights: a manifest is damaged.
  """
  place, found = manifest_lib.differences(folder), list[Manifest]()
  at = version
  while at > start:
    manifest = manifest_lib.read(place, at)
    if manifest.base is None or manifest.base >= at:
      raise manifest_lib.CorruptWeights(
        f"{manifest_lib.path(place, at)} is damaged: it names {manifest.base} as its predecessor, "
        "which is no earlier version; samplers go on from the next complete version"
      )
    found.append(manifest)
    at = manifest.base
  if at != start:
    raise FileNotFoundError(
      f"no differences lead from version {start} to {version} in {folder}: they go back to {at}"
    )
  return found[::-1]


def ask_for(folder: Folder, version: int) -> None:
  """Asks the publisher for a complete version, when differences that lead to it are damaged."""
  _wanted(folder, version).write_text("wanted\n")


def is_asked_for(folder: Folder, version: int) -> bool:
  """Whether a receiver has asked for it."""
  return _wanted(folder, version).exists()


def answered(folder: Folder, version: int) -> None:
  """Removes requests for versions up to `version`."""
  place = manifest_lib.differences(folder)
  found = [*places.names(place, "wanted_v"), *places.names(place, "called_v")]
  for name in filter(_REQUESTS.fullmatch, found):
    if int(name[-10:]) <= version:
      (place / name).unlink(missing_ok=True)


def forget_requests(folder: Folder) -> None:
  """Removes all requests: those of a run that was killed say nothing about one that goes on."""
  answered(folder, _NEWEST)


def call(folder: Folder, version: int) -> None:
  """Asks the other processes that publish for their shards of a complete version."""
  _called(folder, version).write_text("called\n")


def is_called(folder: Folder, version: int) -> bool:
  """Whether this process should write its shards of the version."""
  return _called(folder, version).exists()


def stop_calling(folder: Folder, version: int) -> None:
  """Takes the call back."""
  _called(folder, version).unlink(missing_ok=True)


def _wanted(folder: Folder, version: int) -> Place:
  return manifest_lib.differences(folder) / f"wanted_v{version:010d}"


def _called(folder: Folder, version: int) -> Place:
  return manifest_lib.differences(folder) / f"called_v{version:010d}"
