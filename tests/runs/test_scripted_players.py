"""Scripted players in workers: a task that kills its workers does not end a run."""

import pytest

from jaxrl_agents import config as config_lib
from jaxrl_agents.harness.rollout import Sampling
from jaxrl_agents.harness.worker_process import WorkerSpec
from jaxrl_agents.runs import evaluation, rollout_workers
from jaxrl_agents.types import Group, Task, Trajectory
from tests.runs.small_run import CONFIG


@pytest.mark.slow
def test_a_task_that_kills_its_workers_is_set_aside_and_the_others_are_played(capfd):
  tasks = [Task(name, "count", name, {"turns": 2}) for name in ("count", "kill", "play")]
  spec = WorkerSpec("tests.harness.toy_services:build_scripted")
  sampling = Sampling(max_new_tokens=8)
  played = rollout_workers.scripted(CONFIG, spec, tasks, 2, sampling, label="x")
  groups = {group.task.id: group.trajectories for group in played}
  assert sorted(groups) == ["count", "kill", "play"]
  assert all("its worker died 3 times" in t.error for t in groups["kill"])
  assert [t.error for name in ("count", "play") for t in groups[name]] == [""] * 4
  assert "task kill was set aside" in capfd.readouterr().err


def test_an_evaluation_in_which_every_episode_failed_is_an_error_that_names_the_first():
  def group(name, *errors):
    played = tuple(
      Trajectory(name, (), (), {}, stop="error", metrics={}, error=error) for error in errors
    )
    return Group(Task(name, "search", name, {}), played)

  groups = [group("a", "KeyError: x"), group("b", "KeyError: y")]
  with pytest.raises(ValueError, match=r"all 2 episodes \(nobody\) failed, .* by KeyError: x"):
    evaluation.collected(CONFIG, groups, 2, "nobody")


NO_TASKS = None  # whatever touches the tasks, to play one, raises


@pytest.mark.parametrize(
  ("path", "player", "has"),
  [
    ("configs/search_cpu.py", "heuristic_0x2", "it has expert, hops, heuristic"),
    ("configs/coding_cpu.py", "enumeration", "it has expert, enumeration_16, do_nothing"),
    ("configs/coding_counted_cpu.py", "nonsense", "do_nothing, reader"),
    ("configs/swarm_cpu.py", "nonsense", "it has expert"),
    ("examples/number_game/config.py", "nonsense", "it has random, halving"),
    ("examples/external_agent/config.py", "nonsense", "only demonstrator, careless, halving"),
  ],
)
def test_a_scripted_player_that_the_agent_lacks_is_refused_before_any_episode(path, player, has):
  config = config_lib.load(path)
  with pytest.raises(ValueError, match=f"'{player}'.*{has}"):
    evaluation.evaluate_player(config, NO_TASKS, player)


@pytest.mark.parametrize(
  ("path", "players"),
  [
    ("configs/search_cpu.py", "expert heuristic_2x1 hops_1x2 one_search_3 demonstrator hostile"),
    ("configs/coding_counted_cpu.py", "expert reader do_nothing enumeration enumeration_4"),
    ("configs/swarm_tables_cpu.py", "expert single_agent single_agent_unhurried demonstrator"),
    ("examples/number_game/config.py", "halving demonstrator"),
  ],
)
def test_players_of_the_agent_are_taken_also_those_with_numbers_in_their_names(path, players):
  config = config_lib.load(path)
  for player in players.split():
    evaluation.check_player(config, player)


def test_a_coding_player_needs_its_tools_and_one_that_does_nothing_needs_none():
  config = config_lib.load("configs/coding_cpu.py", ["coding.tools=('read_file', 'grep')"])
  with pytest.raises(ValueError, match="lacks edit_file, undo_edit, shell, which the .* 'expert'"):
    evaluation.check_player(config, "expert")
  evaluation.check_player(config, "do_nothing")
