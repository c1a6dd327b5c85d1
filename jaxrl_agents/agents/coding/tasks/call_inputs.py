"""Calls of a function with random arguments; trials find the types that the function accepts."""

from __future__ import annotations

import ast
import dataclasses
import itertools
import random
from collections.abc import Callable, Mapping, Sequence

from jaxrl_agents.agents.coding.tasks.functions import Cut

_INTEGERS = (0, 1, 2, 3, 4, 5, 7, 8, 10, 12, 31, 60, 100, 255, 2024, -1, -3)
_WORDS = (
  *("a", "ab", "abc", "Abc", "one two", "x y z", "a,b,c", "a-b", " pad ", "12", "3.5", "0x1f"),
  *("line\nnext", "", "aaa", "/a/b.txt", "key=value", "Hello World", "<b>", "%d", "a.b.c"),
)
_FLOATS = (0.0, 0.5, 1.0, 1.5, 2.25, -0.75, 3.0, 10.0, 0.1)
OWN = 0.4
"""Probability of a number or text that occurs in the function's own code, if it has any."""


@dataclasses.dataclass(frozen=True)
class ValueWriter:
  """Writes the source of random values; `integers` and `words` occur in the function's code."""

  random: random.Random
  integers: tuple[int, ...] = ()
  words: tuple[str, ...] = ()

  def integer(self) -> str:
    """An integer; often one of the code, or close to it."""
    if self.integers and self.random.random() < OWN:
      return str(self.random.choice(self.integers) + self.random.choice([-1, 0, 0, 1]))
    return str(self.random.choice(_INTEGERS))

  def text(self) -> str:
    """A string; often one of the code, or one that contains it."""
    if self.words and self.random.random() < OWN:
      word = self.random.choice(self.words)
      return repr(self.random.choice([word, f"a{word}b", f"{word}x", f"x{word}"]))
    return repr(self.random.choice(_WORDS))

  def several(self, of: Callable[[ValueWriter], str], brackets: str) -> str:
    """A list or tuple of one to four values."""
    inner = ", ".join(of(self) for _ in range(self.random.randrange(1, 5)))
    comma = "," if brackets == "()" and "," not in inner else ""
    return f"{brackets[0]}{inner}{comma}{brackets[1]}"


KINDS: Mapping[str, Callable[[ValueWriter], str]] = {
  "int": ValueWriter.integer,
  "str": ValueWriter.text,
  "ints": lambda draw: draw.several(ValueWriter.integer, "[]"),
  "strs": lambda draw: draw.several(ValueWriter.text, "[]"),
  "float": lambda draw: repr(draw.random.choice(_FLOATS)),
  "tuple": lambda draw: draw.several(ValueWriter.integer, "()"),
  "bytes": lambda draw: repr(draw.random.choice(_WORDS).encode()),
  "bool": lambda draw: draw.random.choice(["True", "False"]),
  "none": lambda draw: "None",
  "dict": lambda draw: f"{{{draw.text()}: {draw.integer()}, {draw.text()}: {draw.integer()}}}",
}
"""{type: writes the source of one value}, most likely type first."""


def value_writer(cut: Cut, purpose: str) -> ValueWriter:
  """The value writer of a function; its draws depend on the function and `purpose` only."""
  found = [n.value for n in ast.walk(ast.parse(cut.text)) if isinstance(n, ast.Constant)]
  integers = sorted({v for v in found if type(v) is int and abs(v) < 10_000})
  words = sorted({v for v in found if type(v) is str and 0 < len(v) < 12})
  seeded = random.Random(f"{purpose} {cut.module} {cut.name}")
  return ValueWriter(seeded, tuple(integers), tuple(words))


def probes(cut: Cut, seed: int, limit: int = 64) -> list[tuple[tuple[str, ...], str]]:
  """(types of the arguments, call) of many combinations of types, likelier ones first."""
  draw = value_writer(cut, f"{seed} probe")
  required = sum(not default for _, default in cut.parameters)
  ranked: list[tuple[int, tuple[str, ...]]] = []
  for count in range(max(required, 1), min(len(cut.parameters), required + 2, 4) + 1):
    width = {1: 10, 2: 7, 3: 4}.get(count, 3)
    for ranks in itertools.product(range(width), repeat=count):
      names = list(KINDS)
      ranked.append((sum(ranks) + count, tuple(names[i] for i in ranks)))
  ranked.sort(key=lambda pair: pair[0])
  kinds = [kinds for _, kinds in ranked[:limit]]
  return [(each, call(cut, each, draw)) for each in kinds for _ in range(2)]


def calls(cut: Cut, accepted: Sequence[tuple[str, ...]], seed: int, count: int = 40) -> list[str]:
  """Distinct calls with arguments of the accepted types; examples of the docstring first."""
  draw = value_writer(cut, f"{seed} call")
  found = dict.fromkeys(cut.examples)
  for i in range(4 * count if accepted else 0):
    found[call(cut, accepted[i % len(accepted)], draw)] = None
    if len(found) >= count:
      break
  return list(found)


def call(cut: Cut, kinds: Sequence[str], draw: ValueWriter) -> str:
  """The source of one call."""
  return f"{cut.name}({', '.join(KINDS[kind](draw) for kind in kinds)})"


def accepted(
  tried: Sequence[tuple[tuple[str, ...], str]], values: Sequence[str], limit: int = 3
) -> list[tuple[str, ...]]:
  """The types with which calls returned values, those with most distinct values first.

  Args:
    tried: as from `probes`.
    values: the value of each call, as `agents.coding.judge.inside.calls` writes it.
    limit: most combinations of types returned.
  """
  gave: dict[tuple[str, ...], set[str]] = {}
  for (kinds, _), value in zip(tried, values, strict=True):
    if value[:1] not in "!?" and value != "None":
      gave.setdefault(kinds, set()).add(value)
  order = sorted(gave, key=lambda kinds: (-len(gave[kinds]), list(gave).index(kinds)))
  return order[:limit]


def informative(found: Sequence[tuple[str, str]], count: int, shared: int) -> list[tuple[str, str]]:
  """At most `count` pairs (call, value), at most `shared` with the same value, in their old order.

  Short pairs are preferred. At most a quarter of them are exceptions.
  """
  seen: dict[str, int] = {}
  faults, picked = 0, []
  for index, (call, value) in enumerate(found):
    if value.startswith("?") or len(call) + len(value) > 90:
      continue
    if value.startswith("!") and faults >= count // 4:
      continue
    if seen.get(value, 0) >= shared:
      continue
    faults += value.startswith("!")
    seen[value] = seen.get(value, 0) + 1
    picked.append((len(call) + len(value), index))
  kept = sorted(index for _, index in sorted(picked)[:count])
  return [found[index] for index in kept]
