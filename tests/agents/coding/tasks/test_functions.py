"""Functions cut out with what they need, and calls made up for them."""

import ast

from jaxrl_agents.agents.coding.tasks import call_inputs, functions, suite_repos

MODULE = '''\
import os
import math
from functools import reduce as fold

LIMIT = 7
_cache = {}


def helper(x):
  """Rounds."""
  return math.floor(x)


def bounded(x, most=LIMIT):
  """At most so many.

  >>> bounded(9)
  7
  >>> m.bounded(3, most=2)
  2
  >>> bounded(y)
  """
  if x > most:
    return most
  return helper(x)


def reads(path):
  if not path:
    return ""
  return os.stat(path)


def opens(path):
  if not path:
    return ""
  return open(path).read()


def stores(x):
  global LIMIT
  LIMIT = x
  return x


def yields(x):
  x = x + 1
  yield x
  return x


def joined(first, /, second=2, *rest, base=0):
  return base + first + second + sum(rest)


def strict(x, *, wide):
  return x if wide else -x


def loose(*values):
  return len(values)
'''


def cuts():
  return {cut.name: cut for cut in functions.cuts(suite_repos.parsed("m.py", MODULE))}


def test_a_cut_brings_imports_constants_and_helpers_and_leaves_docstrings():
  cut = cuts()["bounded"]
  assert cut.text == (
    "import math\n\n\nLIMIT = 7\n\n\ndef helper(x):\n  return math.floor(x)\n\n\n"
    "def bounded(x, most=LIMIT):\n  if x > most:\n    return most\n  return helper(x)\n"
  )
  assert cut.parameters == (("x", ""), ("most", "LIMIT"))


def test_what_reads_files_changes_the_module_or_yields_is_not_cut():
  assert list(cuts()) == ["helper", "bounded", "joined"]


def test_a_call_gives_by_position_what_can_be_given_so_and_nothing_else_may_be_needed():
  assert cuts()["joined"].parameters == (("first", ""), ("second", "2"))
  assert not {"strict", "loose"} & set(cuts())


def test_examples_with_literal_arguments_become_calls():
  assert cuts()["bounded"].examples == ("bounded(9)", "bounded(3, most=2)")


def test_cuts_of_one_module_share_what_both_need():
  text = MODULE.split("def reads")[0] + "def other(x):\n  y = helper(x)\n  return y + 1\n"
  merged = functions.merged(functions.cuts(suite_repos.parsed("m.py", text)))
  names = [node.name for node in ast.parse(merged).body if isinstance(node, ast.FunctionDef)]
  assert sorted(names) == ["bounded", "helper", "other"]
  assert merged.count("import math") == 1


def test_made_up_calls_parse_and_are_the_same_for_the_same_seed():
  cut = cuts()["bounded"]
  probes = call_inputs.probes(cut, seed=3)
  assert probes == call_inputs.probes(cut, seed=3)
  assert probes[0][0] == ("int",)
  for _, call in probes:
    assert isinstance(ast.parse(call, mode="eval").body, ast.Call)
  calls = call_inputs.calls(cut, [("int",), ("float", "int")], seed=3, count=12)
  assert calls[:2] == list(cut.examples)
  assert len(set(calls)) == len(calls) == 12
  # The code speaks of 7: numbers near it are drawn.
  assert any(f"({n})" in call for call in calls for n in (6, 7, 8))


def test_kinds_are_accepted_by_the_distinct_values_that_they_gave():
  tried = [(("int",), "f(1)"), (("int",), "f(2)"), (("str",), "f('a')"), (("none",), "f(None)")]
  assert call_inputs.accepted(tried, ["1", "2", "'a'", "!TypeError"]) == [("int",), ("str",)]
  assert call_inputs.accepted(tried, ["None", "?set", "!E", "!E"]) == []


def test_few_calls_of_one_value_and_few_faults_are_kept():
  found = [(f"f({i})", "1") for i in range(5)] + [("f(9)", "2"), ("f(8)", "?late")]
  found += [(f"f({i}, 0)", "!ValueError") for i in range(6)]
  kept = call_inputs.informative(found, 8, shared=2)
  assert [value for _, value in kept] == ["1", "1", "2", "!ValueError", "!ValueError"]
  more = call_inputs.informative(found, 8, shared=4)
  assert [value for _, value in more] == ["1"] * 4 + ["2", "!ValueError", "!ValueError"]
