"""Rollouts of agents that exist already: started, listened to, rewarded, ended."""

import asyncio
import contextlib
import http.server
import json
import pathlib
import subprocess
import sys
import threading
import time
import urllib.request

import pytest

from jaxrl_agents import config as config_lib
from jaxrl_agents.agents.agent import DEMONSTRATOR, worker_services
from jaxrl_agents.agents.external import output_ends, starting
from jaxrl_agents.agents.external.agent import AGENT
from jaxrl_agents.agents.external.config import ExternalConfig
from jaxrl_agents.agents.external.tasks import ExternalTasks
from jaxrl_agents.corpus import code_digest
from jaxrl_agents.harness.rollout import Sampling, run_group
from jaxrl_agents.types import Task
from tests.agents.external import agents_of_tests
from tests.gateway.serving import Says, words

MODULE = "tests.agents.external.agents_of_tests"
TASK = Task("t", "external", "say it", {"gold": 1, "seen": 2})
SAMPLING = Sampling(temperature=0.7, seed=3)


def options(**changes):
  reward = changes.pop("reward", f"{MODULE}:length")
  return ExternalConfig(reward=reward, token_budget=256, timeout_s=20.0, **changes)


def play(chosen, *replies, task=TASK, rollouts=2, player="", sampler=None):
  """The group of one task."""
  services = worker_services("external", "base", chosen, None, player)
  sampler = sampler or Says(*(replies or ("well", "done")))

  async def run():
    return await run_group(
      services.make_episode, task, rollouts, chat=services.chat, sampler=sampler, sampling=SAMPLING
    )

  return asyncio.run(run())


def sampled(trajectory):
  return [words(s.tokens[s.loss_mask]) for s in trajectory.segments]


def test_a_function_is_an_agent_whose_calls_are_trained():
  group = play(options(function=f"{MODULE}:function"), "well", "well", "done", rollouts=1)
  (trajectory,) = group.trajectories
  assert not trajectory.error
  assert sampled(trajectory) == ["well<|end|>well<|end|>"]
  assert trajectory.rewards == {"reward": 4.0, "is_gold": 1.0}
  assert [m.role for m in trajectory.log] == ["user", "assistant", "user", "assistant"]
  assert trajectory.metrics["turns"] == 2 and trajectory.stop == "answer"


def test_a_command_is_an_agent_and_gets_no_secret_of_the_training_process(monkeypatch):
  monkeypatch.setenv("SECRET_OF_TRAINING", "x")
  program = pathlib.Path(agents_of_tests.__file__)
  group = play(options(command=f"{sys.executable} {program} {{task}}"), "well")
  for trajectory in group.trajectories:
    assert not trajectory.error, trajectory.error
    assert sampled(trajectory) == ["well<|end|>well<|end|>"]
    output = "well ['ANTHROPIC_API_KEY', 'OPENAI_API_KEY']\n"
    assert trajectory.rewards["reward"] == len(output)


def test_an_agent_that_fails_after_a_call_is_judged_with_its_words():
  for chosen in (
    options(function=f"{MODULE}:raises"),
    options(function=f"{MODULE}:asks_too_often"),
  ):
    chosen = ExternalConfig(**{**vars(chosen), "reward": f"{MODULE}:failed", "max_calls": 3})
    (trajectory,) = play(chosen, rollouts=1).trajectories
    assert not trajectory.error and trajectory.rewards == {"reward": 1.0}
    assert trajectory.metrics["agent_failed"] == 1.0 and trajectory.segments


@pytest.mark.parametrize("name", ["loses_patience", "loses_patience_later"])
def test_an_agent_that_raises_a_timeout_of_its_own_has_failed_and_not_used_up_its_time(name):
  chosen = options(function=f"{MODULE}:{name}", reward=f"{MODULE}:failed")
  (trajectory,) = play(chosen, rollouts=1).trajectories
  assert trajectory.rewards == {"reward": 1.0} and trajectory.metrics["agent_failed"] == 1.0
  assert trajectory.stop == "answer"


