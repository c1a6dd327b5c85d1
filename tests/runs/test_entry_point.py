"""How a script ends: bad input in a line and status 2, never a traceback unless asked for."""

import os
import pathlib
import subprocess
import sys

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]


def run(*arguments, **environment):
  return subprocess.run(
    [sys.executable, *arguments],
    cwd=ROOT,
    env=os.environ | {"JAX_PLATFORMS": "cpu"} | environment,
    capture_output=True,
    text=True,
    timeout=120,
  )


@pytest.mark.slow
@pytest.mark.parametrize(
  ("arguments", "message"),
  [
    (("scripts/view.py", "--workdir=/nowhere"), "error: no folder /nowhere"),
    (
      ("scripts/view.py", "--workdir=.", "--out=docs"),
      "error: --out=docs is a folder; name a file in it",
    ),
    (
      ("scripts/view.py", "--workdir=.", "--out=/nowhere/x.html"),
      "--out=/nowhere/x.html: there is no",
    ),
    (("scripts/export_policy.py", "--workdir=.", "--out=."), "--out=. is the folder of a run"),
    (("scripts/make_search_tasks.py", "--corpus=/nowhere", "--out=/nowhere/out"), "no such folder"),
    (("scripts/train_rl.py", "--workdir=/nowhere", "--set=learner.lrr=1"), "did you mean"),
    (("scripts/evaluate.py", "--player=nonsense"), "no scripted player 'nonsense'; it has expert"),
    (("scripts/evaluate.py", "--checkpoint=/nowhere"), "/nowhere holds no policy"),
    (("scripts/evaluate.py", "--json=/nowhere/x.json"), "--json=/nowhere/x.json: there is no such"),
  ],
)
def test_bad_input_is_reported_in_one_line_with_status_2(arguments, message, tmp_path):
  ended = run(*arguments, JAXRL_CACHE=str(tmp_path / "cache"))
  assert ended.returncode == 2
  assert not (tmp_path / "cache").exists()  # no tasks were made first
  assert message in ended.stderr and "Traceback" not in ended.stderr


@pytest.mark.slow
@pytest.mark.parametrize(
  ("arguments", "message"),
  [
    (("scripts/import_chats.py", "--chats=/nowhere"), "No such file or directory: '/nowhere'"),
    (("scripts/rft.py",), "set --workdir to the run whose policy plays, or --teacher_url"),
    (("scripts/rft.py", "--workdir=HERE/none"), "error: no folder HERE/none"),
    (("scripts/rft.py", "--workdir=docs", "--tasks=4"), "docs holds no policy"),
    (("scripts/rft.py", "--teacher_url=http://localhost"), "needs the number of tasks"),
  ],
)
def test_scripts_that_fill_a_new_folder_make_none_if_their_input_is_wrong(
  arguments, message, tmp_path
):
  arguments = (*arguments, "--config=configs/search_cpu.py", "--into=HERE/next")
  ended = run(*(argument.replace("HERE", str(tmp_path)) for argument in arguments))
  assert ended.returncode == 2 and message.replace("HERE", str(tmp_path)) in ended.stderr
  assert not any(tmp_path.iterdir())


def test_the_traceback_is_shown_on_request():
  ended = run("scripts/view.py", "--workdir=/nowhere", JAXRL_TRACEBACK="1")
  assert "Traceback" in ended.stderr and "ValueError: no folder /nowhere" in ended.stderr


@pytest.mark.parametrize(
  ("arguments", "message"),
  [
    (("/nowhere", "--workdir=/nowhere"), "error: unexpected '/nowhere'; every argument"),
    (("--wrkdir=/nowhere",), "error: Unknown command line flag 'wrkdir'. Did you mean: workdir"),
    ((), "error: flag --workdir=None: Flag --workdir must have a value"),
  ],
)
def test_a_wrong_flag_is_reported_in_one_line_with_status_2(arguments, message):
  ended = run("scripts/view.py", *arguments)
  assert ended.returncode == 2
  assert ended.stderr.startswith(message) and ended.stdout == ""


def test_a_tilde_in_a_flag_is_the_home_folder(tmp_path):
  ended = run("scripts/view.py", "--workdir=~/nowhere", HOME=str(tmp_path))
  assert ended.stderr.startswith(f"error: no folder {tmp_path}/nowhere;")


@pytest.mark.parametrize("argument", ["--learner.steps=3", "learner.steps=3"])
def test_an_option_of_the_config_without_set_is_an_error_that_names_set(argument):
  ended = run("scripts/serve_mcp.py", argument)
  assert ended.returncode == 2 and "write --set learner.steps=" in ended.stderr
