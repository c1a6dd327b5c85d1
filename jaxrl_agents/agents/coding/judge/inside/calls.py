"""Runs inside a sandbox: evaluates calls one by one, and writes their values.

    python3 -I -S -B calls.py JOB RESULTS

JOB is a JSON file. Each value is appended to RESULTS as one line of JSON as soon as it is known;
if the process ends early, the remaining values are missing. It runs in one interpreter with the
code of an agent, so that the host trusts nothing of it. No expected value is in its reach: the host
compares (see `agents.coding.judge.verdict`).

  {"folder": F, "module": M, "calls": [SOURCE], "limit_s": S, "begun": B}  -> [i, VALUE]

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
  """A call exceeded its time limit."""


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
  run_calls(job, write)
  os._exit(0)


if __name__ == "__main__":
  main()
