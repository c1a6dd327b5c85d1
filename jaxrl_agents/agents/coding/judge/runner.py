"""Runs inside a sandbox: evaluates calls, or runs tests one by one, and writes the outcomes.

    python3 -I -S -B runner.py JOB RESULTS

JOB is a JSON file. Each outcome is appended to RESULTS as one line of JSON as soon as it is known;
if the process ends early, the remaining outcomes are missing. The host trusts nothing of it (see
`agents.coding.judge.verdict`).

  {"folder": F, "module": M, "calls": [SOURCE], "limit_s": S, "begun": B}  -> [i, VALUE]
  {"folder": F, "modules": [M], "limit_s": S, "begun": B}                  -> [TEST_ID, STATUS]

B is printed before anything is loaded: if it is missing, the machine failed and not the code.

A VALUE is the repr of plain data, "!Name" of an exception, or "?" and the reason why the value
cannot be compared. This file imports nothing of the package.
"""

import importlib
import json
import os
import signal
import sys

PLAIN = (bool, int, float, complex, str, bytes, type(None))
MAX_VALUE_CHARACTERS = 200
MAX_LATE = 2
WALL_FACTOR, WALL_MORE_S = 3.0, 2.0
"""A limit in seconds of CPU time allows this factor, plus these seconds, on the wall clock, because
other processes may use the CPU.
"""


class Late(BaseException):
  """A call or a test exceeded its time limit."""


def _alarm(number, frame):
  raise Late


def limit(seconds):
  """Raises Late after so many seconds of CPU time, or somewhat more wall time; 0 means never."""
  signal.setitimer(signal.ITIMER_PROF, seconds)
  signal.setitimer(signal.ITIMER_REAL, seconds and WALL_FACTOR * seconds + WALL_MORE_S)


def shown(value, depth=0):
  """The repr of plain data, or "?" and the type of other data."""
  kind = type(value)
  if kind in PLAIN:
    text = repr(value)
  elif kind in (list, tuple) and depth < 6:
    inner = [shown(item, depth + 1) for item in value]
    bad = next((text for text in inner if text.startswith("?")), "")
    comma = "," if kind is tuple and len(inner) == 1 else ""
    brackets = "[]" if kind is list else "()"
    text = bad or f"{brackets[0]}{', '.join(inner)}{comma}{brackets[1]}"
  elif kind is dict and depth < 6:
    pairs = [(shown(k, depth + 1), shown(v, depth + 1)) for k, v in value.items()]
    bad = next((text for pair in pairs for text in pair if text.startswith("?")), "")
    text = bad or "{" + ", ".join(f"{k}: {v}" for k, v in pairs) + "}"
  else:
    return f"?{kind.__name__}"
  return text if len(text) <= MAX_VALUE_CHARACTERS else "?long"


def value_of(source, names, limit_s):
  """The value of a call, as text."""
  try:
    limit(limit_s)
    try:
      return shown(eval(source, names))
    finally:
      limit(0)
  except Late:
    return "?late"
  except BaseException as error:
    return f"!{type(error).__name__}"


def run_calls(job, write):
  """Evaluates each call with the names of the module. After two late calls of a function, the rest
  of its calls count as late.
  """
  try:
    limit(10 * job["limit_s"])
    names = vars(importlib.import_module(job["module"]))
    limit(0)
  except BaseException as error:
    fault = f"!{type(error).__name__}"
    for i in range(len(job["calls"])):
      write([i, fault])
    return
  late: dict[str, int] = {}
  for i, source in enumerate(job["calls"]):
    function = source.partition("(")[0]
    if late.get(function, 0) >= MAX_LATE:
      write([i, "?late"])
      continue
    value = value_of(source, dict(names), job["limit_s"])
    late[function] = late.get(function, 0) + (value == "?late")
    write([i, value])


def run_modules(job, write):
  """Runs the tests of modules: TestCases, functions named test..., and classes named Test..."""
  import unittest

  loader = unittest.TestLoader()
  for name in job["modules"]:
    try:
      module = importlib.import_module(name)
      tests = list(flat(loader.loadTestsFromModule(module)))
    except BaseException as error:
      write([name, f"error {type(error).__name__}"])
      continue
    for test in tests:
      write([test.id(), status_of(unittest, test, job["limit_s"])])
    for label, run in plain_tests(unittest, name, module):
      write([label, status_of(unittest, unittest.FunctionTestCase(run), job["limit_s"])])


def flat(suite):
  """The tests of nested suites, as a flat list."""
  for test in suite:
    if hasattr(test, "__iter__"):
      yield from flat(test)
    else:
      yield test


def plain_tests(unittest, name, module):
  """Yields (id, function without arguments) of tests outside of a TestCase."""
  for key, value in list(vars(module).items()):
    if getattr(value, "__module__", None) != name:
      continue
    if key.startswith("test") and type(value) is type(plain_tests) and takes_nothing(value, 0):
      yield f"{name}.{key}", value
    elif key.startswith("Test") and isinstance(value, type):
      if issubclass(value, unittest.TestCase):
        continue
      for inner, method in list(vars(value).items()):
        if inner.startswith("test") and callable(method) and takes_nothing(method, 1):
          yield f"{name}.{key}.{inner}", lambda cls=value, inner=inner: getattr(cls(), inner)()


def takes_nothing(function, given):
  """Whether a function needs no more than `given` arguments."""
  code = getattr(function, "__code__", None)
  defaults = len(getattr(function, "__defaults__", None) or ())
  return code is not None and code.co_argcount - defaults <= given and not code.co_kwonlyargcount


def status_of(unittest, test, limit_s):
  """The outcome of one test: passed, failed, error, skipped or late."""
  result = unittest.TestResult()
  try:
    limit(limit_s)
    try:
      unittest.TestSuite([test]).run(result)
    finally:
      limit(0)
  except Late:
    return "late"
  except BaseException:
    return "error"
  if result.errors:
    return "late" if any("Late" in text for _, text in result.errors) else "error"
  if result.failures or result.unexpectedSuccesses:
    return "failed"
  if result.testsRun != 1 or result.skipped or result.expectedFailures:
    return "skipped"
  return "passed"


def main():
  """Runs the job, then exits without running the clean-up of the tested code."""
  job_path, result_path = sys.argv[1:]
  with open(job_path) as file:
    job = json.load(file)
  out = os.open(result_path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
  dumps, put = json.dumps, os.write
  signal.signal(signal.SIGALRM, _alarm)
  signal.signal(signal.SIGPROF, _alarm)
  sys.path.insert(0, job["folder"])
  os.chdir(job["folder"])
  os.write(1, job["begun"].encode())
  null = os.open(os.devnull, os.O_RDWR)
  for fd in (0, 1, 2):
    os.dup2(null, fd)
  write = lambda row: put(out, (dumps(row) + "\n").encode())
  (run_calls if "calls" in job else run_modules)(job, write)
  os._exit(0)


if __name__ == "__main__":
  main()
