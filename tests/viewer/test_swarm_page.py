"""The page of a swarm's run: sentence, evaluations by kind of task, curves, lanes."""

import dataclasses
import json
import math
import subprocess

import pytest

from jaxrl_agents.harness import group_files
from jaxrl_agents.runs import report_page
from jaxrl_agents.types import Group
from jaxrl_agents.viewer import curves, headline, inputs, report
from tests.viewer.swarm_run import CONFIG, EPISODE, TASK, changed, run
from tests.viewer.test_report import CHROMIUM, FLAGS, PAYLOAD, Elements


def entry(performance, steps, tasks, width=2.0, **more):
  return {
    "reward": performance,
    "performance": performance,
    "critical_steps": steps,
    "finish_rate": 0.5 if width else 0.0,
    "width": width,
    "tasks": tasks,
    **more,
  }


def by_kind(wide, deep, width=2.0):
  kinds = {"wide": entry(wide, 4.0, 30.0, width), "deep": entry(deep, 6.0, 10.0, width)}
  return {"by_kind": kinds}


EVAL = {
  "warm_start": entry(0.25, 5.0, 40.0) | by_kind(0.25, 0.25),
  "trained": entry(0.75, 4.5, 40.0, failed=1.0) | by_kind(0.8, 0.6),
  "single_agent": entry(0.5, 5.0, 40.0, 0.0) | by_kind(0.5, 0.5, 0.0),
  "single_agent_unhurried": entry(0.7, 12.0, 40.0, 0.0) | by_kind(0.7, 0.7, 0.0),
  "expert": entry(1.0, 3.0, 40.0) | by_kind(1.0, 1.0),
}
BOOTSTRAP = {
  "reward_gain": 0.5,
  "reward_gain_lower95": 0.4,
  "reward_gain_upper95": 0.6,
  "critical_steps_gain": -0.5,
  "critical_steps_gain_lower95": -0.75,
  "critical_steps_gain_upper95": -0.25,
  "single_agent_performance_gain": 0.25,
  "single_agent_performance_gain_lower95": 0.125,
}
SUMMARY = {"eval": EVAL, "paired_bootstrap": BOOTSTRAP, "critical_steps_ratio": 2.5}


def sentence(**changes):
  return headline.sentence(run(**(SUMMARY | changes))).replace("\u00a0", " ")


def test_the_sentence_names_performance_the_single_agent_and_the_steps_saved():
  # wide and deep: (30 * 0.8 + 10 * 0.6) / 40
  assert sentence() == (
    "Reinforcement learning raised the performance from 0.25 to 0.75 on 40 held-out tasks "
    "(+0.50, at least +0.40 with 95 % confidence), above a single agent within the same critical "
    "steps at 0.50. On wide and deep tasks a single agent that has enough steps takes 2.5 times "
    "as many critical steps and reaches 0.70, the swarm 0.75."
  )
  assert "takes 0.9 times as many critical steps: none are saved" in sentence(
    critical_steps_ratio=0.9
  )


def test_the_sentence_names_the_kinds_of_tasks_that_were_evaluated():
  wide = {
    name: {**each, "by_kind": {"wide": each["by_kind"]["wide"]}} for name, each in EVAL.items()
  }
  assert sentence(eval=wide).endswith(
    "On wide tasks a single agent that has enough steps takes 2.5 times as many critical steps and "
    "reaches 0.70, the swarm 0.80."
  )


def test_the_sentence_claims_nothing_that_was_not_evaluated():
  two = {name: EVAL[name] for name in ("warm_start", "trained")}
  summary = {"eval": two, "paired_bootstrap": BOOTSTRAP | {"reward_gain_lower95": -0.1}}
  assert headline.sentence(run(**summary)).endswith("no improvement is shown.")
  assert headline.sentence(run([{"phase": "rl", "step": 0}])).startswith("1 steps of reinforcement")


def test_the_table_has_a_section_for_all_tasks_and_one_for_each_kind():
  rows = headline.table(run(**SUMMARY))
  assert list(dict.fromkeys(r.section for r in rows)) == [
    "All tasks · 40",
    "Wide · 30",
    "Deep · 10",
  ]
  found = {(r.section.partition(" ·")[0], r.title): r for r in rows}
  assert found["All tasks", "Performance"].values == (0.25, 0.75, 0.5, 0.7, 1.0)
  assert found["Deep", "Performance"].values == (0.25, 0.6, 0.5, 0.7, 1.0)
  assert found["Deep", "Performance"].gain == pytest.approx(0.35)
  assert found["Wide", "Critical steps"].values == (4.0, 4.0, 4.0, 4.0, 4.0)
  assert not any(r.title in ("Reward", "reward") for r in rows)


def test_bounds_are_from_below_for_performance_and_from_above_for_steps():
  rows = {r.title: r for r in headline.table(run(**SUMMARY)) if r.section.startswith("All")}
  assert (rows["Performance"].lower95, rows["Performance"].upper95) == (0.4, None)
  assert (rows["Critical steps"].lower95, rows["Critical steps"].upper95) == (None, -0.25)


