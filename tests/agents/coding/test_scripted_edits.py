"""Scripted players over tasks made from real code: who mends, who does nothing, who cheats."""

import asyncio
import dataclasses
import random
import re

import pytest

from jaxrl_agents import chat
from jaxrl_agents.agents.coding import view
from jaxrl_agents.agents.coding.config import CodingConfig
from jaxrl_agents.agents.coding.expert import CodingExpert, ExpertNoise
from jaxrl_agents.agents.coding.judge import repo as repo_lib
from jaxrl_agents.agents.coding.judge.repo import Repo
from jaxrl_agents.agents.coding.scripted_edits import (
  LineReplacement,
  Replacement,
  line_replacement,
  make_player,
  repairs,
  replacement,
)
from jaxrl_agents.agents.coding.services import CodeIndexes, CodingServices
from jaxrl_agents.agents.coding.tasks import make_tasks, suite_repos
from jaxrl_agents.harness.rollout import Sampling, run_episode
from tests.agents.coding.bench import CALL_TASK, LIMITS, services
from tests.agents.coding.judge.benches import CALLS, MAIN, with_sandboxes
from tests.agents.coding.scripted_players import Oracle, Tamperer, do_nothing

BROKEN = ("+", "a", "a = b", "a\nb", " ")

SMALL = CodingConfig(
  token_budget=1_024, tool_output_tokens=400, max_new_tokens=200, max_turns=12, summary_tokens=128,
  context="none", system_prompt="",
)  # fmt: skip


async def episode(shared, task, play):
  player = make_player(task, shared, play)
  sampling = Sampling(max_new_tokens=shared.limits.max_new_tokens)
  return await run_episode(player, shared.chat, player, task=task, sampling=sampling)


@pytest.mark.slow
def test_the_oracle_repairs_damage_of_every_kind_and_the_other_players_do_not(monkeypatch):
  library = list(suite_repos.library(["colorsys", "quopri"]))
  if not library:
    pytest.skip("this interpreter came without the tests of its library")
  for name in ("MAX_SUITE_S", "MAX_DAMAGED_S"):  # on a loaded machine, too
    monkeypatch.setattr(make_tasks, name, 60.0)

  async def body(workshop):
    judge = await workshop.judge()
    tasks, repos = [], {}
    for repo in library:
      found = await make_tasks.stable(judge, repo)
      repos[found.id] = found
      tally = make_tasks.Yield()
      tasks += [
        task
        async for task in make_tasks.tasks_of(
          judge, found, plans=("features", "token", "statement"), count=3, seed=1, tally=tally
        )
      ]
    shared = CodingServices(chat.load(), repos, CodingConfig(), workshop, CodeIndexes(100))
    makers = {
      "oracle": lambda task: Oracle(task, shared),
      "nobody": lambda task: do_nothing,
      "tamperer": lambda task: Tamperer(task, shared),
    }
    return tasks, {
      name: await asyncio.gather(*(episode(shared, task, make(task)) for task in tasks))
      for name, make in makers.items()
    }

  tasks, played = with_sandboxes(body)
  assert len(tasks) == 6
  assert len({task.facts["level"] for task in tasks}) >= 3
  solved = {name: [t.rewards["solved"] for t in each] for name, each in played.items()}
  assert solved == {"oracle": [1.0] * 6, "nobody": [0.0] * 6, "tamperer": [0.0] * 6}
  assert all(t.rewards["tampered"] > 0 for t in played["tamperer"])


def test_replacements_repair_the_damage_one_after_another():
  broken = [
    {"path": "main.py", "start": MAIN.index("<"), "fixed": "<", "broken": ">="},
    {"path": "main.py", "start": MAIN.index("return low"), "fixed": "low", "broken": "low"},
    {"path": "main.py", "start": MAIN.index("text + text") + 5, "fixed": "+", "broken": "-"},
  ]
  broken[1] |= {"start": MAIN.index("return low"), "fixed": "return low", "broken": "pass"}
  text = repo_lib.broken(CALLS, broken)["main.py"]
  assert "if value >= low:\n        pass\n" in text
  for each in repairs(CALLS, broken, ("edit_file",)):
    text, _, problem = view.edited(text=text, **dataclasses.asdict(each))
    assert not problem
  assert text == MAIN


def test_a_replacement_begins_with_what_changes_and_goes_on_until_it_stands_once():
  text = "a = 1\nif a < b and c < d:\n    return (a + 1) - a[+1]\n\n\nx = not y\na = 1\n"

  def made(old, new, number=0):
    at = [found.start() for found in re.finditer(re.escape(old), text)][number]
    call, changed = replacement("f.py", text, at, at + len(old), new)
    assert changed == text[:at] + new + text[at + len(old) :]
    found, _, problem = view.edited(text=text, **dataclasses.asdict(call))
    assert (found, problem) == (changed, "")
    return call.old, call.new

  assert made("and", "or") == (" and c", " or c")
  assert made("<", "<=") == (" < b", " <= b")
  assert made("<", "<=", 1) == (" < d", " <= d")
  assert made("+", "-") == (" + 1", " - 1")
  assert made("+", "-", 1) == ("+1", "-1")
  assert made("- ", "+ ") == (" - a", " + a")
  assert made("not ", "") == (" not y", " y")
  assert made("1", "", 1) == (" 1)", " )")
  assert made("1", "2") == ("a = 1\nif a < b and c < d:", "a = 2\nif a < b and c < d:")
  assert made("x = not y", "x = 1\ny = 2") == ("x = not y", "x = 1\ny = 2")


