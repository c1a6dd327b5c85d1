"""Damage of whole statements, of pairs in one function, and of one file of two."""

import random

import pytest

from jaxrl_agents.agents.coding import possible_edits
from jaxrl_agents.agents.coding.judge import repo as repo_lib
from jaxrl_agents.agents.coding.scripted_edits import repairs
from jaxrl_agents.agents.coding.tasks import (
  damaged_functions,
  damager,
  make_tasks,
  mutations,
  statements,
  suite_repos,
  task_set,
)
from jaxrl_agents.agents.coding.tasks.damager import Damage
from jaxrl_agents.corpus.documents import Document
from tests.agents.coding.judge.benches import CALLS, edit, with_sandboxes

TEXT = """\
def f(xs, low):
    total = 0
    for x in xs:
        if x < low:
            total += x
        else:
            total -= x
        low += 1
    total = total * 2
    return total
"""
LINES = TEXT.splitlines(keepends=True)


def lines(*numbers):
  """The text of these lines, counted from 1; (n, by) is a line with other indentation."""
  made = ""
  for number in numbers:
    at, by = number if isinstance(number, tuple) else (number, 0)
    line = LINES[at - 1]
    made += " " * by + line if by >= 0 else line[-by:]
  return made


def found(of, text=TEXT):
  """{kind: the damaged texts} of the candidates that change the function."""
  source = suite_repos.parsed("main.py", text)
  ((_, function),) = mutations.functions(source)
  changes = mutations.changing(source, function)
  texts = {}
  for mutation in of(source, function):
    if changes(mutation):
      texts.setdefault(mutation.kind, set()).add(mutation.applied(text))
  return texts


def test_statements_are_doubled_lost_swapped_moved_and_returned_early():
  assert found(statements.damages) == {
    "doubled": {
      lines(1, 2, 3, 4, 5, 5, 6, 7, 8, 9, 10),
      lines(1, 2, 3, 4, 5, 6, 7, 7, 8, 9, 10),
      lines(1, 2, 3, 4, 5, 6, 7, 8, 8, 9, 10),
      lines(1, 2, 3, 4, 5, 6, 7, 8, 9, 9, 10),
    },
    "removed": {
      lines(1, 3, 4, 5, 6, 7, 8, 9, 10),
      lines(1, 2, 3, 4, 5, 6, 7, 9, 10),
      lines(1, 2, 3, 4, 5, 6, 7, 8, 10),
    },
    "swapped": {lines(1, 2, 3, 4, 5, 6, 7, 8, 10, 9)},
    "moved": {
      lines(1, 2, 3, 4, 5, 6, 7, (8, -4), 9, 10),
      lines(1, 2, 3, 4, 5, 6, 7, 8, (9, 4), 10),
    },
    "branches": {lines(1, 2, 3, 4, 7, 6, 5, 8, 9, 10)},
    "returned": {lines(1, 2) + "    return total\n" + lines(3, 4, 5, 6, 7, 8, 9, 10)},
  }


def test_a_repair_undoes_each_damage_but_a_lost_statement():
  for kind, texts in found(statements.damages).items():
    for text in texts:
      undone = any(TEXT in each for each in found(statements.repairs, text).values())
      assert undone == (kind != "removed"), text


def test_the_two_values_of_a_condition_in_a_line_change_places_and_a_docstring_stays():
  text = 'def f(a):\n    """Doc."""\n    b = 1 if a else 2\n    return b\n'
  texts = found(statements.damages, text)
  assert texts["branches"] == {text.replace("1 if a else 2", "2 if a else 1")}
  assert all('"""Doc."""' in each for kind in texts.values() for each in kind)


def test_statements_that_share_a_line_are_left_alone():
  assert found(statements.damages, "def f(a):\n    a += 1; a += 2\n    return a\n") == {}


def test_edits_that_are_tried_are_flips_and_repairs_of_lines_each_once():
  doubled = lines(1, 2, 3, 4, 5, 6, 7, 8, 8, 9, 10)
  of_tools = lambda tools: possible_edits.possible_edits(
    {"main.py": doubled}, "mixed", random.Random(0), tools
  )
  texts = [text for _, text in of_tools(("edit_file",))]
  assert all(doubled.replace(each.old, each.new) == text for each, text in of_tools(("edit_file",)))
  assert [text for _, text in of_tools(("replace_lines",))] == texts
  assert all(each.applied(doubled)[0] == text for each, text in of_tools(("replace_lines",)))
  assert TEXT in texts and doubled.replace("x < low", "x <= low") in texts
  assert len(set(texts)) == len(texts)