def test_a_reward_that_raises_a_timeout_of_its_own_fails_its_rollout_with_its_words():
  chosen = options(function=f"{MODULE}:function", reward=f"{MODULE}:impatient")
  (trajectory,) = play(chosen, rollouts=1).trajectories
  assert "the judge did not answer" in trajectory.error


@pytest.mark.parametrize("name", ["exits", "exits_later"])
def test_an_agent_that_calls_sys_exit_ends_alone(name):
  chosen = options(function=f"{MODULE}:{name}", reward=f"{MODULE}:failed")
  (trajectory,) = play(chosen, rollouts=1).trajectories
  assert not trajectory.error and trajectory.rewards == {"reward": 1.0} and trajectory.segments


def test_a_reward_that_calls_sys_exit_fails_its_rollout():
  chosen = options(function=f"{MODULE}:exits", reward=f"{MODULE}:exits_in_reward")
  (trajectory,) = play(chosen, rollouts=1).trajectories
  assert "sys.exit('no reward') was called" in trajectory.error


KILLED = """
import asyncio, os, pathlib, sys
from jaxrl_agents.agents.external import starting
from jaxrl_agents.types import Task

async def run():
  folder = pathlib.Path(sys.argv[1])
  address = starting.Address("http://127.0.0.1:1", "key", "control", "session")
  words = "sh -c 'echo $$ > ../pid; sleep 100'"
  playing = asyncio.create_task(
    starting.command(words, Task("t", "external", "p", {}), address, folder, 90.0)
  )
  while not (folder.parent / "pid").exists():
    if playing.done():
      playing.result()
    await asyncio.sleep(0.05)
  os._exit(0)

asyncio.run(run())
"""


def test_a_command_does_not_outlive_the_process_that_started_it(tmp_path):
  (folder := tmp_path / "folder").mkdir()
  subprocess.run([sys.executable, "-c", KILLED, folder], check=True, timeout=60)
  group = int((tmp_path / "pid").read_text())
  deadline = time.monotonic() + 20
  while folder.exists() or pathlib.Path(f"/proc/{group}").exists():
    assert time.monotonic() < deadline
    time.sleep(0.05)


def command(words, tmp_path, timeout_s=20.0):
  """How a command ends that asks for no reply."""
  address = starting.Address("http://127.0.0.1:1", "key", "control", "session")
  return asyncio.run(starting.command(words, TASK, address, tmp_path, timeout_s))


@pytest.mark.parametrize("prefix", ["", "env -u HOME ", "env -u OPENAI_API_KEY "])
def test_what_a_command_starts_in_a_session_of_its_own_ends_with_it(tmp_path, prefix):
  daemon = "echo $$ > pid; exec sleep 100"
  words = f"{prefix}setsid sh -c '{daemon}' & while ! test -s pid; do sleep 0.02; done"
  assert command(f'sh -c "{words.replace("$", chr(92) + "$")}"', tmp_path).exit_status == 0
  place = pathlib.Path(f"/proc/{(tmp_path / 'pid').read_text().strip()}/environ")

  def runs():
    with contextlib.suppress(OSError):
      return bool(place.read_bytes())  # a zombie has none
    return False

  deadline = time.monotonic() + 10
  while runs() and time.monotonic() < deadline:
    time.sleep(0.05)
  assert not runs()


def test_what_a_command_writes_takes_no_room_but_for_its_end(tmp_path):
  limited = "ulimit -f 1024; head -c 20000000 /dev/zero | tr '\\0' a; echo end"
  outcome = command(f'sh -c "{limited}"', tmp_path)  # with files of at most 512 KiB
  assert outcome.output == "a" * (output_ends.KEPT_BYTES - 4) + "end\n"
  assert outcome.exit_status == 0 and not outcome.errors


