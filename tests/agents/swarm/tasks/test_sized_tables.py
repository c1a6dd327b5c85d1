"""Tasks of every size: none is left out, budgets follow the look-ups, questions need all values."""

import collections
import dataclasses
import re

import pytest

from jaxrl_agents.agents.swarm.config import TablesConfig
from jaxrl_agents.agents.swarm.reading import Reading
from jaxrl_agents.agents.swarm.tasks import budgets, sized_tables
from jaxrl_agents.agents.swarm.tasks.rows import Row
from jaxrl_agents.corpus import splits

SIZED = TablesConfig(max_rows=40, steps=2.0, steps_per_lookup=0.25)
TRAIN = [f"m{i}" for i in range(400) if splits.split_of(f"m{i}") == "train"][:120]
OTHER = next(f"m{i}" for i in range(400) if splits.split_of(f"m{i}") == "test")


def row(kind, i, value, *, chain="", group=None):
  """A definition in a module of its own; with `chain`, its base and the base of that."""
  group = group or TRAIN[i]
  name = f"{kind.title()}{i}"
  if chain:
    cells = {"name": name, "base": value, "base of base": chain}
    queries = (f" class {name}", f"{value} class")
    return Row(name, queries, (f"{kind}{i}", f"base{i}"), cells, (TRAIN[i], group))
  columns = {"class": "base", "def": "first argument", "constant": "value"}
  cells = {"name": name, columns[kind]: value}
  query = f" {name}" if kind == "constant" else f" {kind} {name}"
  return Row(name, (query,), (f"{kind}{i}",), cells, (group,))


@pytest.fixture(scope="module")
def pools():
  return {
    "class": [row("class", i, f"Base{i % 50}") for i in range(90)],
    "def": [row("def", i, f"arg{i % 45}") for i in range(90)],
    "constant": [row("constant", i, str(i)) for i in range(60)],
    "class chain": [
      *(row("class", i, f"Base{i}", chain=f"Top{i}") for i in range(30)),
      *(row("class", i, f"Base{i}", chain=f"Top{i}", group=OTHER) for i in range(30, 60)),
    ],
  }


def make(pools, count=400, sized=SIZED, seed=0):
  return list(sized_tables.tasks(pools, "train", seed, count, sized, budgets.Budgets(max_calls=2)))


@pytest.fixture(scope="module")
def tasks(pools):
  return make(pools)


def test_every_number_of_lookups_comes_up_equally_often(tasks):
  counts = collections.Counter(len(task.facts["facts"]) for task in tasks)
  # a chain of an odd size has one look-up less
  assert len(tasks) == 400 and set(counts) == set(range(1, 41))
  assert min(counts.values()) >= 5 and max(counts.values()) <= 15
  rows = {len(task.facts["rows"]) for task in tasks if "truth" not in task.facts}
  assert rows == set(range(1, 41))


