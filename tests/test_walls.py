"""Who may import whom. The walls are data; the checker walks the syntax trees, so nothing is run.

An import inside a function counts as one at the top, which only comes later, but for LATE.
"""

import ast
import graphlib
import pathlib
import sys

import pytest

ROOT = pathlib.Path(__file__).parents[1]
PACKAGE = "jaxrl_agents"

# What everybody may import; these themselves import the standard library, numpy and one another.
FOUNDATION = (
  "background",
  "types",
  "config",
  "durable",
  "policy.config",
  "file_digests",
  "full_disk",
  "record_log",
  "service_log",
  "stopwatch",
)

# Room or module -> what else of the package it may import. The longest matching key rules. A room
# may import itself; a key below a room (sampler.pages) only what it names.
WALLS = {
  "chat": (),
  "corpus": (),
  "harness": ("chat",),
  "sandbox": (),
  "gateway": ("chat", "harness"),
  "realtime": ("agents.scores", "chat", "gateway", "harness", "weights.manifest"),
  "agents": ("chat", "corpus", "gateway", "harness", "sandbox"),
  "policy": (),
  "hf": ("policy",),
  "sampler": ("policy", "weights"),
  "sampler.pages": (),
  "sampler.sequence": (),
  "sampler.stats": (),
  "sampler.scheduler": ("sampler.pages", "sampler.sequence"),
  "sampler.engine_protocol": ("sampler.sequence", "sampler.stats"),
  "sampler.engine_calls": ("sampler.engine_protocol", "sampler.sequence", "sampler.stats"),
  "sampler.slices": ("sampler.engine_calls", "sampler.sequence", "sampler.stats"),
  "weights": (),
  "weights.places": ("weights.timeouts",),
  "weights.manifest": ("weights.places",),
  "weights.boxes": (),
  "weights.streams": (),
  "weights.timeouts": (),
  "weights.chain": ("weights.manifest", "weights.places"),
  "weights.delta_files": (
    "weights.boxes",
    "weights.manifest",
    "weights.places",
    "weights.timeouts",
    "weights.streams",
  ),
  "learner": ("policy", "weights"),
  "learner.advantage": (),
  "learner.packing": ("learner.advantage", "learner.placement", "learner.prefix_trees"),
  "learner.placement": ("learner.advantage", "learner.prefix_trees"),
  "learner.prefix_trees": (),
  "learner.curriculum": (),
  "learner.segment_files": (),
  "fleet": ("harness",),
  "planning": ("policy", "sampler", "learner"),
  "viewer": ("agents",),
}
# Wires the rooms together for the scripts; no room imports it back.
WIRING = "runs"
WALLS[WIRING] = tuple(room for room in WALLS if "." not in room)

# Spawned workers, the browser of results and the server of tools: neither these nor what they
# import reaches jax.
WITHOUT_JAX = (
  *FOUNDATION,
  "chat",
  "sampler.pages",
  "sampler.sequence",
  "sampler.scheduler",
  "sampler.engine_protocol",
  "sampler.stats",
  "sampler.engine_calls",
  "sampler.slices",
  "learner.advantage",
  "learner.packing",
  "learner.placement",
  "learner.prefix_trees",
  "learner.curriculum",
  "learner.segment_files",
  "weights.places",
  "weights.manifest",
  "weights.boxes",
  "weights.streams",
  "weights.chain",
  "weights.delta_files",
  "fleet",
  "harness",
  "gateway",
  "realtime",
  "corpus",
  "sandbox",
  "agents",
  "viewer",
  "runs.agent_setting",
  "runs.cores",
  "runs.mcp_server",
)
# Encodes a corpus when an index is built, never when it is searched: functions of its room may
# import it.
LATE = "corpus.index.encode"
JAX = {"jax", "jaxlib", "flax", "optax", "orbax", "chex"}

TENSORFLOW = {"seqio", "tensorflow", "tensorflow_datasets", "tensorflow_text", "keras", "clu", "t5"}
TENSORFLOW_ALLOWED = "learner.seqio_mixture"


def is_in(module, room):
  return module == room or module.startswith(room + ".")


