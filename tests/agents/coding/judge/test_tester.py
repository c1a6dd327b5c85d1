"""Tests run in a process of their own: what they may rest on, and what they may not."""

import pytest

from jaxrl_agents.agents.coding.judge import run_tests
from jaxrl_agents.agents.coding.judge.inside import values
from tests.agents.coding.judge.benches import with_sandboxes

CODE = '''\
"""The tested code."""
import collections, os, time

LIMIT = 3
__all__ = ["LIMIT", "Cart", "Empty", "fail", "each", "fill", "give"]


class Empty(KeyError):
    """Nothing is left."""

    def __init__(self, name, left):
        super().__init__(name, left)
        self.left = left

    def __str__(self):
        return f"no {self.args[0]} is left"


class Cart:
    def __init__(self, *items):
        self.items = list(items)

    def __len__(self):
        return len(self.items)

    def __iter__(self):
        return iter(self.items)

    def __getitem__(self, i):
        return self.items[i]

    def __add__(self, other):
        return Cart(*self.items, *other.items)

    def __eq__(self, other):
        return True

    def __str__(self):
        return "+".join(map(str, self.items))

    def take(self):
        if not self.items:
            raise Empty("item", 0)
        return self.items.pop()


class Wide(list):
    pass


def fail():
    raise ValueError("bad", 3)


def each(function, values, out):
    for value in values:
        out.write(f"{function(value)};")


def fill(target):
    target.append(LIMIT)


def give(value):
    return value


def count(text, kind):
    made = {"Counter": collections.Counter, "OrderedDict": collections.OrderedDict}
    counts = made.get(kind, lambda: collections.defaultdict(int))()
    for letter in text:
        counts[letter] = counts.get(letter, 0) + 1
    return counts


def wide():
    return Wide([1])


def close():
    os._exit(0)


def wait():
    time.sleep(30)
'''
TESTS = """\
import io
import unittest
import shop
from shop import *


class Sub(shop.Cart):
    pass


class Box:
    def __init__(self, value):
        self.value = value
        self._secret = 1


def test_plain():
    assert shop.give(4) == 4


def test_plain_fails():
    assert shop.give(4) == 5


def test_compares_objects():
    assert shop.Cart(1) == shop.Cart(2)


def test_truth_of_an_object():
    assert shop.Cart(1)


class CartTests(unittest.TestCase):
    def test_data_of_objects(self):
        cart = shop.Cart(1, 2) + Cart(3)
        self.assertEqual(list(cart), [1, 2, 3])
        self.assertEqual((len(cart), cart[0], cart.take(), str(cart)), (3, 1, 3, "1+2"))
        self.assertEqual(cart.items, [1, 2])

    def test_every_plain_value_comes_back(self):
        for value in (None, True, 2, 10**40, -0.5, float("inf"), 1j, "ü\\ud800", b"x", (1, [2]),
                      {"a": {1, 2}, 3: frozenset([4])}, bytearray(b"y"), range(3), ...):
            self.assertEqual(shop.give(value), value)
            self.assertIs(type(shop.give(value)), type(value))

    def test_exceptions(self):
        with self.assertRaises(ValueError) as caught:
            shop.fail()
        self.assertEqual(caught.exception.args, ("bad", 3))
        with self.assertRaisesRegex(Empty, "no item is left") as caught:
            shop.Cart().take()
        self.assertEqual(caught.exception.left, 0)
        with self.assertRaises(KeyError):
            shop.Cart().take()
        with self.assertRaises(AttributeError):
            shop.nothing

    def test_functions_and_streams_of_the_tests_are_used(self):
        out = io.StringIO()
        shop.each(lambda n: n + 1, [1, 2], out)
        shop.each(str.upper, ["a"], out)
        self.assertEqual(out.getvalue(), "2;3;A;")

    def test_arguments_are_changed_in_place(self):
        items = [1]
        shop.fill(items)
        self.assertEqual(items, [1, 3])

    def test_attributes_of_modules_can_be_set(self):
        shop.LIMIT = 7
        items = []
        shop.fill(items)
        self.assertEqual(items, [7])
        shop.LIMIT = 3

    def test_asserts_about_an_object(self):
        self.assertEqual(shop.Cart(1), [1])

    def test_catches_the_refusal(self):
        try:
            self.assertIn(1, shop.Cart(1))
        except BaseException:
            pass

    def test_a_subclass_of_plain_data_is_an_object(self):
        self.assertEqual(shop.wide(), [1])

    def test_dictionaries_of_the_library_are_plain_data(self):
        for kind in ("Counter", "OrderedDict", "defaultdict"):
            self.assertEqual(shop.count("aab", kind), {"a": 2, "b": 1})
            self.assertEqual(type(shop.count("", kind)).__name__, kind)

    def test_makes_a_subclass(self):
        Sub(1)

    def test_private_names_of_the_tests_are_not_lent(self):
        self.assertEqual(shop.give(Box(3)).value, 3)

    def test_a_test_case_is_not_lent(self):
        shop.give(self)

    def test_other_class(self):
        self.assertTrue(isinstance(shop.Cart(), shop.Cart))

    def test_fails(self):
        self.assertEqual(shop.give(1), 2)

    def test_late(self):
        shop.wait()

    def test_the_end_is_no_exception(self):
        with self.assertRaises(Exception):
            shop.close()

    def test_what_comes_after_an_end_is_run(self):
        self.assertEqual(shop.give(1), 1)

    @unittest.skip("no")
    def test_skipped(self):
        pass
"""
EXPECTED = {
  "test_plain": "passed",
  "test_plain_fails": "failed",
  "test_compares_objects": "opaque",
  "test_truth_of_an_object": "opaque",
  "CartTests.test_data_of_objects": "passed",
  "CartTests.test_every_plain_value_comes_back": "passed",
  "CartTests.test_exceptions": "passed",
  "CartTests.test_functions_and_streams_of_the_tests_are_used": "passed",
  "CartTests.test_arguments_are_changed_in_place": "passed",
  "CartTests.test_attributes_of_modules_can_be_set": "passed",
  "CartTests.test_asserts_about_an_object": "opaque",
  "CartTests.test_catches_the_refusal": "opaque",
  "CartTests.test_a_subclass_of_plain_data_is_an_object": "opaque",
  "CartTests.test_dictionaries_of_the_library_are_plain_data": "passed",
  "CartTests.test_makes_a_subclass": "opaque",
  "CartTests.test_private_names_of_the_tests_are_not_lent": "passed",
  "CartTests.test_a_test_case_is_not_lent": "opaque",
  "CartTests.test_other_class": "opaque",
  "CartTests.test_fails": "failed",
  "CartTests.test_late": "late",
  "CartTests.test_the_end_is_no_exception": "error",
  "CartTests.test_what_comes_after_an_end_is_run": "passed",
  "CartTests.test_skipped": "skipped",
}


