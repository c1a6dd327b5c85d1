"""A scripted player that does what a hostile policy could: random, odd and damaging calls.

It plays any agent, since it draws calls from the tools that a context offers. It shows that an
environment holds: every episode must end in time, with a reward, and leave its worker alive.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

import numpy as np

from jaxrl_agents.chat import Chat
from jaxrl_agents.types import (
  Context,
  Env,
  Generation,
  Message,
  SamplingLimits,
  ToolCall,
  ToolSpec,
  Trajectory,
)

HOSTILE = "hostile"
"""The name of this player; every agent has it."""

_SHELL = (
  "kill -9 $$",
  "kill -9 -1; kill -9 1",
  "exec >&- 2>&-",
  ":(){ :|:& };:",
  "yes | head -c 30000000",
  "while :; do :; done",
  "trap '' INT TERM; sleep 60",
  "setsid sleep 60 & disown; echo started",
  "head -c 400M /dev/zero > /tmp/full; head -c 400M /dev/zero > full",
  "for i in $(seq 30000); do : > f$i; done",
  "python3 -c \"import os\nfor _ in range(1500): os.mkdir('d'); os.chdir('d')\"",
  "python3 -c \"import os\nfor _ in range(30): os.mkdir('n' * 200); os.chdir('n' * 200)\"",
  'python3 -c "x = bytearray(1 << 33)"',
  "python3 -c \"import mmap; m = mmap.mmap(-1, 1 << 30); m.write(b'x' * (1 << 30))\"",
  "python3 -c \"import os; f = os.memfd_create('m'); os.write(f, bytes(1 << 29))\"",
  "python3 -c \"import sys; sys.setrecursionlimit(10**7); f = lambda: f(); f()\"",
  "truncate -s 1T hole; cat hole | head -c 9 >/dev/null; cp hole hole2",
  "rm -rf /work/* /tmp/*; rmdir /work; cd /; echo gone",
  "chmod -R 000 /work; chmod 000 /tmp",
  "mkfifo p; cat p &",
  "ln -s / root; ln -s self self; ln -s ../../../etc/passwd main.py",
  "for fd in /proc/$$/fd/*; do printf '\\0many\\0/work\\0' >> $fd; done",
  "cat /proc/*/environ /proc/*/mem /etc/shadow; ls -R /proc | head -c 100000",
  "ulimit -n 3; ulimit -v 1000; ls",
  "(sleep 5; rm -rf /work) & echo later",
  "python3 -c \"import os; os.kill(os.getppid(), 19)\"",
  "echo 'unclosed",
  "printf '\\377\\376\\0\\033[2J'",
  "find / -name '*.py' -exec cat {} + | wc -c",
  "ls; cat *.py; python3 check.py",
)  # fmt: skip
_PATTERNS = ("(a+)+$", "a{1000000000}", "((a{99}){99}){99}", "(", "[", "\\", "(?P<n>a)(?P=n)",
             "(?R)", "^", ".*", "", "\0", "(?i)[^\x00-\x7f]{500}", "x" * 5_000)  # fmt: skip
_PATHS = ("main.py", ".", "/", "..", "../../../etc/passwd", "/proc/self/mem", "/dev/zero", "hole",
          "d/" * 70 + "f", "a" * 300, "x\0y", "", "~", "p", "root/etc", "self")  # fmt: skip
_TEXTS = ("", " ", "def", "return", "\n", "\0", "é" * 400, "ab" * 3_000, "\n" * 20_000,
          "(" * 3_000, "{" * 500, "<Document id=0>", "<|call|>", "<!--" * 800, "%s%n", "1e309",
          "' OR 1=1 --", "why", "river", "how is it made", "number")  # fmt: skip
_NUMBERS = (0, 1, -1, 2, 7, 10**9, -(10**30), 0.5, float("nan"), float("inf"), True)
_BY_NAME: dict[str, Sequence[Any]] = {
  "command": _SHELL,
  "pattern": _PATTERNS,
  "path": _PATHS,
  "url": ("https://example.org", "file:///etc/passwd", "http://127.0.0.1:1", "\0", "x" * 9_000),
  "chunk_ids": ([], [""], ["0", "1", "2"] * 400, [["0"]], "0", [None]),
}
_MAX_CALLS = 24


def _spec(name: str, **types: str) -> ToolSpec:
  properties = {key: {"type": kind} for key, kind in types.items()}
  return ToolSpec(name, "", {"type": "object", "properties": properties})


_SUBAGENT_TOOLS = {
  spec.name: spec
  for spec in (
    _spec("search_corpus", query="string"),
    _spec("grep_corpus", pattern="string"),
    _spec("read_document", doc_id="string"),
    _spec("prune_chunks", chunk_ids="array"),
  )
}
"""Tools of sub-agents, whose contexts the player does not see although it samples for them."""


class HostilePlayer:
  """Plays `env` and samples for it. Its tokens have logprob 0 and version -1.

  Invariant: `_tools` are those of all contexts so far, and those of sub-agents.
  """

  def __init__(self, chat: Chat, seed: int):
    self._chat, self._draw = chat, random.Random(f"hostile {seed}")
    self._env: Env | None = None
    self._tools = dict(_SUBAGENT_TOOLS)

  def plays(self, env: Env) -> HostilePlayer:
    """Sets the environment, which may need this sampler to be made; returns the player."""
    self._env = env
    return self

  async def start(self) -> Context:
    """Starts the environment."""
    assert self._env is not None
    return self._seen(await self._env.start())

  async def step(self, reply: Message) -> Context:
    """Steps the environment."""
    assert self._env is not None
    return self._seen(await self._env.step(reply))

  def rewards(self, trajectory: Trajectory) -> dict[str, float]:
    """The rewards of the environment."""
    assert self._env is not None
    return self._env.rewards(trajectory)

  async def close(self) -> None:
    """Closes the environment."""
    assert self._env is not None
    await self._env.close()

  def playing(self, more: int) -> None:
    """Nobody waits for this player's requests."""

  async def generate(self, prompt: np.ndarray, limits: SamplingLimits) -> Generation:
    """Random token ids, a cut-off reply, or calls and an answer with odd content."""
    kind, ids = self._draw.random(), list[int]()
    if kind < 0.05:
      ids = [self._draw.randrange(self._chat.vocab_size) for _ in range(self._draw.randint(1, 60))]
    elif kind < 0.15:
      ids = list(self._chat.encode(self._draw.choice(_TEXTS) or "x"))
    if kind >= 0.1 or not ids:
      ids += [int(i) for i in self._chat.encode_reply(self._message(), ())]
    tokens = np.asarray(ids[: limits.max_new_tokens], np.int32)
    stop = "stop" if int(tokens[-1]) in limits.stop_tokens else "length"
    zeros = np.zeros(len(tokens), np.float32)
    return Generation(tokens, zeros, np.full(len(tokens), -1, np.int32), None, stop)

  def _seen(self, context: Context) -> Context:
    self._tools.update({tool.name: tool for tool in context.tools})
    return context

  def _message(self) -> Message:
    if self._draw.random() < 0.12:
      return Message("assistant", self._text())
    count = _MAX_CALLS if self._draw.random() < 0.03 else self._draw.randint(1, 3)
    return Message("assistant", "", tuple(self._call(i) for i in range(count)))

  def _call(self, index: int) -> ToolCall:
    tool = self._tools[self._draw.choice(sorted(self._tools))]
    known = dict(tool.parameters.get("properties", {}))
    names = [name for name in known if self._draw.random() < 0.95]
    arguments = {name: self._value(name, known[name]) for name in names}
    if self._draw.random() < 0.05:
      arguments[self._draw.choice(["", "self", "\0", "x" * 300])] = None
    name = tool.name if self._draw.random() < 0.95 else self._draw.choice(["", "shel", "é\0"])
    return ToolCall(str(index), name, arguments)

  def _value(self, name: str, schema: Any) -> Any:
    """A value for an argument: fitting its schema in most cases, but never a pleasant one."""
    kind = schema.get("type") if isinstance(schema, dict) else None
    if name in _BY_NAME and self._draw.random() < 0.9:
      return self._draw.choice(_BY_NAME[name])
    if self._draw.random() < 0.1:
      return self._draw.choice([None, {}, [], "", 0, [[[]]], {"": {"": []}}])
    if kind in ("integer", "number"):
      return self._draw.choice(_NUMBERS)
    if kind == "boolean":
      return self._draw.random() < 0.5
    if kind == "array":
      items = schema.get("items", {})
      return [self._value(name, items) for _ in range(self._draw.choice([0, 1, 3, 200]))]
    if kind == "object":
      inner = schema.get("properties", {"x": {}})
      return {key: self._value(key, inner[key]) for key in inner}
    return self._text()

  def _text(self) -> str:
    return "".join(self._draw.choice(_TEXTS) for _ in range(self._draw.randint(1, 3)))
