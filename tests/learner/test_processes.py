import json
import socket
import subprocess
import sys

import numpy as np
import pytest

from jaxrl_agents.runs import processes
from tests import forced_devices

pytestmark = pytest.mark.slow


def start(folder, devices, *numbers):
  return subprocess.Popen(
    [sys.executable, "-m", "tests.learner.two_processes", str(folder), *map(str, numbers)],
    env=forced_devices.environment(devices),
    stdout=subprocess.PIPE,
    stderr=subprocess.STDOUT,
    text=True,
  )


def free_port():
  with socket.socket() as probe:
    probe.bind(("127.0.0.1", 0))
    return probe.getsockname()[1]


@pytest.mark.timeout(600)
def test_two_processes_of_four_devices_train_sample_and_save_as_one_of_eight(tmp_path):
  """Loss, norms of all gradients and log-probabilities within 1e-5 (relative), ids equal.

  The state that the two saved, restored by the one under another mesh: within 1e-5 and 1e-6.
  """
  address = f"127.0.0.1:{free_port()}"
  both = [start(tmp_path, 4, address, 2, i) for i in range(2)]
  for process in [*both, None]:
    process = process or start(tmp_path, 8)
    output, _ = process.communicate(timeout=540)
    assert process.returncode == 0, output[-3000:]
  two, one = (json.loads((tmp_path / f"of_{n}.json").read_text()) for n in (2, 1))
  assert two["tokens"] == one["tokens"]
  for name in ("loss", "grad_norms", "logprobs"):
    np.testing.assert_allclose(two[name], one[name], rtol=1e-5, atol=1e-6, err_msg=name)


THREADS = """
import sys, threading, time
import jax
from jaxrl_agents.learner import barriers
from jaxrl_agents.runs import processes
address, number = sys.argv[1], int(sys.argv[2])
processes.start(address, 2, number)
def meet(name, pause_s):
  for _ in range(3):
    time.sleep(pause_s)
    barriers.wait_for_all(name, timeout_s=20)
thread = threading.Thread(target=meet, args=("published", 0.3 * number))
thread.start()
meet("saved", 0.3 * (1 - number))
thread.join(60)
print("met", flush=True)
"""


@pytest.mark.timeout(120)
def test_two_threads_of_each_process_meet_those_of_the_other_whichever_comes_first():
  address = f"127.0.0.1:{free_port()}"
  both = [
    subprocess.Popen(
      [sys.executable, "-c", THREADS, address, str(i)],
      env=forced_devices.environment(1),
      stdout=subprocess.PIPE,
      stderr=subprocess.STDOUT,
      text=True,
    )
    for i in range(2)
  ]
  for process in both:
    output, _ = process.communicate(timeout=100)
    assert process.returncode == 0 and "met" in output and "Error" not in output, output[-3000:]


def test_numbers_of_processes_without_a_coordinator_are_refused():
  with pytest.raises(ValueError, match="have no effect without --coordinator"):
    processes.start("", num_processes=2)