@pytest.mark.slow
def test_outcomes_rest_on_plain_data_alone():
  async def body(workshop):
    boxes = (await workshop.judge()).boxes
    async with await boxes.create(await boxes.base({"shop.py": CODE})) as box:
      tests = {"test_shop.py": TESTS}
      return await run_tests.statuses_of(box, tests, ["test_shop.py"], ["shop.py"], limit_s=1.5)

  found = with_sandboxes(body)
  assert found == {f"test_shop.{name}": status for name, status in EXPECTED.items()}


@pytest.mark.slow
def test_tests_in_packages_import_the_code_and_one_another():
  files = {
    "pkg/__init__.py": "from pkg.core import two\n",
    "pkg/core.py": "def two(): return 2\n",
    "pkg/sub/__init__.py": "",
    "pkg/sub/deep.py": "from ..core import two\ndef four(): return 2 * two()\n",
  }
  tests = {
    "tests/__init__.py": "",
    "tests/test_a.py": "import pkg\nfrom tests.shared import FOUR\nimport pkg.sub.deep as deep\n"
    "def test_it(): assert (pkg.two(), deep.four()) == (2, FOUR)\n",
    "tests/shared.py": "FOUR = 4\n",
    "pkg/tests/test_b.py": "from ..core import two\ndef test_it(): assert two() == 2\n",
  }

  async def body(workshop):
    boxes = (await workshop.judge()).boxes
    async with await boxes.create(await boxes.base(files)) as box:
      run = ["tests/test_a.py", "pkg/tests/test_b.py"]
      return await run_tests.statuses_of(box, tests, run, list(files))

  assert with_sandboxes(body) == {
    "tests.test_a.test_it": "passed",
    "pkg.tests.test_b.test_it": "passed",
  }


@pytest.mark.parametrize(
  "sent",
  [["l"], ["l", 3], ["q", 1], {"a": 1}, ["i", "z"], ["n", "eval"], ["r"], ["s", [["l", []]]]],
)
def test_a_value_of_no_known_form_is_refused(sent):
  def resolve(reference):
    raise ValueError(reference)

  with pytest.raises(values.Broken):
    values.decode(sent, resolve)


def test_a_value_that_contains_itself_is_refused():
  cyclic = []
  cyclic.append(cyclic)
  with pytest.raises(ValueError, match="nested deeper"):
    values.encode(cyclic, lambda value: ["mine", 0])
