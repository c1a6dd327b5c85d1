"""Reads task folders of Harbor: instruction.md, task.toml, tests/test.sh, solution/solve.sh."""

from __future__ import annotations

import dataclasses
import pathlib
import tomllib
from collections.abc import Iterator, Mapping
from typing import Any

AT_MOST_BYTES = 64 << 20
"""Of the files of one folder that goes into a sandbox."""


@dataclasses.dataclass(frozen=True)
class HarborTask:
  """One task.

  Attributes:
    name: of its folder.
    instruction: what the policy reads.
    folder: where it lies.
    root: the folder whose files are in the working directory at the start; "" for an empty one.
    agent_s, verifier_s: seconds that a solution and the tests may take.
    env, verifier_env: variables, of the agent and of the tests.
  """

  name: str
  instruction: str
  folder: str
  root: str
  agent_s: float
  verifier_s: float
  env: Mapping[str, str]
  verifier_env: Mapping[str, str]


def read_all(folder: str, images: Mapping[str, str], roots: str = "") -> list[HarborTask]:
  """The tasks of the folders below `folder`, in the order of their names.

  Args:
    folder, images, roots: see `agent.HarborConfig`.

  Raises:
    ValueError: there is none, or one of them cannot be played here; it says which, and why.
  """
  places = sorted(file.parent for file in pathlib.Path(folder).glob("*/task.toml"))
  if not places:
    raise ValueError(f"{folder} has no folders with a task.toml")
  return [read(place, images, roots) for place in places]


def read(folder: pathlib.Path, images: Mapping[str, str], roots: str = "") -> HarborTask:
  """One task.

  Args:
    folder: of the task.
    images: {image: folder of the files that its working directory has}; for a task with a
      Dockerfile the key is the name of the task. "" is an empty working directory.
    roots: the files of a task whose name is there as a folder are those; "" for none.

  Raises:
    ValueError: a file is missing, the image is not in `images`, `roots` is no folder, or the task
      asks for what a sandbox does not have.
  """
  for name in ("instruction.md", "tests/test.sh"):
    if not (folder / name).is_file():
      raise ValueError(f"Harbor task {folder} has no {name}")
  try:
    table = tomllib.loads((folder / "task.toml").read_text("utf-8"))
  except tomllib.TOMLDecodeError as error:
    raise ValueError(f"{folder / 'task.toml'}: {error}") from error
  verifier, environment = table.get("verifier", {}), table.get("environment", {})
  _refuse(folder, table, verifier, environment)
  if roots and not pathlib.Path(roots).is_dir():
    raise ValueError(f"harbor.roots={roots} is no folder")
  own_root = pathlib.Path(roots) / folder.name
  has_root = bool(roots) and own_root.is_dir()
  image = "" if has_root else environment.get("docker_image")
  if not image and not has_root and (folder / "environment" / "Dockerfile").exists():
    image = folder.name
  if image and image not in images:
    known = ", ".join(images) or "none"
    raise ValueError(
      f"Harbor task {folder.name} needs the image {image}, which is not prepared (prepared: "
      f"{known}); put the files of its working directory into a folder and name it in "
      f"harbor.images, or into a folder {folder.name} of harbor.roots"
    )
  root = str(own_root) if has_root else images.get(image or "", "")
  if root and not pathlib.Path(root).is_dir():
    raise ValueError(f"harbor.images maps {image} to {root}, which is no folder")
  return HarborTask(
    name=folder.name,
    instruction=(folder / "instruction.md").read_text("utf-8").strip(),
    folder=str(folder),
    root=root,
    agent_s=float(table.get("agent", {}).get("timeout_sec", 600.0)),
    verifier_s=float(verifier.get("timeout_sec", 600.0)),
    env=_variables(folder, environment.get("env", {})),
    verifier_env=_variables(folder, verifier.get("env", {})),
  )


def _refuse(
  folder: pathlib.Path,
  table: Mapping[str, Any],
  verifier: Mapping[str, Any],
  env: Mapping[str, Any],
) -> None:
  """Raises ValueError for what changes the meaning of a task and is not supported."""
  asked = {
    "verifier.environment_mode": verifier.get("environment_mode", "shared") != "shared",
    "verifier.collect": bool(verifier.get("collect")),
    "environment.mcp_servers": bool(env.get("mcp_servers")),
    "environment.gpus": bool(env.get("gpus")),
    "steps": bool(table.get("steps")),
    "docker-compose.yaml": (folder / "environment" / "docker-compose.yaml").exists(),
  }
  if named := [name for name, is_asked in asked.items() if is_asked]:
    raise ValueError(f"Harbor task {folder.name} has {', '.join(named)}; this is not supported")


def _variables(folder: pathlib.Path, found: Mapping[str, Any]) -> dict[str, str]:
  for name, value in found.items():
    if "${" in str(value):
      raise ValueError(f"Harbor task {folder.name}: {name}={value} takes a variable of the machine")
  return {name: str(value) for name, value in found.items()}


def files_of(folder: pathlib.Path) -> Iterator[tuple[str, bytes, int]]:
  """(path relative to `folder`, content, mode) of its files.

  Raises:
    ValueError: they have more than AT_MOST_BYTES.
  """
  size = 0
  for file in sorted(folder.rglob("*")):
    if file.is_file():
      size += file.stat().st_size
      if size > AT_MOST_BYTES:
        raise ValueError(f"{folder} has more than {AT_MOST_BYTES} bytes")
      yield file.relative_to(folder).as_posix(), file.read_bytes(), file.stat().st_mode & 0o777
