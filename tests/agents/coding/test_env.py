"""The coding environment, turn by turn, in real sandboxes."""

import json

import numpy as np
import pytest

from jaxrl_agents.agents.coding import config, view
from jaxrl_agents.agents.coding import env as coding
from jaxrl_agents.agents.episode import MAX_MALFORMED_TURNS
from jaxrl_agents.types import Message, Task
from tests.agents.coding.bench import (
  CALL_TASK,
  CHECK,
  DONE,
  MEND,
  PROMPT,
  SUITE_TASK,
  observed,
  play,
  results,
  run,
  services,
  turn,
)
from tests.agents.coding.judge.benches import CALL_FACTS

pytestmark = pytest.mark.slow

READ = ("read_file", {"path": "main.py"})
SHELL = lambda command: ("shell", {"command": command})


def test_mending_the_line_is_solved_and_judged_once_the_policy_ends():
  trajectory = play([turn(CHECK, READ), turn(MEND, CHECK), DONE])
  before, text, edited, after = results(trajectory)
  assert before.startswith(
    "clamp(1, 2, 5) gives 1 not 2\nclamp(3, 2, 5) gives 2 not 3\n2 of 4 fail"
  )
  assert text.startswith("def clamp(value, low, high):\n    if value > low:")
  assert edited == "Edited main.py, line 2."
  assert after == "0 of 4 fail"
  assert trajectory.stop == "answer"
  rewards = trajectory.rewards
  assert (rewards["solved"], rewards["mended_hidden"], rewards["edits"]) == (1.0, 1.0, 1.0)
  assert (rewards["turns"], rewards["tool_calls"], rewards["broken_calls"]) == (3.0, 4.0, 0.0)


def test_doing_nothing_is_not_solved():
  rewards = play([DONE]).rewards
  assert (rewards["solved"], rewards["mended"], rewards["kept"]) == (0.0, 0.0, 1.0)


def test_hidden_tests_are_nowhere_in_the_sandbox_of_the_agent():
  hidden = "grep -rlE 'held_back|test_cents|0\\.29' /work /tmp; ls /work"
  assert observed(SHELL(hidden), task=SUITE_TASK) == ["shop.py\ntest_shop.py"]
  found = observed(SHELL("grep -r 'clamp(9' /work"))
  assert found == ["[exit 1]"]


def test_an_edit_that_does_not_fit_says_what_would():
  edit = lambda old, new="x": ("edit_file", {"path": "main.py", "old": old, "new": new})
  answers = observed(
    edit("if valeu < low:"),
    edit("return"),
    edit("low", "low"),
    ("edit_file", {"path": "main.py", "old": "return", "new": "return 1 +", "line": 4}),
    ("edit_file", {"path": "main.py", "line": 99, "old": "return", "new": "return 2 +"}),
    ("edit_file", {"path": "main.py", "line": 3, "old": "r", "new": "x"}),
    edit("def double(text):", "def d(:"),
  )
  assert answers[0] == (
    "Error: old does not occur in main.py. Nearest, from line 2:\n    if value > low:"
  )
  assert answers[1] == (
    "Error: old occurs 3 times in main.py, in line 3, 4, 8; say in which `line`, or add lines "
    "around it."
  )
  assert answers[2] == "Error: old and new are the same; nothing was changed."
  assert answers[3] == "Edited main.py, line 4."
  assert answers[4] == "Edited main.py, line 8."
  assert answers[5] == "Error: old occurs 2 times in main.py, in line 3; add more around it."
  assert answers[6] == "Edited main.py, line 7. It does not parse now: line 7: invalid syntax."


def test_edits_are_undone_the_last_one_first_where_the_file_is_as_they_left_it():
  edit = lambda old, new: ("edit_file", {"path": "main.py", "old": old, "new": new})
  undo = ("undo_edit", {"path": "./main.py"})
  answers = observed(
    undo,
    edit("value > low", "value >= low"),
    ("write_file", {"path": "main.py", "content": "x = (\n"}),
    undo,
    ("read_file", {"path": "main.py", "first": 2, "lines": 1}),
    undo,
    undo,
    CHECK,
    edit("value > low", "value < low"),
    SHELL("cat main.py | tr '<' '>' > x; mv x main.py"),
    undo,
    ("write_file", {"path": "new.py", "content": "x = (\n"}),
    ("undo_edit", {"path": "new.py"}),
    SHELL("rm new.py"),
    ("undo_edit", {"path": "new.py"}),
  )
  assert answers[0] == answers[6] == "Error: there is no edit of ./main.py to undo."
  assert answers[3] == answers[5] == "Undid the last edit of main.py."
  assert answers[4] == "[main.py, lines 2-2 of 8]\n    if value >= low:"
  assert answers[7].endswith("2 of 4 fail")
  assert answers[10].startswith("Error: ./main.py has changed by other means since its last edit;")
  assert answers[12] == answers[14]
  assert answers[12].startswith("Error: new.py held no text before it was written;")