def test_a_summary_shows_what_an_edit_replaced_and_by_what():
  assert Replacement("f", " < b and c:", " <= b and c:").told == " < b and c: -> <="
  assert Replacement("f", " not in xs", " in xs").told == " not in xs -> in xs"
  assert Replacement("f", "a\n  b", "a\n  c").told == "a\\n  b ->a\\n  c"
  assert LineReplacement("f", 3, 4, "  b\n  a").told == "lines 3-4 ->   b\\n  a"


def test_an_edit_of_lines_that_misses_is_refused_and_a_single_line_is_named_once():
  text = "a\nb\nc\n"
  for made in (LineReplacement("f", 2, 3, "x"), LineReplacement("f", 2, 1, "x")):
    assert made.applied(text)[1:] == (2, "")
    changed, line, problem = made.missed(text).applied(text)
    assert (changed, line) == ("", 0) and "the file has 3 lines" in problem
  unended, ended = "a\nb = 1", "a\nb = 2\n"
  made, changed = line_replacement("f", unended, 6, 7, "2")
  assert (made, changed) == (LineReplacement("f", 2, 2, "b = 2"), ended)
  assert made.applied(unended)[0] == ended and made.missed(unended).applied(unended)[2]
  assert LineReplacement("f", 2, 2, "x").call == (
    "replace_lines",
    {"path": "f", "first": 2, "new": "x"},
  )


def test_replacements_undo_whatever_was_damaged():
  for text, repo, edits in _random_damage(300):
    now = repo_lib.broken(repo, edits)["main.py"]
    for each in repairs(repo, edits, ("edit_file",)):
      now, _, problem = view.edited(text=now, **dataclasses.asdict(each))
      assert not problem
    assert now == text


def test_repairs_by_numbers_of_lines_undo_whatever_was_damaged_the_last_lines_first():
  by_lines = 0
  for text, repo, edits in _random_damage(300):
    now, last = repo_lib.broken(repo, edits)["main.py"], 99
    for each in repairs(repo, edits, ("edit_file", "replace_lines")):
      if isinstance(each, LineReplacement):
        assert each.first <= last
        by_lines, last = by_lines + 1, each.first
      now, _, problem = each.applied(now)
      assert not problem
    assert now == text
    now = repo_lib.broken(repo, edits)["main.py"]
    for each in repairs(repo, edits, ("replace_lines",)):
      assert isinstance(each, LineReplacement)
      now, _, problem = each.applied(now)
      assert not problem
    assert now == text
  assert by_lines > 100


def _random_damage(count):
  """(text, its repository, two edits that break it) of random texts."""
  draw = random.Random(0)
  for _ in range(count):
    text = "".join(draw.choice("ab =+\n ") for _ in range(60)) + "\n"
    places = sorted(draw.sample(range(61), 4))
    edits = [
      {"path": "main.py", "start": low, "fixed": text[low:high], "broken": draw.choice(BROKEN)}
      for low, high in zip(places[::2], places[1::2], strict=True)
    ]
    repo = Repo("r", "r", "calls", {"main.py": text}, ("main.py",))
    yield text, repo, [edit for edit in edits if edit["fixed"] != edit["broken"]]


@pytest.mark.slow
def test_the_expert_always_repairs_without_noise_and_often_fails_with_it():
  silent = ExpertNoise(wrong_edit=0, wrong_text=0, give_up=0, unchecked=0, hasty=0)

  async def body(workshop):
    shared = dataclasses.replace(services(workshop), limits=SMALL)
    rounds = {}
    for name, noise in {"silent": silent, "noisy": ExpertNoise(wrong_edit=0.6)}.items():
      rounds[name] = await asyncio.gather(
        *(
          episode(shared, CALL_TASK, CodingExpert(CALL_TASK, shared, noise, seed))
          for seed in range(30)
        )
      )
    return rounds

  rounds = with_sandboxes(body)
  solved = {name: [t.rewards["solved"] for t in each] for name, each in rounds.items()}
  assert solved["silent"] == [1.0] * 30
  assert 0.2 < sum(solved["noisy"]) / 30 < 0.98
  assert all(t.stop == "answer" for each in rounds.values() for t in each)
  assert max(t.metrics["longest_context_tokens"] for t in rounds["noisy"]) <= 1_024
  assert {len(t.log) for t in rounds["noisy"]} != {len(t.log) for t in rounds["silent"]}
  assert LIMITS.token_budget > SMALL.token_budget


