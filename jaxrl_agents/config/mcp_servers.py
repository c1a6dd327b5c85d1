"""The record of an MCP server, and the JSON in which users list servers.

The JSON is that of other MCP clients ("mcpServers"), with the fields of `McpServer` beside theirs.
"""

from __future__ import annotations

import dataclasses
import json
import pathlib
import re
from collections.abc import Mapping
from typing import Any

from jaxrl_agents.config.ranges import Positive, shown

_KINDS = {"stdio": "command", "http": "url", "streamable-http": "url"}
"""{"type" of a server in the JSON: the field that it needs}."""


@dataclasses.dataclass(frozen=True)
class McpServer:
  """An MCP server whose tools the episodes of a run have.

  `${NAME}` in a value of `env` or `headers` stands for a variable of the process that connects, so
  that no secret is written into a config or a summary.

  Attributes:
    name: first part of the names of its tools, `<name>_<tool>`.
    command, args: the program that speaks MCP on its standard input and output.
    env: "NAME=value" for the program, which gets none of the run's variables but PATH and LANG.
    cwd: folder that it runs in; "" for an empty one, which is removed with it, or for /work where
      it is sandboxed.
    url: of a server that speaks streamable HTTP, in place of a command.
    headers: "Name: value" of the requests to `url`.
    stateful: whether each episode has a process (or a session, over HTTP) of its own; otherwise
      those of a worker process share one.
    sandboxed: whether it runs in the sandbox of its episode, on the files of that.
    packages: Python packages of this environment that a sandboxed server needs; with all that they
      require, they are shown to it.
    tools: names of the tools that are offered, as the server calls them; empty for all.
    deadline_s: seconds after which a call is given up and the server started anew.
    start_s: seconds within which the server must start and list its tools.
  """

  name: str
  command: str = ""
  args: tuple[str, ...] = ()
  env: tuple[str, ...] = ()
  cwd: str = ""
  url: str = ""
  headers: tuple[str, ...] = ()
  stateful: bool = True
  sandboxed: bool = False
  packages: tuple[str, ...] = ()
  tools: tuple[str, ...] = ()
  deadline_s: Positive = 20.0
  start_s: Positive = 30.0

  def __post_init__(self) -> None:
    where = f"MCP server {shown(self.name)}"
    if not re.fullmatch(r"[A-Za-z][A-Za-z0-9_]{0,31}", self.name):
      raise ValueError(
        f"{where}: a name is a letter and up to 31 letters, digits and _; it begins the names of "
        "the tools"
      )
    if bool(self.command) == bool(self.url):
      raise ValueError(f"{where} needs either a command or a url")
    if self.url and not re.match(r"https?://[^/]", self.url):
      raise ValueError(f"{where}: url={shown(self.url)} must begin with http:// or https://")
    kind, others = ("url", ("args", "env", "cwd")) if self.url else ("command", ("headers",))
    for other in others:
      if getattr(self, other):
        raise ValueError(f"{where} has a {kind}, with which {other} has no effect; remove it")
    self._check_sandbox(where)
    for field, separator in (("env", "="), ("headers", ":")):
      for entry in getattr(self, field):
        if not entry.partition(separator)[0].strip() or separator not in entry:
          raise ValueError(f"{where}: {field} has {shown(entry)}; write NAME{separator}value")

  def _check_sandbox(self, where: str) -> None:
    if not self.sandboxed:
      if self.packages:
        raise ValueError(f"{where}: packages has no effect unless it is sandboxed; remove it")
      return
    if self.url:
      raise ValueError(f"{where} has a url, and a sandbox has no network; set sandboxed to false")
    if not self.stateful:
      raise ValueError(
        f"{where} is sandboxed, so that each episode has one of its own; leave stateful out"
      )
    if secret := next((entry for entry in self.env if "${" in entry), None):
      raise ValueError(
        f"{where} is sandboxed, so that the policy can read its variables; write the value of "
        f"{shown(secret)} itself, or leave it out"
      )

  def __str__(self) -> str:
    given = {
      field.name: getattr(self, field.name)
      for field in dataclasses.fields(self)
      if getattr(self, field.name) != field.default
    }
    return json.dumps(given)


def read(text: str) -> tuple[McpServer, ...]:
  """The servers in a JSON object, or in the file of that name; none for "".

  Raises:
    ValueError: the text or file is no such JSON; names the server and the field.
  """
  if not text:
    return ()
  if not text.startswith("{"):
    try:
      file = pathlib.Path(text).expanduser()
      text = file.read_text("utf-8") if file.is_file() else ""
    except (OSError, RuntimeError, ValueError) as error:
      raise ValueError(f"{shown(text)} cannot be read: {type(error).__name__}") from None
    if not text:
      raise ValueError(f"there is no file {shown(str(file))}; {_REMEDY}")
  try:
    listed = json.loads(text)
  except (ValueError, RecursionError) as error:
    raise ValueError(f"this is not JSON: {str(error)[:100]}; {_REMEDY}") from None
  if isinstance(listed, dict) and set(listed) == {"mcpServers"}:
    listed = listed["mcpServers"]
  if not isinstance(listed, dict) or not all(isinstance(each, dict) for each in listed.values()):
    raise ValueError(f"this is not {{name: server}}; {_REMEDY}")
  return tuple(_server(name, fields) for name, fields in listed.items())


_REMEDY = (
  'give {"time": {"command": "python", "args": ["-m", "mcp_server_time"]}} or the path of a file '
  "with such JSON"
)


def _server(name: str, given: Mapping[str, Any]) -> McpServer:
  fields = dict(given)
  kind = fields.pop("type", None)
  if kind is not None and (kind not in _KINDS or _KINDS[kind] not in fields):
    raise ValueError(
      f"MCP server {shown(name)} has type {shown(str(kind))}; those that can be used are stdio, "
      "with a command, and http, with a url"
    )
  known = {field.name: field.default for field in dataclasses.fields(McpServer)}
  for key, value in fields.items():
    if key not in known or key == "name":
      raise ValueError(
        f"MCP server {shown(name)} has no option {shown(key)}; there are "
        f"{', '.join(each for each in known if each != 'name')}"
      )
    fields[key] = _converted(name, key, value, known[key])
  return McpServer(name, **fields)


def _converted(name: str, key: str, value: Any, default: Any) -> Any:
  """A JSON value as the type of the field's default."""
  if key in ("env", "headers") and isinstance(value, dict):
    separator = "=" if key == "env" else ": "
    value = [f"{each}{separator}{text}" for each, text in value.items()]
  if isinstance(default, tuple) and isinstance(value, list):
    if all(isinstance(each, str) for each in value):
      return tuple(value)
  elif isinstance(default, float) and isinstance(value, int | float) and value is not True:
    return float(value)
  elif type(value) is type(default):
    return value
  wanted = {tuple: "a list of texts", float: "a number", str: "a text", bool: "true or false"}
  raise ValueError(
    f"MCP server {shown(name)}: {key}={shown(json.dumps(value))} is not {wanted[type(default)]}"
  )
