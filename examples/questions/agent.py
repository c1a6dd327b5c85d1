"""Questions with answers in a file, one reply each, and a reward that checks the reply."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import pathlib
import random
import re

from jaxrl_agents.agents.agent import DEMONSTRATOR, Agent, Tasks
from jaxrl_agents.config.ranges import Count
from jaxrl_agents.harness.scripted_player import Scripted
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
    token_budget: of a question and its reply.
    max_new_tokens: of a reply.
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


class Question:
  """One question: the first reply is the answer."""

  def __init__(self, task: Task, options: QuestionConfig):
    self._task, self._options = task, options

  async def start(self):
    """Asks."""
    message = Message("user", self._task.prompt)
    return Context((message,), max_new_tokens=self._options.max_new_tokens)

  async def step(self, reply):
    """Ends with the reply."""
    self._said = reply.content
    return Context((Message("user", self._task.prompt), reply), done=True, stop="answer")

  def rewards(self, trajectory):
    """What the reply is worth."""
    return {"reward": reward(self._said, self._task.facts["answer"])}

  async def close(self):
    """Nothing is held."""


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
