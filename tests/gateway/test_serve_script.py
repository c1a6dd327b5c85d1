"""`scripts/serve.py` as a user starts it: it serves a shipped policy until it is told to end."""

import json
import pathlib
import re
import signal
import subprocess
import sys
import urllib.error
import urllib.request

import pytest

from tests import forced_devices

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

ROOT = pathlib.Path(__file__).parents[2]


@pytest.fixture
def served(tmp_path):
  """(address, key) of a server of the shipped policy."""
  options = ["--config=examples/number_game/config.py", "--checkpoint=base", "--port=0"]
  process = subprocess.Popen(
    [sys.executable, "scripts/serve.py", *options, f"--key_file={tmp_path / 'key'}"],
    cwd=ROOT,
    env=forced_devices.environment(1),
    stdout=subprocess.PIPE,
    stderr=subprocess.STDOUT,
    text=True,
  )
  said = ""
  try:
    for line in process.stdout:
      said += line
      if found := re.search(r"http://[\w.:]+", line):
        break
    else:
      raise AssertionError(said)
    yield found[0], (tmp_path / "key").read_text().strip()
    process.send_signal(signal.SIGTERM)
    assert process.wait(60) in (0, 143, -signal.SIGTERM)
  finally:
    process.kill()
    process.communicate(timeout=30)


def asked(url, key, body):
  head = {"authorization": f"Bearer {key}", "content-type": "application/json"}
  request = urllib.request.Request(url, json.dumps(body).encode(), head)
  with urllib.request.urlopen(request, timeout=60) as reply:
    return json.load(reply)


def test_the_policy_answers_whoever_has_the_key_and_sessions_are_recorded(served):
  url, key = served
  body = {"model": "policy", "messages": [{"role": "user", "content": "Guess a number."}]}
  chat = f"{url.removesuffix('/v1')}/v1/chat/completions"
  reply = asked(chat, key, body | {"max_tokens": 4, "temperature": 0.0})
  assert 0 < reply["usage"]["completion_tokens"] <= 4
  with pytest.raises(urllib.error.HTTPError, match="401"):
    asked(chat, "another key", body)
  root = url.removesuffix("/v1")
  opened = asked(f"{root}/sessions", key, {})
  said = asked(chat, opened["api_key"], body | {"max_tokens": 4})
  place = f"{root}/sessions/{opened['session_id']}"
  asked(f"{place}/finish", opened["control_key"], {"stop": "answer"})
  request = urllib.request.Request(
    f"{place}/trajectory", headers={"authorization": f"Bearer {opened['control_key']}"}
  )
  with urllib.request.urlopen(request, timeout=60) as reply:
    (segment,) = json.load(reply)["segments"]
  assert sum(segment["loss_mask"]) == said["usage"]["completion_tokens"]
