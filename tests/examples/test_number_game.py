"""The smallest agent of a user's own: an environment, a config that names it, no edit of ours."""

import ast
import asyncio
import math
import pathlib
import types

import jax
import numpy as np
import pytest

from examples.number_game.agent import AGENT, NumberConfig
from examples.number_game.env import NumberGame
from jaxrl_agents import config as config_lib
from jaxrl_agents.runs import saved_policy, weight_files
from jaxrl_agents.types import Message
from tests.runs import whole_run
from tests.runs.whole_run import run

pytestmark = pytest.mark.slow

CONFIG = "examples/number_game/config.py"


def played(number, *replies):
  """The game after the replies, with the last context."""
  task = AGENT.tasks(types.SimpleNamespace(options=NumberConfig())).tasks["train"][number - 1]
  game, context = NumberGame(task, NumberConfig()), None
  asyncio.run(game.start())
  for reply in replies:
    context = asyncio.run(game.step(Message("assistant", reply)))
  return game, context


def test_the_environment_has_at_most_30_lines():
  tree = ast.parse(pathlib.Path("examples/number_game/env.py").read_text())
  (game,) = [node for node in tree.body if isinstance(node, ast.ClassDef)]
  assert game.end_lineno - game.lineno < 30


def test_hints_point_to_the_number_and_the_game_ends_when_it_is_named():
  game, context = played(5, "3", "6")
  assert [m.content for m in context.messages[2::2]] == ["higher", "lower"] and not context.done
  game, context = played(5, "3", "5")
  assert context.done and game.rewards(None) == {"reward": 1.0, "guesses": 2.0}


def test_the_game_is_lost_after_three_wrong_guesses_and_words_are_wrong():
  game, context = played(5, "five", "4", "6")
  assert context.done and game.rewards(None)["reward"] == 0.0


def test_it_is_warmed_up_trained_and_compared_with_its_players_by_its_config_alone(tmp_path):
  summary, rows, html = run(CONFIG, tmp_path, "eval.tasks=21", "number_game.guesses=2")
  assert {"warm_start", "trained", "random", "halving"} <= set(summary["eval"])
  # With two guesses halving wins on 2, 4 and 6 of 7; every seventh task has the same number.
  assert 0 < summary["eval"]["halving"]["reward"] < 1
  assert math.isfinite(summary["paired_bootstrap"]["reward_gain_lower95"])
  assert summary["config"]["number_game.guesses"] == 2
  assert "Guess a number from 1 to 7." in html
  folder, config = tmp_path / "run", config_lib.load(CONFIG, whole_run.SMALL)
  last = saved_policy.load(config, folder, saved_policy.Saved("rl", 1), dtype="float32")
  trained = weight_files.load(str(folder / "trained"), config.policy.model)
  jax.tree.map(np.testing.assert_array_equal, last, trained)


def test_a_misspelt_option_of_the_agent_is_refused_with_the_nearest_name():
  with pytest.raises(ValueError, match="number_game.guesses"):
    config_lib.load(CONFIG, ["number_game.guess=2"])
  with pytest.raises(ValueError, match="number_game"):
    config_lib.load(CONFIG, ["numbergame.size=3"])