def test_a_command_that_writes_without_end_is_ended_and_leaves_others_their_time(tmp_path):
  address = starting.Address("http://127.0.0.1:1", "key", "control", "session")

  async def both():
    playing = asyncio.create_task(starting.command("yes", TASK, address, tmp_path, 1.0))
    steps = 0
    while not playing.done():
      await asyncio.sleep(0.01)
      steps += 1
    return playing.result(), steps

  outcome, steps = asyncio.run(both())
  assert outcome.timed_out and outcome.output.endswith("y\n") and steps > 20


def test_a_command_may_empty_its_folder():
  program = pathlib.Path(agents_of_tests.__file__)
  chosen = options(command=f"{sys.executable} {program} {{task}}")
  (trajectory,) = play(chosen, task=Task("t", "external", "tidy", {}), rollouts=1).trajectories
  assert not trajectory.error and trajectory.rewards["reward"] > 0


def test_the_seeds_of_calls_depend_on_the_rollout_and_not_on_the_order_of_the_rollouts():
  seen = []
  for _ in range(2):
    sampler = Says("well")
    play(options(function=f"{MODULE}:function"), sampler=sampler, rollouts=3)
    seen.append(sorted(limits.seed for _, limits in sampler.asked))
    assert {limits.temperature for _, limits in sampler.asked} == {0.7}
  assert seen[0] == seen[1] and len(set(seen[0])) == 6


def test_a_command_names_its_script_from_here_and_its_task_within_a_word(monkeypatch):
  program = pathlib.Path(agents_of_tests.__file__)
  monkeypatch.chdir(program.parent)
  chosen = options(command=f"{sys.executable} {program.name} --task={{task}}")
  (trajectory,) = play(chosen, task=TASK, rollouts=1).trajectories
  assert not trajectory.error and trajectory.metrics["turns"] == 2


def test_a_word_of_a_command_may_be_longer_than_a_file_name():
  words = f"{sys.executable} -c 'print({'1+' * 400}1)'"
  (trajectory,) = play(options(command=words), rollouts=1).trajectories
  assert "made no call" in trajectory.error and "it said: 401" in trajectory.error


def test_as_many_functions_run_at_once_as_the_option_says():
  chosen = options(function=f"{MODULE}:meets", at_once=24)
  agents_of_tests.MEETING = threading.Barrier(24)
  group = play(chosen, rollouts=24)
  assert not any(trajectory.error for trajectory in group.trajectories)


def test_an_agent_that_never_ends_is_ended_and_its_calls_so_far_are_judged():
  program = pathlib.Path(agents_of_tests.__file__)
  chosen = options(command=f"{sys.executable} {program} {{task}}")
  chosen = ExternalConfig(**{**vars(chosen), "timeout_s": 2.0})
  began = time.monotonic()
  (one,) = play(chosen, task=Task("t", "external", "sleep", {}), rollouts=1).trajectories
  assert "made no call" in one.error and "timed out" in one.error
  chosen = ExternalConfig(**{**vars(chosen), "command": "", "function": f"{MODULE}:sleeps"})
  (two,) = play(chosen, rollouts=1).trajectories
  assert "timed out" in two.error and time.monotonic() - began < 20


def test_a_run_waits_for_a_rollout_that_is_silent_for_its_whole_time_and_judged_as_long():
  """300 s of an agent, 300 s of its reward, and the 120 s that any message may take."""
  chosen = ExternalConfig(function=f"{MODULE}:function", timeout_s=300.0, max_calls=16)
  assert AGENT.max_turn_s(chosen, 120.0) == 720.0


@pytest.mark.parametrize(
  ("changes", "task", "named"),
  [
    ({"function": f"{MODULE}:silent"}, TASK, "made no call"),
    ({"command": "no-such-program {task}"}, TASK, "external.command cannot be started"),
    ({"function": f"{MODULE}:function", "reward": f"{MODULE}:wrong"}, TASK, "a finite number"),
    (
      {"command": f"{sys.executable} {agents_of_tests.__file__} {{task}}"},
      Task("t", "external", "fail", {}),
      "I cannot work today",
    ),
    ({"hook": "http://127.0.0.1:9/"}, TASK, "external.hook=http://127.0.0.1:9/"),
  ],
)
def test_what_goes_wrong_is_an_error_of_the_rollout_and_never_a_reward_of_zero(
  changes, task, named
):
  (trajectory,) = play(options(**changes), task=task, rollouts=1).trajectories
  assert named in trajectory.error and not trajectory.rewards and not trajectory.segments


