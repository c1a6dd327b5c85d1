"""The read-only file tree that commands run in: a shell, common programs, Python, libraries.

It is copied from the machine once, into the store. Nothing else of the machine is visible in a
sandbox, so that an answer that lies somewhere on its disk is not there to be found. What a task
needs hidden as well is left out (`exclude`) or made to look empty (`Snapshot.mask`).
"""

from __future__ import annotations

import dataclasses
import fnmatch
import hashlib
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
import sysconfig

from jaxrl_agents.sandbox import overlay
from jaxrl_agents.sandbox.errors import NoSandbox
from jaxrl_agents.sandbox.host import packages as packages_lib

_VERSION = 6  # of what `_build` makes
_BUILD_TIMEOUT_S = 120.0
REQUIRED = ("bash", "sh", "cat", "ls", "env", "cp", "mv", "rm", "mkdir", "python3")
COREUTILS = (
  "base64 basename chmod cksum comm csplit cut date dd df dirname du echo expand expr factor "
  "false fmt fold head hostname id install join link ln md5sum mkfifo mktemp nice nl nohup nproc "
  "numfmt od paste pathchk pr printenv printf pwd readlink realpath rmdir seq sha1sum sha256sum "
  "shuf sleep sort split stat stty sum sync tac tail tee test timeout touch tr true truncate tsort "
  "uname unexpand uniq unlink wc whoami yes ["
)
COMMON = (
  "awk bc bunzip2 bzip2 cmp column diff diff3 ed egrep fgrep file find git grep gunzip gzip jq "
  "less make patch pgrep pkill ps rev rg sed setsid tar tree which xargs xxd xz zcat"
)
_STANDARD_LIBRARY = (
  "site-packages dist-packages config-* idlelib tkinter turtledemo turtle.py ensurepip lib2to3 "
  "test/test_* test/*data */tests */test"
)
_ETC = {
  "passwd": "user:x:1000:1000:user:/tmp:/bin/bash\n",
  "group": "user:x:1000:\n",
  "hosts": "127.0.0.1 localhost sandbox\n::1 localhost\n",
  "nsswitch.conf": "passwd: files\ngroup: files\nhosts: files\n",
}
_LINKS = {
  "bin": "usr/bin",
  "sbin": "usr/bin",
  "lib": "usr/lib",
  "lib64": "usr/lib",
  "usr/sbin": "bin",
  "usr/lib64": "lib",
  "dev/fd": "/proc/self/fd",
  "dev/stdin": "/proc/self/fd/0",
  "dev/stdout": "/proc/self/fd/1",
  "dev/stderr": "/proc/self/fd/2",
  "dev/shm": "/tmp",
}
AGENT_FOLDER = "run/agent/jaxrl_agents/sandbox"
"""Where backends that start the agent by a command show this room's code."""
PACKAGES = "usr/lib/packages"
"""Where `Runtime.packages` lie; Python looks there only where PYTHONPATH says so."""
_FOLDERS = (
  f"{AGENT_FOLDER} run/empty/folder proc work tmp mnt dev etc usr/bin usr/lib "
  "usr/share/git-core/templates"
)
_FILES = "run/empty/file dev/null dev/zero dev/full dev/random dev/urandom"


