"""Drills of the two roles: the reply copies what stands in the prompt, under names drawn anew."""

import dataclasses
import re

import pytest

from jaxrl_agents import chat as chat_lib
from jaxrl_agents.agents.search import short_ids
from jaxrl_agents.agents.swarm import drills as swarm_drills
from tests.agents.search.arena import WORDS
from tests.agents.swarm.arena import swarm_task

CHAT = chat_lib.load()
NAMES = [f"{WORDS[d].title()}{WORDS[d - 4].title()}" for d in range(8)]
TEXTS = {f"{100 + d}_0": f"class {name}(Base):\n  pass" for d, name in enumerate(NAMES)}


def task(i):
  made = swarm_task(task_id=f"t{i}")
  rows = [
    {
      "cells": {"name": name, "base": "Base"},
      "source": f"{100 + d}_0",
      "lookups": [f" class {name}"],
      "chunk_ids": [f"{100 + d}_0"],
    }
    for d, name in enumerate(NAMES)
  ]
  header = "| name |base|source|"
  facts = {"rows": rows, "columns": ["name", "base", "source"], "header": header}
  prompt = f"1. class {NAMES[0]}. 2. class {NAMES[1]}. Table: {header}"
  made = dataclasses.replace(made, prompt=prompt, facts={**made.facts, **facts})
  return short_ids.shortened(made)


@pytest.fixture(scope="module")
def drills():
  pairs = swarm_drills.role_drills(
    [task(i) for i in range(50)], TEXTS.get, CHAT, count=200, max_rows=6, seed=0
  )
  return [(CHAT.decode(prompt), CHAT.decode(reply), CHAT.parse(reply)) for prompt, reply in pairs]


def test_all_four_forms_come_up_and_end_as_a_reply_does(drills):
  assert len(drills) == 200 and all(text.endswith("<|end|>") for _, text, _ in drills)
  first = [reply.tool_calls[0].name if reply.tool_calls else "" for _, _, reply in drills]
  assert 30 < first.count("create_subagent") < 90 and 5 < first.count("search_corpus") < 40
  tables = [reply for _, _, reply in drills if reply.content.startswith("| name |")]
  rows = [reply for _, _, reply in drills if re.fullmatch(r"\| \w+ \|\w+\|\d+\|", reply.content)]
  assert 30 < len(tables) < 90 and 30 < len(rows) < 90


def test_every_name_of_a_reply_stands_in_its_prompt(drills):
  for prompt, text, reply in drills:
    assert not any(call.error for call in reply.tool_calls)
    said = [str(call.arguments.get("prompt", "")) for call in reply.tool_calls]
    for line in [*filter(None, said), *reply.content.splitlines()]:
      assert line.strip() in prompt or all(
        cell.strip() in prompt for cell in line.strip("| ").split("|")
      ), text


def test_a_row_is_what_the_result_under_its_id_states(drills):
  for prompt, _, reply in drills:
    found = re.fullmatch(r"\| (\w+) \|(\w+)\|(\d+)\|", reply.content)
    if found:
      name, base, source = found.groups()
      assert re.search(rf"ID: {source} \(\d+ tokens\) \nclass {name}\({base}\)", prompt)
      assert f"<|user|> class {name}<|end|>" in prompt


def test_most_drills_have_names_of_their_own_and_the_same_seed_the_same(drills):
  names = {name for prompt, _, _ in drills for name in re.findall(r"class (\w+)", prompt)}
  assert len(names) > 100 and set(NAMES) < names
  again = swarm_drills.role_drills(
    [task(i) for i in range(50)], TEXTS.get, CHAT, count=200, max_rows=6, seed=0
  )
  assert [CHAT.decode(reply) for _, reply in again] == [text for _, text, _ in drills]


def test_a_question_is_answered_with_the_row_that_ends_as_asked():
  made = task(0)
  rows = [
    {**row, "cells": {"base of base": f"Top{NAMES[d]}", "name": NAMES[d]}}
    for d, row in enumerate(made.facts["rows"])
  ]
  facts = {
    "rows": rows,
    "columns": ["base of base", "name"],
    "header": "|base of base| name |",
    "truth": NAMES[3],
    "asked": f"Top{NAMES[3]}",
    "question": f"Which name has |Top{NAMES[3]}|?",
  }
  questions = [
    dataclasses.replace(made, id=f"q{i}", facts={**made.facts, **facts}) for i in range(60)
  ]
  answered = 0
  for prompt, reply in swarm_drills.role_drills(
    questions, TEXTS.get, CHAT, count=200, max_rows=6, seed=0
  ):
    text, said = CHAT.decode(prompt), CHAT.parse(reply).content
    asked = re.search(r"Which name has \|(\w+)\|\?", text)
    if asked and said:
      answered += 1
      assert said.startswith(f"|{asked[1]}| ") and said in text
  assert answered > 5
