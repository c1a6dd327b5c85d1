"""What the documents promise exists: scripts answer --help, commands and paths are right."""

import ast
import pathlib
import re
import shlex
import subprocess
import sys

import pytest

ROOT = pathlib.Path(__file__).parents[1]
SCRIPTS = sorted((ROOT / "scripts").glob("*.py"))
# Flags that absl gives every script, beside its own.
EVERYWHERE = {"help", "helpfull", "v", "verbosity"}


def defined_flags(path):
  """Names of the flags that one file defines, read from its source."""
  names = set()
  for node in ast.walk(ast.parse(path.read_text("utf-8"))):
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.args:
      first = node.args[0]
      if isinstance(first, ast.Constant) and isinstance(first.value, str):
        if node.func.attr.upper().startswith("DEFINE_"):
          names.add(first.value)
        elif node.func.attr == "add_argument" and first.value.startswith("--"):
          names.add(first.value.removeprefix("--"))
  return names


def flags_of(script):
  """Names of the flags of a script and of the modules of ours that it imports."""
  names = defined_flags(script)
  for node in ast.walk(ast.parse(script.read_text("utf-8"))):
    if isinstance(node, ast.ImportFrom) and node.module.startswith("jaxrl_agents"):
      folder = ROOT / node.module.replace(".", "/")
      for path in [folder.with_suffix(".py"), *(folder / f"{a.name}.py" for a in node.names)]:
        if path.is_file():
          names |= defined_flags(path)
  return names


def commands_in(text):
  """The words of each command line of `text` that runs one of our scripts."""
  joined = text.replace("\\\n", " ")
  for line in joined.splitlines():
    line = line.strip().removeprefix("$ ").partition("  #")[0]
    if re.match(r"([A-Z_]+=\S+ )*(\S*python3? )?(\./)?scripts/\w+\.(py|sh)\b", line):
      words = shlex.split(line)
      start = next(i for i, word in enumerate(words) if re.search(r"scripts/\w+\.(py|sh)$", word))
      yield words[start].removeprefix("./"), words[start + 1 :]


def flag_problems(text):
  """What is wrong with the commands in `text`: scripts that are absent, flags nobody defines."""
  problems = []
  for script, arguments in commands_in(text):
    path = ROOT / script
    if not path.is_file():
      problems.append(f"{script} does not exist")
      continue
    source = path.with_suffix(".py")  # quickstart.sh hands its flags to quickstart.py
    if not source.is_file():
      continue
    known = flags_of(source) | EVERYWHERE
    for argument in arguments:
      name = re.match(r"--(no)?([\w-]+)", argument)
      if name and name[2] not in known and name[0].removeprefix("--") not in known:
        problems.append(f"{script} has no flag {argument}")
  return problems


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.stem)
def test_help_of_a_script_names_its_flags(script):
  shown = subprocess.run(
    [sys.executable, script, "--help"], capture_output=True, text=True, timeout=120, cwd=ROOT
  )
  flags = flags_of(script)
  assert "Traceback" not in shown.stderr, shown.stderr
  assert flags
  named = set(re.findall(r"--(?:\[no\])?(\w+):", shown.stdout + shown.stderr))
  assert sorted(flags - named) == []


@pytest.mark.parametrize(
  "document",
  [ROOT / "README.md", *SCRIPTS, *sorted((ROOT / "configs").glob("*.py"))],
  ids=lambda path: path.name,
)
def test_commands_in_documents_name_scripts_and_flags_that_exist(document):
  text = document.read_text("utf-8")
  if document.suffix == ".py":
    text = ast.get_docstring(ast.parse(text)) or ""
  assert flag_problems(text) == []


def test_the_readme_shows_commands_and_names_files_that_exist():
  text = (ROOT / "README.md").read_text("utf-8")
  assert list(commands_in(text))
  links = re.findall(r"\]\((?!https?:|#|mailto:)([^)\s#]+)", text)
  assert [link for link in links if not (ROOT / link).exists()] == []


def test_wrong_commands_are_found():
  script = SCRIPTS[0]
  flag = sorted(flags_of(script))[0]
  right = f"  $ python scripts/{script.name} --{flag}=1 \\\n    --help"
  assert list(commands_in(right)) == [(f"scripts/{script.name}", [f"--{flag}=1", "--help"])]
  assert flag_problems(right) == []
  assert flag_problems(f"python scripts/{script.name} --no_such_flag") == [
    f"scripts/{script.name} has no flag --no_such_flag"
  ]
  assert flag_problems("JAX_PLATFORMS=cpu .venv/bin/python scripts/absent.py") == [
    "scripts/absent.py does not exist"
  ]