def test_what_occurs_too_often_to_be_chosen_from_is_refused_at_once():
  text = "a" * 400_000
  for line in (None, 1):
    _, _, problem = view.edited("f", text, "a" * 50_000, "b", line)
    assert problem == "old occurs more than 1000 times in f; add more around it."


def test_overlapping_lines_are_distinguished_by_their_number():
  text = "x = 1\n" * 4
  edit = lambda line: view.edited("f", text, "x = 1\nx = 1\n", "y\n", line)
  assert edit(2) == ("x = 1\ny\nx = 1\n", 2, "")
  assert edit(9) == ("x = 1\nx = 1\ny\n", 3, "")
  assert edit(None)[2].startswith("old occurs 3 times in f, in line 1, 2, 3;")


def test_files_are_read_in_parts_and_written_whole():
  answers = observed(
    ("write_file", {"path": "new/a.txt", "content": "1\n2\n3\n"}),
    ("read_file", {"path": "new/a.txt", "first": 2, "lines": 1}),
    ("read_file", {"path": "new/a.txt", "first": 9}),
    ("read_file", {"path": "absent.py"}),
    ("read_file", {"path": "new"}),
    ("write_file", {"path": "/usr/bin/x", "content": ""}),
    SHELL("printf 'a\\377' > b; : > c"),
    ("read_file", {"path": "b"}),
    ("read_file", {"path": "c"}),
  )
  assert answers[0] == "Wrote new/a.txt."
  assert answers[1] == "[new/a.txt, lines 2-2 of 3]\n2"
  assert answers[2].startswith("[new/a.txt, lines 9-8 of 3]")
  assert answers[3] == "Error: /work/absent.py: No such file or directory"
  assert "is a directory" in answers[4]
  assert answers[5].startswith("Error: /usr/bin/x: ")
  assert answers[6:] == ["[no output]", "Error: b is not text (UTF-8): byte 1", "[empty file]"]


def test_the_shell_stays_in_its_directory_and_tools_follow_it():
  answers = observed(
    SHELL("mkdir d; cd d; X=5"),
    SHELL('echo "$X"; pwd; false'),
    ("write_file", {"path": "f.txt", "content": "hello"}),
    SHELL("cat /work/d/f.txt; exit 3"),
    SHELL("echo back"),
  )
  assert answers[1:] == [
    "5\n/work/d\n[exit 1]",
    "Wrote f.txt.",
    "hello\n[stopped: shell_exit]",
    "back",
  ]


def test_a_command_without_end_is_stopped_and_the_next_one_runs():
  answers = observed(SHELL("echo begun; sleep 100"), SHELL("echo on"), command_s=0.5)
  assert answers == ["begun\n[stopped: timeout]", "on"]


def test_long_output_keeps_its_beginning_and_its_end():
  answer = observed(SHELL("seq 100000"), tool_output_tokens=60)[0]
  assert answer.startswith("1\n2\n3\n")
  assert answer.endswith("99999\n100000")
  assert "left out]" in answer


def test_grep_lists_lines_in_order_and_refuses_wrong_patterns():
  answers = observed(
    ("grep", {"pattern": "^def "}),
    ("grep", {"pattern": "nowhere"}),
    ("grep", {"pattern": "("}),
    ("grep", {"pattern": "text", "path": "main.py"}),
    ("grep", {"pattern": "-r", "path": "-x"}),
  )
  assert answers[0] == "main.py:1:def clamp(value, low, high):\nmain.py:7:def double(text):"
  assert answers[1] == "No line matches."
  assert answers[2] == "Error: grep: Unmatched ( or \\(; patterns are those of grep -E."
  assert answers[3] == "main.py:7:def double(text):\nmain.py:8:    return text + text"
  assert answers[4].startswith("Error: grep")


def test_code_is_found_by_words_with_the_place_where_it_stands():
  query = ("search_code", {"query": "lowest price"})
  answer = observed(query, task=SUITE_TASK)[0]
  assert answer.startswith("# shop.py:9\ndef cheapest(prices):")


def test_pages_come_from_the_record_and_others_do_not_exist():
  page, absent = observed(
    ("fetch_page", {"url": "http://example.org/clamp/#top"}),
    ("fetch_page", {"url": "https://example.com/clam"}),
  )
  assert page == "clamp keeps a value between two bounds"
  assert absent.startswith("Error: 404: there is no page 'https://example.com/clam'")
  assert "example.org/clamp" in absent


