"""Two small repositories made by hand, and a way to work in them with real sandboxes."""

import asyncio
import dataclasses

import pytest

from jaxrl_agents.agents.coding.judge.repo import Repo
from jaxrl_agents.agents.coding.services import Workshop
from jaxrl_agents.agents.coding.tasks import suite_repos
from jaxrl_agents.sandbox.errors import NoSandbox

MAIN = """\
def clamp(value, low, high):
    if value < low:
        return low
    return min(value, high)


def double(text):
    return text + text
"""
CALLS = suite_repos.of_files(
  "made:clamp+double",
  "made",
  {"main.py": MAIN},
  [
    ("clamp(1, 2, 5)", "2"),
    ("clamp(9, 2, 5)", "5"),
    ("clamp(3, 2, 5)", "3"),
    ("clamp(0, 1, 1)", "1"),
    ("double('ab')", "'abab'"),
    ("double([1])", "[1, 1]"),
    ("double(1.5)", "3.0"),
    ("double(None)", "!TypeError"),
  ],
  (),
)
SHOP = '''\
"""Prices."""


def total(prices):
    """The sum, in cents."""
    return sum(round(100 * price) for price in prices)


def cheapest(prices):
    """The lowest price, None of none."""
    if not prices:
        return None
    return min(prices)
'''
TESTS = """\
import unittest

import shop


class ShopTests(unittest.TestCase):
    def test_total(self):
        self.assertEqual(shop.total([1, 2.5]), 350)

    def test_nothing(self):
        self.assertIsNone(shop.cheapest([]))

    def test_cheapest(self):
        self.assertEqual(shop.cheapest([3, 2]), 2)
"""
HELD_BACK = """\
import unittest

import shop


class ShopTests(unittest.TestCase):
    def test_total_of_nothing(self):
        self.assertEqual(shop.total([]), 0)

    def test_cents(self):
        self.assertEqual(shop.total([0.29]), 29)
"""
SUITE = Repo(
  "shop",
  "shop",
  "suite",
  {"shop.py": SHOP, "test_shop.py": TESTS},
  ("shop.py",),
  held_back={"test_shop_held_back.py": HELD_BACK},
  statuses={
    f"{module}.ShopTests.{name}": "passed"
    for module, names in {
      "test_shop": ("test_total", "test_nothing", "test_cheapest"),
      "test_shop_held_back": ("test_total_of_nothing", "test_cents"),
    }.items()
    for name in names
  },
)


def edit(repo, path, fixed, broken):
  """One edit that damages the first occurrence of `fixed`."""
  return {"path": path, "start": repo.files[path].index(fixed), "fixed": fixed, "broken": broken}


CALL_FACTS = {
  "repo": CALLS.id,
  "level": 0,
  "edits": [edit(CALLS, "main.py", "<", ">")],
  "fail_to_pass": ["clamp(1, 2, 5)", "clamp(3, 2, 5)"],
  "pass_to_pass": ["double('ab')", "double(1.5)"],
  "hidden_fail_to_pass": ["clamp(9, 2, 5)", "clamp(0, 1, 1)"],
  "hidden_pass_to_pass": ["double([1])", "double(None)"],
}
SUITE_FACTS = {
  "repo": SUITE.id,
  "level": 0,
  "edits": [edit(SUITE, "shop.py", "100", "10")],
  "fail_to_pass": ["test_shop.ShopTests.test_total"],
  "pass_to_pass": ["test_shop.ShopTests.test_nothing", "test_shop.ShopTests.test_cheapest"],
  "hidden_fail_to_pass": ["test_shop_held_back.ShopTests.test_cents"],
  "hidden_pass_to_pass": ["test_shop_held_back.ShopTests.test_total_of_nothing"],
}
WORK_S = 120.0


def with_sandboxes(body):
  """Runs `await body(workshop)`; skips where this machine has no sandboxes, saying why."""

  async def whole():
    workshop = Workshop()
    await workshop.judge()
    try:
      return await body(workshop)
    finally:
      await workshop.close()

  try:
    return asyncio.run(asyncio.wait_for(whole(), WORK_S))
  except NoSandbox as error:
    pytest.skip(str(error))


def fields(verdict):
  return dataclasses.asdict(verdict)