def read_imports(root):
  """{module below the package: names it imports, in full and dotted} for every file of `root`.

  Left out is LATE where a function of its own room imports it.
  """
  files = {}
  for path in sorted((root / PACKAGE).rglob("*.py")):
    parts = path.relative_to(root).with_suffix("").parts
    files[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
  imports = {}
  for module, path in files.items():
    package = module if path.name == "__init__.py" else module.rpartition(".")[0]
    found, late = set(), set()
    tree = ast.parse(path.read_text("utf-8"), str(path))
    functions = [n for n in ast.walk(tree) if isinstance(n, ast.FunctionDef | ast.AsyncFunctionDef)]
    inner = {id(node) for function in functions for node in ast.walk(function)}
    for node in ast.walk(tree):
      into = late if id(node) in inner else found
      if isinstance(node, ast.Import):
        into.update(alias.name for alias in node.names)
      elif isinstance(node, ast.ImportFrom):
        above = package.split(".")[: len(package.split(".")) - node.level + 1] if node.level else []
        base = ".".join([*above, *filter(None, [node.module])])
        # `from room import name` imports a module where there is one of that name.
        into.update(
          f"{base}.{alias.name}" if f"{base}.{alias.name}" in files else base
          for alias in node.names
        )
    name = module.removeprefix(PACKAGE).removeprefix(".")
    if is_in(name, LATE.partition(".")[0]):
      late.discard(f"{PACKAGE}.{LATE}")
    imports[name] = found | late
  return imports


def inside(names):
  """Those of `names` that are modules of the package, without the package's name."""
  prefix = PACKAGE + "."
  return {name.removeprefix(prefix) for name in names if name.startswith(prefix)}


def outside(names):
  return {name.partition(".")[0] for name in names} - {PACKAGE, "__future__"}


def wall_violations(imports):
  found = []
  for module, names in imports.items():
    keys = [key for key in WALLS if is_in(module, key)]
    key = max(keys, key=len, default="")
    if any(is_in(module, room) for room in FOUNDATION):
      allowed = FOUNDATION
    elif not key:
      if module:  # the package's own __init__ may import nothing of it
        found.append(f"{module} stands in no room of WALLS")
      allowed = ()
    else:
      own_room = (key,) if "." not in key else ()
      allowed = (*WALLS[key], *own_room, *FOUNDATION)
    for name in sorted(inside(names)):
      if not any(is_in(name, room) for room in allowed):
        found.append(f"{module or PACKAGE} imports {name}")
    for name in sorted(outside(names) & {"scripts", "configs", "tests"}):
      found.append(f"{module} imports {name}")
  return found


def reachable(imports, module):
  """Everything that importing `module` runs: its imports, theirs, and the packages they lie in."""
  reached, waiting = {}, [(module, ())]
  while waiting:
    name, path = waiting.pop()
    if name in reached or name not in imports:
      continue
    reached[name] = (*path, name)
    parts = name.split(".")
    parents = {".".join(parts[:n]) for n in range(len(parts))}
    waiting.extend((other, reached[name]) for other in inside(imports[name]) | parents)
  return reached


def jax_violations(imports):
  found = []
  for module in imports:
    if module != LATE and any(is_in(module, room) for room in WITHOUT_JAX):
      for name, path in reachable(imports, module).items():
        if name != TENSORFLOW_ALLOWED and outside(imports[name]) & JAX:
          found.append(f"{' -> '.join(path)} -> {sorted(outside(imports[name]) & JAX)}")
  return found


def tensorflow_violations(imports):
  found = []
  for module, names in imports.items():
    if module != TENSORFLOW_ALLOWED:
      found.extend(f"{module} imports {name}" for name in sorted(outside(names) & TENSORFLOW))
      if TENSORFLOW_ALLOWED in inside(names) and not is_in(module, WIRING):
        found.append(f"{module} imports {TENSORFLOW_ALLOWED}")
  return found


def third_party(imports, modules):
  """{module: what it imports beside the standard library and the package}."""
  return {m: outside(imports[m]) - sys.stdlib_module_names for m in modules if m in imports}


@pytest.fixture(scope="module")
def project():
  return read_imports(ROOT)


def test_rooms_import_only_what_stands_in_their_wall(project):
  assert wall_violations(project) == []


def test_every_wall_is_that_of_a_room_that_exists(project):
  named = {*WALLS, *WITHOUT_JAX, *FOUNDATION, LATE, TENSORFLOW_ALLOWED}
  missing = {room for room in named if not any(is_in(module, room) for module in project)}
  assert missing == set()


def test_rooms_import_one_another_in_one_direction(project):
  """What flows from room to room, from a task to new weights, passes each of them once."""
  room_of = lambda module: next((r for r in FOUNDATION if is_in(module, r)), module.split(".")[0])
  imports = {}
  for module, names in project.items():
    used = {room_of(name) for name in inside(names)} - {room_of(module), ""}
    imports.setdefault(room_of(module), set()).update(used)
  order = list(graphlib.TopologicalSorter(imports).static_order())
  assert order[-1] == WIRING


def test_the_whole_config_is_handed_to_nothing_below_the_runs():
  users = {
    path.relative_to(ROOT / PACKAGE).parts[0]
    for path in (ROOT / PACKAGE).rglob("*.py")
    for node in ast.walk(ast.parse(path.read_text("utf-8")))
    if (isinstance(node, ast.Name) and node.id == "RunConfig")
    or (isinstance(node, ast.ImportFrom) and "RunConfig" in {a.name for a in node.names})
  }
  assert users == {"config", WIRING}


def test_what_workers_import_never_reaches_jax(project):
  assert jax_violations(project) == []


def test_tensorflow_is_imported_by_one_file_that_no_room_imports(project):
  assert tensorflow_violations(project) == []
  assert "tensorflow" in outside(project[TENSORFLOW_ALLOWED])


def test_the_foundation_needs_numpy_at_most(project):
  modules = [name for name in project if any(is_in(name, room) for room in FOUNDATION)]
  assert set().union(*third_party(project, modules).values()) <= {"numpy"}
  assert third_party(project, ["weights.manifest"]) in ({}, {"weights.manifest": set()})


def test_the_sandbox_room_needs_the_standard_library_alone(project):
  modules = [name for name in project if is_in(name, "sandbox")]
  assert modules and set().union(*third_party(project, modules).values()) == set()


def test_the_first_line_of_code_of_the_tensorflow_file_hides_accelerators():
  body = ast.parse((ROOT / PACKAGE / "learner/seqio_mixture.py").read_text("utf-8")).body
  at = [ast.unparse(node) for node in body]
  hides = next(i for i, text in enumerate(at) if "set_visible_devices([]" in text)
  assert hides < next(i for i, text in enumerate(at) if text == "import seqio")


@pytest.mark.parametrize(
  ("path", "code", "check", "expected"),
  [
    (
      "corpus/grep.py",
      "import jaxrl_agents.harness.tools",
      wall_violations,
      "harness.tools",
    ),
    ("viewer/report.py", "from jaxrl_agents import chat", wall_violations, "imports chat"),
    ("viewer/report.py", "from ..harness import tools", wall_violations, "harness.tools"),
    ("agents/search/env.py", "def f():\n  from configs import mine", wall_violations, "configs"),
    ("sampler/pages.py", "from jaxrl_agents.sampler import engine", wall_violations, "engine"),
    ("types.py", "from jaxrl_agents import chat", wall_violations, "types imports chat"),
    ("attic/old.py", "", wall_violations, "attic.old stands in no room"),
    (
      "harness/tools.py",
      "def f():\n  import jax.numpy",
      jax_violations,
      "harness.tools -> ['jax']",
    ),
    ("harness/__init__.py", "import jax", jax_violations, "harness.tools -> harness -> ['jax']"),
    (
      "chat/base_format.py",
      "from ..harness.tools import x\nimport flax",
      jax_violations,
      "base_format -> ['flax']",
    ),
    (
      "agents/search/env.py",
      "from ...corpus.index import encode",
      jax_violations,
      "env -> corpus.index.encode",
    ),
    (
      "agents/search/tasks/synthesis.py",
      "import seqio",
      tensorflow_violations,
      "synthesis imports seqio",
    ),
    ("harness/tools.py", "import jaxrl_agents.runs.train", wall_violations, "imports runs.train"),
    (
      "agents/search/env.py",
      "import tensorflow as tf",
      tensorflow_violations,
      "imports tensorflow",
    ),
    (
      "agents/search/tasks/synthesis.py",
      "from jaxrl_agents.learner import seqio_mixture",
      tensorflow_violations,
      "seq",
    ),
  ],
)
def test_a_broken_wall_is_found(tmp_path, path, code, check, expected):
  files = {
    "types.py": "import dataclasses",
    "chat/__init__.py": "from jaxrl_agents.chat import base_format",
    "chat/base_format.py": "from jaxrl_agents.types import Message",
    "harness/__init__.py": "",
    "harness/tools.py": "import numpy\nfrom jaxrl_agents import chat",
    "sampler/engine.py": "import jax\nfrom jaxrl_agents.sampler import pages",
    "sampler/pages.py": "",
    "corpus/index/encode.py": "import jax",
    "corpus/index/hybrid.py": "def build():\n  from jaxrl_agents.corpus.index import encode",
    "learner/seqio_mixture.py": "import seqio",
    "runs/train.py": "import jax\nfrom jaxrl_agents.learner import seqio_mixture",
  }
  for step, changed in enumerate([{}, {path: code}]):
    for name, text in (files | changed).items():
      file = tmp_path / str(step) / PACKAGE / name
      file.parent.mkdir(parents=True, exist_ok=True)
      file.write_text(text)
  assert check(read_imports(tmp_path / "0")) == []
  assert any(expected in line for line in check(read_imports(tmp_path / "1")))
