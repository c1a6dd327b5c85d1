"""Calls in threads that end with their process."""

import subprocess
import sys
import threading

import pytest

from jaxrl_agents import background


def test_the_result_or_the_error_is_that_of_the_future():
  assert background.call(lambda: threading.current_thread().name, "own").result(10) == "own"
  with pytest.raises(ZeroDivisionError):
    background.call(lambda: 1 / 0, "own").result(10)


def test_a_call_that_hangs_does_not_keep_its_process():
  code = (
    "import time; from jaxrl_agents import background; "
    "background.call(lambda: time.sleep(600), 'hangs')"
  )
  assert subprocess.run([sys.executable, "-c", code], timeout=60).returncode == 0
