"""The page is one file, opens offline, and shows what a policy wrote as text, never as markup."""

import html.parser
import json
import pathlib
import re
import shutil
import subprocess
import sys

import numpy as np
import pytest

from jaxrl_agents import chat
from jaxrl_agents.agents.search import story
from jaxrl_agents.harness import group_files
from jaxrl_agents.types import Group, Message, Segment, Task, ToolCall, Trajectory
from jaxrl_agents.viewer import inputs, report, stories

ROOT = pathlib.Path(__file__).parents[2]
CHROMIUM = next(
  filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), ""
)
PAYLOAD = "</script><script>document.title='pwned'</script><img src=x onerror=alert(1)><!--"
FLAGS = [
  "--headless",
  "--no-sandbox",
  "--disable-gpu",
  "--disable-quic",
  "--no-first-run",
  "--disable-sync",
  "--disable-background-networking",
  "--disable-component-update",
  "--virtual-time-budget=3000",
]


def group(payload="", tokens=6):
  facts = {
    "truth": "x" + payload,
    "facts": [{"fact": payload, "chunk_ids": ["1_0"], "is_final_answer": True}],
  }
  call = ToolCall("0.0", "search_corpus" + payload, {"query": payload, payload: [payload]})
  result = f"\n# DOCUMENT ID: 1_0 (3 tokens) \ntext {payload}\n\n[Token usage: 40/64]"
  log = (
    Message("system", payload),
    Message("user", "Where?"),
    Message("assistant", payload, (call,)),
    Message("tool", result, tool_call_id="0.0"),
    Message("assistant", f"<Document id=1_0>{payload}"),
  )
  ids = np.arange(10, 10 + tokens, dtype=np.int32)
  segment = Segment(ids, ids % 2 == 0, -np.ones(tokens, np.float32), np.full(tokens, 7, np.int32))
  rewards = {"f1": 1.0}
  metrics = {"reward": 1.25, "advantage": -0.5}
  good = Trajectory("t", (segment,), log, rewards, "answer", metrics)
  bad = Trajectory("t", (), log[:3], {}, "", {}, error="EpisodeError: " + payload)
  return Group(Task("t" + payload, "search", "Where? " + payload, facts), (good, bad))


def run(**summary):
  rows = tuple({"phase": "rl", "step": i, "reward": i / 10, "turns": 3} for i in range(5))
  return inputs.Run("run", rows, summary, ())


def page(payload="", **options):
  snapshots = [inputs.Snapshot("step_0", "step 0", (group(payload),))]
  config = {"search.token_budget": 96, "search.threshold_tokens": 64, "name": payload}
  decode = lambda ids: f"{payload}{ids[0]}"
  return report.render(run(config=config), snapshots, decode, **options)


class Elements(html.parser.HTMLParser):
  """Counts the elements of a page and collects what its data blocks hold."""

  def __init__(self, text):
    super().__init__()
    self.counts, self.attributes, self.blocks, self._open = {}, [], {}, None
    self.feed(text)

  def handle_starttag(self, tag, attrs):
    self.counts[tag] = self.counts.get(tag, 0) + 1
    self.attributes += attrs
    self._open = dict(attrs).get("id") if tag == "script" else None

  def handle_data(self, text):
    if self._open:
      self.blocks[self._open] = self.blocks.get(self._open, "") + text

  def handle_endtag(self, tag):
    self._open = None


def test_what_a_policy_or_a_document_wrote_adds_no_element_to_the_page():
  plain, hostile = Elements(page("harmless")), Elements(page(PAYLOAD))
  assert hostile.counts == plain.counts
  assert "img" not in hostile.counts
  told = json.loads(hostile.blocks["episodes-json"])["snapshots"][0]["groups"][0]
  assert told["task"]["prompt"] == "Where? " + PAYLOAD
  assert told["rollouts"][0]["turns"][0]["calls"][0]["arguments"]["query"] == PAYLOAD


