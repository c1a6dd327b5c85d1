"""On which shelf a shop keeps its coffee: a database that every worker process opens for itself."""

from __future__ import annotations

import pathlib
import sqlite3

from jaxrl_agents.harness.tools import Tool, ToolError
from jaxrl_agents.types import ToolSpec

SHELVES = tuple("123456789")


def write(file: pathlib.Path, shelf_of: dict[int, str]) -> None:
  """Writes the database: the shelf of each shop."""
  file.parent.mkdir(parents=True, exist_ok=True)
  file.unlink(missing_ok=True)
  with sqlite3.connect(file) as database:
    database.execute("CREATE TABLE coffee (shop INTEGER PRIMARY KEY, shelf TEXT)")
    database.executemany("INSERT INTO coffee VALUES (?, ?)", shelf_of.items())
  database.close()


class Shops:
  """The database, open for reading in the process that made this object."""

  def __init__(self, file: str):
    uri = f"{pathlib.Path(file).resolve().as_uri()}?mode=ro"
    self._database = sqlite3.connect(uri, uri=True, check_same_thread=False)

  def look_tool(self, shop: int) -> Tool:
    """The tool `look(shelf)` of one shop."""

    def look(shelf: str) -> str:
      if shelf not in SHELVES:
        raise ToolError(f"there is no shelf {shelf[:20]!r}; look at one of the question")
      query = "SELECT shelf FROM coffee WHERE shop = ?"
      (right,) = self._database.execute(query, (shop,)).fetchone()
      return "yes" if right == shelf else "no"

    parameters = {
      "type": "object",
      "properties": {"shelf": {"type": "string", "minLength": 1, "maxLength": 40}},
      "required": ["shelf"],
    }
    return Tool(ToolSpec("look", "Says whether the coffee is on a shelf.", parameters), look)
