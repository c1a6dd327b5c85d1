"""Drills of tables of every size: a reply copies what stands in its prompt, under new names."""

import re

import pytest

from jaxrl_agents.agents.swarm import table_drills
from jaxrl_agents.agents.swarm import tables as tables_lib
from tests.agents.swarm.library import CHAT, OPTIONS, services


@pytest.fixture(scope="module")
def made(tables):
  index, tasks = tables
  return lambda count=150: [
    (CHAT.decode(prompt), CHAT.parse(reply))
    for prompt, reply in table_drills.role_drills(
      tasks,
      lambda chunk_id: index.chunk(chunk_id).text,
      CHAT,
      count=count,
      limits=services(index).limits,
      seed=0,
    )
  ]


@pytest.fixture(scope="module")
def drills(made):
  return made()


def test_all_forms_come_up_with_several_calls_and_several_names(drills):
  calls = [reply.tool_calls for _, reply in drills if reply.tool_calls]
  searches = [each for each in calls if each[0].name == "search_corpus"]
  assigned = [each[1:] for each in calls if each[0].name == "create_subagent"]
  assert {len(each) for each in searches} == {1, 2}
  assert max(map(len, assigned)) > 4 and all(len(each) <= 20 for each in assigned)
  prompts = [call.arguments["prompt"] for each in assigned for call in each]
  names = {len(re.findall(r"\d+\. ", prompt)) for prompt in prompts}
  assert names == {1, 2} and OPTIONS.message_tokens == 64
  tables = [reply for _, reply in drills if reply.content.startswith("| name |")]
  assert len(tables) > 10 and len(drills) == 150


def test_everything_that_a_reply_says_stands_in_its_prompt(drills):
  for prompt, reply in drills:
    for call in reply.tool_calls:
      text = call.arguments.get("query") or call.arguments.get("prompt", "")
      assert all(word in prompt for word in re.findall(r"\w+", text))
    for cell in re.findall(r"[^|\n]+", reply.content):
      source = re.fullmatch(r"<Document id=(.+)>", cell)
      assert (
        f"# DOCUMENT ID: {source[1]} (" if source else cell.strip()
      ) in prompt or cell in prompt


def test_rows_have_the_numbers_of_the_names_in_the_question_or_the_assignment(drills):
  count = 0
  for prompt, reply in drills:
    for number, name in re.findall(r"(?m)^(\d+)\. \| (\w+) \|", reply.content):
      assert re.search(rf"\b{number}\. (class |def )?{name}\b", prompt)
      count += 1
    # A class beside a name has no number.
    linked = "Two names share" in prompt
    assert linked or not re.search(r"(?m)^\| (?!name)", reply.content)
  assert count > 100


def test_a_table_of_one_agent_follows_its_own_searches(drills):
  alone = [
    (prompt, reply.content)
    for prompt, reply in drills
    if reply.content.startswith("| name |") and "search_corpus{" in prompt
  ]
  assert len(alone) > 5
  for prompt, said in alone:
    searched = re.findall(r'"query": "(\d+)\.', prompt)
    assert re.findall(r"(?m)^(\d+)\. \|", said) == searched
    assert prompt.rstrip().endswith("[Steps left: 1, answer now]<|end|><|assistant|>")


def compared(prompt, said):
  """Checks rows that are followed by the number of the first one with their value; the last one."""
  told = re.findall(r"\d+\. \| \w+ \|\w+\|", prompt.partition("share")[2])
  lines = said.split("\n")
  values = [line.split("|")[2] for line in lines]
  assert [line.rpartition("|")[0] + "|" for line in lines] == told[: len(lines)]
  for line, value in zip(lines, values, strict=True):
    assert line.rpartition("|")[2] == lines[values.index(value)].partition(".")[0]
  assert len(set(values)) == len(values) - 1 and values.index(values[-1]) < len(values) - 1
  return told[len(lines) - 1]


def test_the_answer_to_a_question_is_the_second_row_with_the_value_that_two_share(drills):
  orchestrator = "<|tools|>create_subagent"
  asked = [
    (prompt, reply.content)
    for prompt, reply in drills
    if "do two names share?" in prompt and prompt.startswith(orchestrator) and reply.content
  ]
  assert len(asked) > 5
  for prompt, said in asked:
    assert tables_lib.last_cell(said) == compared(prompt, said).split("|")[2]


def test_the_answer_after_a_further_look_up_is_the_row_of_its_class(drills):
  linked = [
    (prompt, reply.content)
    for prompt, reply in drills
    if "Two names share" in prompt and re.fullmatch(r"\| \w+ \|\w+\|", reply.content)
  ]
  assert len(linked) > 2
  for prompt, said in linked:
    name, base = re.findall(r"\w+", said)
    assert f"class {name}({base}" in prompt and f'{{"query": " class {name}"}}' in prompt


def test_a_value_is_passed_on_as_a_search_for_the_class_beside_the_second_name(drills):
  passed = [
    (prompt, reply.content, reply.tool_calls[0].arguments["query"])
    for prompt, reply in drills
    if "Two names share" in prompt
    and "[Steps left: 2]" in prompt
    and reply.tool_calls
    and reply.tool_calls[0].name == "search_corpus"
  ]
  assert len(passed) > 3
  for prompt, said, query in passed:
    rows, _, said = said.rpartition("\n")
    assert compared(prompt, rows).partition(".")[0] == said.partition(".")[0]
    told = re.findall(r"\| (\w+) \|(\w+)\|", prompt.partition("beside the second?")[2])
    values = [value for _, value in told]
    _, second = (name for name, value in told if values.count(value) == 2)
    assert re.fullmatch(rf"\d+\. def {second},{query}", said) and f" {said}." in prompt


def test_the_same_seed_makes_the_same_drills(drills, made):
  said = lambda pairs: [(prompt, reply.content, reply.tool_calls) for prompt, reply in pairs]
  assert said(made(20)) == said(drills[:20])
