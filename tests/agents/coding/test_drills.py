"""Drills of the coding agent: the reply mends what the prompt shows."""

import dataclasses
import json
import random
import re

import pytest

from jaxrl_agents import chat as chat_lib
from jaxrl_agents.agents.coding import drills as coding_drills
from jaxrl_agents.agents.coding import scripted_edits, view
from jaxrl_agents.agents.coding.config import CodingConfig
from jaxrl_agents.agents.coding.judge import repo as repo_lib
from jaxrl_agents.agents.coding.judge.repo import Repo
from jaxrl_agents.agents.coding.tasks import damaged_functions
from jaxrl_agents.agents.coding.tasks.damaged_functions import Damaged
from jaxrl_agents.corpus.documents import Document

CHAT = chat_lib.load("base")
TEXT = "def add(a, b):\n    total = a + b\n    return total\n\n\ndef last(xs):\n    return xs[-1]\n"
EDITS = [
  {"path": "main.py", "start": TEXT.index("+"), "fixed": "+", "broken": "-"},
  {"path": "main.py", "start": TEXT.index("-1"), "fixed": "-1", "broken": "1"},
]
REPO = Repo("drill", "drill", "calls", {"main.py": TEXT}, ("main.py",))
PROMPTS = ("Mend {path}.", "`{check}` fails: see {path}.")
LIMITS = CodingConfig(tools=("read_file", "edit_file", "undo_edit", "shell"))


@pytest.fixture(scope="module")
def drills():
  draw = random.Random(0)
  faults = [Damaged(REPO, (draw.choice(EDITS),)) for _ in range(200)]
  made = coding_drills.repair_drills(faults, PROMPTS, LIMITS, CHAT, seed=0)
  return [(fault.edits[0], *drill) for fault, drill in zip(faults, made, strict=True)]


def applied(text, before, calls):
  """(text, what the tool says) after each call; `before` holds the texts that undoing brings."""
  for name, arguments in calls:
    assert arguments["path"] == "main.py"
    if name == "undo_edit":
      text, result = before.pop(), "Undid the last edit of main.py."
    else:
      before.append(text)
      changed, line, error = view.edited(text=text, **arguments)
      result = f"Error: {error}" if error else f"Edited main.py, line {line}."
      if error:
        before.pop()
      else:
        text = changed
    yield text, result


def test_the_reply_takes_back_what_was_tried_and_turns_the_file_into_the_mended_one(drills):
  tries, misses = [], 0
  for edit, prompt, reply in drills:
    broken = repo_lib.broken(REPO, [edit])["main.py"]
    pairs = scripted_edits.wrong_edits(REPO, "main.py", broken, [edit], LIMITS.tools)
    wrong = {text for _, text in pairs}
    said = CHAT.decode(prompt.tolist())
    (read,) = [text for text in (broken, *wrong) if text in said]
    found = re.findall(r"(edit_file|undo_edit)(\{[^\n]*?\})<", said)
    before = [broken] * (read != broken)
    called = list(applied(read, before, [(name, json.loads(text)) for name, text in found]))
    assert re.findall(r"(?:Edited|Undid|Error:) [^<]*", said) == [result for _, result in called]
    tried = [text for text, _ in called]
    assert TEXT not in tried and {broken, *wrong}.issuperset(tried)
    assert len(set(tried) - {broken}) == len([text for text in tried if text != broken])
    misses += sum(result.startswith("Error: old does not occur") for _, result in called)
    now = tried[-1] if tried else read
    calls = [(c.name, c.arguments) for c in CHAT.parse(reply).tool_calls if c.name != "shell"]
    *back, (mended, _) = applied(now, before, calls)
    assert mended == TEXT
    assert [text for text, _ in back] == [broken] * (now != broken)
    tries.append((len([text for text in tried if text != broken]), "Tried:" in said))
  assert {0, 1} <= {count for count, told in tries if not told}
  assert 10 < sum(told for _, told in tries) < 80
  assert 5 < misses < 100


def test_prompts_are_all_drawn_and_name_file_and_check(drills):
  texts = [CHAT.decode(prompt.tolist()) for _, prompt, _ in drills]
  assert any("Mend main.py." in text for text in texts)
  assert any("`python3 check.py` fails: see main.py." in text for text in texts)
  assert all(
    text.startswith("<|tools|>read_file edit_file undo_edit shell<|end|>") for text in texts
  )


def test_a_reply_that_is_too_long_is_left_out():
  line = f"    return value - {' + '.join(['value'] * 80)}\n"
  text = f"def long(value):\n{line}"
  repo = Repo("drill", "drill", "calls", {"main.py": text}, ("main.py",))
  edit = {"path": "main.py", "start": text.index("-"), "fixed": "-", "broken": "+"}
  made = coding_drills.repair_drills([Damaged(repo, (edit,))], PROMPTS, LIMITS, CHAT, seed=0)
  assert not list(made)