@dataclasses.dataclass(frozen=True)
class Runtime:
  """What a sandbox finds besides its own files.

  Attributes:
    programs: names looked up on this machine's PATH; those in REQUIRED must exist, others may.
    python: the interpreter that is copied with its standard library.
    exclude: patterns (`fnmatch`) of paths below the standard library that are left out, with what
      was compiled from them.
    packages: names of Python packages of this environment that are copied with all that they
      require; the interpreter must be this one.
    links: pairs of a name below / and the folder below /work or /tmp that it leads to, for programs
      that expect their files there.
  """

  programs: tuple[str, ...] = (*REQUIRED, *COREUTILS.split(), *COMMON.split())
  python: str = sys.executable
  exclude: tuple[str, ...] = tuple(_STANDARD_LIBRARY.split())
  links: tuple[tuple[str, str], ...] = ()
  packages: tuple[str, ...] = ()

  def __post_init__(self):
    if self.packages and self.python != sys.executable:
      raise ValueError(
        f"packages={self.packages} are those of {sys.executable}, and python is {self.python}; "
        "leave out one of them"
      )
    taken = {path.split("/")[0] for path in (*_LINKS, *_FOLDERS.split())}
    for name, target in self.links:
      inside = re.fullmatch(r"/(work|tmp)(/[\w-]+)*", target)
      if not inside or not re.fullmatch(r"[\w-]+", name) or name in taken:
        raise ValueError(
          f"link {name!r} to {target!r}: a new name below / must lead to a folder in /work or /tmp"
        )


def prepare(runtime: Runtime, folder: pathlib.Path) -> pathlib.Path:
  """The built runtime below `folder`; it is copied there unless it was before.

  Raises:
    NoSandbox: a required program is missing, or an interpreter does not say where its library is.
  """
  found = {name: path for name in runtime.programs if (path := shutil.which(name))}
  missing = [name for name in REQUIRED if name not in found and name != "python3"]
  if missing:
    raise NoSandbox(f"this machine has no {', '.join(missing)}; install them or correct PATH")
  python = _python_paths(runtime.python)
  sources = {name: os.path.realpath(path) for name, path in found.items()}
  distributions = packages_lib.required(runtime.packages)
  facts = [_VERSION, sorted(sources.items()), python, runtime.exclude, *runtime.links]
  seen = [*sources.values(), python["executable"], "/etc/ld.so.cache"]  # libraries were updated
  facts += [[name, each.version] for name, each in sorted(distributions.items())]
  facts += [os.stat(path).st_mtime_ns for path in seen if os.path.exists(path)]
  built = folder / hashlib.sha256(json.dumps(facts).encode()).hexdigest()[:16]
  if not built.is_dir():
    part = folder / f"{built.name}.{os.getpid()}.part"
    overlay.remove(str(part))
    _build(part, sources, python, runtime.exclude, packages_lib.files(distributions))
    for name, target in runtime.links:
      (part / name).symlink_to(target)
    try:
      part.rename(built)
    except OSError:  # another process was faster
      overlay.remove(str(part))
  return built


def _python_paths(python: str) -> dict[str, str]:
  if os.path.realpath(python) == os.path.realpath(sys.executable):
    executable = getattr(sys, "_base_executable", "") or sys.executable
    library, dynamic = sysconfig.get_path("stdlib"), sysconfig.get_path("platstdlib")
    version = f"{sys.version_info.major}.{sys.version_info.minor}"
  else:
    code = (
      "import json, sys, sysconfig as s; base = getattr(sys, '_base_executable', ''); "
      "found = [base or sys.executable, s.get_path('stdlib'), s.get_path('platstdlib')]; "
      "print(json.dumps([*found, '%d.%d' % sys.version_info[:2]]))"
    )
    command = [python, "-I", "-c", code]
    try:
      shown = subprocess.run(command, capture_output=True, timeout=_BUILD_TIMEOUT_S, check=True)
      executable, library, dynamic, version = json.loads(shown.stdout)
    except (OSError, subprocess.SubprocessError, ValueError) as error:
      raise NoSandbox(f"{python} is no usable Python ({error}); name another one") from None
  return {
    "executable": os.path.realpath(executable),
    "library": library,
    "dynamic": os.path.join(dynamic, "lib-dynload"),
    "version": version,
  }


