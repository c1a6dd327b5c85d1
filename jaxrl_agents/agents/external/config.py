"""Options of an existing agent."""

from __future__ import annotations

import dataclasses

from jaxrl_agents.config.ranges import Count, Positive

START_OPTIONS = ("command", "function", "hook")


@dataclasses.dataclass(frozen=True)
class ExternalConfig:
  """Options: `--set external.command="python my_agent.py {task}"`.

  Exactly one of `command`, `function` and `hook` starts the agent, once for each rollout.

  Attributes:
    command: words of a command; `{task}` stands for a file with the task as JSON, `{prompt}` for
      its prompt. It runs in a folder of its own; words that are files of the current folder are
      passed with their whole paths. Address and key are in its environment (see
      `starting.environment`).
    function: import path of a function (task, base_url, api_key, folder) -> result; a coroutine
      function, or one that runs in a thread of its own.
    hook: URL that gets a POST with task, base_url, api_key, control_url, control_key and timeout_s.
      Its agent attaches the reward and finishes the session there.
    tasks: a file of JSON lines with "id", "prompt" and, if wanted, "split" and further fields, of
      which the agent sees all but "gold"; or a URL, beginning with http:// or https://, of such
      lines; or an import path of a function without arguments that returns such rows.
    reward: import path of a function (task, outcome, trajectory) -> a number, or parts by name with
      one called "reward"; "" where a hook attaches them over HTTP.
    players: pairs of a name and an import path of a function (task, messages, tools, seed) ->
      Message that answers in the place of the policy; the one named "demonstrator" is what the
      warm-up imitates, the others are baselines.
    trains: kinds of calls whose tokens are trained, see `gateway.token_tree.kinds`.
    token_budget: of a context, prompt and reply together.
    max_new_tokens: of a reply.
    max_calls: requests of a rollout.
    timeout_s: seconds that a rollout may take, and as many again that `reward` may.
    at_once: agents that one worker process runs at the same time.
    host: address at which the gateway listens; an agent in a container needs one that it reaches.
  """

  command: str = ""
  function: str = ""
  hook: str = ""
  tasks: str = ""
  reward: str = ""
  players: tuple[tuple[str, str], ...] = ()
  trains: tuple[str, ...] = ("main", "sub")
  token_budget: Count = 1_024
  max_new_tokens: Count = 128
  max_calls: Count = 16
  timeout_s: Positive = 300.0
  at_once: Count = 16
  host: str = "127.0.0.1"

  @property
  def max_turns(self) -> int:
    """Requests of a rollout."""
    return self.max_calls