def test_lines_are_repaired_by_their_numbers_where_the_tool_for_it_is_offered():
  start, end = TEXT.index("    total"), TEXT.index("    return total")
  edits = (
    {"path": "main.py", "start": start, "fixed": TEXT[start:end], "broken": ""},
    EDITS[1],
  )
  limits = dataclasses.replace(LIMITS, tools=(*LIMITS.tools, "replace_lines"))
  faults = [Damaged(REPO, edits, each=True)] * 20
  made = list(coding_drills.repair_drills(faults, PROMPTS, limits, CHAT, seed=0))
  assert len(made) == 20
  few = dataclasses.replace(limits, max_edits=1)
  assert not list(coding_drills.repair_drills(faults, PROMPTS, few, CHAT, seed=0))
  for prompt, reply in made:
    said = CHAT.decode(prompt.tolist())
    assert "Each function of main.py has a fault: see `python3 check.py`. Mend them all." in said
    assert "1\tdef add(a, b):\n2\t    return total\n3\t\n4\t\n5\tdef last(xs):" in said
    called = [(call.name, dict(call.arguments)) for call in CHAT.parse(reply).tool_calls]
    assert called[:2] == [
      ("edit_file", {"path": "main.py", "old": "1]", "new": "-1]"}),
      (
        "replace_lines",
        {"path": "main.py", "first": 2, "last": 1, "new": "    total = a + b"},
      ),
    ]


def test_without_edit_file_all_repairs_and_failed_attempts_are_of_lines():
  limits = dataclasses.replace(LIMITS, tools=("read_file", "replace_lines", "undo_edit", "shell"))
  faults = [Damaged(REPO, (edit,)) for edit in EDITS] * 60
  refused = tried = 0
  for prompt, reply in coding_drills.repair_drills(faults, PROMPTS, limits, CHAT, seed=0):
    said = CHAT.decode(prompt.tolist())
    assert "edit_file" not in said
    *undo, mended = [c for c in CHAT.parse(reply).tool_calls if c.name != "shell"]
    assert mended.name == "replace_lines" and {call.name for call in undo} <= {"undo_edit"}
    text = next(
      repo_lib.broken(REPO, [edit])["main.py"]
      for edit in EDITS
      if scripted_edits.repairs(REPO, [edit], limits.tools)[0].call[1] == mended.arguments
    )
    assert (
      view.with_lines(text, *line_numbers(mended.arguments), mended.arguments["new"])[0] == TEXT
    )
    refused += "Error: there are no lines" in said
    tried += "Edited main.py, line" in said
  assert refused > 3 and tried > 10


def line_numbers(arguments):
  return arguments["first"], arguments.get("last", arguments["first"])


def test_code_to_be_continued_is_every_short_function_once_and_undamaged():
  own = [f"def add{i}(a, b):\n    total = a + b * {i}\n    return total\n" for i in range(400)]
  document = Document("1", "m.py", "\n".join(own), {"source": "m.py", "kind": "python"})
  split = damaged_functions.split_of("m")
  functions = damaged_functions.short_functions([document], split=split, flips=True)
  drills = list(coding_drills.text_drills(functions, CHAT, count=100, seed=0))
  assert len(drills) > 5 and max(map(len, drills)) == coding_drills.MAX_TEXT_TOKENS
  text = "\n\n\n".join(each.strip() for each in own) + "\n"
  whole = CHAT.encode(text).tolist()
  pieces = [whole[i : i + 1024] for i in range(0, len(whole), 1024)]
  assert sorted(each.tolist() for each in drills) == sorted(pieces)
  assert len(list(coding_drills.text_drills(functions, CHAT, count=3, seed=0))) == 3


def test_code_of_which_one_token_is_left_over_is_no_drill(monkeypatch):
  monkeypatch.setattr(coding_drills, "MAX_TEXT_TOKENS", len(CHAT.encode(TEXT)) - 1)
  document = Document("1", "m.py", TEXT, {"source": "m.py", "kind": "python"})
  split = damaged_functions.split_of("m")
  functions = damaged_functions.short_functions([document], split=split, flips=True)
  assert functions.texts == [TEXT]
  (drill,) = coding_drills.text_drills(functions, CHAT, count=9, seed=0)
  assert len(drill) == coding_drills.MAX_TEXT_TOKENS


def test_a_drill_begins_as_an_episode_does_and_offers_its_tools():
  limits = CodingConfig()  # with the text of the environment, and without recorded pages
  (drill,) = coding_drills.repair_drills(
    [Damaged(REPO, (EDITS[0],))], PROMPTS, limits, CHAT, seed=0
  )
  said = CHAT.decode(drill[0].tolist())
  assert "fetch_page" not in said and "You work on a repository in a sandbox" in said
  assert said.index("You work on a repository") < said.index("main.py")