def test_the_budget_is_of_the_lookups_alone_whatever_the_agents_can_do(pools, tasks):
  for task in tasks:
    assert task.facts["max_steps"] == -(-(8 + len(task.facts["facts"])) // 4)
  able = budgets.Budgets(max_calls=9, max_assignments=2, token_budget=64)
  again = list(sized_tables.tasks(pools, "train", 0, 400, SIZED, able))
  assert [task.prompt for task in again] == [task.prompt for task in tasks]
  assert [t.facts["max_steps"] for t in again] == [t.facts["max_steps"] for t in tasks]
  fixed = make(pools, sized=dataclasses.replace(SIZED, steps=6.0, steps_per_lookup=0.0))
  assert {task.facts["max_steps"] for task in fixed} == {6}


def test_a_budget_is_rounded_up_but_not_by_an_error_of_floats():
  assert budgets.paced_steps(30, 2.0, 0.1) == 5 and budgets.paced_steps(31, 2.0, 0.1) == 6


def test_both_lookups_of_a_chain_are_of_its_split(tasks):
  names = {r["cells"]["name"] for t in tasks if "chain" in t.facts["kind"] for r in t.facts["rows"]}
  assert names and names <= {f"Class{i}" for i in range(30)}


def test_two_names_and_no_others_share_the_value_that_is_asked_for(tasks):
  shared = [task for task in tasks if task.facts["kind"].startswith("deep shared")]
  assert len(shared) > 20
  for task in shared:
    key = task.facts["columns"][1]
    values = collections.Counter(row["cells"][key] for row in task.facts["rows"])
    assert [v for v, count in values.items() if count > 1] == [task.facts["truth"]]
    assert values[task.facts["truth"]] == 2 and len(task.facts["rows"]) >= 3
    assert f"Which {key} do two names share? Table: {task.facts['header']}" in task.prompt


def test_a_relay_asks_for_the_base_of_the_class_beside_the_second_of_the_two(tasks):
  relays = [task for task in tasks if task.facts["kind"] == "deep relay def"]
  assert len(relays) > 20
  for task in relays:
    facts = task.facts
    _, second = (r for r in facts["rows"] if r["cells"]["first argument"] == facts["shared"])
    link = facts["link"]["cells"]
    assert f" def {second['cells']['name']}, class {link['name']}." in task.prompt
    assert facts["truth"] == link["base"] and facts["facts"][-1]["is_final_answer"]
    assert len(facts["facts"]) == len(facts["rows"]) + 1


def test_answers_are_drawn_evenly_so_that_a_frequent_value_is_no_better_guess():
  usual = [row("class", i, "Exception") for i in range(60)]
  others = [row("class", i, f"Base{i // 2}") for i in range(60, 100)]
  pools = {"class": [*usual, *others], "def": [], "constant": [], "class chain": []}
  asked = collections.Counter(
    t.facts["truth"] for t in make(pools, 600, TablesConfig(max_rows=12)) if "truth" in t.facts
  )
  assert len(asked) == 21 and asked["Exception"] < 0.15 * asked.total()


def test_a_question_names_no_two_definitions_of_one_chunk(pools):
  together = [dataclasses.replace(r, chunk_ids=("same",)) for r in pools["def"][:45]]
  made = make({**pools, "def": [*together, *pools["def"][45:]]})
  for task in made:
    chunks = [r["chunk_ids"][0] for r in task.facts["rows"]]
    assert len(set(chunks)) == len(chunks)


def test_no_two_names_of_a_table_differ_in_case_alone(pools):
  lower = lambda r: r.name.lower()
  twins = [
    dataclasses.replace(
      r, name=lower(r), cells={**r.cells, "name": lower(r)}, chunk_ids=(f"{r.chunk_ids[0]} twin",)
    )
    for r in pools["def"]
  ]
  for task in make({**pools, "def": [*pools["def"], *twins]}):
    names = [row["cells"]["name"].lower() for row in task.facts["rows"]]
    assert len(set(names)) == len(names)


def test_names_are_numbered_downwards_so_that_the_last_one_is_number_1(tasks):
  for task in tasks:
    numbers = [int(number) for number in re.findall(r"(?<!\w)(\d+)\. ", task.prompt)]
    assert numbers == list(range(len(task.facts["rows"]), 0, -1)), task.prompt


def test_the_source_stands_between_the_name_and_the_value(tasks):
  columns = {tuple(task.facts["columns"]) for task in tasks if "truth" not in task.facts}
  assert columns == {
    ("name", "source", "base"),
    ("name", "source", "first argument"),
    ("name", "source", "value"),
    ("name", "base", "base of base"),
  }


def test_what_a_player_reads_of_a_prompt_are_its_names_in_order(tasks):
  for task in tasks:
    reading = Reading(task.prompt)
    assert [name for _, name in reading.names] == [r["cells"]["name"] for r in task.facts["rows"]]
    assert reading.columns == task.facts["columns"]
    assert reading.question == task.facts.get("question", "")
    assert reading.relays == ("link" in task.facts)


def test_prompts_never_say_how_to_proceed_and_no_two_are_alike(pools, tasks):
  for word in ("parallel", "agent", "at once", "concurrent", "simultaneous", "assign"):
    assert not any(word in task.prompt.lower() for task in tasks)
  assert len({task.prompt for task in tasks}) == len(tasks)
  assert make(pools) == tasks and make(pools, seed=1) != tasks
