"""What the benchmarks beside peers share: the model, the sizes of the work, and running a peer."""

from __future__ import annotations

import json
import os
import pathlib
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from absl import app, flags

from jaxrl_agents.policy.config import PolicyConfig

GROUPS, ROWS = 4, 32
PROMPT_TOKENS = SAMPLED_TOKENS = 128

PEERS = flags.DEFINE_string("peers", "", "Folder of the peers' virtual environments.")
PEER_SCRIPTS = flags.DEFINE_string("peer_scripts", "", "Folder of the peers' scripts.")
HUGE_PAGES = flags.DEFINE_bool(
  "huge_pages", True, "Let malloc use huge pages, for everyone (XLA frees its buffers every step)."
)

CFG = PolicyConfig(
  vocab_size=4096,
  embed_dim=256,
  num_layers=4,
  num_heads=8,
  num_kv_heads=4,
  head_dim=32,
  rope_theta=1e6,
  num_experts=8,
  experts_per_token=2,
  expert_ffw_dim=256,
  router="softmax",
)
"""A Qwen3-like mixture of experts of 9.19 million parameters."""

_PEER_TIMEOUT_S = 1_800


def check_arguments(argv: Sequence[str]) -> None:
  """Raises app.UsageError for arguments that are no flags, or half of the flags of peers."""
  if len(argv) > 1:
    raise app.UsageError(f"unknown arguments {argv[1:]}")
  if bool(PEERS.value) != bool(PEER_SCRIPTS.value):
    raise app.UsageError("--peers and --peer_scripts go together")


def restart_with(**more: str) -> None:
  """Starts this process again with variables that are read as a process starts, unless it has them:
  `more` is appended to what they are, and malloc uses huge pages if --huge_pages."""
  wanted = [(name, value, " ") for name, value in more.items()]
  if HUGE_PAGES.value:
    wanted.append(("GLIBC_TUNABLES", "glibc.malloc.hugetlb=1", ":"))
  missing = [one for one in wanted if one[1] not in os.environ.get(one[0], "").split(one[2])]
  if missing:
    for name, value, between in missing:
      os.environ[name] = between.join(filter(None, [os.environ.get(name), value]))
    os.execv(sys.executable, [sys.executable, *sys.argv])


def peer_lines(
  name: str, folder: str, command: Sequence[str], options: Mapping[str, Any]
) -> list[dict[str, Any]]:
  """The JSON lines that a peer's script prints.

  Args:
    name: of the peer, for messages.
    folder: of its virtual environment in --peers.
    command: its script in --peer_scripts, and arguments.
    options: of the script.

  Raises:
    RuntimeError: it ended with an error.
  """
  python = pathlib.Path(PEERS.value) / folder / "bin" / "python"
  done = subprocess.run(
    [str(python.absolute()), *command, *(f"--{key}={value}" for key, value in options.items())],
    cwd=PEER_SCRIPTS.value,
    capture_output=True,
    text=True,
    timeout=_PEER_TIMEOUT_S,
  )
  if done.returncode:
    raise RuntimeError(f"{name}: {command[0]} ended with {done.returncode}:\n{done.stderr[-2000:]}")
  # TRL prints its metrics in braces too, but not as JSON.
  return [json.loads(line) for line in done.stdout.splitlines() if line.startswith('{"')]


def matmul_flops() -> float:
  """FLOP/s of a 2048^3 float32 matrix product on one device: the best of 20, measured now."""
  a = jnp.ones((2048, 2048))
  product = jax.jit(lambda x: x @ x)
  return 2 * 2048**3 / best_seconds(lambda: product(a).block_until_ready())


def best_seconds(call, repeats: int = 20) -> float:
  """The shortest of `repeats` calls after one that is not timed."""
  call()
  times = []
  for _ in range(repeats):
    start = time.perf_counter()
    call()
    times.append(time.perf_counter() - start)
  return min(times)


def report(**figures: Any) -> None:
  """Prints a JSON line, numbers rounded, with the load of the machine."""
  rounded = {k: round(v, 4) if isinstance(v, float) else v for k, v in figures.items()}
  print(json.dumps({**rounded, "load1": round(os.getloadavg()[0], 2)}), flush=True)
