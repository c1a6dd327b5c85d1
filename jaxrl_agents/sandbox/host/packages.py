"""Installed Python packages with all that they require, as files to be copied."""

from __future__ import annotations

import importlib.metadata
import os
import pathlib
import re
from collections.abc import Mapping, Sequence
from importlib.metadata import Distribution

from jaxrl_agents.sandbox.errors import NoSandbox

_REQUIREMENT = re.compile(r"\s*([A-Za-z0-9][A-Za-z0-9._-]*)\s*(?:\[([^\]]*)\])?[^;]*(?:;(.*))?")
_EXTRA = re.compile(r"""extra\s*==\s*["']([^"']+)""")


def plain(name: str) -> str:
  """The name of a package in the form in which equal names are equal texts."""
  return re.sub(r"[-_.]+", "-", name).lower()


def required(names: Sequence[str]) -> dict[str, Distribution]:
  """{plain name: distribution} of packages and of all that they require and that is installed.

  What is required on other machines alone is not installed here, as a rule, and is left out.

  Raises:
    NoSandbox: one of `names` is not installed, or is a folder that is being worked on.
  """
  found: dict[str, Distribution] = {}
  seen: set[tuple[str, str]] = set()  # (plain name, extra), "" for the package itself
  waiting = [(plain(name), "") for name in names]
  while waiting:
    name, extra = waiting.pop()
    if (name, extra) in seen:
      continue
    seen.add((name, extra))
    try:
      found[name] = found.get(name) or importlib.metadata.distribution(name)
    except importlib.metadata.PackageNotFoundError:
      if name in map(plain, names):
        raise NoSandbox(
          f"the package {name} is not installed in this environment; install it"
        ) from None
      continue
    for text in found[name].requires or ():
      match = _REQUIREMENT.match(text)
      wanted_by = set(_EXTRA.findall((match and match[3]) or "")) or {""}
      if match and extra in wanted_by:
        extras = [each.strip() for each in (match[2] or "").split(",") if each.strip()]
        waiting += [(plain(match[1]), each) for each in ("", *extras)]
  return found


def files(distributions: Mapping[str, Distribution]) -> dict[str, str]:
  """{path below the folder of packages: path on this machine} of all files of `distributions`.

  Scripts, which lie elsewhere, are left out.

  Raises:
    NoSandbox: it is not recorded which files belong to a package, or they lie somewhere else.
  """
  found: dict[str, str] = {}
  for name, distribution in distributions.items():
    listed = distribution.files
    if listed is None or '"editable": true' in (distribution.read_text("direct_url.json") or ""):
      raise NoSandbox(
        f"it is not recorded which files the package {name} consists of; install it by pip, and "
        "not as editable"
      )
    for path in listed:
      source = str(distribution.locate_file(path))
      if ".." not in pathlib.PurePath(path).parts and os.path.isfile(source):
        found[str(path)] = source
  return found
