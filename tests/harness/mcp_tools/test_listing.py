"""What servers offer becomes tools with names of their own, or an error at the start."""

import pytest

from jaxrl_agents.config import McpServer

listing = pytest.importorskip(
  "jaxrl_agents.harness.mcp_tools.listing", reason="needs the extra mcp"
)
types = pytest.importorskip("mcp.types")

OBJECT = {"type": "object", "properties": {"a": {"type": "integer"}}}


def offered(name, schema=OBJECT, description="", **hints):
  annotations = types.ToolAnnotations(**hints) if hints else None
  return types.Tool(
    name=name, description=description, input_schema=schema, annotations=annotations
  )


def listed(*tools, name="s", **options):
  return listing.listed_tools(McpServer(name, "program", **options), tools)


def test_names_have_the_server_in_front_and_no_characters_that_formats_refuse():
  found = listed(offered("b.c/d"), offered("a", read_only_hint=True))
  assert [(each.name, each.spec.name, each.repeatable) for each in found] == [
    ("a", "s_a", True),
    ("b.c/d", "s_b_c_d", False),
  ]


def test_only_a_hint_that_nothing_more_changes_makes_a_call_repeatable():
  hints = ({"idempotent_hint": True}, {"destructive_hint": False}, {"read_only_hint": False})
  assert [listed(offered("a", **each))[0].repeatable for each in hints] == [True, False, False]


def test_a_record_chooses_tools_by_the_names_of_the_server():
  assert [each.name for each in listed(offered("a"), offered("b"), tools=("b",))] == ["b"]
  with pytest.raises(ValueError, match="has no tool 'c'; it has a, b"):
    listed(offered("a"), offered("b"), tools=("c",))


@pytest.mark.parametrize(
  ("tool", "expected"),
  [
    (offered("x" * 63), "at most 64 characters"),
    (offered("a", {"type": "array"}), 'its type is "array"; that of arguments is object'),
    (offered("a", {"type": "object", "properties": 3}), "3 is not of type 'object'"),
    (
      offered("a", {"type": "object", "properties": {"x": {"$ref": "http://x.org/y"}}}),
      'refers to "http://x.org/y", which is another document',
    ),
  ],
)
def test_a_tool_that_cannot_be_used_is_an_error_that_names_it(tool, expected):
  with pytest.raises(ValueError, match=expected):
    listed(tool)


def test_the_digest_depends_on_all_that_a_policy_is_told_and_not_on_the_order():
  a, b = offered("a"), offered("b")
  digest = listing.digest_of(listed(a, b))
  assert digest == listing.digest_of(listed(b, a))
  others = (offered("c"), offered("b", description="d"), offered("b", {"type": "object"}))
  assert len({digest, *(listing.digest_of(listed(a, other)) for other in others)}) == 4


def test_two_tools_of_one_name_are_an_error():
  servers = (McpServer("a", "x"), McpServer("a_b", "x"))
  found = {"a": listed(offered("b_c"), name="a"), "a_b": listed(offered("c"), name="a_b")}
  with pytest.raises(ValueError, match="'a_b_c', which the MCP server 'a' has already; rename"):
    listing.joined(servers, found, [])
  with pytest.raises(ValueError, match="'a_b_c', which the agent itself has already"):
    listing.joined(servers[:1], {"a": found["a"]}, ["a_b_c"])
  both = {"a": listed(offered("b"), name="a"), "a_b": found["a_b"]}
  assert listing.joined(servers, both, ["own"]).names == ["a_b", "a_b_c"]
