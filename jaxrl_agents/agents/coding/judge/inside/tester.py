"""The process that runs tests: it decides each outcome and never loads tested code.

    python3 -I -S -B -c BOOT JOB RESULTS

JOB is a JSON file, which is removed before any tested code runs:

  folder   where the tested code is
  tests    {path below folder: text} of test modules, which are loaded from memory
  sources  names of the modules of the tested code
  modules  names of the test modules to run
  limit_s  time limit of a test
  key      signs each line of RESULTS: the tested code may write to the file, but not sign
  begun    is printed before any tested code runs

Each line of RESULTS is a JSON list [TEST_ID, STATUS] and its signature. Test modules see stand-ins
for the modules of the tested code (`stand_ins`), whose work is done in another process (`tested`).
A test whose outcome rests on an object of that process has the status "opaque"; so has a test that
runs code made of data (`foreign_code`).
"""

from __future__ import annotations

import abc
import ctypes
import functools
import hmac
import importlib
import json
import os
import signal
import subprocess
import sys
import types
import unittest
from collections.abc import Callable, Iterator
from typing import Any

from jaxrl_agents.agents.coding.judge.inside import foreign_code, imports, stand_ins
from jaxrl_agents.agents.coding.judge.inside.stand_ins import Link, StandIn

MAX_RESTARTS = 3
"""How often the tested code of a module is started again after it ended or was late."""
_PR_SET_DUMPABLE = 4
_MAY_TAKE_STAND_INS = ("assertRaises", "assertRaisesRegex", "assertWarns", "assertWarnsRegex")
_BOOT = (
  "import sys; sys.path.insert(0, sys.argv[-1]); "
  "from jaxrl_agents.agents.coding.judge.inside.{0} import main; main()"
)


class Late(BaseException):
  """A test exceeded its time limit."""


_alarms: list[int] = []
"""Alarms since the test began: a test may catch `Late`."""


def boot(module: str, *arguments: str, place: str) -> list[str]:
  """The command line of a program of this folder, a copy of which is below `place`."""
  return ["/usr/bin/python3", "-I", "-S", "-B", "-c", _BOOT.format(module), *arguments, place]


def _alarm(number: int, frame: Any) -> None:
  _alarms.append(number)
  raise Late


def main() -> None:
  """Runs the job on the command line."""
  job_path, result_path, place = sys.argv[1:]
  ctypes.CDLL(None).prctl(_PR_SET_DUMPABLE, 0, 0, 0, 0)  # tested code has the same user id
  with open(job_path) as file:
    job = json.load(file)
  os.unlink(job_path)
  sys.path.remove(place)
  os.chdir(job["folder"])
  out = os.open(result_path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND, 0o600)
  key = bytes.fromhex(job["key"])

  def write(row: list[str]) -> None:
    text = json.dumps(row)
    os.write(out, f"{text} {hmac.new(key, text.encode(), 'sha256').hexdigest()}\n".encode())

  signal.signal(signal.SIGALRM, _alarm)
  _refuse_stand_ins_in_assertions()
  _refuse_stand_ins_of_abstract_classes()
  foreign_code.refuse_from_now_on(imports.Finder.exec_module.__code__)
  os.write(1, job["begun"].encode())
  null = os.open(os.devnull, os.O_RDWR)
  for fd in (0, 1, 2):
    os.dup2(null, fd)
  for name in job["modules"]:
    run_module(name, job, place, write)
  os._exit(0)


def _refuse_stand_ins_in_assertions() -> None:
  """An assertion about an object of the tested code would be decided by the tested code."""
  for name in dir(unittest.TestCase):
    if not name.startswith("assert") or name in _MAY_TAKE_STAND_INS:
      continue

    def checked(self: Any, *arguments: Any, _method: Any = None, **named: Any) -> Any:
      stand_ins.refuse_inside((arguments, named))
      return _method(self, *arguments, **named)

    method = getattr(unittest.TestCase, name)
    setattr(unittest.TestCase, name, functools.partialmethod(checked, _method=method))


def _refuse_stand_ins_of_abstract_classes() -> None:
  """A stand-in has every method that classes like Iterable look for, whatever its object has."""
  original = abc.ABCMeta.__instancecheck__

  def checked(cls: Any, instance: Any) -> bool:
    found = original(cls, instance)
    if found and type(instance) is StandIn:
      stand_ins.refuse_inside(instance)
    return found

  setattr(abc.ABCMeta, "__instancecheck__", checked)  # noqa: B010


