"""Agents and client libraries of other projects, unmodified, against the gateway.

    python scripts/try_clients.py --folder=/tmp/clients --only=langgraph_react --json=FILE

Makes a virtual environment, or a folder of npm, for each client below --folder, starts the program
of scripts/clients/ as `agents/external` starts a command, lets a scripted player answer it, and
checks what the session left: every sampled token is trained once, under the ids of the player's
reply. Programs called NAME_faults also have refusals and broken connections. Needs a package index
once, and for Codex and Claude Code npm; without it these two are skipped.
"""

import asyncio
import dataclasses
import json
import pathlib
import shutil
import subprocess
import sys
import time
import venv
from collections import Counter
from typing import cast

import numpy as np
from absl import flags
from rich.console import Console
from rich.table import Table

from jaxrl_agents.agents.external.config import ExternalConfig
from jaxrl_agents.agents.external.episode import ExternalEpisode, ExternalServices
from jaxrl_agents.chat import load as load_chat
from jaxrl_agents.harness.rollout import Sampling
from jaxrl_agents.runs import entry_point
from jaxrl_agents.types import Message, Sampler, Task, ToolCall, Trajectory

_FOLDER = flags.DEFINE_string("folder", "/tmp/jaxrl_clients", "of what is installed")
_ONLY = flags.DEFINE_list("only", None, "names of clients; all by default")
_JSON = flags.DEFINE_string("json", None, "also write the rows to this file")

PROGRAMS = pathlib.Path(__file__).parent / "clients"
INSTALL_S, RUN_S = 900, 120
ANSWER_S = 0.02
"""What a reply takes at least, as if it were sampled: else it is sent before the gateway has seen
that its connection broke meanwhile."""


@dataclasses.dataclass(frozen=True)
class Client:
  """A program and what it is made of.

  Attributes:
    requirements: of its environment, which programs with the same ones share; or one package of
      npm, if `npm` is set.
    replies: of the scripted player, in order.
    answer: what the program prints last.
    segments: that the calls become; more than one where the client writes its own text into the
      history in the place of the replies, or asks several questions.
    lost: replies that never arrived and are not trained.
    npm: whether it comes from npm; its program is then a script of bash.
  """

  requirements: tuple[str, ...]
  replies: tuple[Message, ...]
  answer: str = "5"
  segments: int = 1
  lost: int = 0
  npm: bool = False


def _call(name: str, **arguments: object) -> Message:
  said = "I use a tool for this, and answer then."  # streams have it in pieces before the call
  return Message("assistant", said, (ToolCall("", name, arguments),))


ADD = (_call("add", a=2, b=3), Message("assistant", "5"))
BASH = (
  _call("bash", command="printf 5 > answer"),
  _call("bash", command="echo COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT"),
)
FINAL = _call("final_answer", answer="5")
LANGGRAPH = ("langgraph==1.2.24", "langchain-openai==1.7.4")
LITELLM = ("mini-swe-agent==2.4.6", "litellm==1.109.1")
OPENAI_AGENTS = ("openai-agents==0.24.0",)
SMOLAGENTS = ("smolagents[openai]==1.26.0",)
CLIENTS = {
  "anthropic_tools": Client(("anthropic==2.14.0",), ADD),
  "openai_agents_sdk": Client(OPENAI_AGENTS, ADD),
  "openai_agents_faults": Client(OPENAI_AGENTS, ADD, segments=28, lost=4),
  "langgraph_react": Client(LANGGRAPH, ADD),
  "langgraph_faults": Client(LANGGRAPH, ADD, segments=12, lost=1),
  "smolagents_tools": Client(SMOLAGENTS, (ADD[0], FINAL), segments=2),
  "smolagents_faults": Client(SMOLAGENTS, (ADD[0], FINAL), segments=17, lost=1),
  "mini_swe_agent": Client(LITELLM, BASH),
  "mini_swe_agent_faults": Client(LITELLM, BASH, segments=7, lost=1),
  "litellm_faults": Client(LITELLM, ADD, segments=26, lost=3),
  "verifiers_taskset": Client(("verifiers==0.4.0",), (Message("assistant", "5"),)),
  "verifiers_tokens": Client(
    ("verifiers==0.4.0", "transformers==5.24.0"), (Message("assistant", "5"),)
  ),
  "verifiers_legacy": Client(
    ("verifiers==0.3.1", "anthropic==0.125.0"), ADD, answer="5.0 5.0 5.0", segments=3
  ),
  "codex": Client(
    ("@openai/codex@0.171.0",), (_call("exec_command", cmd="expr 2 + 3"), ADD[1]), npm=True
  ),
  "claude_code": Client(
    ("@anthropic-ai/claude-code@2.1.332",),
    (_call("ToolSearch", query="select:WebFetch"), _call("Bash", command="expr 2 + 3"), ADD[1]),
    npm=True,
  ),
}


