"""The key that the machines of a run share: where it is read from, and who does not inherit it."""

from __future__ import annotations

import ctypes
import os
import stat
from collections.abc import Mapping

VARIABLE = "JAXRL_KEY"
FILE_VARIABLE = "JAXRL_KEY_FILE"
SHORTEST = 16

_taken: dict[str, str] = {}
"""{VARIABLE: its value} once `read` has taken it out of the environment."""


def read() -> bytes:
  """The key in $JAXRL_KEY, or in the file that $JAXRL_KEY_FILE names.

  The variable is taken out of this process's environment and its memory, which other processes of
  the user can read in /proc; later calls return the same key.

  Raises:
    ValueError: there is no key, it is too short, or other users can read its file.
  """
  if found := os.environ.get(VARIABLE, ""):
    _taken[VARIABLE] = found
    _erase(VARIABLE)
  found, file = _taken.get(VARIABLE, ""), os.environ.get(FILE_VARIABLE, "")
  if not found and not file:
    raise ValueError(
      f"connections between machines need a key: set {VARIABLE}, or {FILE_VARIABLE} to a file that "
      "holds it, to the same on all of them (head -c 32 /dev/urandom | base64)"
    )
  key = (found.encode() or _content(file)).strip()
  if len(key) < SHORTEST:
    place = f"${VARIABLE}" if found else file
    raise ValueError(
      f"the key of {len(key)} bytes in {place} is too short; take {SHORTEST} or more"
    )
  return key


def without(environment: Mapping[str, str]) -> dict[str, str]:
  """The environment of a child process that needs no key."""
  return {k: v for k, v in environment.items() if k not in (VARIABLE, FILE_VARIABLE)}


def _content(file: str) -> bytes:
  with open(file, "rb") as opened:
    mode = stat.S_IMODE(os.fstat(opened.fileno()).st_mode)
    if mode & (stat.S_IRWXG | stat.S_IRWXO):
      raise ValueError(
        f"other users may read or change the key file {file}, whose mode is {mode:03o}; "
        f"run chmod 600 {file}"
      )
    return opened.read()


def _erase(variable: str) -> None:
  """Removes a variable, and overwrites its value where /proc/PID/environ shows it."""
  getenv = ctypes.CDLL(None).getenv
  getenv.restype = ctypes.c_void_p
  if address := getenv(variable.encode()):
    ctypes.memset(address, 0, len(os.fsencode(os.environ[variable])))
  del os.environ[variable]
