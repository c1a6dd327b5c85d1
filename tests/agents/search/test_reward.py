"""Context-1's reward, against numbers worked out by hand."""

import pytest

from jaxrl_agents.agents.search import reward
from jaxrl_agents.agents.search.config import SearchReward
from jaxrl_agents.types import Message, ToolCall

FACTS = {
  "facts": [
    {"fact": "the answer", "chunk_ids": ["7_0", "8_4"], "is_final_answer": True},
    {"fact": "a clue", "chunk_ids": ["9_1"], "is_final_answer": False},
  ]
}


def hits(*ids):
  return "\n".join(f"\n# DOCUMENT ID: {i} (12 tokens) \nsome text" for i in ids)


def turn(number, *calls):
  return Message(
    "assistant",
    "",
    tuple(ToolCall(f"{number}.{i}", name, args) for i, (name, args) in enumerate(calls)),
  )


def search(number, *ids):
  return [
    turn(number, ("search_corpus", {"query": "x"})),
    Message("tool", hits(*ids), tool_call_id=f"{number}.0"),
  ]


def prune(number, *ids):
  return [
    turn(number, ("prune_chunks", {"chunk_ids": list(ids)})),
    Message("tool", "Pruned", tool_call_id=f"{number}.0"),
  ]


def answer(*ids):
  return Message("assistant", "\n".join(f"<Document id={i}>" for i in ids))


def parts_of(log, stop="answer", facts=FACTS, known=lambda i: True, max_documents=30):
  return reward.search_parts(log, stop, facts, was_shown=known, max_documents=max_documents)


PERFECT = {
  "completed": 1.0,
  "precision": 1.0,
  "output_recall": 1.0,
  "trajectory_recall": 1.0,
  "answer_found": 1.0,
  "prune_penalty": 0.0,
  "repeat_penalty": 0.0,
  "turn_penalty": 0.0,
}


def test_a_fact_is_found_by_any_of_its_chunks_and_precision_counts_chunks():
  assert reward.recall(["8_4"], FACTS) == 0.5
  assert reward.recall(["7_0", "8_4", "9_1"], FACTS) == 1.0
  assert reward.precision(["7_0", "8_4", "1_1", "2_2"], FACTS) == 0.5
  assert reward.recall([], FACTS) == reward.precision([], FACTS) == 0.0


def test_documents_are_compared_by_the_part_of_the_id_before_the_underscore():
  facts = {"document_ids": ["7", "9"], "gold_document_ids": ["9"]}
  assert reward.recall(["7_0", "7_5", "3_1"], facts) == 0.5
  assert reward.precision(["7_0", "7_5", "3_1"], facts) == 0.5
  assert reward.answer_found(["7_0"], facts) == 0.0
  assert reward.answer_found(["9_3"], facts) == 1.0


def test_a_chunk_that_states_the_fact_without_the_answer_finds_the_fact_and_not_the_answer():
  final = {**FACTS["facts"][0], "answer_chunk_ids": ["8_4"]}
  facts = {"facts": [final, FACTS["facts"][1]]}
  assert reward.recall(["7_0"], facts) == 0.5
  assert reward.answer_found(["7_0"], facts) == 0.0
  assert reward.answer_found(["8_4", "7_0"], facts) == 1.0


def test_f_beta_with_beta_4_of_half_precision_and_full_recall_is_0_9444():
  assert reward.f_beta(0.5, 1.0, 4.0) == pytest.approx(17 * 0.5 / (16 * 0.5 + 1))
  assert reward.f_beta(0.5, 1.0, 4.0) == pytest.approx(0.9444, abs=5e-5)
  assert reward.f_beta(0.0, 0.0, 4.0) == 0.0


def test_a_perfect_episode_is_worth_2():
  assert reward.search_total(PERFECT, beta=4.0) == pytest.approx(2.0)


