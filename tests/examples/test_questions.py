"""Questions of a file: the reward, the splits, and files that are wrong."""

import asyncio
import json
import re
import types

import numpy as np
import pytest

from examples.questions.agent import (
  AGENT,
  Question,
  QuestionConfig,
  QuestionTasks,
  Services,
  reward,
)
from jaxrl_agents import chat as chat_lib
from jaxrl_agents import config as config_lib
from jaxrl_agents.harness.tools import Tool
from jaxrl_agents.types import Message, SamplingLimits, Task, ToolCall, ToolSpec
from tests.runs.whole_run import run

SERVICES = Services(chat_lib.load("base"), QuestionConfig())
LIMITS = SamplingLimits(max_new_tokens=64, stop_tokens=())


@pytest.mark.parametrize(
  ("reply", "right"),
  [
    ("fox", 1.0),
    ("2. fox", 1.0),
    ("It is the fox.", 1.0),
    ("fox, no: owl", 0.0),
    ("foxes", 0.0),
    ("", 0.0),
  ],
)
def test_a_reply_is_right_if_it_ends_with_the_answer(reply, right):
  assert reward(reply, "fox") == right


def test_an_answer_may_have_several_words():
  assert reward("It is New York.", "New York") == reward("3.5", "3.5") == 1.0
  assert reward("York", "New York") == reward("", "") == 0.0


def test_the_guesser_takes_any_word_of_a_question_without_a_list():
  task = Task("t", "questions", "What is 3 plus 4?", {"answer": "7"})
  player = AGENT.player("guesser", task, SERVICES, 0, SERVICES.chat)
  context = asyncio.run(player.start())
  reply = asyncio.run(player.generate(np.zeros(0, np.int32), LIMITS))
  assert SERVICES.chat.parse(reply.tokens).content in context.messages[0].content


def test_replies_with_calls_come_before_the_answer_and_only_the_answer_counts():
  async def add(a, b):
    return str(a + b)

  numbers = {"type": "object", "properties": {name: {"type": "integer"} for name in "ab"}}
  options = QuestionConfig(max_turns=2, token_budget=500)
  task = Task("t", "questions", "What is 3 plus 4?", {"answer": "7"})
  call = ToolCall("1", "add", {"a": 3, "b": 4})

  async def played(*replies):
    env = Question(task, Services(SERVICES.chat, options))
    env.add_tools([Tool(ToolSpec("add", "Adds.", numbers), add)])
    contexts = [await env.start()]
    for reply in replies:
      contexts.append(await env.step(reply))
    return contexts, env.rewards(None)["reward"]

  contexts, right = asyncio.run(
    played(Message("assistant", "", (call,)), Message("assistant", "7"))
  )
  assert [spec.name for spec in contexts[0].tools] == ["add"]
  assert contexts[1].messages[-1].content == "7" and not contexts[1].done
  assert contexts[2].stop == "answer" and right == 1.0
  contexts, right = asyncio.run(played(*[Message("assistant", "7", (call,))] * 2))
  assert contexts[2].stop == "turn_limit" and right == 0.0


def test_tools_without_a_second_turn_are_refused():
  tools = ['tools.mcp={"time": {"command": "python"}}']
  with pytest.raises(ValueError, match=r"set questions\.max_turns=2"):
    config_lib.load("examples/questions/config.py", tools)
  found = config_lib.load("examples/questions/config.py", [*tools, "questions.max_turns=2"])
  assert AGENT.own_tools(found.agent_config) == ()


def test_each_line_of_the_file_is_a_task_of_the_split_of_its_prompt():
  tasks = AGENT.tasks(types.SimpleNamespace(options=QuestionConfig())).tasks
  assert [len(tasks[split]) > 40 for split in ("train", "dev", "test")] == [True] * 3
  for task in tasks["test"]:
    listed = dict(re.findall(r"(\d+)\. (\w+)", task.prompt))
    assert listed[re.search(r"number (\d)", task.prompt)[1]] == task.facts["answer"]


def test_a_line_without_an_answer_is_refused_with_its_number(tmp_path):
  file = tmp_path / "questions.jsonl"
  file.write_text(json.dumps({"prompt": "a", "answer": "b"}) + '\n{"prompt": "c"}\n')
  with pytest.raises(ValueError, match=r"line 2 of .* has no text 'answer'"):
    QuestionTasks(str(file))


def test_a_line_that_is_no_object_is_refused_with_its_number(tmp_path):
  file = tmp_path / "questions.jsonl"
  file.write_text('["a", "b"]\n')
  with pytest.raises(ValueError, match="line 1 of .* is no JSON object with prompt and answer"):
    QuestionTasks(str(file))


def test_lines_end_at_line_feeds_alone_and_blank_ones_are_left_out(tmp_path):
  file = tmp_path / "questions.jsonl"
  rows = [{"prompt": "a\u2028b\x85", "answer": "c"}, {"prompt": "d", "answer": "e"}]
  file.write_text("\n\n".join(json.dumps(row, ensure_ascii=False) for row in rows) + "\n", "utf-8")
  found = [task for tasks in QuestionTasks(str(file)).tasks.values() for task in tasks]
  assert {task.id: task.prompt for task in found} == {"line 1": "a\u2028b\x85", "line 3": "d"}


def test_a_file_that_is_not_there_is_named():
  with pytest.raises(ValueError, match="nothing.jsonl: there is no such file"):
    QuestionTasks("nothing.jsonl")


@pytest.mark.slow
def test_the_config_trains_and_the_report_shows_the_questions(tmp_path):
  summary, _, html = run("examples/questions/config.py", tmp_path, "eval.tasks=8")
  assert {"warm_start", "trained", "guesser"} <= set(summary["eval"])
  assert summary["eval"]["reader"]["reward"] == 1.0
  assert "Which is number" in html
  assert config_lib.load("examples/questions/config.py").agent_config.max_turns == 1
