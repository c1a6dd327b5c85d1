"""Good episodes of a run, or of a teacher behind HTTP, become demonstrations."""

import asyncio
import dataclasses
import json

import numpy as np
import pytest

from jaxrl_agents import chat as chat_lib
from jaxrl_agents import config as config_lib
from jaxrl_agents.agents import teacher as teacher_lib
from jaxrl_agents.agents.agent import worker_services
from jaxrl_agents.agents.chat_endpoint import Client, Endpoint
from jaxrl_agents.agents.teacher import Teacher
from jaxrl_agents.config import RunConfig
from jaxrl_agents.harness import group_files
from jaxrl_agents.harness.rollout import Sampling, run_group
from jaxrl_agents.learner import segment_files
from jaxrl_agents.runs import agent_setting, evaluation, rejection_sampling, resumption
from jaxrl_agents.runs.rejection_sampling import Filter
from jaxrl_agents.runs.workdir import Workdir
from jaxrl_agents.types import Context, Group, Message, Segment, Task, ToolSpec, Trajectory
from tests.agents.judge_server import serving, verdict

CONFIG: RunConfig = config_lib.load("examples/number_game/config.py")
AGENT = "examples.number_game.agent:AGENT"


def rollout(length, right, judged=None, error=""):
  tokens = np.arange(length, dtype=np.int32)
  segment = Segment(tokens, tokens > 0, np.zeros(length, np.float32), np.zeros(length, np.int32))
  rewards = {"reward": float(right)} | ({} if judged is None else {"judged": judged})
  return Trajectory("t", (segment,), (), {} if error else rewards, "answer", error=error)


def saved(tmp_path, *rollouts):
  workdir = Workdir(tmp_path / "run")
  group = Group(Task("t", "number_game", "prompt", {"number": 3}), rollouts, "step 0 0")
  group_files.save_groups(workdir.trajectories / "step_000000.npz", [group])
  return rejection_sampling.played_in_training(CONFIG, workdir)


def lengths(trajectories):
  return [len(t.segments[0].tokens) for t in trajectories]


def test_right_episodes_of_training_become_the_next_runs_demonstrations(tmp_path):
  lost = rollout(4, True, error="EpisodeError: the judge is down")
  groups = saved(tmp_path, rollout(9, True), rollout(5, False), lost, rollout(7, True))
  kept = rejection_sampling.chosen(CONFIG, groups, Filter(per_task=1))
  assert lengths(kept) == [7]
  into = Workdir(tmp_path / "next")
  counts = rejection_sampling.write(CONFIG, groups, kept, into)
  assert counts == {"played": 4, "failed": 1, "kept": 1}
  found = segment_files.read_segments(into.demonstrations / "demonstrations")
  tokens, mask = found.example(0)
  assert (
    len(found) == 1 and tokens.tolist() == list(range(7)) and mask.tolist()[:2] == [False, True]
  )
  assert into.read_summary()["demonstrations"] == counts
  with pytest.raises(ValueError, match="exists already"):
    rejection_sampling.write(CONFIG, groups, kept, into)


def test_demonstrations_are_for_the_chat_format_and_agent_of_the_episodes(tmp_path):
  groups = saved(tmp_path, rollout(9, True))
  into = Workdir(tmp_path / "next")
  kept = rejection_sampling.chosen(CONFIG, groups, Filter())
  rejection_sampling.write(CONFIG, groups, kept, into)
  silent = dataclasses.replace(CONFIG.policy, thinking="off")
  questions: RunConfig = config_lib.load("examples/questions/config.py")
  assert resumption.check_warm_up(CONFIG, into) == []
  Workdir(tmp_path / "run").merge_summary({"config": config_lib.options(CONFIG)})
  for other in (dataclasses.replace(CONFIG, policy=silent), questions):
    with pytest.raises(ValueError, match="a warm-up for another agent or chat format"):
      resumption.check_warm_up(other, into)
    with pytest.raises(ValueError, match="episodes of another agent or chat format"):
      rejection_sampling.played_in_training(other, Workdir(tmp_path / "run"))
  assert rejection_sampling.played_in_training(CONFIG, Workdir(tmp_path / "run"))


def test_a_judge_chooses_among_right_episodes_where_all_have_its_grade(tmp_path):
  groups = saved(tmp_path, rollout(9, True, 0.9), rollout(7, True, 0.2), rollout(5, False, 1.0))
  choose = lambda **options: lengths(
    rejection_sampling.chosen(CONFIG, groups, Filter(per_task=1, **options))
  )
  assert choose() == [7] and choose(best="judged") == [9] and choose(min_judged=0.5) == [9]
  assert choose(best="reward") == [9]  # 1 + 0.3 * 0.9 beats 1 + 0.3 * 0.2
  ungraded = saved(tmp_path, rollout(9, True))
  with pytest.raises(ValueError, match="cannot be chosen by it"):
    rejection_sampling.chosen(CONFIG, ungraded, Filter(min_judged=0.5))
  with pytest.raises(ValueError, match="none is right"):
    rejection_sampling.write(CONFIG, groups, [], Workdir(tmp_path / "next"))


