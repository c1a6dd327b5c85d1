"""Overrides that no one should write: each is taken, or refused in one sentence with its option."""

import dataclasses
import os
import pathlib
import random
import re
import subprocess
import sys

import pytest

from jaxrl_agents import config as config_lib
from jaxrl_agents.runs import config_flags

CONFIGS = sorted(str(path) for path in pathlib.Path("configs").glob("*.py"))

DEEP = [f"{a * 10_000}{b * 10_000}" for a, b in ("()", "[]", "{}", ("-", ""), ("'", "'"))]
ODD = [
  *("nan", "inf", "-inf", "NaN", "1e400", "-1e400", "1e-400", "-0.0", "0", "-1", "1", "2", "0.5"),
  *(
    "9" * 30,
    "9" * 400,
    "9" * 5_000,
    "-" + "9" * 400,
    str(2**63),
    str(2**31),
    "1e9",
    "1_0",
    "0x10",
  ),
  *("", " ", "''", '""', "()", "[]", "{}", "(,)", "None", "True", "false", "(None,)", "('a',)"),
  *("(nan,)", "(1e999,)", f"({'9' * 400},)", "(1,2,3,4)", "0.1,0.2,0.3,0.4", "(True,)", "((1,),)"),
  *("ü", "\u0661\u0662", "\ud800", "\0", "a\0b", "\n", "a\nb", "\N{PILE OF POO}" * 50, "x" * 5_000),
  *("=", "a=b", "%s", "{0}", "../..", "/dev/null", "os:system", ":", "os:", ":x", ".x:y", "a b:c"),
  *("[1" + ",1" * 5_000 + "]", "__import__('os')", "lambda: 1", "f'{1}'", "b'x'", "1j", "{1: 2}"),
]
NAMES = ["", ".", "..", "learner.", ".lr", "learner..lr", "x" * 5_000, "learner.lr.x", "ü.ö", "\0"]


def check(base, override, option):
  """Applies an override as scripts do; whatever it raises must be a sentence of a ValueError."""
  try:
    config_flags.checked(config_lib.validate(config_lib.with_overrides(base, [override])))
  except ValueError as error:
    text = str(error)
    assert option.rpartition(".")[2][:40] in text, (override[:80], text[:300])
    assert len(text) < 600 and "\n" not in text and "\0" not in text, (override[:80], text[:900])
    text.encode()
    return False
  return True


@pytest.mark.slow
def test_each_of_8000_odd_overrides_loads_or_is_refused_by_the_name_of_its_option():
  draw = random.Random(0)
  bases = [config_lib.load(path) for path in CONFIGS]
  taken = 0
  for trial in range(8_000):
    base = draw.choice(bases)
    option = draw.choice(list(config_lib.options(base)))
    value = draw.choice(ODD if trial % 40 else DEEP)
    taken += check(base, f"{option}={value}", option)
  assert 500 < taken < 6_000


@pytest.mark.parametrize("value", DEEP)
def test_a_literal_of_any_depth_is_refused_for_an_option_that_holds_several_values(value):
  base = config_lib.load("configs/search_cpu.py")
  for option in ("sft.rates", "learner.steps", "learner.lr", "search.can_prune"):
    assert not check(base, f"{option}={value}", option)


@pytest.mark.parametrize("name", NAMES)
def test_an_odd_name_is_refused_with_the_nearest(name):
  base = config_lib.load("configs/search_cpu.py")
  with pytest.raises(ValueError, match="did you mean|is a section|goes deeper") as found:
    config_lib.with_overrides(base, [f"{name}=1"])
  assert len(str(found.value)) < 400 and "\0" not in str(found.value)
  str(found.value).encode()


def test_of_an_option_given_twice_the_last_value_counts():
  loaded = config_lib.load("configs/search_cpu.py", ["learner.lr=1", "learner.lr=0.5"])
  assert loaded.learner.lr == 0.5


