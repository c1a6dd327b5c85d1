"""Agents and client libraries of other projects, unmodified, against the gateway.

    python scripts/try_clients.py --folder=/tmp/clients --only=langgraph_react --json=FILE

Makes a virtual environment, or a folder of npm, for each client below --folder, starts the program
of scripts/clients/ as `agents/external` starts a command, lets a scripted player answer it, and
checks what the session left: every sampled token is trained once. Needs a package index once, and
for Codex and Claude Code npm; without it these two are skipped.
"""

import asyncio
import dataclasses
import json
import pathlib
import shutil
import subprocess
import sys
import venv

from absl import flags
from rich.console import Console
from rich.table import Table

from jaxrl_agents.agents.external.config import ExternalConfig
from jaxrl_agents.agents.external.episode import ExternalEpisode, ExternalServices
from jaxrl_agents.chat import load as load_chat
from jaxrl_agents.harness.rollout import Sampling
from jaxrl_agents.runs import entry_point
from jaxrl_agents.types import Message, Task, ToolCall, Trajectory

_FOLDER = flags.DEFINE_string("folder", "/tmp/jaxrl_clients", "of what is installed")
_ONLY = flags.DEFINE_list("only", None, "names of clients; all by default")
_JSON = flags.DEFINE_string("json", None, "also write the rows to this file")

PROGRAMS = pathlib.Path(__file__).parent / "clients"
INSTALL_S, RUN_S = 900, 120


@dataclasses.dataclass(frozen=True)
class Client:
  """A program and what it is made of.

  Attributes:
    requirements: of its environment; or one package of npm, if `npm` is set.
    replies: of the scripted player, in order.
    answer: what the program prints last.
    segments: that the calls become; more than one where the client writes its own text into the
      history in the place of the replies.
    npm: whether it comes from npm; its program is then a script of bash.
  """

  requirements: tuple[str, ...]
  replies: tuple[Message, ...]
  answer: str = "5"
  segments: int = 1
  npm: bool = False


def _call(name: str, **arguments: object) -> Message:
  said = "I use a tool for this, and answer then."  # streams have it in pieces before the call
  return Message("assistant", said, (ToolCall("", name, arguments),))


ADD = (_call("add", a=2, b=3), Message("assistant", "5"))
CLIENTS = {
  "anthropic_tools": Client(("anthropic==2.14.0",), ADD),
  "openai_agents_sdk": Client(("openai-agents==0.24.0",), ADD),
  "langgraph_react": Client(("langgraph==1.2.24", "langchain-openai==1.7.4"), ADD),
  "smolagents_tools": Client(
    ("smolagents[openai]==1.26.0",), (ADD[0], _call("final_answer", answer="5")), segments=2
  ),
  "mini_swe_agent": Client(
    ("mini-swe-agent==2.4.6", "litellm==1.109.1"),
    (
      _call("bash", command="printf 5 > answer"),
      _call("bash", command="echo COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT"),
    ),
  ),
  "verifiers_taskset": Client(("verifiers==0.4.0",), (Message("assistant", "5"),)),
  "codex": Client(
    ("@openai/codex@0.171.0",), (_call("exec_command", cmd="expr 2 + 3"), ADD[1]), npm=True
  ),
  "claude_code": Client(
    ("@anthropic-ai/claude-code@2.1.332",),
    (_call("ToolSearch", query="select:WebFetch"), _call("Bash", command="expr 2 + 3"), ADD[1]),
    npm=True,
  ),
}


def command_of(name: str, client: Client) -> str:
  """The command that runs a client, which is installed if it is not there."""
  folder = pathlib.Path(_FOLDER.value).expanduser() / name
  ready, wanted = folder / "installed", "\n".join(client.requirements)
  if not ready.exists() or ready.read_text() != wanted:
    if client.npm:
      shutil.rmtree(folder, ignore_errors=True)
      install = ["npm", "install", "--prefix", str(folder), "--no-audit", "--no-fund"]
    else:
      venv.create(folder, with_pip=True, clear=True)
      install = [str(folder / "bin" / "pip"), "install", "-q"]
    command = [*install, *client.requirements]
    subprocess.run(command, check=True, timeout=INSTALL_S, stdout=subprocess.DEVNULL)
    ready.write_text(wanted)
  if client.npm:
    return f"bash {PROGRAMS / name}.sh {folder / 'node_modules' / '.bin'}"
  return f"{folder / 'bin' / 'python'} {PROGRAMS / name}.py"


def play(name: str, client: Client) -> tuple[Trajectory, str]:
  """What the session of one run left, and the last line that the program printed."""
  printed: list[str] = []

  def answer(task, messages, tools, seed):
    said = sum(message.role == "assistant" for message in messages)
    return client.replies[min(said, len(client.replies) - 1)]

  options = ExternalConfig(
    command=command_of(name, client),
    reward="scripts.clients.judge:last_line",
    token_budget=16_384,
    timeout_s=RUN_S,
  )
  services = ExternalServices(load_chat("base"), options)
  episode = ExternalEpisode(Task(name, "external", "-", {"printed": printed}), services, answer)
  played = episode.play(None, task=Task(name, "external", "-", {}), sampling=Sampling(), rollout=0)
  trajectory = asyncio.run(played)
  return trajectory, printed[-1] if printed else ""


def row(name: str, client: Client) -> dict[str, object]:
  """One row of the table."""
  if client.npm and not shutil.which("npm"):
    return {"client": name, "ok": "skipped", "error": "npm is not on PATH; install node"}
  try:
    trajectory, printed = play(name, client)
  except Exception as error:
    return {"client": name, "ok": False, "error": f"{type(error).__name__}: {error}"}
  metrics = trajectory.metrics
  once = metrics["sampled_tokens"] == metrics["trained_tokens"]
  segments, ok = len(trajectory.segments), printed == client.answer
  return {
    "client": name,
    "ok": bool(ok and once and segments == client.segments),
    "answer": printed,
    "calls": int(metrics["turns"]),
    "sampled": int(metrics["sampled_tokens"]),
    "trained": int(metrics["trained_tokens"]),
    "segments": segments,
    "context": int(metrics["longest_context_tokens"]),
  }


def main() -> None:
  """Runs all clients and prints a table."""
  names = _ONLY.value or list(CLIENTS)
  if unknown := set(names) - set(CLIENTS):
    raise ValueError(f"--only={','.join(unknown)}: there is no such client, only {list(CLIENTS)}")
  rows = [row(name, CLIENTS[name]) for name in names]
  columns = (
    "client",
    "ok",
    "answer",
    "calls",
    "sampled",
    "trained",
    "segments",
    "context",
    "error",
  )
  table = Table(*columns)
  for each in rows:
    table.add_row(*(str(each.get(column, "")) for column in columns))
  Console(width=140).print(table)
  if _JSON.value:
    pathlib.Path(_JSON.value).write_text(json.dumps(rows, indent=2) + "\n")
  if any(each["ok"] is False for each in rows):
    sys.exit(1)


if __name__ == "__main__":
  entry_point.run(main)
