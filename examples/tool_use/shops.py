"""What a shop has in stock: a database that every worker process opens for itself."""

from __future__ import annotations

import pathlib
import sqlite3

from jaxrl_agents.harness.tools import Tool, ToolError
from jaxrl_agents.types import ToolSpec

ITEMS = ("apples", "bread", "coffee", "dates", "eggs", "flour", "honey", "lemons", "milk", "rice")


def write(file: pathlib.Path, stock: dict[int, str]) -> None:
  """Writes the database: the one item that each shop has."""
  file.parent.mkdir(parents=True, exist_ok=True)
  file.unlink(missing_ok=True)
  with sqlite3.connect(file) as database:
    database.execute("CREATE TABLE stock (shop INTEGER PRIMARY KEY, item TEXT)")
    database.executemany("INSERT INTO stock VALUES (?, ?)", stock.items())
  database.close()


class Shops:
  """The database, open for reading in the process that made this object."""

  def __init__(self, file: str):
    uri = f"{pathlib.Path(file).resolve().as_uri()}?mode=ro"
    self._database = sqlite3.connect(uri, uri=True, check_same_thread=False)

  def stock_tool(self, shop: int) -> Tool:
    """The tool `stock(item)` of one shop."""

    def stock(item: str) -> str:
      if item not in ITEMS:
        raise ToolError(f"the shop does not know {item[:20]!r}; use a name from the question")
      query = "SELECT item FROM stock WHERE shop = ?"
      (held,) = self._database.execute(query, (shop,)).fetchone()
      return "yes" if held == item else "no"

    parameters = {
      "type": "object",
      "properties": {"item": {"type": "string", "minLength": 1, "maxLength": 40}},
      "required": ["item"],
    }
    return Tool(ToolSpec("stock", "Says whether the shop has an item.", parameters), stock)