def test_open_todos_are_counted_and_bad_ones_refused():
  items = [{"text": "look", "status": "done"}, {"text": "mend", "status": "open"}]
  trajectory = play(
    [turn(("todo", {"items": items}), ("todo", {"items": [{"text": "x", "status": "soon"}]})), DONE]
  )
  first, second = results(trajectory)
  assert first == "2 to-dos, 1 open."
  assert second.startswith("Error: todo: 'status' must be one of")
  assert (trajectory.rewards["open_todos"], trajectory.rewards["broken_calls"]) == (0.5, 1.0)


def test_only_so_many_calls_of_a_turn_are_run():
  answers = observed(*[SHELL("echo x")] * 4, max_calls=2)
  assert answers == ["x", "x", *["Error: at most 2 calls in one turn; this one was not run."] * 2]


def test_only_offered_tools_exist():
  answers = observed(("grep", {"pattern": "x"}), tools=("shell", "read_file"))
  assert answers == ["Error: there is no tool 'grep'; did you mean read_file?"]


@pytest.mark.parametrize(
  ("changes", "message"),
  [
    ({"tools": ("shel",)}, "must be some of read_file"),
    ({"tool_output_tokens": 3_900, "token_budget": 4_000}, "do not fit coding.token_budget=4000"),
  ],
)
def test_limits_that_contradict_one_another_are_an_error(changes, message):
  with pytest.raises(ValueError, match=message):
    config.check(config.CodingConfig(**changes))
  with pytest.raises(ValueError, match="which coding.tasks"):
    coding.make(Task("x", "coding", "", {**CALL_FACTS, "repo": "0"}), services(None))


def test_turns_without_a_call_that_can_be_read_end_the_episode():
  endless = Message("assistant", "x " * 5_000)
  trajectory = play([endless] * (MAX_MALFORMED_TURNS + 1), max_turns=10)
  assert trajectory.stop == "malformed"
  assert trajectory.rewards["solved"] == 0.0
  assert play([turn(CHECK)], max_turns=3).stop == "turn_limit"


def test_what_was_mended_counts_however_the_episode_ends():
  trajectory = play([turn(MEND), turn(CHECK)], max_turns=2)
  assert (trajectory.stop, trajectory.rewards["solved"]) == ("turn_limit", 1.0)


# --- Context


def long_turns(n, text="line of output"):
  return [turn(SHELL(f"for i in $(seq 30); do echo '{text}' {k}; done")) for k in range(n)]


def test_a_long_context_is_summarised_by_the_policy_and_trained_as_one_chain():
  prompts = []

  def spoken(context):
    prompts.append(context.messages)
    if context.messages[-1].content.startswith("Please summarize"):
      return Message("assistant", f"Saw number {len(prompts)}.", turn(CHECK).tool_calls)
    return long_turns(1)[0] if len(prompts) < 9 else DONE

  items = {"items": [{"text": "mend", "status": "open"}]}
  trajectory = play(
    [turn(("todo", items), MEND), spoken], token_budget=700, tool_output_tokens=200,
    max_new_tokens=100, trigger_fraction=0.6,
  )  # fmt: skip
  assert trajectory.rewards["summaries"] >= 2
  assert trajectory.rewards["solved"] == 1.0
  # After the first summary: the request word for word, the summary, what the harness knows.
  after = next(m for m in prompts if len(m) == 2 and "<summary" in m[1].content)
  assert after[0].content == PROMPT
  head, state = after[1].content.rsplit("\n", 1)
  assert head.startswith('<summary n="1">\nSaw number ')
  assert json.loads(state) == {
    "todos": [{"text": "mend", "status": "open"}],
    "cwd": "/work",
    "edited": ["main.py"],
    "summaries": 1,
  }
  # One trajectory: each segment ends with a summary, every sampled token is trained once.
  assert len(trajectory.segments) == trajectory.rewards["summaries"] + 1
  replies = [m.tokens for m in trajectory.log if m.role == "assistant"]
  trained = [s.tokens[s.loss_mask] for s in trajectory.segments]
  np.testing.assert_array_equal(np.concatenate(replies), np.concatenate(trained))
  # The request for a summary continues its segment (nothing before it is changed), untrained.
  asked = services(None).chat.encode(view.SUMMARIZE.format(number=1))
  segment = trajectory.segments[0]
  windows = [segment.tokens[i : i + len(asked)] for i in range(len(segment.tokens))]
  at = next(i for i, w in enumerate(windows) if np.array_equal(w, asked))
  assert not segment.loss_mask[at : at + len(asked)].any()
  assert segment.loss_mask[-1]
  # A call inside a summary is not run.
  summaries = [m for m in trajectory.log if m.role == "assistant" and "Saw number" in m.content]
  ids = {m.tool_call_id for m in trajectory.log if m.role == "tool"}
  assert not {call.id for m in summaries for call in m.tool_calls} & ids


