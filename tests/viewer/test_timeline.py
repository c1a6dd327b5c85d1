"""The picture of who waited for whom, and held-out scores beside those of training."""

import os
import re
import socket

from jaxrl_agents.service_log import State
from jaxrl_agents.viewer import curves, inputs, report, timeline


def states(service, *told):
  """States at times; "waits X" waits for the service X."""
  return [
    State(
      service,
      time,
      does.partition(" ")[0],
      does.partition(" ")[2],
      facts,
      socket.gethostname(),
      os.getpid(),
    )
    for time, does, facts in told
  ]


def services(steps=1):
  learner, sampler = [], []
  for i in range(steps):
    at = 1000.0 + 10 * i
    learner += [(at, "waits sampler", {"step": i}), (at + 6, "learns", {"step": i})]
    sampler += [(at, "plays", {}), (at + 6, "waits learner", {})]
  end = 1000.0 + 10 * steps
  return {
    "sampler": states("sampler", *sampler, (end, "ended", {})),
    "learner": states("learner", *learner, (end, "ended", {})),
  }


def test_work_is_thick_and_waiting_is_thin_in_the_colour_of_who_was_waited_for():
  found = timeline.of(services())
  assert [(lane.service, lane.colour) for lane in found.lanes] == [("learner", 0), ("sampler", 1)]
  assert [lane.shares for lane in found.lanes] == [
    "waits for sampler 60%, learns 40%",
    "plays 60%, waits for learner 40%",
  ]
  # 920 of 1,100 are for ten seconds: 552 for the first six.
  assert [(b.x, b.width, b.height, b.colour) for b in found.bars] == [
    (170, 552, 4, 1),
    (722, 368, 18, 0),
    (170, 552, 18, 1),
    (722, 368, 4, 0),
  ]
  assert found.bars[0].title == "learner waits for sampler, step 0: 6.00 s"
  assert [text for _, text in found.ticks] == ["0 s", "2 s", "4 s", "6 s", "8 s", "10 s"]


def test_the_last_steps_of_a_long_run_are_drawn():
  found = timeline.of(services(steps=40))
  assert (found.first, found.last) == (28, 39)
  assert sum(bar.title.startswith("learner learns") for bar in found.bars) == timeline.STEPS


def test_steps_of_a_run_that_was_killed_and_resumed_are_drawn_from_the_new_start_on():
  told = services(steps=3)
  again = states("learner", (5000.0, "starts", {}), (5001.0, "learns", {"step": 2}))
  found = timeline.of(
    told | {"learner": told["learner"][:-1] + again + states("learner", (5003.0, "ended", {}))}
  )
  assert (found.first, found.last) == (2, 2)
  assert [bar.title for bar in found.bars] == ["learner learns, step 2: 2.00 s"]


def test_what_is_too_narrow_to_be_seen_adds_no_bar():
  flicker = [(1000 + i / 1000, ("plays", "waits learner")[i % 2], {}) for i in range(10_000)]
  told = services() | {"sampler": states("sampler", *flicker, (1010, "ended", {}))}
  assert sum(bar.title.startswith("sampler") for bar in timeline.of(told).bars) < 2 * 920


def test_a_run_that_told_nothing_has_no_picture():
  assert timeline.of({}) is None
  assert timeline.of({"sampler": services()["sampler"]}) is None


def run(**more):
  rows = tuple({"phase": "rl", "step": i, "reward": i / 10} for i in range(3))
  return inputs.Run("run", rows, {}, (), **more)


def test_the_page_has_the_picture_with_a_title_for_each_bar():
  page = report.render(run(services=services()), [], None)
  (svg,) = re.findall(r'<svg class="timeline".*?</svg>', page, re.DOTALL)
  assert svg.count("<title>") == 4 and "learner waits for sampler, step 0" in svg
  assert 'class="timeline"' not in report.render(run(), [], None)


def test_a_long_curve_has_no_gaps_where_versions_were_scored():
  rows = tuple({"phase": "rl", "step": i, "reward": 0.5} for i in range(2_000))
  scored = tuple({"version": v, "step": v, "scores": {"reward": 0.5}} for v in range(0, 2_000, 7))
  (phase,) = curves.phases(inputs.Run("run", rows, {}, (), held_out=scored))
  assert phase["count"] == 2_000 and None not in phase["columns"]["reward"]
  assert sum(value is not None for value in phase["columns"]["held_out/reward"]) == len(scored)


def test_held_out_scores_stand_beside_those_of_the_rollouts_of_the_same_weights():
  scored = tuple({"version": v, "step": v, "scores": {"reward": v / 8}} for v in (0, 3))
  (phase,) = curves.phases(run(held_out=scored))
  assert phase["steps"] == [0, 1, 2, 3] and phase["count"] == 3
  assert phase["columns"]["reward"] == [0.0, 0.1, 0.2, None]
  assert phase["columns"]["held_out/reward"] == [0.0, None, None, 0.375]
  (panel,) = phase["panels"]
  assert panel["keys"] == ["reward", "held_out/reward"]
  assert panel["labels"] == ["reward", "held out: reward"] and phase["others"] == []
