"""The section of a judge model, whose grades are added to verified rewards."""

from __future__ import annotations

import dataclasses
import re
from typing import Annotated

from jaxrl_agents.config.ranges import Count, NotNegative, Positive, Range, shown


@dataclasses.dataclass(frozen=True)
class JudgeConfig:
  """A generative reward model (agents.grading): R = verified + weight * grade.

  Attributes:
    url: base address of an OpenAI-compatible API ("http://127.0.0.1:8000/v1"); "" for no judge.
    model: the model's name in this API.
    key_file, key_env: a file, or a variable of the environment, that holds the API's key.
    rubrics: JSON file of rubrics (agents.rubric.load); "" for those of the agent.
    trained: names of the rubrics that are rewarded; () for all that are not held out.
    weight: of the grade, which is in [0, 1]. Below 1, so that no grade lifts a failure above a
      success.
    samples: answers per rubric, of which the median counts.
    temperature: of the judge.
    max_tokens: most tokens of an answer.
    max_characters: of an episode that the judge reads; the middle of a longer one is left out.
    request_s: most seconds of one request.
    tries: requests until an answer is complete and readable; then the rollout fails.
    deadline_s: most seconds until a rollout has all its grades, the wait for others included.
    at_once: requests at the same time of each worker process.
  """

  url: str = ""
  model: str = "policy"
  key_file: str = ""
  key_env: str = ""
  rubrics: str = ""
  trained: tuple[str, ...] = ()
  weight: Annotated[float, Range(0, 0.99)] = 0.3
  samples: Count = 1
  temperature: NotNegative = 0.0
  max_tokens: Count = 1_024
  max_characters: Count = 60_000
  request_s: Positive = 30.0
  tries: Count = 3
  deadline_s: Positive = 100.0
  at_once: Count = 16


def check(judge: JudgeConfig, stall_s: float) -> None:
  """Raises ValueError where options disagree with each other, or with workers.stall_s."""
  if not judge.url:
    fields = [each.name for each in dataclasses.fields(judge)]
    unread = [name for name in fields if getattr(judge, name) != getattr(JudgeConfig(), name)]
    if unread:
      raise ValueError(
        f"judge.{', judge.'.join(unread)} have no effect without a judge; set judge.url to the "
        "base address of an OpenAI-compatible API"
      )
    return
  check_address(judge.url, "judge.url")
  if judge.key_file and judge.key_env:
    raise ValueError("judge.key_file and judge.key_env both name a key; set one of them to ''")
  if judge.samples > 1 and not judge.temperature:
    raise ValueError(
      f"judge.samples={judge.samples} at judge.temperature=0 are the same answer several times; "
      "set judge.temperature=0.7, or judge.samples=1"
    )
  if judge.request_s > judge.deadline_s or judge.deadline_s > stall_s:
    raise ValueError(
      f"judge.request_s={judge.request_s:g} must be at most judge.deadline_s="
      f"{judge.deadline_s:g}, and this at most workers.stall_s={stall_s:g}; a rollout that waits "
      "longer for its grades counts as stalled"
    )


def check_address(url: str, option: str) -> None:
  """Raises ValueError if `url` is no base address of an HTTP API; names the option."""
  if not re.fullmatch(r"https?://[A-Za-z0-9.\-_\[\]:]+(/[^\s?#@]*)?", url):
    raise ValueError(
      f"{option}={shown(url)} must be a base address such as http://127.0.0.1:8000/v1, without a "
      "key, a query or a fragment"
    )