def test_a_summary_that_is_cut_off_goes_on_as_far_as_it_came():
  def spoken(context):
    if context.messages[-1].content.startswith("Please summarize"):
      return Message("assistant", "word " * 500)
    return DONE if "<summary" in context.messages[-1].content else long_turns(1)[0]

  trajectory = play(
    [spoken], token_budget=700, tool_output_tokens=200, max_new_tokens=100, summary_tokens=20
  )
  assert trajectory.stop == "answer"
  summary = next(m.content for m in trajectory.log if "<summary" in m.content)
  assert 10 <= summary.count("word") <= 20


def test_discarding_all_goes_back_to_the_request():
  seen = []

  def spoken(context):
    seen.append([m.role for m in context.messages])
    return long_turns(1)[0] if len(seen) < 6 else DONE

  trajectory = play(
    [spoken], context="discard_all", token_budget=700, tool_output_tokens=200, max_new_tokens=100
  )
  assert ["user"] in seen[1:]
  assert trajectory.rewards["summaries"] >= 1
  assert len(trajectory.segments) == trajectory.rewards["summaries"] + 1


def test_hiding_results_keeps_the_last_ones_and_every_call():
  contexts = []

  def spoken(context):
    contexts.append(context.messages)
    return long_turns(1)[0] if len(contexts) < 7 else DONE

  trajectory = play(
    [spoken], context="hide_results", keep_results=1, token_budget=900, tool_output_tokens=200,
    max_new_tokens=100,
  )  # fmt: skip
  tools = [m.content for m in contexts[-1] if m.role == "tool"]
  assert view.HIDDEN in tools[:-1]
  assert tools[-1].startswith("line of output")
  assert len(results(trajectory)) == 6
  assert all(text.startswith("line of output") for text in results(trajectory))  # the log has all


def test_without_a_strategy_the_episode_ends_when_nothing_fits():
  trajectory = play(
    [*long_turns(1)], context="none", token_budget=500, tool_output_tokens=150, max_new_tokens=100
  )
  assert trajectory.stop == "context_overflow"
  assert max(len(s.tokens) for s in trajectory.segments) <= 500


# --- Snapshots


ACTIONS = [
  turn(MEND, SHELL("cd /tmp; A=1; echo $A > f; pwd"), READ),
  turn(SHELL("cat f; python3 /work/check.py")),
  turn(("undo_edit", {"path": "/work/main.py"}), SHELL("python3 /work/check.py")),
  turn(("todo", {"items": []}), SHELL("ls -A /work; echo $A; sleep 100")),
  turn(("grep", {"pattern": "low"}), ("edit_file", {"path": "x", "old": "a", "new": "b"})),
]


def with_ids(message, number):
  calls = tuple(
    type(call)(f"{number}.{i}", call.name, call.arguments)
    for i, call in enumerate(message.tool_calls)
  )
  return Message("assistant", message.content, calls)


async def played_from(env, actions, first):
  """What each action shows."""
  shown = []
  for i, action in enumerate(actions, first):
    context = await env.step(with_ids(action, i))
    shown.append([m.content for m in context.messages if m.tool_call_id.startswith(f"{i}.")])
  return shown


def test_a_sandbox_that_is_lost_comes_back_as_it_was():
  async def body(workshop):
    shared = services(workshop, snapshot_turns=2)
    env = coding.make(CALL_TASK, shared)
    await env.start()
    await played_from(env, [turn(MEND), turn(SHELL("echo 1 > n; A=7"))], 0)
    await workshop.boxes.kill(env._workspace.box.number)
    shown = await played_from(env, [turn(SHELL("echo 2 >> n; cat n; echo $A"), CHECK)], 2)
    await workshop.boxes.kill(env._workspace.box.number)
    ended = await env.step(DONE)
    verdict = env._verdict
    await env.close()
    return shown[0], ended.stop, verdict.solved

  shown, stop, solved = run(body)
  assert shown == ["1\n2\n7", "0 of 4 fail"]
  assert (stop, solved) == ("answer", True)


def test_a_sandbox_that_is_lost_before_it_is_judged_comes_back_with_its_last_turn():
  async def body(workshop):
    env = coding.make(CALL_TASK, services(workshop, snapshot_turns=1, max_turns=1))
    await env.start()
    last_state = env._last_state

    async def killed_first():
      await workshop.boxes.kill(env._workspace.box.number)
      return await last_state()

    env._last_state = killed_first
    ended = await env.step(with_ids(turn(MEND), 0))
    await env.close()
    return ended.stop, env._verdict.solved

  assert run(body) == ("turn_limit", True)
