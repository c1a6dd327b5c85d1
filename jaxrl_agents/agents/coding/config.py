"""Options of the coding agent: tasks, limits of an episode, weights of the reward."""

from __future__ import annotations

import dataclasses
from typing import Annotated, Literal

from jaxrl_agents.agents.system_prompt import ENVIRONMENT
from jaxrl_agents.config.ranges import Count, NotNegative, Positive, Range, Share, Whole

TOOLS = (
  "read_file",
  "edit_file",
  "undo_edit",
  "write_file",
  "shell",
  "grep",
  "search_code",
  "fetch_page",
  "todo",
)
"""The tools that are offered by default; see `agents.coding.tools`."""
RUN_TESTS = "run_tests"
"""The tool that runs the visible tests where their runs are counted (`CodingConfig.test_runs`)."""
REPLACE_LINES = "replace_lines"
"""The tool that edits lines by their numbers, which read_file shows where it is offered."""


@dataclasses.dataclass(frozen=True)
class CodingReward:
  """Weights of a coding episode's reward (Composer 2 publishes the kinds of terms, no values).

  R = solved + progress * share of failing tests mended - behaviour - length * C_{k,q}(effort)

  The costs of style and of poor last messages are 0, as the CPU recipes were measured.

  Attributes:
    progress: weight of the share of tests that failed before and pass now: that of the visible
      tests or that of the hidden ones, whichever is lower.
    broken_calls: cost of each malformed, refused or unknown call; at most five are counted.
    open_todos: cost per share of to-dos left open.
    comment_thinking, shell_only: cost of an episode that shows the behaviour.
    style: cost of each style warning per 100 added lines (reward.style_warnings), five at most.
    last_message: cost of a last message that is empty, has over 400 tokens, or names no changed
      file (reward.is_poor_message). All these costs together are at most 0.2.
    length_k, length_q, length: shape and weight of the nonlinear length penalty
      (agents.coding.length_penalty); length=0 turns it off.
    length_of_solved_only: whether only solved episodes pay for their length.
  """

  progress: NotNegative = 0.0
  broken_calls: NotNegative = 0.02
  open_todos: NotNegative = 0.05
  comment_thinking: NotNegative = 0.05
  shell_only: NotNegative = 0.05
  style: NotNegative = 0.0
  last_message: NotNegative = 0.0
  length_k: NotNegative = 1.0
  length_q: NotNegative = 1.0
  length: NotNegative = 0.05
  length_of_solved_only: bool = False


