"""The agents of four libraries in docs/own-agent-http.md, as they stand there."""

import pathlib
import re
import sys

import pytest

from jaxrl_agents.agents.external.config import ExternalConfig
from tests.agents.external.test_external import play, sampled
from tests.gateway.serving import calls

DOCS = pathlib.Path(__file__).parents[3] / "docs" / "own-agent-http.md"
SECTION = DOCS.read_text().partition("### Ten lines with four libraries\n")[2].partition("\n## ")[0]
AGENTS = {
  re.search(r"^(?:import|from) (?!json)(\w+)", code, re.MULTILINE)[1]: code
  for code in re.findall(r"```python\n(.*?)```", SECTION, re.DOTALL)
}
ADDS = calls(("add", {"a": 2, "b": 3}))


def answered(task, outcome, trajectory):
  return {"reward": float(str(outcome.result) == "It is 5."), "failed": outcome.exit_status}


def test_the_page_has_an_agent_of_each_library():
  assert set(AGENTS) == {"openai", "anthropic", "agents", "smolagents"}


@pytest.mark.parametrize("library", sorted(AGENTS))
def test_an_agent_of_the_page_calls_its_tool_answers_and_is_trained(library, tmp_path, monkeypatch):
  pytest.importorskip(library)
  name = f"ten_lines_{library}"
  (tmp_path / f"{name}.py").write_text(AGENTS[library])
  monkeypatch.syspath_prepend(tmp_path)
  last = "It is 5." if library != "smolagents" else calls(("final_answer", {"answer": "It is 5."}))
  chosen = ExternalConfig(
    function=f"{name}:play",
    reward=f"{__name__}:answered",
    token_budget=4_096,
    max_new_tokens=200,
    timeout_s=60.0,
  )
  (trajectory,) = play(chosen, ADDS, last, rollouts=1).trajectories
  del sys.modules[name]
  assert not trajectory.error, trajectory.error
  assert trajectory.rewards == {"reward": 1.0, "failed": 0.0}
  assert trajectory.metrics["turns"] == 2
  text = "".join(sampled(trajectory))
  assert text.count("<|end|>") == 2 and '<|call|>add{"a": 2, "b": 3}<|/call|>' in text
  results = [message.content for message in trajectory.log if message.role in ("tool", "user")]
  assert any("5" in result for result in results[1:])