def test_a_run_without_episodes_has_nothing_to_choose_from(tmp_path):
  with pytest.raises(ValueError, match="holds no episodes of training"):
    rejection_sampling.played_in_training(CONFIG, Workdir(tmp_path))


def test_a_teacher_behind_http_plays_and_its_words_are_trained_in_the_policys_format():
  def halves(handler, request, number):
    hints = [m["content"] for m in request["messages"] if m["role"] == "user"][1:]
    return str({(): 4, ("lower",): 2, ("lower", "higher"): 3}[tuple(hints)])

  chat = chat_lib.load("base")
  task = Task("t", "number_game", "Guess a number from 1 to 7.", {"number": 3})
  with serving(halves) as (url, requests):
    teacher = Teacher(Endpoint(url, "big", "key"), temperature=0.7, max_tokens=8)
    services = worker_services(
      AGENT, "base", CONFIG.agent_config, None, teacher_lib.NAME, teacher=teacher
    )
    play = run_group(services.make_episode, task, 1, chat=chat, sampler=None, sampling=Sampling())
    (trajectory,) = asyncio.run(play).trajectories
  assert not trajectory.error and trajectory.rewards == {"reward": 1.0, "guesses": 3.0}
  said = [s.tokens[s.loss_mask].tolist() for s in trajectory.segments]
  (tokens,) = said
  one = lambda text: chat.encode_reply(Message("assistant", text)).tolist()
  assert tokens == one("4") + one("2") + one("3")
  assert {r["model"] for r in requests} == {"big"} and requests[0]["authorization"] == "Bearer key"


def test_a_teachers_calls_are_read_and_its_nonsense_is_asked_for_again():
  call = lambda arguments: {
    "content": None,
    "tool_calls": [{"id": "x", "function": {"name": "find", "arguments": arguments}}],
  }
  found = teacher_lib.read(call('{"query": "a"}'))
  assert found.tool_calls[0].name == "find" and found.tool_calls[0].arguments == {"query": "a"}
  for bad in ("[1]", "{", "null"):
    with pytest.raises(ValueError, match="call"):
      teacher_lib.read(call(bad))
  with pytest.raises(ValueError, match="no text and 0 calls"):
    teacher_lib.read({"content": ""})

  def answer(handler, request, number):
    message = call("{" if number == 0 else '{"query": "b"}')
    return 200, json.dumps({"choices": [{"message": message}]}).encode()

  tool = ToolSpec("find", "Finds.", {"type": "object"})
  with serving(answer) as (url, requests):
    teacher = Teacher(Endpoint(url, "big"), temperature=0.0, max_tokens=8)

    async def reply():
      play = teacher_lib.player(teacher, Client(teacher.endpoint), seed=5)
      return await play(Context((Message("user", "q"),), (tool,)))

    assert asyncio.run(reply()).tool_calls[0].arguments == {"query": "b"}
  assert len(requests) == 2 and requests[0]["tools"][0]["function"]["name"] == "find"


@pytest.mark.slow
def test_worker_processes_have_their_rollouts_graded(tmp_path, monkeypatch):
  monkeypatch.setenv("JAXRL_CACHE", str(tmp_path))
  with serving(lambda handler, request, number: verdict(request, 10)) as (url, requests):
    overrides = [f"judge.url={url}", "workers.processes=1"]
    config = config_lib.load("examples/number_game/config.py", overrides)
    corpus = agent_setting.open_tasks(config)
    tasks = corpus.sample("test", 2, 0)
    groups = evaluation.play_baseline(config, corpus, tasks, "halving")
  for group in groups:
    (trajectory,) = group.trajectories
    assert not trajectory.error and trajectory.rewards["judged_held_out"] == 1.0
    assert trajectory.metrics["verified_reward"] == 1.0
    assert trajectory.reward == pytest.approx(1.3)
  assert len(requests) == 2 * 4


def test_an_episode_is_right_as_it_was_measured_or_by_its_reward_without_the_part(tmp_path):
  gated = rollout(9, False)
  gated.rewards["ungated"] = 1.0  # right, and longer than Toggle allows
  groups = saved(tmp_path, gated, rollout(15, False))
  assert lengths(rejection_sampling.chosen(CONFIG, groups, Filter())) == [9]
  bare = rollout(12, True)
  bare.rewards.clear()
  bare.metrics["reward"] = 1.0
  groups = [Group(groups[0].task, (bare,), "g")]
  assert lengths(rejection_sampling.chosen(CONFIG, groups, Filter())) == [12]
