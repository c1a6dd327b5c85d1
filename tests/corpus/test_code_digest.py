"""What changes the digest of code, and what does not."""

import sys

import pytest

from jaxrl_agents.corpus import code_digest

FILES = {
  "__init__.py": "from .env import start\n",
  "agent.py": "from . import env\nfrom .parts.tools import tool\n",
  "env.py": "start = 1\n",
  "parts/__init__.py": "",
  "parts/tools.py": "from ..deeper import value as tool\n",
  "deeper.py": "value = 1\n",
}


@pytest.fixture
def package(tmp_path, monkeypatch):
  for name, text in FILES.items():
    path = tmp_path / "some_agent" / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
  monkeypatch.syspath_prepend(str(tmp_path))
  yield tmp_path / "some_agent"
  for name in [each for each in sys.modules if each.partition(".")[0] == "some_agent"]:
    del sys.modules[name]


def digest():
  code_digest.of.cache_clear()
  return code_digest.of("some_agent.agent")


@pytest.mark.parametrize("name", ["agent.py", "env.py", "parts/tools.py", "deeper.py"])
def test_code_that_is_imported_by_its_place_counts_at_any_depth(package, name):
  before = digest()
  (package / name).write_text(f'"""Described."""\n\n{FILES[name]}  # remarked\n')
  assert digest() == before
  (package / name).write_text(f"{FILES[name]}more = 2\n")
  assert digest() != before