def test_six_prunes_in_a_row_cost_0_3_and_the_penalty_is_capped_at_a_half():
  assert reward.prune_penalty(["prune_chunks"] * 3) == 0.0
  assert reward.prune_penalty(["prune_chunks"] * 6) == pytest.approx(0.3)
  broken = ["prune_chunks"] * 4 + ["search_corpus"] + ["prune_chunks"] * 4
  assert reward.prune_penalty(broken) == pytest.approx(0.2)
  assert reward.prune_penalty(["prune_chunks"] * 30) == 0.5


def test_only_a_call_that_shows_something_ends_a_streak_of_prunes():
  def played(name, result):
    log = [Message("user", "q")]
    for i in range(6):
      made = (ToolCall(f"p{i}", "prune_chunks", {}), ToolCall(f"x{i}", name, {}))
      log.append(Message("assistant", "", made))
      log += [Message("tool", "Pruned", tool_call_id=f"p{i}")]
      log += [Message("tool", result, tool_call_id=f"x{i}")]
    found = reward.search_parts(log, "answer", FACTS, was_shown=lambda _: False, max_documents=30)
    return found["prune_penalty"]

  assert played("search_corpus", "No results found") == 0.0
  assert played("search_corpus", "Error: search_corpus: query is missing") == pytest.approx(0.3)
  assert played("x", "Error: there is no tool 'x'") == pytest.approx(0.3)


def test_turns_are_free_up_to_64_and_96_cost_a_quarter():
  expected = {1: 0.0, 64: 0.0, 96: 0.25, 128: 0.5, 500: 0.5}
  assert {turns: reward.turn_penalty(turns) for turns in expected} == expected


def test_penalties_lower_the_reward_but_never_below_the_floor():
  assert reward.search_total(PERFECT | {"turn_penalty": 0.25}, beta=2.0) == pytest.approx(1.75)
  poor = PERFECT | {
    "precision": 0.0,
    "output_recall": 0.0,
    "answer_found": 0.0,
    "trajectory_recall": 0.5,
    "turn_penalty": 0.5,
  }
  assert reward.search_total(poor, beta=2.0) == 0.001


def test_a_completed_but_empty_episode_gets_the_floor_and_an_errored_one_zero():
  empty = dict.fromkeys(PERFECT, 0.0)
  assert reward.search_total(empty | {"completed": 1.0}, beta=4.0) == 0.001
  assert reward.search_total(PERFECT | {"completed": 0.0}, beta=4.0) == 0.0


def test_weights_apply_late():
  weights = SearchReward(f_beta=1.0, trajectory_recall=0.0, answer_found=0.0)
  assert reward.search_total(PERFECT, beta=2.0, weights=weights) == pytest.approx(1.0)


def test_a_pruned_chunk_still_counts_as_shown():
  log = [Message("user", "q"), *search(0, "7_0", "1_1"), *prune(1, "7_0", "1_1"), answer("9_1")]
  parts = parts_of(log)
  assert parts["trajectory_recall"] == 0.5
  assert parts["output_recall"] == 0.5
  assert parts["answer_found"] == 0.0
  assert parts["prune_accuracy"] == 0.5
  assert parts["num_pruned"] == 2
  assert parts["turns"] == 3


def test_only_search_and_grep_results_count_as_shown():
  log = [
    turn(0, ("read_document", {"doc_id": "7"})),
    Message("tool", hits("7_0"), tool_call_id="0.0"),
    answer(),
  ]
  assert parts_of(log)["trajectory_recall"] == 0.0


def test_prune_accuracy_is_absent_where_nothing_shown_was_pruned():
  log = [*search(0, "7_0"), *prune(1, "5_5"), answer("7_0")]
  assert "prune_accuracy" not in parts_of(log)


def test_an_id_that_was_not_shown_earns_nothing_and_lowers_the_precision():
  parts = parts_of([answer("7_0", "99_99", "9_1")], known=lambda i: i != "99_99")
  assert (parts["precision"], parts["output_recall"]) == (2 / 3, 1.0)
  assert (parts["unseen_output"], parts["num_output"]) == (1.0, 3.0)
  parts = parts_of([answer("7_0", "9_1")], known=lambda i: i != "9_1")
  assert (parts["precision"], parts["output_recall"]) == (0.5, 0.5)


