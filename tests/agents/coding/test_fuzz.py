"""Whatever a policy samples, a coding episode ends with a stop, a record and no exception."""

import asyncio
import json
import random

import numpy as np
import pytest

from jaxrl_agents.agents.coding import config, env
from jaxrl_agents.agents.coding.reward import coding_total
from jaxrl_agents.harness.rollout import Sampling, run_group
from jaxrl_agents.types import Generation
from tests.agents.coding.bench import CALL_TASK, SUITE_TASK, run, services

STOPS = {"answer", "turn_limit", "context_overflow", "malformed"}
TOOLS = [
  *("read_file", "edit_file", "replace_lines", "undo_edit", "write_file", "shell", "grep"),
  *("search_code", "fetch_page", "todo"),
  *("shel", ""),
]
KEYS = {
  "line": [1, 2, 7, 0, 10**9, "2"],
  "path": ["main.py", "shop.py", "", "/", "..", "../../etc/passwd", "/proc/self/mem", "/dev/zero",
           "a" * 300, "x\0y", "main.py/x", "\udcff", "d/e/f.py", "check.py"],
  "old": ["if", "return low", "    ", "\n", "x" * 3_000, "def double(text):", "\ud800"],
  "new": ["", "if", "pass", "\0", "é" * 50, "\udfff"],
  "content": ["", "x = (", "\0\1\2", "def clamp(a, b, c): return a\n", "# " + "y" * 2_000],
  "command": [
    *("ls", "exit 3", "kill -9 $$", "kill -9 -1", "exec >&-", "rm -rf /work", "false; (", "\0"),
    *("yes | head -c 3000000", ":(){ :|:& };:", "cd /nowhere", "cat", "sleep 9 &", "echo 'x"),
    *("printf '\\377\\0'", "chmod 000 .", "ulimit -n 5", "rm main.py; ln -s /dev/zero main.py"),
    *("mkfifo main2.py; ln -s / root", "python3 -c 'import os; os.fork(); print(1)'"),
  ],
  "pattern": ["def", "(", "[a-", "\\", "a{99999}", "(a+)+$", "", "\n", "-e", "\0"],
  "query": ["clamp", "", "\0", "?" * 200, "\ud800"],
  "url": ["https://example.org/Clamp", "", "file:///etc/passwd", "\0"],
  "items": [[], [{"text": "a", "status": "open"}], [{"text": 1}], "x", [[]], [{}] * 99],
  "first": [1, 0, -3, 10**30, "2", 1.5, None, True],
  "last": [2, 0, 8, 10**6, -1, "8"],
  "lines": [5, 10**6, {}],
}  # fmt: skip
EPISODES = 24


def random_calls(draw, chat):
  call, end = (chat.id_of(name) for name in ("<|call|>", "<|/call|>"))
  ids = []
  for _ in range(draw.randrange(1, 4)):
    name = draw.choice(TOOLS)
    wanted = {
      "read_file": ["path", "first", "lines"], "edit_file": ["path", "line", "old", "new"],
      "replace_lines": ["path", "first", "last", "new"],
      "write_file": ["path", "content"], "shell": ["command"], "grep": ["pattern", "path"],
      "search_code": ["query"], "fetch_page": ["url"], "todo": ["items"],
    }.get(name, ["path"])  # fmt: skip
    keys = [key for key in wanted if draw.random() < 0.9]
    keys += [draw.choice(list(KEYS))] if draw.random() < 0.1 else []
    text = name + json.dumps({key: draw.choice(KEYS[key]) for key in keys})
    if draw.random() < 0.1:
      text = text[: draw.randrange(len(text) + 1)]
    ids += [call, *chat.encode(text), *([end] if draw.random() < 0.95 else [])]
  return ids + (list(chat.stop_tokens) if draw.random() < 0.95 else [])


def random_words(draw, chat):
  ids = [draw.randrange(chat.vocab_size) for _ in range(draw.randrange(1, 30))]
  return [*ids, *chat.stop_tokens]


class RandomSampler:
  def __init__(self, chat):
    self._chat = chat

  async def generate(self, prompt, limits):
    draw = random.Random(limits.seed)
    makers = [random_calls] * 9 + [random_words]
    ids = draw.choice(makers)(draw, self._chat)[: limits.max_new_tokens]
    n = len(ids)
    stop = "stop" if ids[-1] in limits.stop_tokens else "length"
    return Generation(
      np.asarray(ids, np.int32), np.full(n, -1, np.float32), np.full(n, 5, np.int32), None, stop
    )


@pytest.mark.slow
@pytest.mark.parametrize("context", ["summarize", "hide_results", "discard_all"])
def test_random_replies_never_break_an_episode(context):
  async def body(workshop):
    shared = services(
      workshop, context=context, token_budget=1_200, tool_output_tokens=150, max_new_tokens=300,
      command_s=0.4, max_turns=9, max_summaries=2, tools=(*config.TOOLS, config.REPLACE_LINES),
    )  # fmt: skip
    groups = await asyncio.gather(
      *(
        run_group(
          lambda t, seed, sampler: (env.make(t, shared), sampler),
          task,
          EPISODES // 2,
          chat=shared.chat,
          sampler=RandomSampler(shared.chat),
          sampling=Sampling(seed=3, max_new_tokens=300),
        )
        for task in (CALL_TASK, SUITE_TASK)
      )
    )
    return [t for group in groups for t in group.trajectories]

  trajectories = run(body)
  assert [t.error for t in trajectories] == [""] * EPISODES
  for trajectory in trajectories:
    assert trajectory.stop in STOPS
    assert all(np.isfinite(value) for value in trajectory.rewards.values())
    assert coding_total(trajectory.rewards) <= 1.0
    replies = [m.tokens for m in trajectory.log if m.role == "assistant"]
    trained = [s.tokens[s.loss_mask] for s in trajectory.segments]
    np.testing.assert_array_equal(np.concatenate(replies), np.concatenate(trained))
    assert max(len(s.tokens) for s in trajectory.segments) <= 1_200
