"""An episode is told turn by turn: what was shown, pruned, returned, and what was missed."""

import json

import numpy as np
import pytest

from jaxrl_agents.types import Message, Segment, Task, ToolCall, Trajectory
from jaxrl_agents.viewer import tokens, trajectory

TASK = Task(
  "t1",
  "search",
  "Which module?",
  {
    "truth": "heapq",
    "facts": [
      {"fact": "one", "chunk_ids": ["417_31", "9_9"], "is_final_answer": True},
      {"fact": "two", "chunk_ids": ["52_0"], "is_final_answer": False},
      {"fact": "three", "chunk_ids": ["77_1"], "is_final_answer": False},
    ],
  },
)
SEARCH_RESULT = (
  "\n# DOCUMENT ID: 417_31 (5 tokens) \ndef heappush(heap):\n"
  "\n# DOCUMENT ID: 52_0 (3 tokens) \nimport x\n"
)


def search(call_id, query):
  return ToolCall(call_id, "search_corpus", {"query": query})


LOG = (
  Message("system", "You search."),
  Message("user", "Which module?"),
  Message("assistant", "", (search("0.0", "heap"),), tokens=np.arange(7, dtype=np.int32)),
  Message("tool", SEARCH_RESULT + "\n\n[Token usage: 1,401/512]", tool_call_id="0.0"),
  Message("user", "Over budget.", ephemeral=True),
  Message(
    "assistant",
    "Prune.",
    (ToolCall("1.0", "prune_chunks", {"chunk_ids": ["52_0", "never_0"]}), search("1.1", "again")),
  ),
  Message("tool", "Pruned", tool_call_id="1.0"),
  Message("tool", "\n# DOCUMENT ID: 52_0 (3 tokens) \nimport x", tool_call_id="1.1"),
  Message("assistant", "<Document id=417_31>\n<Document id=8_8>"),
)


def describe(log=LOG, stop="answer", **changes):
  played = Trajectory("t1", (), log, {"f1": 0.5, "bad": float("nan")}, stop, **changes)
  return trajectory.describe(played, TASK)


def test_chunks_of_a_result_are_marked_as_gold_and_by_the_turn_that_pruned_them():
  first, second = describe()["turns"][0]["calls"][0]["pieces"]
  assert first == {
    "id": "417_31",
    "tokens": 5,
    "text": "def heappush(heap):",
    "gold": [1],
    "pruned": None,
  }
  assert (second["id"], second["gold"], second["pruned"]) == ("52_0", [2], 2)


def test_a_chunk_shown_again_after_its_pruning_is_not_struck_through():
  again = describe()["turns"][1]["calls"][1]["pieces"][0]
  assert (again["id"], again["pruned"]) == ("52_0", None)


def test_the_answer_is_split_into_hits_and_misses_and_each_fact_has_its_fate():
  told = describe()
  assert told["returned"] == [{"id": "417_31", "gold": [1]}, {"id": "8_8", "gold": []}]
  fates = [(f["returned"], f["seen"], f["pruned"]) for f in told["facts"]]
  assert fates == [(True, 1, None), (False, 1, 2), (False, None, None)]


def test_an_episode_that_did_not_end_with_an_answer_returned_nothing():
  assert describe(stop="turn_limit")["returned"] == []


def test_turns_keep_usage_sampled_tokens_and_one_time_notes():
  told = describe()
  assert [note["role"] for note in told["preamble"]] == ["system", "user"]
  first = told["turns"][0]
  assert (first["sampled"], first["usage"], first["limit"]) == (7, 1401, 512)
  assert first["notes"] == [{"role": "user", "text": "Over budget.", "ephemeral": True}]


def test_results_without_a_known_call_id_go_to_the_calls_in_order():
  log = (
    Message("assistant", "", (search("a", "x"), search("b", "y"), search("c", "z"))),
    Message("tool", "first"),
    Message("tool", "second"),
  )
  calls = describe(log, stop="")["turns"][0]["calls"]
  assert [call["pieces"] for call in calls] == [[{"text": "first"}], [{"text": "second"}], []]
  assert [call["answered"] for call in calls] == [True, True, False]


def test_a_malformed_prune_call_prunes_nothing():
  bad = ToolCall("1.0", "prune_chunks", {"chunk_ids": ["417_31"]}, error="not closed")
  log = (*LOG[:4], Message("assistant", "", (bad,)))
  assert describe(log, stop="")["turns"][0]["calls"][0]["pieces"][0]["pruned"] is None


def test_documents_as_gold_are_found_through_any_of_their_chunks():
  task = Task("t", "search", "?", {"document_ids": ["417", "6"], "gold_document_ids": ["6"]})
  told = trajectory.describe(Trajectory("t", (), LOG, {}, "answer"), task)
  assert told["returned"][0] == {"id": "417_31", "gold": [1]}
  assert [(f["returned"], f["is_final_answer"]) for f in told["facts"]] == [
    (True, False),
    (False, True),
  ]


@pytest.mark.parametrize(
  "facts", [{"facts": ["A tuna is a fish."]}, {"facts": 3}, {"document_ids": 7}]
)
def test_fields_of_an_agent_outside_of_the_package_are_no_gold(facts):
  task = Task("t", "questions", "?", facts)
  assert trajectory.describe(Trajectory("t", (), LOG, {}, "answer"), task)["facts"] == []


def test_the_description_is_json_whatever_the_policy_wrote():
  odd = ToolCall("0.0", "search_corpus", {"query": float("inf"), "more": {"x": [1, None, {"y"}]}})
  told = describe((Message("assistant", "", (odd,)),), stop="", error="EpisodeError: late")
  json.dumps(told, allow_nan=False)
  assert told["rewards"] == {"f1": 0.5}
  assert told["turns"][0]["calls"][0]["arguments"]["query"] == "inf"


def test_a_segment_is_kept_as_runs_and_places_in_a_shared_table():
  segment = Segment(
    tokens=np.array([5, 6, 5, 7, 7], np.int32),
    loss_mask=np.array([False, True, True, False, True]),
    logprobs=np.array([0, -0.12345, -np.inf, 0, -2.0], np.float32),
    versions=np.array([-1, 3, 3, -1, 4], np.int32),
  )
  table = tokens.TokenTable(lambda ids: f"<{ids[0]}>")
  assert tokens.describe(segment, table) == {
    "tokens": [0, 1, 0, 2, 2],
    "mask": [1, 2, 1, 1],
    "logprobs": [-0.123, None, -2.0],
    "versions": [[3, 2], [4, 1]],
  }
  assert (table.texts, table.ids) == (["<5>", "<6>", "<7>"], [5, 6, 7])


def test_a_segment_that_starts_with_a_sampled_token_has_an_empty_first_run():
  ones = np.ones(2, np.int32)
  segment = Segment(ones, np.array([True, False]), -ones.astype(np.float32), ones)
  assert tokens.describe(segment, tokens.TokenTable(str))["mask"] == [0, 1, 1]


def test_sub_agents_are_described_as_episodes_of_their_own():
  child = Trajectory("t1/0.0", (), LOG[:4], {}, "step_limit")
  told = describe(children=(child,))["children"]
  assert [(c["id"], c["stop"], len(c["turns"])) for c in told] == [("t1/0.0", "step_limit", 1)]
  assert told[0]["turns"][0]["calls"][0]["name"] == "search_corpus"
  assert json.loads(json.dumps(told)) == told
