"""configs/coding_cpu.py where reading is needed: three test runs, four edits, damage of all kinds.

scripts/train_base.sh coding B
python scripts/train_rl.py --config=configs/coding_counted_cpu.py --workdir=W \\
  --set policy.init=B/base
"""

import dataclasses
import pathlib

from jaxrl_agents import config

PACKAGES = "package:jax,numpy,scipy,flax,optax,orbax,tensorflow,keras"


def get_config() -> config.RunConfig:
  """Flips, lines and pairs of them, in one file of two or in one file; no shell, no haste."""
  folder = pathlib.Path(__file__).parent
  recipe = config.load(str(folder / "coding_cpu.py"))
  search = config.load(str(folder / "search_cpu.py"))
  options = dataclasses.replace(
    recipe.agent_config,
    sources=("python",),
    drill_sources=(PACKAGES,),  # no drill shows a function that reinforcement learning trains on
    damage="mixed",
    max_files=2,
    tasks_per_repo=12,
    tools=("read_file", "edit_file", "replace_lines", "undo_edit", "run_tests"),
    # One run to see what fails, one to check a repair, and one for a second try; two edits each,
    # since a function may have two faults.
    test_runs=3,
    max_edits=4,
    token_budget=1_024,
    max_new_tokens=320,  # a repair of several long lines
    hasty=0.0,
  )
  return dataclasses.replace(
    recipe,
    name="coding_counted_cpu",
    agent_config=options,
    policy=search.policy,
    learner=dataclasses.replace(
      recipe.learner,
      level_weights_early=(0.6, 0.4, 0.0, 0.0),
      level_weights_late=(0.5, 0.5, 0.0, 0.0),
    ),
  )