def test_the_page_needs_nothing_but_itself_and_runs_no_script_but_its_own():
  text = page()
  names = {name for name, _ in Elements(text).attributes}
  assert not names & {"src", "srcset"}
  assert not re.search(r"url\(|@import|https?://(?!www\.w3\.org/2000/svg)", text)
  [policy] = re.findall(r'Content-Security-Policy" content="([^"]*)"', text)
  assert "default-src 'none'" in policy
  assert "unsafe-inline" not in policy.partition("script-src")[2]
  assert policy.count("sha256-") == len(re.findall(r"<script>", text))


def test_scripts_set_no_markup():
  for path in sorted((ROOT / "jaxrl_agents/viewer/assets").glob("*.js")):
    assert not re.search(
      r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|eval\(", path.read_text()
    )


def test_fewer_episodes_are_shown_where_they_do_not_fit():
  groups = tuple(group(tokens=400) for _ in range(40))
  snapshots = [inputs.Snapshot("s", "s", groups)]

  def sampled(max_bytes):
    text = report.render(run(), snapshots, lambda ids: str(ids[0]), max_bytes)
    assert len(text.encode()) <= max_bytes
    return json.loads(Elements(text).blocks["episodes-json"])["snapshots"][0]

  whole, smaller = sampled(5_000_000), sampled(75_000)
  assert len(whole["groups"]) == 12 > len(smaller["groups"])
  assert whole["of_tasks"] == smaller["of_tasks"] == 40
  with pytest.raises(ValueError, match="raise --max_bytes"):
    sampled(10_000)


def test_the_thresholds_of_the_context_come_from_the_config():
  config = {
    "search.token_budget": 1024,
    "search.threshold_tokens": 512,
    "search.spillage_fraction": 0.5,
  }
  limits = lambda values: story.limits(stories.options({"config": values}))
  expected = {"soft": 512, "hard": 768, "budget": 1024}
  assert limits(config) == expected
  nested = {"search": {k.removeprefix("search."): v for k, v in config.items()}}
  assert limits(nested) == expected
  assert limits({}) == {}


def view(folder):
  command = [sys.executable, str(ROOT / "scripts/view.py"), f"--workdir={folder}"]
  return subprocess.run(command, capture_output=True, text=True, timeout=120, cwd=ROOT, check=False)


def test_the_command_writes_the_page_of_an_interrupted_run(tmp_path):
  (tmp_path / "trajectories").mkdir()
  (tmp_path / "metrics.jsonl").write_text('{"phase": "rl", "step": 0, "reward": 0.5}\n{"phase"')
  group_files.save_groups(tmp_path / "trajectories/step_000000.npz", [group()])
  (tmp_path / "trajectories/step_000001.npz").write_bytes(b"cut short")
  found = view(tmp_path)
  assert found.returncode == 0, found.stderr
  assert str(tmp_path / "report.html") in found.stdout
  text = (tmp_path / "report.html").read_text("utf-8")
  assert "step_000001.npz is left out" in text
  assert "1 unreadable line(s)" in text
  texts = json.loads(Elements(text).blocks["episodes-json"])["texts"]
  assert texts == [chat.load().decode([i]) for i in range(10, 16)]


def test_the_command_names_what_is_wrong_with_a_folder(tmp_path):
  found = view(tmp_path)
  assert found.returncode != 0
  assert "is not the folder of a training run" in found.stderr
  assert "Traceback" not in found.stderr


@pytest.mark.slow
@pytest.mark.skipif(not CHROMIUM, reason="needs a browser")
def test_a_browser_draws_the_curves_and_the_episode_and_runs_nothing_injected(tmp_path):
  (tmp_path / "page.html").write_text(page(PAYLOAD), "utf-8")
  command = [CHROMIUM, *FLAGS, f"--user-data-dir={tmp_path / 'user'}", "--dump-dom"]
  address = f"file://{tmp_path / 'page.html'}"
  done = subprocess.run([*command, address], capture_output=True, timeout=60, check=True)
  drawn = Elements(done.stdout.decode())
  text = done.stdout.decode()
  assert "<title>run · run report</title>" in text
  assert "img" not in drawn.counts
  assert drawn.counts["figure"] == 2  # reward and turns
  assert ("class", "chunk gold") in drawn.attributes
  assert "1.25" in text and "−0.500" in text
  assert "✓ in the answer" in text