@dataclasses.dataclass(frozen=True)
class CodingConfig:
  """Tasks and limits of the coding agent, in tokens of the policy's tokenizer.

  Attributes:
    tasks: folder of a frozen set (scripts/make_coding_tasks.py). If it is empty, the first run
      makes a set of short functions of `sources`, damages each at most `tasks_per_repo` times,
      and caches it.
    sources: each is "python" (the standard library), "package:NAME" (an installed package) or a
      folder.
    drill_sources: what drills are made of; by default `sources`, without the functions that the set
      holds back. If they are named, no function of the set is in a drill, so that the tasks that
      reinforcement learning trains on are new to the policy.
    drill_texts: share of the drills that are code to be continued, undamaged and without a task.
    drill_each: share of the repairs in which each of two to four functions of a file has a fault,
      as the request says; they practise more repairs for as much reading.
    repo_kind, damage, min_level, max_level, max_file_characters: choose the tasks of the set.
      "calls" are short functions in one file. "token" damages one token; "flip" replaces a token
      by its counterpart ("<" by "<=", "and" by "or": `agents.coding.tasks.mutations.is_flip`).
      "mixed" are flips, lines (`agents.coding.tasks.statements`), and pairs of these in one
      function.
      Levels are those of `agents.coding.tasks.make_tasks` (0: one line; 3: 61 to 300 lines).
    max_files: most files over which the functions of a repository of "calls" are spread, 1 or 2;
      one of the files is damaged, and the request names all.
    tools: names of the tools that the policy is offered: some of `TOOLS`, `RUN_TESTS` and
      `REPLACE_LINES`.
    test_runs, max_edits: how often the policy may run the tests in an episode, by the tool
      `RUN_TESTS`, and how many edits it may make, by edit_file, replace_lines and write_file;
      undoing is free. 0 for no limit. With limits, the tool shell is not offered: it runs the code
      and changes files uncounted.
    token_budget: tokens of the whole context.
    context: what happens when a tool result brings the context to `trigger_fraction` of the
      budget. "summarize": the policy writes a summary and continues from it, at most
      `max_summaries` times. "discard_all": the tool history is removed. "hide_results": all but
      the last `keep_results` tool results are removed. "none": nothing.
    summary_tokens: most tokens of one summary.
    tool_output_tokens: most tokens of one tool result.
    max_new_tokens: most tokens of one reply.
    max_turns: most turns of the policy in an episode.
    max_calls: most calls of one turn that run; further ones are refused.
    chunk_tokens: tokens of the chunks that search_code searches.
    command_s: time limit of a shell command, in seconds.
    grade_s: time limit of the judge, in seconds.
    snapshot_turns: turns between snapshots from which a lost sandbox is restored; 0 for none.
    pages: file of JSON lines {"url", "title", "text"} that fetch_page reads; none if empty.
    backend: backend of the sandboxes.
    system_prompt: first message: "environment" for `view.system_prompt`, which explains tools,
      limits and how an episode ends; "" for none, as for the shipped policies; else the text.
    hasty: probability that the scripted demonstrator ends an episode without testing its last edit.
    reward: weights of the reward.
  """

  tasks: str = ""
  sources: tuple[str, ...] = ("python",)
  drill_sources: tuple[str, ...] = ()
  drill_texts: Share = 0.0
  drill_each: Share = 0.0
  tasks_per_repo: Count = 6
  repo_kind: Literal["any", "calls", "suite"] = "any"
  damage: Literal["any", "token", "flip", "mixed"] = "any"
  min_level: Whole = 0
  max_level: Whole = 3
  max_file_characters: Count = 400_000
  max_files: Annotated[int, Range(1, 2)] = 1
  tools: tuple[str, ...] = TOOLS
  test_runs: Whole = 0
  max_edits: Whole = 0
  token_budget: Count = 131_072
  context: Literal["summarize", "discard_all", "hide_results", "none"] = "summarize"
  trigger_fraction: Share = 0.7
  max_summaries: Whole = 8
  summary_tokens: Count = 4_096
  keep_results: Whole = 5
  tool_output_tokens: Count = 8_192
  max_new_tokens: Count = 8_192
  max_turns: Count = 200
  max_calls: Count = 16
  chunk_tokens: Count = 256
  command_s: Positive = 60.0
  grade_s: Positive = 300.0
  snapshot_turns: Whole = 1
  pages: str = ""
  backend: str = "namespaces"
  system_prompt: str = ENVIRONMENT
  hasty: Share = 0.3
  reward: CodingReward = CodingReward()


def check(options: CodingConfig) -> None:
  """Raises ValueError where an option is unknown, or two contradict each other."""
  known = (*TOOLS, RUN_TESTS, REPLACE_LINES)
  if set(options.tools) - set(known) or not options.tools:
    raise ValueError(f"coding.tools={options.tools} must be some of {', '.join(known)}")
  if (RUN_TESTS in options.tools) != bool(options.test_runs):
    raise ValueError(
      f"coding.test_runs={options.test_runs} is the number of runs of the tool {RUN_TESTS}, and "
      f"coding.tools={options.tools}; offer the tool and set a number, or neither"
    )
  if (options.test_runs or options.max_edits) and "shell" in options.tools:
    raise ValueError(
      f"coding.test_runs={options.test_runs} and coding.max_edits={options.max_edits} would not "
      "hold with the tool shell, which runs code and changes files uncounted; remove it from "
      "coding.tools, or set both to 0"
    )
  if (
    options.context == "summarize"
    and options.max_summaries
    and options.tool_output_tokens + options.summary_tokens > options.token_budget
  ):
    raise ValueError(
      f"coding.tool_output_tokens={options.tool_output_tokens} and coding.summary_tokens="
      f"{options.summary_tokens} do not fit coding.token_budget={options.token_budget}; lower them"
    )
  if options.tool_output_tokens + options.max_new_tokens > options.token_budget:
    raise ValueError(
      f"coding.tool_output_tokens={options.tool_output_tokens} and coding.max_new_tokens="
      f"{options.max_new_tokens} do not fit coding.token_budget={options.token_budget}; lower them"
    )