def test_a_mark_that_repeats_an_id_counts_as_a_wrong_one():
  parts = parts_of([answer("7_0", "9_1", "7_0", "7_0")])
  assert (parts["precision"], parts["output_recall"]) == (0.5, 1.0)
  assert (parts["repeated_output"], parts["num_output"]) == (2.0, 2.0)


def test_each_repeated_mark_costs_a_tenth_and_all_of_them_at_most_a_half():
  costs = [
    parts_of([answer("7_0", *["9_1"] * (1 + times))])["repeat_penalty"] for times in (0, 1, 4, 40)
  ]
  assert costs == pytest.approx([0.0, 0.1, 0.4, 0.5])
  repeating = PERFECT | {"repeat_penalty": 0.4}
  assert reward.search_total(repeating, beta=4.0) == pytest.approx(1.6)
  lenient = SearchReward(repeat_penalty=0.5)
  assert reward.search_total(repeating, beta=4.0, weights=lenient) == pytest.approx(1.8)


def test_two_names_of_one_chunk_repeat_it():
  log = [answer("5", "7_0")]
  parts = reward.search_parts(
    log, "answer", FACTS, ids={"5": "7_0"}, was_shown=lambda i: True, max_documents=30
  )
  assert (parts["precision"], parts["repeated_output"]) == (0.5, 1.0)


def test_documents_beyond_the_limit_are_ignored():
  parts = parts_of([answer("1_1", "2_2", "7_0")], max_documents=2)
  assert parts["answer_found"] == 0.0
  assert parts["num_output"] == 2


def test_an_episode_without_an_answer_is_not_completed_and_has_no_output():
  parts = parts_of([answer("7_0")], stop="context_overflow")
  assert parts["completed"] == parts["num_output"] == 0.0


@pytest.mark.parametrize(
  "text",
  [
    "<Document id=417_31>",
    '<Document id="417_31">',
    "<Document id='417_31'><Justification>Because <b> is so.</Justification></Document>",
    "Here it is: <document  id = 417_31 /> and again <Document id=417_31>",
    "<Document id=417_31/>",
    "<Document id='417_31'/>",
  ],
)
def test_answers_are_read_with_or_without_quotes_and_justification(text):
  assert reward.answer_ids(text) == ["417_31"]


def test_prune_calls_of_any_shape_are_read_without_failing():
  odd = [{"chunk_ids": "7_0"}, {"chunk_ids": [1, None, "7_0"]}, {}, {"chunk_ids": {"a": 1}}]
  ids = [reward.prune_call_ids(ToolCall("a", "prune_chunks", arguments)) for arguments in odd]
  assert ids == [[], ["7_0"], [], []]


def test_queries_that_stand_in_the_question_are_counted():
  def asked(*queries):
    turn = Message(
      "assistant", "", tuple(ToolCall("", "search_corpus", {"query": q}) for q in queries)
    )
    return reward.verbatim_queries((Message("user", "1. Method: prints a tree."), turn))

  assert asked(" prints a tree", "prints the tree", "Method", "trees") == 0.5
  assert asked() is None


def test_a_query_may_end_with_words_of_an_earlier_result():
  search = lambda query: Message(
    "assistant", "", (ToolCall("", "search_corpus", {"query": query}),)
  )
  log = (
    Message("user", "1. Method: prints a tree. 2. Class used by 1: holds leaves."),
    search(" prints a tree"),
    Message("tool", "def show(leaf_list): pass"),
    search(" holds leaves(leaf_list"),  # quoted from both
    search(" holds leaves(leaf_lists"),
    search(" leaf_list holds leaves"),
  )
  assert reward.verbatim_queries(log) == 0.5
  assert reward.verbatim_queries((*log[:2], log[3])) == 0.5  # nothing was read yet
