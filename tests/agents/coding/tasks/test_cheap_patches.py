"""Tasks that a patch without understanding solves are none; nor those whose answer lies around."""

import dataclasses

from jaxrl_agents.agents.coding.tasks import cheap_patches, leaks, suite_repos
from tests.agents.coding.judge.benches import CALLS

TEXT = '''\
def first(a, b):
    """Says what it does."""
    if a:
        return a
    return b


class Box:
    def size(self, unit):
        return unit

    def zero(self):
        return 0


def other(a):
    return a
'''


def test_a_table_with_one_value_for_the_rest_solves_where_hidden_values_are_all_the_same():
  failing = ["clamp(1, 2, 5)", "clamp(9, 2, 5)"]
  assert not cheap_patches.constant_values_suffice(CALLS, failing)
  same = dict.fromkeys(CALLS.hidden_values, "5")
  assert cheap_patches.constant_values_suffice(
    dataclasses.replace(CALLS, hidden_values=same), failing
  )


def test_bodies_of_the_damaged_functions_alone_are_replaced():
  made = list(cheap_patches.patches({"a.py": TEXT}, ["first", "Box.size", "Box.zero"]))
  assert len(made) == 4
  nothing, _, false, argument = (patch["a.py"] for patch in made)
  names = {}
  exec(nothing, names)
  assert names["first"](1, 2) is names["Box"]().size(3) is names["Box"]().zero() is None
  assert names["first"].__doc__ == "Says what it does."
  assert names["other"](4) == 4
  exec(false, names)
  assert names["first"](1, 2) is names["Box"]().size(3) is False
  exec(argument, names)
  assert (names["first"](1, 2), names["Box"]().size(3), names["Box"]().zero()) == (1, 3, 0)


def test_modules_that_are_frozen_or_have_a_counterpart_in_c_are_no_source_of_tasks():
  for name in ("ntpath", "posixpath", "statistics", "csv", "bisect", "datetime", "codecs"):
    assert leaks.has_twin(name), name
  for name in ("colorsys", "quopri", "calendar", "ipaddress"):
    assert not leaks.has_twin(name), name
  assert [repo.name for repo in suite_repos.library(["statistics", "colorsys"])] == ["colorsys"]


def test_callables_that_cannot_be_masked_are_known_by_name():
  offered = leaks.offered()
  assert "_bisect" in offered["bisect_left"]
  assert {"ntpath", "posixpath"} <= set(offered["splitdrive"])
  assert "dedent" not in offered
