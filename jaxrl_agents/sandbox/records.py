"""The records of the sandbox room."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping


@dataclasses.dataclass(frozen=True)
class SandboxLimits:
  """What one sandbox may use.

  Attributes:
    memory_bytes: address space of a process, and memory of all processes together, in which an
      open file counts 64 KiB and a socket 416 KiB: what pipes and sockets hold when full. The sum
      is looked at every 50 ms; above it all but the shell is killed.
    processes: at a time, threads included.
    disk_bytes: of all that is written to /work and /tmp; it lies in memory.
    files: and folders and links that may be made or changed.
    open_files: of one process, below the limit of the machine.
    cpu_s: processor seconds of one process.
    output_bytes: of a command that are kept, half from its beginning and half from its end.
    drained_bytes: of output after which a command is stopped.
  """

  memory_bytes: int = 1 << 30
  processes: int = 64
  disk_bytes: int = 256 << 20
  files: int = 50_000
  open_files: int = 256
  cpu_s: int = 600
  output_bytes: int = 20_000
  drained_bytes: int = 64 << 20

  def __post_init__(self):
    lowest = {"memory_bytes": 128 << 20, "processes": 2, "disk_bytes": 1 << 20, "files": 64}
    for field in dataclasses.fields(self):
      value, low = getattr(self, field.name), lowest.get(field.name, 1)
      if field.name == "open_files":
        low = 64
      if not isinstance(value, int) or value < low:
        raise ValueError(
          f"SandboxLimits.{field.name}={value!r} must be an integer of at least {low}"
        )


@dataclasses.dataclass(frozen=True)
class ExecResult:
  """What a command did.

  Attributes:
    code: exit status, of the shell where that ended; -1 where it had to be killed.
    output: stdout and stderr as they came. Where more was written than is kept, a line in the
      middle tells how many bytes are missing.
    missing_bytes: written, but not in `output`.
    why: it ended before its time: "" | "timeout" | "cancelled" | "memory" | "output" |
      "shell_exit" (the command ended the shell; the next one gets a new shell).
    cwd: where the shell stands now.
    seconds: from the request to the status, inside the sandbox.
  """

  code: int
  output: str
  missing_bytes: int
  why: str
  cwd: str
  seconds: float


@dataclasses.dataclass(frozen=True)
class Snapshot:
  """A state that sandboxes start from: files, working directory, shell variables; no processes.

  Attributes:
    layers: names of folders in the store, the newest first.
    mask: paths of the runtime that look empty.
    env: variables of the first shell.
    shell: a script that restores variables, functions and options.
    cwd: where the shell stands.
    digest: of the newest layer's content.
  """

  layers: tuple[str, ...]
  mask: tuple[str, ...] = ()
  env: Mapping[str, str] = dataclasses.field(default_factory=dict)
  shell: str = ""
  cwd: str = "/work"
  digest: str = ""


@dataclasses.dataclass(frozen=True)
class Change:
  """One path that differs from where a sandbox started.

  Attributes:
    kind: of the new content: "file" | "link" | "folder" | "pipe" | "gone".
    old, new: bytes of a file, target of a link; None where there was or is no file or link.
    mode: permission bits of the new content.
  """

  kind: str
  old: bytes | None
  new: bytes | None
  mode: int


@dataclasses.dataclass(frozen=True)
class Property:
  """Whether a guarantee of a backend holds on this machine, and if not, the reason and the
  remedy.

  Attributes:
    is_promise: it is the backend's to keep; else the machine's, and good to have.
  """

  name: str
  holds: bool
  why: str = ""
  remedy: str = ""
  is_promise: bool = True


@dataclasses.dataclass(frozen=True)
class Report:
  """What a backend is worth on this machine."""

  backend: str
  properties: tuple[Property, ...]

  @property
  def holds(self) -> bool:
    """Whether every promise of the backend holds."""
    return all(p.holds for p in self.properties if p.is_promise)

  def __str__(self) -> str:
    lines = [
      f"backend {self.backend} {'keeps' if self.holds else 'does NOT keep'} its promises here"
    ]
    for p in self.properties:
      lines.append(f"  {'yes' if p.holds else 'NO ' if p.is_promise else 'no '} {p.name}")
      if not p.holds:
        lines.append(f"      why: {p.why}")
        lines.append(f"      remedy: {p.remedy}")
    return "\n".join(lines)