def test_a_policy_that_learnt_to_call_for_none_is_serial():
  alone = {
    name: each | {"by_kind": {"narrow": entry(0.5, 3.0, 9.0, width, serial_rate=rate)}}
    for (name, each), width, rate in zip(
      EVAL.items(), (1.5, 0.0, 0.0, 0.0, 2.0), (0.5, 1.0, 1.0, 1.0, 0.0), strict=True
    )
  }
  rows = {r.title: r for r in headline.table(run(eval=alone)) if r.section.startswith("Narrow")}
  assert rows["Serial rate"].values == (0.5, 1.0, 1.0, 1.0, 0.0)
  assert rows["Finish rate"].values == (0.5, None, None, None, 0.5)


def test_no_sub_agents_have_no_rate_of_finishing():
  rows = {r.title: r for r in headline.table(run(**SUMMARY)) if r.section.startswith("All")}
  assert rows["Finish rate"].values == (0.5, 0.5, None, None, 0.5)
  assert rows["Sub-agents at once"].values == (2.0, 2.0, 0.0, 0.0, 2.0)


def test_the_weights_of_parl_follow_from_the_config_and_the_step():
  rows = [{"phase": "rl", "step": s, "width": 2.0, "parallelism": 1.5} for s in (0, 3, 6, 9)]
  sft = {"phase": "sft", "step": 0, "loss": 1.0}
  phases = curves.phases(run([*rows, sft]))
  [weights] = [p for p in phases[0]["panels"] if p["title"] == "Weights of PARL"]
  first, second = (phases[0]["columns"][key] for key in weights["keys"])
  middle = 0.5 * (1 + math.cos(math.pi * 0.3 / 0.6))
  assert first == pytest.approx([0.2, 0.2 * middle, 0, 0])
  assert second == pytest.approx([0.1, 0.1 * middle, 0, 0])
  titles = [p["title"] for p in phases[0]["panels"]]
  assert titles == ["Parallelism", "Width", "Weights of PARL"]
  assert [p["title"] for p in phases[1]["panels"]] == ["Loss"]


def test_the_page_of_a_folder_keeps_the_stages_of_its_episodes(tmp_path):
  group = Group(TASK, (EPISODE,))
  group_files.save_groups(tmp_path / "trajectories/eval_trained.npz", [group])
  (tmp_path / "summary.json").write_text(json.dumps({"config": CONFIG, **SUMMARY}))
  text = report_page.write(tmp_path).read_text("utf-8")
  assert "is left out" not in text
  assert 'colspan="8">Wide · 30</th>' in text and "≤ −0.25" in text
  told = json.loads(Elements(text).blocks["episodes-json"])["snapshots"][0]["groups"][0]
  assert told["rollouts"][0]["reward"] == 0.5
  assert [lane["start"] for lane in told["rollouts"][0]["swarm"]["lanes"]] == [1, 1, 7, 7]


@pytest.mark.slow
@pytest.mark.skipif(not CHROMIUM, reason="needs a browser")
def test_a_browser_draws_a_lane_for_each_assignment_and_runs_nothing_injected(tmp_path):
  turn = EPISODE.log[1]
  calls = tuple(
    dataclasses.replace(call, arguments={k: v + PAYLOAD for k, v in call.arguments.items()})
    for call in turn.tool_calls
  )
  log = (EPISODE.log[0], dataclasses.replace(turn, tool_calls=calls), *EPISODE.log[2:])
  hostile = changed(log=log)
  snapshots = [inputs.Snapshot("eval_trained", "trained", (Group(TASK, (hostile,)),))]
  (tmp_path / "page.html").write_text(report.render(run(**SUMMARY), snapshots, None), "utf-8")

  def drawn(place=""):
    command = [CHROMIUM, *FLAGS, f"--user-data-dir={tmp_path / 'user'}", "--dump-dom"]
    address = f"file://{tmp_path / 'page.html'}{place}"
    done = subprocess.run([*command, address], capture_output=True, timeout=60, check=True)
    return done.stdout.decode()

  elements = Elements(drawn())
  classes = [value for name, value in elements.attributes if name == "class"]
  assert "img" not in elements.counts
  assert classes.count("lane") == 1 + 2 and classes.count("lane critical") == 2
  assert classes.count("cell orchestrator") == 3 + 1  # one in the legend
  assert classes.count("cell step_limit") == 4 + 1 and classes.count("cell step_limit last") == 1
  path = [value for name, value in elements.attributes if name == "points"][-1]
  assert path.split()[:5] == ["0,0.91", "1,0.91", "1,2.91", "6,2.91", "6,0.91"]
  assert classes.count("turn") == 3 and "lane-head" not in classes
  chosen = drawn("#episode=eval_trained/1/1/3")
  classes = [value for name, value in Elements(chosen).attributes if name == "class"]
  assert classes.count("turn") == 2 and "lane-head" in classes  # of the third sub-agent
  assert "asked for in turn 2 · finished after 2 steps" in chosen
  assert "<title>w · run report</title>" in chosen