def _build(
  root: pathlib.Path,
  sources: dict[str, str],
  python: dict[str, str],
  exclude: tuple[str, ...],
  packages: dict[str, str],
) -> None:
  for name in _FOLDERS.split():
    (root / name).mkdir(parents=True)
  for name in _FILES.split():
    (root / name).touch()
  for name, target in _LINKS.items():
    (root / name).symlink_to(target)
  for name, text in _ETC.items():
    (root / "etc" / name).write_text(text)
  binaries = []
  for name, source in sources.items():
    if name != "python3":
      binaries.append(_copy(source, root / "usr/bin" / name))
  version = python["version"]
  binaries.append(_copy(python["executable"], root / f"usr/bin/python{version}"))
  for name in ("python", "python3"):
    (root / "usr/bin" / name).symlink_to(f"python{version}")
  library = root / f"usr/lib/python{version}"
  copy_tree(python["library"], library, exclude)
  dynamic = library / "lib-dynload"
  if not dynamic.is_dir() and os.path.isdir(python["dynamic"]):
    copy_tree(python["dynamic"], dynamic, exclude)
  binaries += sorted(str(path) for path in dynamic.glob("*.so"))
  binaries += _copy_packages(root, packages)
  origin = {str(root / "usr/bin" / name): source for name, source in sources.items()}
  origin[str(root / f"usr/bin/python{version}")] = python["executable"]
  for name, source in sorted(_libraries([origin.get(b, b) for b in binaries]).items()):
    if not (root / "usr/lib" / name).exists():
      _copy(source, root / "usr/lib" / name)
  locale = pathlib.Path("/usr/lib/locale/C.utf8")
  if locale.is_dir():
    copy_tree(str(locale), root / "usr/lib/locale/C.utf8", ())
  for name in (*_FILES.split(), *(f"etc/{name}" for name in _ETC)):
    (root / name).chmod(0o444)  # whatever the umask is
  for inner, _, _ in os.walk(root):
    os.chmod(inner, 0o755)


def _copy_packages(root: pathlib.Path, packages: dict[str, str]) -> list[str]:
  """Copies the files of packages, {path below PACKAGES: path}; those that need libraries."""
  for name, source in packages.items():
    (root / PACKAGES / name).parent.mkdir(parents=True, exist_ok=True)
    _copy(source, root / PACKAGES / name)
  return [source for name, source in packages.items() if re.search(r"\.so(\.\d+)*$", name)]


def _copy(source: str, target: pathlib.Path) -> str:
  """Copies content, time and the right to read and execute, but neither owner nor set-user-id."""
  shutil.copyfile(source, target)
  found = os.stat(source)
  os.chmod(target, 0o555 if found.st_mode & 0o111 else 0o444)
  os.utime(target, ns=(found.st_mtime_ns, found.st_mtime_ns))  # compiled files go by it
  return str(target)


def copy_tree(source: str, target: pathlib.Path, exclude: tuple[str, ...]) -> None:
  """Copies a folder but for what matches a pattern; what was compiled goes by its source."""

  def kept(inner: str) -> bool:
    path = pathlib.PurePath(inner)
    if path.parent.name == "__pycache__":
      path = path.parent.parent / f"{path.name.partition('.')[0]}.py"
    return not any(fnmatch.fnmatch(str(path), pattern) for pattern in exclude)

  for folder, folders, names in os.walk(source):
    inner = os.path.relpath(folder, source)
    folders[:] = [name for name in folders if kept(os.path.join(inner, name))]
    (target / inner).mkdir(parents=True, exist_ok=True)
    for name in names:
      path = os.path.join(folder, name)
      if kept(os.path.join(inner, name)) and os.path.isfile(path):
        _copy(path, target / inner / name)


def _libraries(binaries: list[str]) -> dict[str, str]:
  """{name: path} of the shared libraries and the loader that `binaries` need."""
  try:
    shown = subprocess.run(
      ["ldd", *binaries], capture_output=True, text=True, timeout=_BUILD_TIMEOUT_S, errors="replace"
    ).stdout
  except (OSError, subprocess.SubprocessError) as error:
    raise NoSandbox(f"ldd does not tell what programs need ({error}); install it") from None
  found = {}
  for line in shown.splitlines():
    match = re.match(r"\s+(?:(\S+) => )?(/\S+) \(0x", line)
    if match:
      found[os.path.basename(match[1] or match[2])] = match[2]
  return found
