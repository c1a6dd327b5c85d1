"""Coding episodes over the hand-made repositories, played by scripts."""

import dataclasses

from jaxrl_agents import chat
from jaxrl_agents.agents.coding.config import CodingConfig
from jaxrl_agents.agents.coding.scripted_edits import make_player, turn
from jaxrl_agents.agents.coding.services import CodeIndexes, CodingServices, Pages
from jaxrl_agents.harness.rollout import Sampling, run_episode
from jaxrl_agents.types import Message, Task
from tests.agents.coding.judge.benches import CALL_FACTS, CALLS, SUITE, SUITE_FACTS, with_sandboxes

PROMPT = "`python3 check.py` fails. Mend main.py."
CALL_TASK = Task("c", "coding", PROMPT, CALL_FACTS)
SUITE_TASK = Task("s", "coding", "test_shop fails. Mend shop.py.", SUITE_FACTS)
LIMITS = CodingConfig(
  token_budget=4_000,
  tool_output_tokens=400,
  max_new_tokens=400,
  summary_tokens=60,
  max_turns=30,
  command_s=5.0,
  chunk_tokens=40,
  system_prompt="",
)
DONE = Message("assistant", "Done.")
MEND = ("edit_file", {"path": "main.py", "old": "if value > low", "new": "if value < low"})
CHECK = ("shell", {"command": "python3 check.py"})


def services(workshop, **changes):
  limits = dataclasses.replace(LIMITS, **changes)
  pages = Pages({"https://example.org/Clamp": "clamp keeps a value between two bounds"})
  repos = {repo.id: repo for repo in (CALLS, SUITE)}
  return CodingServices(chat.load(), repos, limits, workshop, CodeIndexes(40), pages)


async def play_async(shared, turns, task=CALL_TASK, **options):
  """Plays turns (messages, or functions of the context); the last again where more are asked."""
  script = list(turns)

  def next_turn(context):
    one = script.pop(0) if len(script) > 1 else script[0]
    return one(context) if callable(one) else one

  player = make_player(task, shared, next_turn)
  sampling = Sampling(max_new_tokens=shared.limits.max_new_tokens)
  return await run_episode(player, shared.chat, player, task=task, sampling=sampling, **options)


def play(turns, task=CALL_TASK, **changes):
  """The trajectory of scripted turns."""
  return with_sandboxes(lambda workshop: play_async(services(workshop, **changes), turns, task))


def results(trajectory):
  return [m.content for m in trajectory.log if m.role == "tool"]


def observed(*calls, task=CALL_TASK, **changes):
  """What each call of one turn is answered."""
  return results(play([turn(*calls), DONE], task, **changes))


def run(body):
  """`await body(workshop)`."""
  return with_sandboxes(body)
