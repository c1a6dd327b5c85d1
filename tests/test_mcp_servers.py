"""Lists of MCP servers are read as other clients write them; what is wrong is named."""

import json

import pytest

from jaxrl_agents import config
from jaxrl_agents.config import McpServer, mcp_servers

TIME = '{"time": {"command": "python", "args": ["-m", "mcp_server_time"], "deadline_s": 5}}'


def test_servers_are_read_from_the_command_line_and_from_a_file_of_another_client(tmp_path):
  expected = (McpServer("time", "python", ("-m", "mcp_server_time"), deadline_s=5.0),)
  loaded = config.load("configs/search_cpu.py", [f"tools.mcp={TIME}"])
  assert loaded.tools.mcp == expected
  file = tmp_path / "mcp.json"
  file.write_text(json.dumps({"mcpServers": json.loads(TIME)}))
  assert config.load("configs/search_cpu.py", [f"tools.mcp={file}"]).tools.mcp == expected
  (text,) = json.loads(json.dumps(config.options(loaded)))["tools.mcp"]
  assert json.loads(text)["args"] == ["-m", "mcp_server_time"]
  assert config.sha256(loaded) != config.sha256(config.load("configs/search_cpu.py"))


def test_variables_and_headers_are_read_as_objects():
  text = (
    '{"a": {"type": "stdio", "command": "x", "env": {"K": "${V}"}},'
    ' "b": {"type": "http", "url": "http://h/mcp", "headers": {"Authorization": "Bearer ${T}"}}}'
  )
  a, b = mcp_servers.read(text)
  assert a == McpServer("a", "x", env=("K=${V}",))
  assert b == McpServer("b", url="http://h/mcp", headers=("Authorization: Bearer ${T}",))


@pytest.mark.parametrize(
  ("text", "message"),
  [
    ("nowhere.json", "there is no file 'nowhere.json'; give"),
    ("{", "this is not JSON: .*; give"),
    ('{"a": 1}', "this is not {name: server}; give"),
    ('{"a": {}}', "MCP server 'a' needs either a command or a url"),
    ('{"a": {"command": "x", "url": "http://y"}}', "needs either a command or a url"),
    ('{"a-b": {"command": "x"}}', "'a-b': a name is a letter and up to 31 letters"),
    ('{"a": {"url": "ftp://y"}}', "must begin with http:// or https://"),
    ('{"a": {"type": "sse", "url": "http://y"}}', "has type 'sse'; those that can be used are"),
    ('{"a": {"command": "x", "arg": []}}', "no option 'arg'; there are command, args"),
    ('{"a": {"command": "x", "args": [1]}}', r"args='\[1\]' is not a list of texts"),
    ('{"a": {"command": "x", "stateful": 1}}', "stateful='1' is not true or false"),
    ('{"a": {"url": "http://y", "cwd": "/"}}', "has a url, with which cwd has no effect; remove"),
    ('{"a": {"command": "x", "env": ["K"]}}', "env has 'K'; write NAME=value"),
    ('{"a": {"url": "http://y", "sandboxed": true}}', "has a url, and a sandbox has no network"),
    ('{"a": {"command": "x", "packages": ["y"]}}', "packages has no effect unless it is sandboxed"),
    (
      '{"a": {"command": "x", "sandboxed": true, "stateful": false}}',
      "each episode has one of its own; leave stateful out",
    ),
    (
      '{"a": {"command": "x", "sandboxed": true, "env": {"K": "${V}"}}}',
      "the policy can read its variables; write the value of",
    ),
    ('{"a": {"command": "x", "deadline_s": 0}}', "tools.mcp.a.deadline_s=0 must be above 0"),
    ('{"a": {"command": "x", "deadline_s": 99}}', "more than workers.stall_s=120; lower these"),
  ],
)
def test_a_wrong_list_names_the_server_and_the_field(text, message):
  with pytest.raises(ValueError, match=message):
    config.load("configs/search_cpu.py", [f"tools.mcp={text}"])


def test_an_agent_whose_episodes_take_no_further_tools_is_an_error():
  with pytest.raises(ValueError, match="no effect with agent=examples.number_game.agent:AGENT"):
    config.load("examples/number_game/config.py", [f"tools.mcp={TIME}"])


SANDBOXED = '{"a": {"command": "python3", "sandboxed": true, "packages": ["%s"]}}'


def test_a_sandboxed_server_of_an_agent_without_sandboxes_is_an_error():
  message = "tools.mcp.a is sandboxed, and the episodes of agent=.* have no sandbox; set sandboxed"
  with pytest.raises(ValueError, match=message):
    config.load("configs/search_cpu.py", [f"tools.mcp={SANDBOXED % 'jsonschema'}"])


def test_a_sandboxed_server_of_the_coding_agent_is_read_with_its_packages():
  loaded = config.load("configs/coding_cpu.py", [f"tools.mcp={SANDBOXED % 'jsonschema'}"])
  server = McpServer("a", "python3", sandboxed=True, packages=("jsonschema",))
  assert loaded.tools.mcp == (server,)


@pytest.mark.parametrize(
  ("package", "option", "message"),
  [
    ("no-such-package", "coding.backend=namespaces", "package no-such-package is not installed"),
    ("jsonschema", "coding.backend=unsafe-local", "unsafe-local has no sandbox; choose another"),
    ("jsonschema", "coding.sources=('package:attrs',)", "would show the package of package:attrs"),
  ],
)
def test_packages_that_the_sandboxes_of_a_run_cannot_show_are_an_error(package, option, message):
  with pytest.raises(ValueError, match=f"tools\\.mcp\\.a: .*{message}"):
    config.load("configs/coding_cpu.py", [option, f"tools.mcp={SANDBOXED % package}"])
