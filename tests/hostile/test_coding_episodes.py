"""Coding episodes in which the policy damages its own sandbox: its failure, with a reward."""

import time

import pytest

from jaxrl_agents.harness.rollout import EpisodeError
from tests.agents.coding.bench import CHECK, DONE, MEND, play, play_async, run, services, turn

pytestmark = pytest.mark.slow

SHELL = lambda command: ("shell", {"command": command})


def nested(depth, length):
  made = f"name = 'x' * {length}\nfor _ in range({depth}): os.mkdir(name); os.chdir(name)"
  return SHELL(f'python3 -c "import os\n{made}"')


@pytest.mark.parametrize(("depth", "length"), [(30, 200), (1_500, 1), (200, 3)])
@pytest.mark.parametrize("snapshot_turns", [0, 1])
def test_nested_folders_fail_the_episode_and_do_not_void_it(depth, length, snapshot_turns):
  trajectory = play(
    [turn(MEND), turn(nested(depth, length)), turn(CHECK), DONE], snapshot_turns=snapshot_turns
  )
  assert trajectory.error == ""
  assert (trajectory.stop, trajectory.rewards["solved"]) == ("answer", 0.0)
  assert trajectory.rewards["kept"] == trajectory.rewards["mended"] == 0.0


def test_removed_in_time_they_cost_nothing():
  turns = [turn(MEND), turn(nested(30, 200)), turn(SHELL("rm -rf xxx*")), DONE]
  assert play(turns).rewards["solved"] == 1.0


def test_a_sandbox_that_is_lost_without_a_snapshot_ends_the_episode_with_a_reward():
  async def body(workshop):
    shared = services(workshop, snapshot_turns=0)

    def lose_it(context):
      for box in list(workshop.boxes._boxes.values()):
        box._writer.close()
      return turn(CHECK)

    return await play_async(shared, [turn(MEND), lose_it, turn(CHECK), DONE])

  trajectory = run(body)
  assert (trajectory.error, trajectory.stop) == ("", "sandbox_lost")
  assert trajectory.rewards["solved"] == 0.0


def test_a_machine_that_cannot_judge_voids_the_episode_and_says_so():
  async def body(workshop):
    def end_all(context):
      workshop.boxes._backend._process.kill()
      return DONE

    return await play_async(services(workshop), [turn(MEND), end_all])

  with pytest.raises(EpisodeError, match="nor the repository without it .* could be judged"):
    run(body)


def test_tools_on_a_file_of_holes_answer_soon_and_the_task_can_be_solved():
  calls = [
    ("read_file", {"path": "big"}),
    ("edit_file", {"path": "big", "old": "x", "new": "y"}),
    ("grep", {"pattern": "needle", "path": "big"}),
    ("write_file", {"path": "big", "content": "small"}),
  ]
  turns = [turn(MEND), turn(SHELL("truncate -s 200M big")), *map(turn, calls), DONE]
  start = time.perf_counter()
  assert play(turns).rewards["solved"] == 1.0
  assert time.perf_counter() - start < 40.0


def test_forty_thousand_new_files_cost_their_writer_alone():
  made = "for i in range(40_000): os.link('f', f'f{i}')"
  command = f"python3 -c \"import os; open('f', 'w').write('x')\n{made}\""
  start = time.perf_counter()
  trajectory = play([turn(MEND), turn(SHELL(command)), DONE], snapshot_turns=0)
  assert (trajectory.error, trajectory.rewards["solved"]) == ("", 1.0)
  assert time.perf_counter() - start < 40.0
