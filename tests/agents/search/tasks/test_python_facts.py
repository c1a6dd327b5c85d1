"""What is read from python source stands there, word for word."""

import textwrap

from jaxrl_agents.agents.search.tasks import python_facts
from jaxrl_agents.corpus.documents import Document

SOURCES = {
  "shop": '"""A shop of pets."""\nfrom .stock import *\nfrom .errors import Empty as Gone\n',
  "shop.errors": '''
    class ShopError(Exception):
      """Any trouble of the shop."""

    class Empty(ShopError):
      """Nothing is left on the shelf."""
    ''',
  "shop.stock": '''
    """Keeps count.

    The stock of animals.
    """
    import shop.errors
    from . import errors as trouble

    class Shelf:
      """Where animals wait.  More text."""

      def take(self, how_many, timeout=LONG_WAIT):
        """take(how_many) -> list

        Take animals from the shelf.
        """
        if not self.count():
          raise trouble.Empty(how_many)
        return sell(
          how_many)

      def count(self):
        "Count the animals, e.g. for a sign.\\nNo."

    def sell(how_many):
      r"""Sell animals to
      somebody who asks. Then stop."""
      try:
        return Shelf()
      except shop.errors.Empty:
        return LONG_WAIT
    ''',
  "till": '''
    import shop

    def charge(shelf):
      """Ask for the money."""
      return shop.sell(3), shop.Shelf
    ''',
  "broken": "def f(:\n",
}


def domain_and_quote():
  documents = [
    Document(str(i), name, textwrap.dedent(text), {"source": name, "kind": "python"})
    for i, (name, text) in enumerate(SOURCES.items())
  ]
  texts = {document.id: document.text for document in documents}
  quote = lambda span: span and texts[span.doc_id][span.start : span.end]
  return python_facts.read(documents), quote


def test_entities_are_described_by_the_first_sentence_of_prose():
  domain, quote = domain_and_quote()
  summaries = {key: quote(e.summary) for key, e in domain.entities.items() if e.summary}
  assert summaries == {
    "shop:": "A shop of pets.",
    "shop.errors:ShopError": "Any trouble of the shop.",
    "shop.errors:Empty": "Nothing is left on the shelf.",
    "shop.stock:": "Keeps count.",
    "shop.stock:Shelf": "Where animals wait.",
    "shop.stock:Shelf.take": "Take animals from the shelf.",
    "shop.stock:sell": "Sell animals to\n  somebody who asks.",
    "till:charge": "Ask for the money.",
  }


def test_the_line_that_names_an_entity_is_its_definition_or_a_line_of_the_modules_docstring():
  domain, quote = domain_and_quote()
  assert quote(domain.entities["shop.errors:Empty"].truth) == "class Empty(ShopError):"
  take = domain.entities["shop.stock:Shelf.take"]
  assert quote(take.truth) == "def take(self, how_many, timeout=LONG_WAIT):"
  assert quote(domain.entities["shop.stock:"].truth) == "The stock of animals."
  assert domain.entities["till:"].truth is None


def test_kinds_tell_exceptions_classes_methods_routines_and_modules_apart():
  domain, _ = domain_and_quote()
  kinds = {key: entity.kind for key, entity in domain.entities.items()}
  assert kinds["shop.errors:ShopError"] == "exception"
  assert kinds["shop.stock:Shelf"] == "class"
  assert kinds["shop.stock:Shelf.take"] == "method"
  assert kinds["shop.stock:sell"] == "routine"
  assert kinds["till:"] == "module"


def test_relations_follow_imports_and_quote_the_line_that_states_them():
  domain, quote = domain_and_quote()
  found = {(r.kind, r.source, r.target): quote(r.evidence) for r in domain.relations}
  expected = {
    ("extends", "shop.errors:Empty", "shop.errors:ShopError"): "class Empty(ShopError):",
    ("calls", "shop.stock:Shelf.take", "shop.stock:Shelf.count"): "if not self.count():",
    ("calls", "shop.stock:Shelf.take", "shop.stock:sell"): "return sell(",
    ("makes", "shop.stock:sell", "shop.stock:Shelf"): "return Shelf()",
    ("catches", "shop.stock:sell", "shop.errors:Empty"): "except shop.errors.Empty:",
    ("calls", "till:charge", "shop.stock:sell"): "return shop.sell(3), shop.Shelf",
    ("shares_input", "shop.stock:sell", "shop.stock:Shelf.take"): "def sell(how_many):",
    ("shares_constant", "shop.stock:sell", "shop.stock:Shelf.take"): "return LONG_WAIT",
  }
  for key, line in expected.items():
    assert found[key] == line
  held = {target for kind, source, target in found if kind == "holds" and source == "shop.stock:"}
  assert held == {"shop.stock:Shelf", "shop.stock:sell"}
  raised = [key for key in found if key[0] == "raises"]
  assert raised == [("raises", "shop.stock:Shelf.take", "shop.errors:Empty")]
  assert len([key for key in found if key[0] == "calls"]) == 3
