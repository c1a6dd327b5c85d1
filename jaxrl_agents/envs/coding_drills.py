"""Short exercises in mending: a file has just been read, and one line of it is to be changed."""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np

from jaxrl_agents.chat import Chat
from jaxrl_agents.envs import coding_view
from jaxrl_agents.envs.coding_players import replacements, turn
from jaxrl_agents.grading import repo as repo_lib
from jaxrl_agents.grading.repo import Repo
from jaxrl_agents.types import Message

MAX_REPLY_TOKENS = 128


def repair_drills(
  damaged: Iterable[tuple[Repo, Any]],
  prompts: Sequence[str],
  tools: Sequence[str],
  chat: Chat,
  *,
  numbered: bool,
  seed: int,
) -> Iterator[tuple[np.ndarray, np.ndarray]]:
  """Yields the ids of a prompt and of the reply that mends, int32 [P] and [R].

  Args:
    damaged: repositories of one file, and the edit that broke each.
    prompts: requests, with places for {path} and {check}; one is drawn for each drill.
    tools: names of those that are offered, "read_file" and "edit_file" among them.
    chat: template and tokenizer.
    numbered: whether lines were read with their numbers.
    seed: of the draws.

  Drills whose reply takes more than MAX_REPLY_TOKENS are left out.
  """
  draw = random.Random(f"{seed} repairs")
  specs = tuple(coding_view.SPECS[name] for name in tools)
  for repo, edit in damaged:
    (mended,) = replacements(repo, [edit])
    path = mended.path
    request = draw.choice(prompts).format(path=path, check=f"python3 {repo_lib.CHECK}")
    text = repo_lib.broken(repo, [edit])[path]
    messages = [
      Message("user", request),
      turn(("read_file", {"path": path})),
      Message("tool", coding_view.lines_of(path, text, 1, len(text), numbered=numbered)),
    ]
    reply = chat.encode_reply(turn(mended.call), messages)
    if len(reply) <= MAX_REPLY_TOKENS:
      yield chat.render(messages, specs), reply
