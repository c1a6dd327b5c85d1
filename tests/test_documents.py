"""What the documents promise exists: commands, flags, options, paths and links are right."""

import ast
import fnmatch
import functools
import pathlib
import re
import shlex
import subprocess
import sys

import pytest

from jaxrl_agents import config as config_lib
from jaxrl_agents.runs import setup

ROOT = pathlib.Path(__file__).parents[1]
PACKAGE = ROOT / "jaxrl_agents"
SCRIPTS = sorted((ROOT / "scripts").glob("*.py"))
CONFIGS = sorted([*(ROOT / "configs").glob("*.py"), *(ROOT / "examples").glob("*/config.py")])
CHANGELOG = ROOT / "CHANGELOG.md"  # names options and paths that are gone
DOCUMENTS = sorted(
  path
  for pattern in ("*.md", "docs/**/*.md", "examples/**/*.md", "jaxrl_agents/**/*.md")
  for path in ROOT.glob(pattern)
)
# Flags that absl gives every script, beside its own.
EVERYWHERE = {"help", "helpfull", "v", "verbosity"}


def name_of(path):
  return path.relative_to(ROOT).as_posix()


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
  """Names of the flags of a script and of the modules of ours that it imports.

  A shell script has those of its `case`, or those of the Python script of its name.
  """
  if script.suffix == ".sh":
    if script.with_suffix(".py").is_file():
      return flags_of(script.with_suffix(".py"))
    return set(re.findall(r"--(\w+)(?:=\*|\))", script.read_text("utf-8")))
  names = defined_flags(script)
  for node in ast.walk(ast.parse(script.read_text("utf-8"))):
    if isinstance(node, ast.ImportFrom) and node.module.startswith(("jaxrl_agents", "bench.")):
      root = script.parent if node.module.startswith("bench.") else ROOT
      folder = root / node.module.replace(".", "/")
      for path in [folder.with_suffix(".py"), *(folder / f"{a.name}.py" for a in node.names)]:
        if path.is_file():
          names |= defined_flags(path)
  return names


def commands_in(text):
  """The words of each command line of `text` that runs one of our scripts."""
  joined = re.sub(r" *\\\n\s*", " ", text)
  for line in joined.splitlines():
    line = re.split(r"\s#\s", line.strip().removeprefix("$ "))[0]
    if re.match(r"([A-Z_]+=\S+ )*((\S*python3?|bash) )?(\./)?scripts/\w+\.(py|sh)\b", line):
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
    known = flags_of(path) | EVERYWHERE
    if known == EVERYWHERE:
      continue  # a shell script that hands its flags to another program
    for argument in arguments:
      name = re.match(r"--(no)?([\w-]+)", argument)
      if name and name[2] not in known and name[0].removeprefix("--") not in known:
        problems.append(f"{script} has no flag {argument}")
  return problems


def override_problems(text):
  """What is wrong with the overrides of the commands in `text`, tried on the config they name."""
  problems = []
  for script, arguments in commands_in(text):
    config, overrides = "configs/search_cpu.py", []
    for argument, following in zip(arguments, [*arguments[1:], ""], strict=False):
      if argument == "--set":
        overrides.append(following)
      elif argument.startswith("--config="):
        config = argument.partition("=")[2]
    if not overrides:
      continue
    try:
      setup.policy_loss(config_lib.load(str(ROOT / config), overrides))
    except ValueError as error:
      problems.append(f"{script} --config={config}: {error}")
  return problems


@functools.cache
def known_options():
  """Every option of every config: "section.option"."""
  return {name for path in CONFIGS for name in config_lib.options(config_lib.load(str(path)))}


def option_problems(text):
  """Options in `code` that do not exist: `section.option`, `section.option=value`, `section.*`.

  A dotted name that begins like a section may also be a module of the package.
  """
  options = known_options()
  sections = {name.rpartition(".")[0] for name in options} - {""}
  problems = []
  for name, value in re.findall(r"`([a-z]\w*(?:\.\w+)+)(\.\*|=[^`]*)?`", text):
    if not any(name.startswith(section.partition(".")[0] + ".") for section in sections):
      continue
    if (
      name in options
      or (name in sections and not value.startswith("="))
      or name.startswith("learner.loss_options.")
      or name.endswith(".py")  # a file, whose name may be that of a section
    ):
      continue
    parts = name.split(".")
    modules = [PACKAGE.joinpath(*parts[:n]) for n in range(2, len(parts) + 1)]
    if not value and any(m.is_dir() or m.with_suffix(".py").is_file() for m in modules):
      continue
    problems.append(f"no option {name}")
  return problems


@functools.cache
def file_names(folder):
  top = [path for path in folder.iterdir() if not path.name.startswith(".")]
  return {path.name for path in top} | {inner.name for path in top for inner in path.rglob("*.*")}


def path_problems(text, folder):
  """Paths in `code` that do not exist, seen from the root, the package or the document's folder.

  A file may go by its name alone: in a document of a package, one of that package.
  """
  names = file_names(folder if PACKAGE in folder.parents else ROOT)
  left_by_runs = ast.get_docstring(ast.parse((PACKAGE / "runs/workdir.py").read_text("utf-8")))
  problems = []
  for path in re.findall(r"`([\w.*-]+(?:/[\w.*-]*)+|\w+\.(?:py|sh|md|yml|ipynb|svg))`", text):
    wanted = path.rstrip("/")
    found = any(any(base.glob(wanted)) for base in (ROOT, PACKAGE, folder))
    if not found and path not in names and pathlib.Path(path).name not in left_by_runs:
      problems.append(f"{path} does not exist")
  return problems


