"""Item and row F1 on tables made by hand."""

import pytest

from jaxrl_agents.agents.swarm import tables

COLUMNS = ("name", "base", "source")
GOLD = [
  {"name": "Foo", "base": "Bar", "source": "7"},
  {"name": "Baz", "base": "Bar", "source": "12"},
  {"name": "Qux", "base": "dict", "source": "9"},
  {"name": "Zip", "base": "list", "source": "3"},
]
HEADER = "| name | base | source |"


def score(text, **options):
  return tables.table_parts(text, GOLD, **{"columns": COLUMNS, "keys": ("name",)} | options)


def test_the_cells_of_numbered_rows_are_found_where_they_stand():
  text = "| name |base|\n12. | Foo |B|\n| Bar |C|\n1. | Ba |<Document id=7>|\nThat is all."
  found = [(place, text[start:end]) for place, start, end in tables.cell_spans(text)]
  assert found[:3] == [(-1, "12"), (0, " Foo "), (1, "B")]
  assert found[3:] == [(-1, "1"), (0, " Ba "), (1, "<Document id=7>")]


def test_a_whole_table_succeeds_in_any_order_of_rows_and_columns_with_text_around_it():
  text = """The table:

  | Source | `name` | BASE |
  |:---|---:|---|
  | 3 | Zip | list |
  | 12 | Baz | bar |
  | 9 | "Qux" | dict |
  | 7 | Foo | Bar |

  That is all."""
  assert score(text) == dict.fromkeys(score(text), 1.0)


def test_rows_may_have_their_numbers_in_a_list_before_them():
  parts = score(f"{HEADER}\n7. | Foo | Bar | 7 |\n12. | Baz | Bar | 99 |\n13 | Qux | dict | 9 |")
  assert parts["row_precision"] == 0.5 and parts["row_recall"] == 0.25  # "13 |" is no row


def test_a_mark_of_a_document_counts_as_its_id_and_no_part_of_it_does():
  parts = score(f"{HEADER}\n| Foo | Bar | <Document id=7> |\n| Baz | Bar | <Document id=2> |")
  assert parts["row_precision"] == 0.5 and parts["item_precision"] == pytest.approx(5 / 6)


def test_rows_are_compared_up_to_the_first_value_that_comes_again():
  rows = ["4. | f |a|", "3. | g |b|", "2. | h |a|", "1. | i |b|"]
  expected = ["4. | f |a|4", "3. | g |b|3", "2. | h |a|4"]
  assert tables.compared(rows, ["a", "b", "a", "b"]) == expected
  assert tables.compared(rows[:2], ["a", "b"]) == expected[:2]


def test_the_last_cell_of_a_text_is_that_of_its_last_row_or_the_text():
  said = ["obj", "| f | obj |", "2. | f |obj|", "3. | f |a|3\n2. | g |obj|3\n", "| f | obj"]
  assert [tables.normal(tables.last_cell(text)) for text in said] == ["obj"] * 5
  assert [tables.last_cell(text) for text in ("1. |f|12|7", "| f |12", "12")] == ["12"] * 3


def test_cells_and_rows_are_counted_by_the_definition():
  # Foo is right, Baz has a wrong source, Nil is no row of gold; Qux and Zip are missing.
  parts = score(f"{HEADER}\n| Foo | Bar | 7 |\n| Baz | Bar | 99 |\n| Nil | x | 1 |")
  assert parts["item_precision"] == pytest.approx(5 / 9)
  assert parts["item_recall"] == pytest.approx(5 / 12)
  assert parts["item_f1"] == pytest.approx(2 * (5 / 9) * (5 / 12) / (5 / 9 + 5 / 12))
  assert parts["row_precision"] == pytest.approx(1 / 3)
  assert parts["row_recall"] == pytest.approx(1 / 4)
  assert parts["row_f1"] == pytest.approx(2 / 7)
  assert parts["success"] == 0.0


def test_of_rows_with_equal_keys_only_the_first_counts():
  rows = "| Foo | Bar | 7 |\n| foo | wrong | 0 |"
  assert score(f"{HEADER}\n{rows}")["item_precision"] == 1.0


def test_short_rows_have_empty_cells_and_long_ones_lose_the_rest():
  parts = score(f"{HEADER}\n| Foo | Bar |\n| Baz | Bar | 12 | more | and more |")
  assert parts["item_precision"] == pytest.approx(5 / 6)


def test_wrong_columns_or_no_table_are_worth_nothing():
  for text in ("", "none", "Foo | Bar | 7", "| Foo | Bar | 7 |", "| name | base |\n| Foo | Bar |"):
    assert score(text) == dict.fromkeys(score(text), 0.0), text
  assert score(f"{HEADER[:-1]} extra |\n| Foo | Bar | 7 | 1 |")["item_f1"] == 0.0
