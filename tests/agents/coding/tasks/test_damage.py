"""Mutations and removals, on functions small enough to list all of them by hand."""

import ast
import inspect
import pathlib
import random
import textwrap

import pytest

from jaxrl_agents.agents.coding.judge.repo import Repo
from jaxrl_agents.agents.coding.tasks import damager, leaks, mutations, removals, suite_repos

CLAMP = '''\
def clamp(value, low):
  """Not below low."""
  if value < low and low:  # a remark
    return low
  return value + 1
'''


def source_of(text):
  return suite_repos.parsed("m.py", text)


def found(text, kinds=mutations.ONE_TOKEN):
  source = source_of(text)
  return [
    (m.kind, text[m.start : m.end], m.new)
    for _, function in mutations.functions(source)
    for m in mutations.mutations(source, function)
    if m.kind in kinds
  ]


def test_the_one_token_mutations_of_a_function_are_these():
  assert sorted(found(CLAMP)) == sorted(
    [
      ("boundary", "<", "<="),
      ("comparison", "<", ">"),
      ("logic", "and", "or"),
      ("name", "value", "low"),
      ("name", "low", "value"),  # in the comparison
      ("name", "low", "value"),  # after `and`
      ("name", "low", "value"),  # returned
      ("name", "value", "low"),
      ("operator", "+", "-"),
      ("constant", "1", "2"),
      ("constant", "1", "0"),
    ]
  )


def test_a_flip_is_a_token_with_one_counterpart_that_stands_once_in_its_line():
  text = "def f(a, b):\n  if a < b and b > 1:\n    return min(a + b, 3 + 1)\n  return a * 12 - b\n"
  source = source_of(text)
  flips = [
    (text[m.start : m.end], m.new)
    for _, function in mutations.functions(source)
    for m in mutations.mutations(source, function)
    if mutations.is_flip(source, m)
  ]
  assert sorted(flips) == sorted(
    [
      *(("<", "<="), ("and", "or"), (">", ">="), ("1", "0")),
      *(("min", "max"), ("3", "2"), ("1", "0")),  # of two "+" it would not be told which
      *(("*", "//"), ("-", "+")),
    ]
  )


def test_statements_are_dropped_and_values_are_not_returned():
  kinds = ("return", "statement", "arguments")
  text = "def f(a, b):\n  a = max(a, b)\n  return a\n"
  assert sorted(found(text, kinds)) == [
    ("arguments", "a, b", "b, a"),
    ("return", "a", "None"),
    ("statement", "a = max(a, b)", "pass"),
  ]


def test_negations_boundaries_and_operators_keep_the_rest_of_the_line():
  text = "def f(a):\n  if a:\n    a += 2\n  while not a in (1 ,\n    -2): pass\n  return a[1:]\n"
  source = source_of(text)
  _, function = next(mutations.functions(source))
  changed = [m.applied(text) for m in mutations.mutations(source, function)]
  lines = {line for each in changed for line in each.split("\n")}
  assert {
    "  if not a:",
    "    a -= 2",
    "  while a in (1 ,",
    "  return a[0:]",
    "    2): pass",
  } <= lines


@pytest.mark.slow
def test_every_mutation_of_real_code_parses_to_another_tree():
  text = pathlib.Path(random.__file__).read_text()
  source = source_of(text)
  functions = list(mutations.functions(source))
  plain = ast.dump(ast.parse(text))
  for _, function in functions[10:30:4]:
    for mutation in mutations.mutations(source, function)[:40]:
      assert ast.dump(ast.parse(mutation.applied(text))) != plain


def test_characters_of_several_bytes_do_not_shift_a_mutation():
  text = "def f(a):\n  return 'äöü€', a + 1\n"
  assert ("operator", "+", "-") in found(text)


def test_removal_keeps_signature_decorators_and_docstring():
  text = 'class A:\n  @property\n  def size(self):\n    """How many."""\n    n = 1\n    return n\n'
  removal = removals.removals(source_of(text))[0]
  assert (removal.name, removal.lines) == ("A.size", 2)
  assert removal.applied(text) == (
    'class A:\n  @property\n  def size(self):\n    """How many."""\n    raise NotImplementedError\n'
  )


def test_picked_removals_stay_below_the_lines_asked_for():
  text = pathlib.Path(random.__file__).read_text()
  every = removals.removals(source_of(text))
  picked = removals.pick(every, 60, random.Random(1))
  assert 30 <= sum(removal.lines for removal in picked) <= 60
  assert picked == removals.pick(every, 60, random.Random(1))


def test_one_line_bodies_beside_their_signature_are_left_alone():
  assert removals.removals(source_of("def f(): return 1\n"), min_lines=1) == []


def test_a_function_that_stands_in_another_module_of_the_library_is_left_alone():
  text = inspect.getsource(textwrap.dedent)
  source = source_of(text)
  _, function = next(mutations.functions(source))
  known = leaks.telling(source, function)
  assert len(known) >= leaks.MIN_CHARACTERS
  assert leaks.is_elsewhere(known, ())
  assert not leaks.is_elsewhere(known, leaks.masks(f"{leaks.PLACE}/textwrap.py"))
  files = {"main.py": text}
  assert damager.Damager(Repo("m", "m", "suite", files, ("main.py",)), 0).next("token") is None
  assert not leaks.is_elsewhere("", ())