def anchors(path):
  """The anchors of the headings of a Markdown file, as GitHub and mkdocs make them."""
  text = re.sub(r"^```.*?^```", "", path.read_text("utf-8"), flags=re.DOTALL | re.MULTILINE)
  titles = re.findall(r"^#+ (.*)$", text, flags=re.MULTILINE)
  return {re.sub(r"[^\w\s-]", "", title).strip().lower().replace(" ", "-") for title in titles}


def link_problems(path):
  """Links of a document whose file or heading does not exist."""
  problems = []
  for link in re.findall(r"\]\((?!https?:|mailto:)([^)\s]+)", path.read_text("utf-8")):
    file, _, anchor = link.partition("#")
    target = path.parent / file if file else path
    if not target.exists():
      problems.append(f"{link} does not exist")
    elif anchor and anchor not in anchors(target):
      problems.append(f"{link} names no heading; there are {sorted(anchors(target))}")
  return problems


@pytest.mark.slow
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


@pytest.mark.parametrize("document", [*DOCUMENTS, *SCRIPTS, *CONFIGS], ids=name_of)
def test_commands_in_documents_name_scripts_flags_and_options_that_exist(document):
  text = document.read_text("utf-8")
  if document.suffix == ".py":
    text = ast.get_docstring(ast.parse(text)) or ""
  assert flag_problems(text) + override_problems(text) == []


@pytest.mark.parametrize("document", [d for d in DOCUMENTS if d != CHANGELOG], ids=name_of)
def test_options_and_paths_in_documents_exist(document):
  text = document.read_text("utf-8")
  assert option_problems(text) + path_problems(text, document.parent) == []


@pytest.mark.parametrize("document", DOCUMENTS, ids=name_of)
def test_links_in_documents_lead_to_files_and_headings(document):
  assert link_problems(document) == []


def test_the_readme_is_short_and_shows_both_commands():
  text = (ROOT / "README.md").read_text("utf-8")
  assert len(text.encode()) <= 8_000
  assert {"scripts/quickstart.sh", "scripts/test.sh"} <= {script for script, _ in commands_in(text)}


def test_the_tree_in_the_readme_is_that_of_the_repository():
  text = (ROOT / "README.md").read_text("utf-8")
  (tree,) = re.findall(r"^```\n(jaxrl_agents/\n.*?)^```", text, flags=re.DOTALL | re.MULTILINE)
  rooms = set(re.findall(r"^  (\w+(?:/|\.py)) ", tree, flags=re.MULTILINE))
  folders = set(re.findall(r"^(\w+/)", tree, flags=re.MULTILINE))
  lines = (ROOT / ".gitignore").read_text("utf-8").splitlines()
  ignored = [".*", *(line.strip("/") for line in lines if line and not line.startswith("#"))]
  there = {path.name for path in ROOT.iterdir() if path.is_dir()}
  kept = {name for name in there if not any(fnmatch.fnmatch(name, each) for each in ignored)}
  assert folders == {f"{name}/" for name in kept}
  assert rooms == {
    path.name + "/" * path.is_dir()
    for path in PACKAGE.iterdir()
    if path.name not in ("__init__.py", "__pycache__")
  }


def test_the_reference_names_modules_that_exist_and_leaves_no_package_out():
  named = set()
  for page in (ROOT / "docs/reference").glob("*.md"):
    named |= set(re.findall(r"^::: jaxrl_agents\.(\S+)", page.read_text("utf-8"), re.MULTILINE))
  parts = {path.parent.name for path in PACKAGE.glob("*/__init__.py")} | {"types"}
  assert named <= parts
  assert parts - named <= {"wire"}


def test_every_page_of_docs_is_in_the_navigation():
  navigation = (ROOT / "mkdocs.yml").read_text("utf-8").partition("\nnav:")[2]
  pages = {path.relative_to(ROOT / "docs").as_posix() for path in (ROOT / "docs").rglob("*.md")}
  assert pages == set(re.findall(r"\S+\.md", navigation))


def test_wrong_commands_are_found():
  script = SCRIPTS[0]
  flag = sorted(flags_of(script))[0]
  right = f"  $ python scripts/{script.name} --{flag}=1 \\\n    --help"
  assert list(commands_in(right)) == [(f"scripts/{script.name}", [f"--{flag}=1", "--help"])]
  assert flag_problems(right) == []
  assert flag_problems(f"python scripts/{script.name} --no_such_flag") == [
    f"scripts/{script.name} has no flag --no_such_flag"
  ]
  assert flag_problems("bash scripts/gpu_pod.sh --nodes=2 --knots=2") == [
    "scripts/gpu_pod.sh has no flag --knots=2"
  ]
  assert flag_problems("JAX_PLATFORMS=cpu .venv/bin/python scripts/absent.py") == [
    "scripts/absent.py does not exist"
  ]


def test_wrong_overrides_options_and_paths_are_found():
  wrong = "python scripts/train_rl.py --set learner.lr=1e-4 --set learner.loss_options.hight=2"
  (problem,) = override_problems(wrong)
  assert "did you mean 'high'?" in problem
  assert option_problems("`learner.lr=1`, `search.reward.*`, `learner.losses.cispo`") == []
  assert option_problems("`learner.rate`, `swarm.parl.*`, `parl.finish`, `sft.x=1`") == [
    "no option learner.rate",
    "no option sft.x",
  ]
  assert path_problems("`learner/losses.py`, `rl.py`, `W`, `learner/absent.py`", ROOT) == [
    "learner/absent.py does not exist"
  ]


def test_wrong_links_are_found(tmp_path):
  page = tmp_path / "page.md"
  page.write_text("# One: `two`\n\n[a](#one-two) [b](#three) [c](page.md) [d](absent.md)\n")
  assert [problem.partition(" ")[0] for problem in link_problems(page)] == ["#three", "absent.md"]
