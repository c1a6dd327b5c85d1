"""Tinker's client library, unmodified, against the server of scripts/serve.py --api=tinker.

    python scripts/try_tinker.py --folder=/tmp/tinker --torch=torch --json=FILE

Makes a virtual environment with the library below --folder, serves the base policy, and runs the
programs of scripts/clients/: one learns a text by heart (cross-entropy), one raises the reward of a
bandit (importance sampling on its own samples), one trains on losses of its own
(`forward_backward_custom`), one runs two recipes of tinker_cookbook, and one learns by a third. The
first three run with all parameters and with adapters. The library differentiates losses with torch,
and tinker_cookbook needs it too, so the last three run only if --torch says what to install. Needs
a package index once.
"""

import json
import os
import pathlib
import subprocess
import sys
import time
import venv

from absl import flags
from rich.console import Console
from rich.table import Table

from jaxrl_agents.runs import entry_point

_FOLDER = flags.DEFINE_string("folder", "/tmp/jaxrl_tinker", "of the environment and the models")
_TORCH = flags.DEFINE_string("torch", None, "requirement, such as torch or torch==2.13.0+cpu")
_JSON = flags.DEFINE_string("json", None, "also write the rows to this file")

REQUIREMENT = "tinker==0.38.0"
COOKBOOK = "tinker_cookbook[math-rl]==0.5.8"
SCRIPTS = pathlib.Path(__file__).parent
INSTALL_S, START_S, RUN_S = 900, 300, 600
PROGRAMS = [("tinker_copy", 0), ("tinker_copy", 8), ("tinker_bandit", 0), ("tinker_bandit", 8)]
WITH_TORCH = [
  ("tinker_custom", 0),
  ("tinker_custom", 8),
  ("tinker_recipes", 8),
  ("tinker_shorter", 8),
]


def python_of(folder: pathlib.Path, requirements: list[str]) -> pathlib.Path:
  """The interpreter of the library's environment, which is made if it is not there."""
  ready, wanted = folder / "installed", "\n".join(requirements)
  if not ready.exists() or ready.read_text() != wanted:
    venv.create(folder, with_pip=True, clear=True)
    pip = [str(folder / "bin" / "pip"), "install", "-q", *requirements]
    subprocess.run(pip, check=True, timeout=INSTALL_S, stdout=subprocess.DEVNULL)
    ready.write_text(wanted)
  return folder / "bin" / "python"


def served(folder: pathlib.Path) -> tuple[subprocess.Popen[str], dict[str, str]]:
  """A server, and the variables by which clients find it.

  Raises:
    RuntimeError: it does not start within START_S.
  """
  log, key = folder / "server.log", folder / "key"
  command = [
    *(sys.executable, str(SCRIPTS / "serve.py"), "--api=tinker", "--port=0"),
    f"--config={SCRIPTS / 'clients' / 'tinker_config.py'}",
    *(f"--key_file={key}", f"--models={folder / 'models'}"),
  ]
  with log.open("w") as output:
    server = subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT, text=True)
  end = time.monotonic() + START_S
  while time.monotonic() < end and server.poll() is None:
    if "TINKER_BASE_URL=" in (text := log.read_text()):
      url = text.split("TINKER_BASE_URL=")[1].split()[0]
      found = {"TINKER_BASE_URL": url, "TINKER_API_KEY": f"tml-{key.read_text().strip()}"}
      return server, {"PATH": os.environ["PATH"], "TINKER_TELEMETRY": "0", **found}
    time.sleep(0.2)
  server.kill()
  raise RuntimeError(f"the server did not start within {START_S} s: {log.read_text()[-2_000:]}")


def row(python: pathlib.Path, name: str, rank: int, variables: dict[str, str]) -> dict[str, object]:
  """One row of the table."""
  command = [str(python), str(SCRIPTS / "clients" / f"{name}.py"), str(rank)]
  began = time.monotonic()
  found: dict[str, object] = {"program": name, "rank": rank, "ok": False}
  try:
    ran = subprocess.run(command, env=variables, capture_output=True, text=True, timeout=RUN_S)
  except subprocess.TimeoutExpired:
    return found | {"note": f"no end within {RUN_S} s"}
  found["wall_s"] = round(time.monotonic() - began, 1)
  if ran.returncode:
    return found | {"note": ran.stderr.strip()[-300:]}
  said = json.loads(ran.stdout.strip().splitlines()[-1])
  found |= {"first": round(said["first"], 3), "last": round(said["last"], 3)}
  if name == "tinker_bandit":
    return found | {"ok": said["last"] > said["first"] + 0.1}
  if name == "tinker_custom":
    gap = said["same_loss_gap"]
    ok = said["last"] < said["first"] / 2 and gap < 1e-3
    return found | {"ok": ok, "note": f"beside cross_entropy {gap:.1e}"}
  if name == "tinker_shorter":
    note = f"characters of a reply, least lower bound of the gain {said['lower95']:.1f}"
    return found | {"ok": said["lower95"] > 0.0, "note": note}
  if name == "tinker_recipes":
    ok = said["last"] < said["first"] / 2 and said["kl"] < 1e-6
    rewards = ", ".join(f"{reward:.3f}" for reward in said["rewards"])
    return found | {"ok": ok, "note": f"RL rewards {rewards}; kl of sampler {said['kl']:.1e}"}
  same = abs(said["resumed"] - said["last"]) < abs(said["first"] - said["last"])
  ok = said["samples"] and same and said["logprob_gap"] < 1e-3
  note = f"gap {said['logprob_gap']:.1e}, said {said['said']['named']!r}"
  return found | {"ok": ok, "note": note}


def main() -> None:
  """Runs all programs and prints a table."""
  folder = pathlib.Path(_FOLDER.value).expanduser()
  folder.mkdir(parents=True, exist_ok=True)
  torch = [_TORCH.value, COOKBOOK] if _TORCH.value else []
  python = python_of(folder / "environment", [REQUIREMENT, *torch])
  programs = PROGRAMS + (WITH_TORCH if torch else [])
  server, variables = served(folder)
  try:
    rows = [row(python, name, rank, variables) for name, rank in programs]
  finally:
    server.terminate()
    server.wait(60)
  table = Table(*("program", "rank", "ok", "first", "last", "wall_s", "note"))
  for each in rows:
    table.add_row(*(str(each.get(str(column.header), "")) for column in table.columns))
  Console(width=140).print(table)
  if _JSON.value:
    pathlib.Path(_JSON.value).write_text(json.dumps(rows, indent=2) + "\n")
  if not all(each["ok"] for each in rows):
    sys.exit(1)


if __name__ == "__main__":
  entry_point.run(main)
