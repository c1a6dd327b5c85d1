"""Damaged functions to practise on: one token, in files that parse, of the modules of a split."""

import ast
import difflib
import re
import sysconfig

import pytest

from jaxrl_agents.agents.coding.judge import repo as repo_lib
from jaxrl_agents.agents.coding.tasks import damaged_functions
from jaxrl_agents.corpus import documents as documents_lib
from jaxrl_agents.corpus.documents import Document
from jaxrl_agents.corpus.python_source import module_name
from jaxrl_agents.corpus.splits import split_of

STDLIB = sysconfig.get_paths()["stdlib"]
OPTIONS = {"count": 60, "max_characters": 900, "seed": 0}


def damaged(documents, *, flips=False, lines=False, without=(), **options):
  functions = damaged_functions.short_functions(
    documents, split="train", flips=flips, lines=lines, without=without
  )
  return list(damaged_functions.damaged(functions, **{**OPTIONS, **options}))


@pytest.fixture(scope="module")
def documents():
  return documents_lib.load(f"{STDLIB}/email")


@pytest.fixture(scope="module")
def drills(documents):
  return damaged(documents)


def test_files_are_short_and_parse_damaged_and_mended_to_different_trees(drills):
  assert len(drills) == 60
  for repo, (edit,), _ in drills:
    (path,) = repo.sources
    mended, broken = repo.files[path], repo_lib.broken(repo, [edit])[path]
    assert len(mended) <= 900
    assert ast.dump(ast.parse(mended)) != ast.dump(ast.parse(broken))
    changed = [
      line for line in difflib.ndiff(mended.split("\n"), broken.split("\n")) if line[0] == "-"
    ]
    assert len(changed) == 1


def test_functions_are_those_of_the_modules_of_the_split_some_of_them_with_other_names(
  documents, drills
):
  own = [d.text for d in documents if split_of(module_name(d)) == "train"]
  assert 0 < len(own) < len(documents)
  known = set(re.findall(r"def \w+", "\n".join(own)))
  lines = {line.strip() for text in own for line in text.split("\n")}
  texts = [repo.files[edit["path"]] for repo, (edit,), _ in drills]
  assert all(known.issuperset(re.findall(r"def \w+", text)) for text in texts)
  as_they_stand = [all(line.strip() in lines for line in text.split("\n")) for text in texts]
  assert 0.5 < sum(as_they_stand) / len(texts) < 0.95


def test_what_stands_in_a_module_of_another_split_as_well_is_left_out(documents):
  own = [d for d in documents if split_of(module_name(d)) == "train"]
  text = "def shared(a, b):\n  if a < b:\n    return a\n  return b\n"
  names = [f"{i}.py" for i in range(100)]
  train = next(name for name in names if split_of(name.removesuffix(".py")) == "train")
  test = next(name for name in names if split_of(name.removesuffix(".py")) == "test")

  def holding(*names, without=()):
    more = [Document("", n, text, {"source": n, "kind": "python"}) for n in names]
    found = damaged([*own[:1], *more], count=200, without=without)
    return any("def shared" in repo.files[edit["path"]] for repo, (edit,), _ in found)

  assert holding(train) and not holding(train, test)
  assert not holding(train, without=[text.replace("  if", "  # less\n  if")])


def test_kinds_of_damage_come_up_equally_often(documents):
  """Of seven that flips of these modules have: 34 each of 240, four standard deviations around."""
  found = [edit for _, (edit,), _ in damaged(documents, flips=True, count=240)]
  signs = {"logic": ("and", "or"), "boundary": ("<", "<=", ">", ">="), "comparison": ("==", "!=")}
  for tokens in signs.values():
    assert 12 < sum(edit["fixed"] in tokens for edit in found) < 57


def test_the_same_seed_gives_the_same_and_another_other_ones(documents, drills):
  assert damaged(documents) == drills
  assert damaged(documents, seed=1) != drills


def test_a_flip_reveals_the_original_and_occurs_once_in_its_line(documents):
  stood: dict[str, set[str]] = {}
  flips = damaged(documents, flips=True)
  for repo, (edit,), _ in flips:
    stood.setdefault(edit["broken"], set()).add(edit["fixed"])
    mended = repo.files[edit["path"]]
    for text, token in (
      (mended, edit["fixed"]),
      (repo_lib.broken(repo, [edit])[edit["path"]], edit["broken"]),
    ):
      start = text.rfind("\n", 0, edit["start"]) + 1
      line = text[start : text.find("\n", start)]
      spaced = " " * (text[edit["start"] - 1] == " ") + token
      assert line.count(spaced) == 1
  assert len(flips) == 60
  assert all(len(each) == 1 for each in stood.values())


def test_where_no_function_is_short_enough_there_are_none():
  document = Document("1", "m", "x = 1\n", {"source": "m", "kind": "python"})
  assert not damaged([document])


def test_each_function_of_a_file_has_one_fault_where_that_is_asked_for(documents):
  made = damaged(documents, flips=True, lines=True, each=0.5, count=100)
  assert 20 < sum(each for _, _, each in made) < 80
  for repo, edits, each in made:
    mended, broken = repo.files[edits[0]["path"]], repo_lib.broken(repo, edits)[edits[0]["path"]]
    trees = [ast.parse(text).body for text in (mended, broken)]
    if each:
      changed = [ast.dump(a) != ast.dump(b) for a, b in zip(*trees, strict=True)]
      assert changed == [True] * len(edits) and 2 <= len(edits) <= 4
    else:
      assert len(mended) <= 900