def test_a_fault_of_the_sampler_fails_the_rollout_even_if_the_agent_goes_on():
  chosen = options(function=f"{MODULE}:function")
  (trajectory,) = play(chosen, RuntimeError("lost"), rollouts=1).trajectories
  assert trajectory.error and not trajectory.segments


@contextlib.contextmanager
def hook_server(refusal=""):
  """A server that gives a task, plays rollouts in threads, and rewards them with their length."""

  class Hook(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
      self.answer(
        200, b'{"id": "t", "prompt": "say it", "split": "train", "gold": "\xe2\x80\xa8"}\r\n'
      )

    def do_POST(self):
      told = json.loads(self.rfile.read(int(self.headers["content-length"])))
      if refusal:
        return self.answer(400, refusal.encode())
      self.answer(202, b"")
      threading.Thread(target=run, args=(told,), daemon=True).start()

    def answer(self, status, body):
      self.send_response(status)
      self.send_header("content-length", str(len(body)))
      self.end_headers()
      self.wfile.write(body)

    def log_message(self, *arguments):
      pass

  def control(told, path, content):
    head = {"authorization": f"Bearer {told['control_key']}"}
    url, raw = told["control_url"] + path, json.dumps(content).encode()
    urllib.request.urlopen(urllib.request.Request(url, raw, head), timeout=10).read()

  def run(told):
    if told["task"] == {"id": "t", "prompt": "say it", "split": "train"}:
      said = agents_of_tests.talk(told["base_url"], told["api_key"], told["task"]["prompt"])
      parts = {"reward": len(said), "seconds": told["timeout_s"]}
      control(told, "/rewards", {"parts": parts, "event_id": "1"})
    control(told, "/finish", {})

  server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Hook)
  threading.Thread(target=server.serve_forever, daemon=True).start()
  try:
    yield f"http://127.0.0.1:{server.server_address[1]}"
  finally:
    server.shutdown()
    server.server_close()


def test_a_server_gives_tasks_plays_them_behind_a_hook_rewards_and_ends_its_sessions():
  with hook_server() as url:
    (task,) = ExternalTasks(f"{url}/tasks").tasks["train"]
    assert task.facts == {"gold": "\u2028"}
    chosen = options(hook=f"{url}/", reward="", players=((DEMONSTRATOR, f"{MODULE}:player"),))
    for trajectory in play(chosen, "well", task=task).trajectories:
      assert not trajectory.error and trajectory.rewards == {"reward": 4.0, "seconds": 20.0}
    for trajectory in play(chosen, task=task, player=DEMONSTRATOR).trajectories:
      assert not trajectory.error and trajectory.log[1].content.startswith("1 ")
  with pytest.raises(ValueError, match=f"external.tasks={url}/tasks: .*refused"):
    ExternalTasks(f"{url}/tasks")


def test_a_hook_that_refuses_is_an_error_with_its_words():
  with hook_server(refusal="there is no task t") as url:
    (trajectory,) = play(options(hook=url, reward=""), rollouts=1).trajectories
    assert "400" in trajectory.error and "there is no task t" in trajectory.error


def test_an_agent_cannot_reward_itself():
  chosen = options(function=f"{MODULE}:cheat", reward=f"{MODULE}:told")
  (trajectory,) = play(chosen, rollouts=1).trajectories
  assert not trajectory.error and trajectory.rewards == {"reward": 1.0, "attached": 0.0}