def run_module(
  name: str, job: dict[str, Any], place: str, write: Callable[[list[str]], None]
) -> None:
  """Runs the tests of one module: TestCases, functions test..., methods of classes Test....

  Tested code that ended, was late or broke the protocol is started again for the tests that are
  left, and the module is loaded anew for it.
  """
  told: set[str] = set()
  for _ in range(1 + MAX_RESTARTS):
    with _started(job["folder"], place) as link:
      finder = imports.Finder(link, job["tests"], job["sources"])
      with finder.installed():
        try:
          _limit(2 * job["limit_s"])
          module = importlib.import_module(name)
          found = list(_tests(module))
          _limit(0)
        except BaseException as error:
          _limit(0)
          write([name, f"error {type(error).__name__}"])
          return
        for label, test in found:
          if label in told:
            continue
          told.add(label)
          write([label, status_of(test, link, job["limit_s"])])
          if link.is_broken:
            break
        else:
          return


class _started:
  """A context: the process that runs tested code, and its end."""

  def __init__(self, folder: str, place: str):
    self._folder, self._place = folder, place

  def __enter__(self) -> Link:
    to_read, our_write = os.pipe()
    our_read, to_write = os.pipe()
    command = boot("tested", str(to_read), str(to_write), self._folder, place=self._place)
    self._process = subprocess.Popen(
      command, pass_fds=(to_read, to_write), stdin=0, stdout=1, stderr=2, start_new_session=True
    )
    os.close(to_read)
    os.close(to_write)
    self._fds = (our_read, our_write)
    return Link(*self._fds)

  def __exit__(self, *_: object) -> None:
    self._process.kill()
    self._process.wait(10.0)
    for fd in self._fds:
      os.close(fd)


def _limit(seconds: float) -> None:
  """Raises Late after so many seconds, and each second from then on; 0 means never."""
  signal.setitimer(signal.ITIMER_REAL, seconds, 1.0 if seconds else 0.0)


def _tests(module: types.ModuleType) -> Iterator[tuple[str, unittest.TestCase]]:
  """(id, test) of a module, in an order that depends on its text alone."""
  vars(module).pop("load_tests", None)  # what it adds are mostly examples of the tested code's text
  for test in _flat(unittest.TestLoader().loadTestsFromModule(module)):
    if type(getattr(test, getattr(test, "_testMethodName", ""), None)) is not StandIn:
      yield test.id(), test
  name = module.__name__
  for key, value in list(vars(module).items()):
    if getattr(value, "__module__", None) != name:
      continue
    if key.startswith("test") and isinstance(value, types.FunctionType) and _takes(value, 0):
      yield f"{name}.{key}", unittest.FunctionTestCase(value)
    elif key.startswith("Test") and isinstance(value, type):
      if issubclass(value, unittest.TestCase):
        continue
      for inner, method in list(vars(value).items()):
        if inner.startswith("test") and callable(method) and _takes(method, 1):
          run = lambda cls=value, inner=inner: getattr(cls(), inner)()
          yield f"{name}.{key}.{inner}", unittest.FunctionTestCase(run)


def _flat(suite: Any) -> Iterator[unittest.TestCase]:
  for test in suite:
    if isinstance(test, unittest.TestSuite):
      yield from _flat(test)
    else:
      yield test


def _takes(function: Any, count: int) -> bool:
  """Whether a function needs no more than `count` arguments."""
  code = getattr(function, "__code__", None)
  defaults = len(getattr(function, "__defaults__", None) or ())
  return code is not None and code.co_argcount - defaults <= count and not code.co_kwonlyargcount


def status_of(test: unittest.TestCase, link: Link, limit_s: float) -> str:
  """The outcome of one test: passed, failed, error, skipped, late or opaque."""
  result = unittest.TestResult()
  link.is_opaque = False
  _alarms.clear()
  foreign_code.refusals.clear()
  try:
    _limit(limit_s)
    try:
      unittest.TestSuite([test]).run(result)
    finally:
      _limit(0)
  except BaseException:
    result.errors.append((test, ""))
  if _alarms:
    link.is_broken = True  # a request may be under way
    return "late"
  if link.is_opaque or foreign_code.refusals:
    return "opaque"
  if link.is_broken or result.errors:
    return "error"
  if result.failures or result.unexpectedSuccesses:
    return "failed"
  if result.testsRun != 1 or result.skipped or result.expectedFailures:
    return "skipped"
  return "passed"