class Idle:
  """The sampler of a policy for which a scripted player answers."""

  def playing(self, more: int) -> None:
    """Nobody waits for its requests."""


def command_of(name: str, client: Client) -> str:
  """The command that runs a client, which is installed if it is not there."""
  first = next(each for each in CLIENTS if CLIENTS[each].requirements == client.requirements)
  folder = pathlib.Path(_FOLDER.value).expanduser() / first
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


def play(name: str, client: Client) -> tuple[Trajectory, str, Counter[tuple[int, ...]]]:
  """What the session of one run left, the last line that the program printed, and how often the
  player said each reply (ids)."""
  printed: list[str] = []
  chat, said = load_chat("base"), Counter[tuple[int, ...]]()

  def answer(task, messages, tools, seed):
    earlier = sum(message.role == "assistant" for message in messages)
    reply = client.replies[min(earlier, len(client.replies) - 1)]
    time.sleep(ANSWER_S)
    said[tuple(chat.encode_reply(reply, messages).tolist())] += 1
    return reply

  options = ExternalConfig(
    command=command_of(name, client),
    reward="scripts.clients.judge:last_line",
    token_budget=16_384,
    max_calls=64,
    timeout_s=RUN_S,
  )
  services = ExternalServices(chat, options)
  episode = ExternalEpisode(Task(name, "external", "-", {"printed": printed}), services, answer)
  idle = cast(Sampler, Idle())
  played = episode.play(idle, task=Task(name, "external", "-", {}), sampling=Sampling(), rollout=0)
  trajectory = asyncio.run(played)
  return trajectory, printed[-1] if printed else "", said


def trained(trajectory: Trajectory) -> Counter[tuple[int, ...]]:
  """How often each reply (ids) is trained."""
  found = Counter[tuple[int, ...]]()
  for segment in trajectory.segments:
    edges = np.flatnonzero(np.diff(segment.loss_mask, prepend=False, append=False))
    for start, end in edges.reshape(-1, 2):
      found[tuple(segment.tokens[start:end].tolist())] += 1
  return found


def row(name: str, client: Client) -> dict[str, object]:
  """One row of the table."""
  if client.npm and not shutil.which("npm"):
    return {"client": name, "ok": "skipped", "error": "npm is not on PATH; install node"}
  try:
    trajectory, printed, said = play(name, client)
  except Exception as error:
    return {"client": name, "ok": False, "error": f"{type(error).__name__}: {error}"}
  metrics, found = trajectory.metrics, trained(trajectory)
  once = found <= said and said.total() - found.total() == metrics["lost_calls"] == client.lost
  segments, ok = len(trajectory.segments), printed == client.answer
  return {
    "client": name,
    "ok": bool(ok and once and segments == client.segments),
    "answer": printed,
    "calls": int(metrics["turns"]),
    "sampled": int(metrics["sampled_tokens"]),
    "trained": int(metrics["trained_tokens"]),
    "lost": int(metrics["lost_calls"]),
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
    "lost",
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