def test_scripted_players_answer_in_the_place_of_the_policy():
  players = ((DEMONSTRATOR, f"{MODULE}:player"), ("other", f"{MODULE}:player"))
  chosen = options(function=f"{MODULE}:function", players=players)
  assert AGENT.baselines(chosen) == ("other",)
  one, two = play(chosen, player=DEMONSTRATOR).trajectories
  for trajectory in (one, two):
    assert not trajectory.error
    assert [m.content[:2] for m in trajectory.log if m.role == "assistant"] == ["1 ", "3 "]
    (segment,) = trajectory.segments
    assert not segment.logprobs.any() and set(segment.versions) == {-1}
  (nobody,) = play(chosen, player="nobody", rollouts=1).trajectories
  assert "only demonstrator, other" in nobody.error


def test_tasks_come_from_a_file_or_a_function_with_a_split_each(tmp_path):
  file = tmp_path / "tasks.jsonl"
  rows = [{"id": f"r{i}", "prompt": "p", "kind": i} for i in range(200)]
  file.write_text("\n".join(map(json.dumps, rows)))
  found = ExternalTasks(str(file))
  counts = {split: len(tasks) for split, tasks in found.tasks.items()}
  assert sum(counts.values()) == 200 and counts["train"] > 130 and counts["dev"] and counts["test"]
  assert found.tasks["train"][0].facts.keys() == {"kind"}
  assert len(ExternalTasks(f"{MODULE}:rows").tasks["train"]) == 3
  for content, named in (
    ("", "has no rows"),
    ("{", "line 1 is not valid JSON"),
    ('{"id": "a"}', "has no text 'prompt'"),
    ('{"id": "a", "prompt": "p", "split": "x"}', "split='x'"),
    ('{"id": "a", "prompt": "p"}\n{"id": "a", "prompt": "p"}', "two rows with the id 'a'"),
    ("[]", "is a list"),
  ):
    file.write_text(content)
    with pytest.raises(ValueError, match=named):
      ExternalTasks(str(file))
  with pytest.raises(ValueError, match="no such file"):
    ExternalTasks("nothing.jsonl")


def test_rows_of_a_generator_are_tasks_whose_digest_depends_on_them():
  found = [ExternalTasks(f"{MODULE}:{name}") for name in ("yields", "yields_more")]
  assert [sum(map(len, each.tasks.values())) for each in found] == [2, 3]
  assert found[0].digest != found[1].digest == ExternalTasks(f"{MODULE}:yields_more").digest


def test_an_agent_needs_exactly_one_way_to_start():
  for changes, named in (
    ({}, "has none"),
    ({"command": "a", "hook": "http://b"}, "has command and hook"),
    ({"command": "a", "trains": ("main", "sidd")}, "kinds are main, sub, side"),
    ({"function": "a:b", "reward": ""}, "external.reward is empty"),
  ):
    with pytest.raises(ValueError, match=named):
      AGENT.check(options(**changes), 1, 1.0)
  loaded = config_lib.load("examples/external_agent/config.py")
  AGENT.check(loaded.agent_config, 1, 1.0)


def test_demonstrations_are_named_by_the_code_of_functions_and_the_files_of_commands(
  tmp_path, monkeypatch
):
  monkeypatch.syspath_prepend(str(tmp_path))
  module, script = tmp_path / "my_players.py", tmp_path / "my_agent.py"

  def digest(code, **options):
    module.write_text(code)
    code_digest.of.cache_clear()
    return AGENT.named_code_digest(ExternalConfig(**options))

  players = (("demonstrator", "my_players:good"), ("other", "no_such_module:bad"))
  first = digest("good = lambda *_: 1", players=players)
  assert first == digest("good = lambda *_: 1  # a comment", players=players)
  assert first != digest("good = lambda *_: 2", players=players)
  play = {"function": "my_players:good"}
  assert digest("good = 1", **play) != digest("good = 2", **play)
  script.write_text("one")
  one = digest("", command=f"python {script} {{task}}")
  script.write_text("two")
  assert "" != one != digest("", command=f"python {script} {{task}}")
  assert digest("", hook="http://127.0.0.1:1") == ""