@pytest.mark.slow
def test_wrong_edits_are_not_imitated_and_everything_else_is():
  async def body(workshop):
    shared = dataclasses.replace(services(workshop), limits=SMALL)
    played = {}
    for rate in (0.0, 1.0):
      noise = ExpertNoise(
        wrong_edit=rate, wrong_text=0, give_up=0, hasty=0, max_tries=1, scales=(1.0,)
      )
      experts = (CodingExpert(CALL_TASK, shared, noise, seed) for seed in range(6))
      played[rate] = await asyncio.gather(*(episode(shared, CALL_TASK, e) for e in experts))
    return shared.chat, played

  served, played = with_sandboxes(body)
  for rate, trajectories in played.items():
    for trajectory in trajectories:
      calls = [call.name for m in trajectory.log for call in m.tool_calls]
      assert "edit_file" in calls
      trained = "".join(
        served.decode(segment.tokens[segment.loss_mask].tolist()) for segment in trajectory.segments
      )
      assert ("edit_file{" in trained) == (rate == 0.0)
      assert "read_file{" in trained and "shell{" in trained and "Done." in trained


@pytest.mark.slow
def test_the_expert_plays_the_same_episode_again_for_the_same_seed():
  async def body(workshop):
    shared = dataclasses.replace(services(workshop), limits=SMALL)
    play = lambda seed: episode(
      shared, CALL_TASK, CodingExpert(CALL_TASK, shared, ExpertNoise(), seed)
    )
    return [[m.content for m in (await play(seed)).log] for seed in (5, 5, 6, 7, 8)]

  first, again, *others = with_sandboxes(body)
  assert first == again
  assert any(other != first for other in others)


TIGHT = dataclasses.replace(
  SMALL, token_budget=480, trigger_fraction=0.5, max_summaries=3, summary_tokens=80,
  tool_output_tokens=200, max_new_tokens=160, context="summarize", max_turns=20,
)  # fmt: skip
PATIENT = ExpertNoise(wrong_edit=0, wrong_text=0, give_up=0, unchecked=0, hasty=0, scales=(1.0,))


def tight_episodes(noise, count, repo=CALLS, task=CALL_TASK, trigger_fraction=0.5):
  limits = dataclasses.replace(TIGHT, trigger_fraction=trigger_fraction)

  async def body(workshop):
    changes = {"limits": limits, "repos": {repo.id: repo}}
    shared = dataclasses.replace(services(workshop), **changes)
    experts = (CodingExpert(task, shared, noise, seed) for seed in range(count))
    return await asyncio.gather(*(episode(shared, task, expert) for expert in experts))

  return with_sandboxes(body)


def after(trajectory, at):
  """The name of what is called first after a message."""
  reply = next(m for m in trajectory.log[at + 1 :] if m.role == "assistant")
  return reply.tool_calls[0].name


@pytest.mark.slow
def test_the_experts_summary_lists_failed_edits_and_it_reads_the_file_again():
  summaries = 0
  for trajectory in tight_episodes(dataclasses.replace(PATIENT, wrong_edit=1.0), 12):
    edits = set[str]()
    for at, message in enumerate(trajectory.log):
      for call in message.tool_calls:
        if call.name == "edit_file":
          made = Replacement(**call.arguments)
          edits.add(made.told)
          assert made.told.startswith(f"{made.old} ->")
      if message.role == "assistant" and message.content.startswith("Tried:"):
        summaries += 1
        *undone, last = message.content.splitlines()[1:]
        last, _, mark = last.partition(" (")
        assert {*undone, last} <= edits and mark in ("", "to undo)", "untested)")
        results = [m.content for m in trajectory.log[:at] if m.role == "tool"]
        assert (mark == "to undo)") <= bool(re.search(r"\d of \d+ fail", results[-1]))
        assert after(trajectory, at) == ("shell" if mark == "untested)" else "read_file")
  assert summaries >= 6


@pytest.mark.slow
def test_after_an_edit_that_was_not_made_the_expert_has_nothing_to_test():
  nothing = 0
  noise = dataclasses.replace(PATIENT, wrong_text=1.0)
  for trajectory in tight_episodes(noise, 16, trigger_fraction=0.45):
    for at, message in enumerate(trajectory.log):
      if message.content == "Nothing was tried.":
        nothing += 1
        assert after(trajectory, at) == "read_file"
  assert nothing >= 3


@pytest.mark.slow
def test_a_file_that_says_ok_does_not_look_to_the_expert_like_tests_that_pass():
  head = "OK = 0\n\n\n"
  repo = dataclasses.replace(CALLS, files={**CALLS.files, "main.py": head + MAIN})
  edits = [{**each, "start": each["start"] + len(head)} for each in CALL_TASK.facts["edits"]]
  task = dataclasses.replace(CALL_TASK, facts={**CALL_TASK.facts, "repo": repo.id, "edits": edits})
  played = tight_episodes(dataclasses.replace(PATIENT, wrong_edit=0.5), 8, repo, task)
  assert [t.rewards["solved"] for t in played] == [1.0] * 8
  assert sum(t.rewards["summaries"] > 0 for t in played) >= 3