def test_a_pair_of_edits_is_in_different_lines_and_both_can_be_written():
  repo = suite_repos.of_files("m:f", "m", {"main.py": TEXT}, [], ())
  drawer = damager.Damager(repo, 0)
  pairs = [each for each in (drawer.next("pair") for _ in range(20)) if each]
  assert len(pairs) > 5
  for pair in pairs:
    assert pair.kind.startswith("pair ") and len(pair.edits) == 2
    broken = repo_lib.broken(repo, pair.edits)["main.py"]
    for made in repairs(repo, pair.edits, ("edit_file",)):
      assert broken.count(made.old) == 1
      broken = broken.replace(made.old, made.new)
    assert broken == TEXT


def test_a_pair_of_which_half_breaks_nothing_is_refused():
  first = edit(CALLS, "main.py", "min", "max")
  idle = {**edit(CALLS, "main.py", "value < low", "value <= low")}
  real = {**edit(CALLS, "main.py", "value < low", "value > low")}

  async def body(workshop):
    judge = await workshop.judge()
    damages = [Damage("pair call comparison", (first, e), ("clamp",), 2) for e in (idle, real)]
    return [await make_tasks.validated(judge, CALLS, each, seed=0) for each in damages]

  (none, why), (task, _) = with_sandboxes(body)
  assert none is None and why == "half of it is no damage"
  assert task is not None and task.facts["edits"] == [first, real]


def test_two_functions_in_two_files_are_imported_by_main_and_the_request_names_both():
  texts = {"one.py": "def one(a):\n    return a\n", "two.py": "def two(a):\n    return a\n"}
  repo = suite_repos.of_files("m:one+two", "m", texts, [("one(1)", "1"), ("two(1)", "1")], ())
  assert repo.files["main.py"] == "from one import one\nfrom two import two\n"
  assert repo.sources == ("one.py", "two.py")
  damage = Damage("flip operator", (edit(repo, "two.py", "a", "b"),), ("two",), 1)
  prompt = make_tasks.prompt_of(repo, damage, random.Random(0))
  assert "one.py or two.py" in prompt


MODULE = """\
def inside(value, low, high):
    if value < low:
        value = low
    if value > high:
        value = high
    return value


def steps(count, by):
    total = 0
    for i in range(count):
        total += by
    total = total + count
    return total
"""


@pytest.mark.slow
def test_tasks_of_mixed_damage_are_made_in_files_named_after_their_functions(tmp_path):
  (tmp_path / "sums.py").write_text(MODULE)

  async def body(workshop):
    await workshop.judge()
    options = {"kinds": ("calls",), "damage": "mixed", "max_files": 2, "per_repo": 3, "seed": 2}
    return await task_set.make(workshop.boxes, [str(tmp_path)], **options)

  made = with_sandboxes(body)
  (repo,) = made.repos.values()
  assert sorted(repo.sources) == ["inside.py", "steps.py"]
  tasks = [task for split in made.tasks.values() for task in split]
  assert {task.facts["kind"].partition(" ")[0] for task in tasks} <= {"flip", "lines", "pair"}
  for task in tasks:
    assert len({each["path"] for each in task.facts["edits"]}) == 1
    assert "inside.py" in task.prompt and "steps.py" in task.prompt


def test_drills_of_lines_have_lines_and_pairs_that_undo():
  document = Document("1", "m.py", TEXT, {"source": "m.py", "kind": "python"})
  split = make_tasks.split_of("m")
  functions = damaged_functions.short_functions([document], split=split, flips=True, lines=True)
  made = list(damaged_functions.damaged(functions, count=40, max_characters=600, seed=0))
  assert {len(edits) for _, edits, _ in made} == {1, 2}
  assert any("\n" in e["fixed"] + e["broken"] for _, edits, _ in made for e in edits)
  for repo, edits, _ in made:
    broken = repo_lib.broken(repo, edits)["main.py"]
    assert broken != repo.files["main.py"]