@pytest.mark.parametrize(
  ("content", "message"),
  [
    ("def get_config(:", r"bad.py cannot be run: SyntaxError: .*line 1"),
    ("x = 1 / 0", r"bad.py cannot be run: ZeroDivisionError: division by zero, at line 1"),
    ("import no_such_module", r"bad.py cannot be run: ModuleNotFoundError: .*no_such_module"),
    ("\n\ndef get_config():\n  return undefined", r"bad.py cannot be run: NameError: .*at line 4"),
    ("def get_config():\n  return None", r"get_config\(\) of .*bad.py returns a NoneType, not a"),
    ("get_config = 3", r"get_config of .*bad.py is no function"),
    ("x = 1", r"defines no get_config\(\)"),
    ("def get_config(x):\n  return x", r"cannot be run: TypeError: get_config\(\) missing"),
    ("\0", r"bad.py cannot be run: "),
    ("\xff", r"bad.py cannot be run: "),
    ("x = " + "(" * 5_000, r"bad.py cannot be run: "),
  ],
)
def test_a_config_file_that_fails_is_an_error_with_its_line(tmp_path, content, message):
  file = tmp_path / "bad.py"
  file.write_bytes(content.encode("latin-1"))
  with pytest.raises(ValueError, match=message) as found:
    config_lib.load(str(file))
  assert "\n" not in str(found.value)


@pytest.mark.parametrize(
  "override",
  [
    "policy.model.rope_theta=0", "policy.model.norm_eps=-1", "policy.model.route_scale=0",
    "policy.model.num_shared_experts=-1", "policy.model.dense_ffw_dim=-4", "learner.substeps=0",
    "sft.beside=('',)", "agent=os:path", "agent=json:JSONDecoder", "fleet.address=nowhere",
  ],
)  # fmt: skip
def test_values_that_can_only_fail_later_are_refused_at_load(override):
  assert not check(config_lib.load("configs/search_cpu.py"), override, override.partition("=")[0])


def test_a_list_of_options_names_each_with_its_type_range_and_value():
  for path in CONFIGS:
    config = config_lib.load(path)
    described = {each.name: each for each in config_lib.described(config)}
    assert list(described) == list(config_lib.options(config))
    assert described["learner.substeps"].kind == "int, at least 1"
    assert described["learner.lr"].kind == "float, above 0"
    assert described["eval.top_p"].kind == "float, above 0 and at most 1"
    assert described["learner.remat"].kind == "one of none, layer, attention, projections"
    assert described["sft.rates"].kind == "tuple of float, at least 0"
    assert described["learner.single_epoch"].kind == "bool"
    assert described["learner.keep_checkpoints"].value == "2"
  swarm = {each.name for each in config_lib.described(config_lib.load("configs/swarm_cpu.py"))}
  assert "swarm.parl.anneal_end" in swarm and "swarm.search.can_prune" in swarm
  assert dataclasses.is_dataclass(next(iter(described.values())))


def shown_help(script, *arguments):
  return subprocess.run(
    [sys.executable, f"scripts/{script}", *arguments, "--help"],
    env={**os.environ, "PYTHONPATH": os.getcwd(), "JAX_PLATFORMS": "cpu"},
    capture_output=True,
    text=True,
  ).stdout


@pytest.mark.slow
def test_help_lists_every_option_of_the_config_that_is_named():
  shown = shown_help("train_rl.py", "--config=configs/swarm_cpu.py", "--set", "learner.steps=7")
  lines = [re.split(" {2,}", line.strip()) for line in shown.splitlines()]
  assert ["learner.steps", "int, at least 0", "[7]"] in lines
  assert ["swarm.parl.anneal_end", "float, at least 0 and at most 1", "[0.6]"] in lines
  listed = [line[0] for line in lines if line]
  assert set(config_lib.options(config_lib.load("configs/swarm_cpu.py"))) <= set(listed)
  assert "--workdir: folder of the run" in listed
  assert "did you mean 'learner.lr'?" in shown_help("train_rl.py", "--set=learner.lrr=1")
