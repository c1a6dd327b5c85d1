"""Questions with answers in a file, and a reward that checks the reply; with tools of MCP servers,
if any are given.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import pathlib
import random
import re

from jaxrl_agents.agents import added_tools
from jaxrl_agents.agents.agent import DEMONSTRATOR, Agent, Tasks
from jaxrl_agents.agents.episode import Stop, TurnLoop
from jaxrl_agents.chat import Chat
from jaxrl_agents.config.ranges import Count
from jaxrl_agents.harness.scripted_player import Scripted
from jaxrl_agents.harness.tools import run_call
from jaxrl_agents.types import Context, Message, Task

FIELDS = ("prompt", "answer")
BASELINES = ("guesser", "reader")


def reward(reply: str, answer: str) -> float:
  """1 if the reply ends with the words of the answer, else 0: the place for a check of your own."""
  said, wanted = re.findall(r"\w+", reply), re.findall(r"\w+", answer)
  return float(bool(wanted) and said[-len(wanted) :] == wanted)


@dataclasses.dataclass(frozen=True)
class QuestionConfig:
  """Options: `--set questions.file=FILE`.

  Attributes:
    file: JSON lines with "prompt" and "answer"; other fields are kept in `Task.facts`.
    token_budget: of a question, the tools, the replies and the results.
    max_new_tokens: of a reply.
    max_turns: replies to a question. All but the last call tools, or were cut off; the last one is
      the answer, even if it was cut off.
  """

  file: str = "examples/questions/words.jsonl"
  token_budget: Count = 96
  max_new_tokens: Count = 8
  max_turns: Count = 1


class QuestionTasks(Tasks):
  """The lines of a file, but blank ones. A digest of its prompt decides the split of each.

  Raises:
    ValueError: a line is no question; it says which, and what is missing.
  """

  def __init__(self, file: str):
    if not pathlib.Path(file).is_file():
      raise ValueError(f"questions.file={file}: there is no such file")
    self._text = pathlib.Path(file).read_text("utf-8")
    self._tasks = {"train": [], "dev": [], "test": []}
    lines = self._text.split("\n")  # splitlines() also splits within texts, as at U+2028
    for number, line in enumerate(lines, 1):
      if not line.strip():
        continue
      try:
        row = json.loads(line)
      except ValueError as error:
        raise ValueError(f"line {number} of {file} is not valid JSON: {error}") from None
      if not isinstance(row, dict):
        raise ValueError(f"line {number} of {file} is no JSON object with {' and '.join(FIELDS)}")
      if missing := [name for name in FIELDS if not isinstance(row.get(name), str)]:
        raise ValueError(f"line {number} of {file} has no text {missing[0]!r}")
      last = hashlib.sha256(row["prompt"].encode()).digest()[-1] % 10
      split = {8: "dev", 9: "test"}.get(last, "train")
      self._tasks[split].append(Task(f"line {number}", "questions", row["prompt"], row, split))

  @property
  def tasks(self):
    """The questions of each split."""
    return self._tasks

  @property
  def digest(self):
    """All that decides the tasks."""
    return hashlib.sha256(self._text.encode()).hexdigest()


@dataclasses.dataclass(frozen=True)
class Services:
  """What the episodes of one worker process share."""

  chat: Chat
  options: QuestionConfig


class Question:
  """One question: the first reply without calls of tools is the answer."""

  def __init__(self, task: Task, services: Services):
    self._task, self._chat, self._options = task, services.chat, services.options
    self._messages, self._tools = [Message("user", task.prompt)], {}
    self._said, self._most_tokens = "", services.options.token_budget // 2
    self._loop = TurnLoop(
      services.chat.stop_tokens,
      max_turns=services.options.max_turns,
      cut_off="Your reply was cut off. Give a shorter one.",
      run_calls=self._run_calls,
    )

  def add_tools(self, tools):
    """Takes the tools of `--set tools.mcp`. The results of a turn fill at most half a context."""
    count = self._chat.count
    self._tools |= added_tools.checked(
      tools, self._tools, max_tokens=lambda: self._most_tokens, count=count
    )

  async def start(self):
    """Asks."""
    return self._context()

  async def step(self, reply):
    """Runs the calls of a reply, or takes it for the answer."""
    self._said = "" if reply.tool_calls else reply.content
    stop = await self._loop.take(reply, self._messages) or ""
    tokens = len(self._chat.render(self._messages, [t.spec for t in self._tools.values()]))
    if not stop and tokens + self._options.max_new_tokens > self._options.token_budget:
      stop = Stop.CONTEXT_OVERFLOW
    return self._context(stop)

  def rewards(self, trajectory):
    """What the last reply is worth."""
    return {"reward": reward(self._said, self._task.facts["answer"])}

  async def close(self):
    """Nothing is held."""

  async def _run_calls(self, calls):
    self._most_tokens = self._options.token_budget // (2 * len(calls))
    texts = [await run_call(self._tools, call) for call in calls]
    return [Message("tool", t, tool_call_id=c.id) for c, t in zip(calls, texts, strict=True)]

  def _context(self, stop=""):
    return Context(
      tuple(self._messages),
      tuple(tool.spec for tool in self._tools.values()),
      max_new_tokens=self._options.max_new_tokens,
      done=bool(stop),
      stop=stop,
    )


class QuestionAgent(Agent):
  """Answers questions. The warm-up imitates a player who names any word that is listed."""

  name = "questions"
  config = QuestionConfig
  sources = ("file",)
  success = "reward"

  def baselines(self, options):
    """The players that are evaluated beside the policy."""
    return BASELINES

  def tasks(self, setting, report=print):
    """Reads the file."""
    return QuestionTasks(setting.options.file)

  def own_tools(self, options):
    """No tools of its own. Because this is not None, episodes take those of `--set tools.mcp`."""
    if options.max_turns == 1:
      raise ValueError("the one reply to a question cannot use tools; set questions.max_turns=2")
    return ()

  def services(self, chat, options, shared):
    """What the episodes need."""
    return Services(chat, options)

  def episode(self, task, services, seed, sampler):
    """One question for the policy."""
    return Question(task, services)

  def player(self, name, task, services, seed, chat):
    """One question for a player who repeats one of the listed words, or any word; the reader takes
    the one whose number the question ends with.
    """
    if name not in (DEMONSTRATOR, *BASELINES):
      return super().player(name, task, services, seed, chat)
    draw = random.Random(f"{seed} {task.id}")

    def play(context: Context) -> Message:
      words = re.findall(r"\d+\. \w+", task.prompt) or re.findall(r"\w+", task.prompt) or ["?"]
      asked = re.search(r"(\d+)\?$", task.prompt)
      found = [word for word in words if asked and word.startswith(f"{asked[1]}.")]
      return Message("assistant", draw.choice(found if name == "reader" and found else words))

    return Scripted(Question(task, services), chat, play)


AGENT = QuestionAgent()
