"""Scores of a table: item and row F1 of WideSearch, for tables that an agent fills in.

Source: WideSearch, https://github.com/ByteDance-Seed/WideSearch, `src/evaluation`. There is no
judge model here: keys and column names must be equal after normalisation.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence

from jaxrl_agents.agents.search.reward import ANSWER_PATTERN, f_beta

Row = Mapping[str, str]
"""{column: cell}."""


def parse(text: str) -> tuple[list[str], list[dict[str, str]]]:
  """(columns, rows) of the first Markdown table in a text; no columns if there is none.

  Rows of another width than the header get empty cells or lose cells; a line of dashes is skipped.
  A row may have its number in a list before it ("3. | a | b |"). The table ends at the first line
  that is no row.
  """
  columns: list[str] = []
  rows: list[dict[str, str]] = []
  for line in text.splitlines():
    line = unnumbered(line)
    if not line.startswith("|"):
      if columns:
        break
      continue
    cells = [cell.strip() for cell in line.strip("|").split("|")]
    if not columns:
      columns = [normal(cell) for cell in cells]
    elif not re.fullmatch(r"[\s|:-]*-[\s|:-]*", line):
      padded = [*cells, *[""] * len(columns)]
      rows.append(dict(zip(columns, padded, strict=False)))
  return columns, rows


def cell_spans(text: str) -> list[tuple[int, int, int]]:
  """(place, start, end) of the cells of numbered rows ("3. | a | b |"), in the order of the text.

  The place is that of the column, and -1 for the number before the row.
  """
  spans = []
  for row in re.finditer(r"(?m)^(\d+)\. *\|(.*)\|", text):
    spans.append((-1, *row.span(1)))
    start = row.start(2)
    for place, cell in enumerate(row[2].split("|")):
      spans.append((place, start, start + len(cell)))
      start += len(cell) + 1
  return spans


def unnumbered(line: str) -> str:
  """A line without white space around it, and without a number before its first bar."""
  return re.sub(r"^\d+\. *(?=\|)", "", line.strip())


def compared(rows: Iterable[str], values: Iterable[str]) -> list[str]:
  """Numbered rows up to the first whose value has come before, each followed by the number of the
  first row with its value ("3. | f |a|3", "2. | g |b|2", "1. | h |a|3").

  A small policy sees that a value comes again by copying what followed it.
  """
  first: dict[str, str] = {}
  made: list[str] = []
  for row, value in zip(rows, values, strict=True):
    again = value in first
    made.append(row + first.setdefault(value, row.partition(".")[0]))
    if again:
      break
  return made


def last_cell(text: str) -> str:
  """The last cell of the row in the last line of a text. A number behind a numbered row is not part
  of it ("2. | f |a|3"), and a line without bars is a cell.
  """
  last = text.strip().rpartition("\n")[-1]
  row = re.sub(r"^(\d+\. *\|.*\|) *\d+$", r"\1", last)
  return row.strip("| ").rpartition("|")[-1]


def normal(text: str) -> str:
  """The text that is compared: lower case, without white space, quotes and backticks. The mark of
  a document counts as its id ("<Document id=7>" as "7").
  """
  return re.sub(r"[\s\"'`*]", "", ANSWER_PATTERN.sub(r"\1", text)).lower()


def table_parts(
  text: str,
  gold: Sequence[Row],
  *,
  columns: Sequence[str],
  keys: Sequence[str],
) -> dict[str, float]:
  """Scores of the table in `text` against the rows of `gold`.

  Of duplicate rows (equal keys) the first counts. A row is found if its keys equal those of a gold
  row; its key cells then score 1, and the others 1 where they are equal after normalisation.

      TP_item = sum of cells       P = TP_item / (rows * columns)   R = TP_item / (gold * columns)
      TP_row = rows all right      P = TP_row / rows                R = TP_row / gold

  Args:
    text: an answer; its first Markdown table counts.
    gold: the true rows.
    columns: required ones; a table with other columns, or without one of them, scores 0.
    keys: those of `columns` that identify a row.

  Returns:
    item_precision, item_recall, item_f1, row_precision, row_recall, row_f1, and success: 1 if the
    table is exactly right.
  """
  found_columns, found = parse(text)
  if set(found_columns) != {normal(column) for column in columns}:
    found = []
  by_key = _by_key(found, [normal(key) for key in keys])
  wanted = _by_key(gold, keys)
  items = rows = 0
  for key, row in by_key.items():
    if key in wanted:
      gold_row = wanted[key]
      cells = [c in keys or normal(row[normal(c)]) == normal(gold_row[c]) for c in columns]
      items += sum(cells)
      rows += all(cells)
  width = len(columns)
  item_p, item_r = _ratio(items, len(by_key) * width), _ratio(items, len(wanted) * width)
  row_p, row_r = _ratio(rows, len(by_key)), _ratio(rows, len(wanted))
  return {
    "item_precision": item_p,
    "item_recall": item_r,
    "item_f1": f_beta(item_p, item_r, 1.0),
    "row_precision": row_p,
    "row_recall": row_r,
    "row_f1": f_beta(row_p, row_r, 1.0),
    "success": float(min(item_p, item_r, row_p, row_r) == 1.0),
  }


def _by_key(rows: Iterable[Row], keys: Sequence[str]) -> dict[tuple[str, ...], Row]:
  found: dict[tuple[str, ...], Row] = {}
  for row in rows:
    found.setdefault(tuple(normal(row[key]) for key in keys), row)
  return found


def _ratio(count: int, of: int) -> float:
  return count / of if of else 0.0
