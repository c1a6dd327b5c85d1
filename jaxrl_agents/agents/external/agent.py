"""The `Agent` of an existing agent, which talks to its policy over HTTP."""

from __future__ import annotations

import hashlib
import pathlib
import shlex
from collections.abc import Sequence
from typing import Any

from jaxrl_agents.agents.agent import DEMONSTRATOR, Agent, Setting
from jaxrl_agents.agents.external.config import START_OPTIONS, ExternalConfig
from jaxrl_agents.agents.external.episode import ExternalEpisode, ExternalServices
from jaxrl_agents.agents.external.tasks import ExternalTasks
from jaxrl_agents.chat import Chat
from jaxrl_agents.config import import_path
from jaxrl_agents.corpus import code_digest
from jaxrl_agents.gateway.token_tree import KINDS
from jaxrl_agents.harness.rollout import SelfDriven
from jaxrl_agents.types import Sampler, Task


class ExternalAgent(Agent):
  """Any agent of any project, in any language, unmodified."""

  name = "external"
  config = ExternalConfig
  places = ("hook", "host", "at_once", "timeout_s")
  sources = ("tasks",)

  def check(self, options: ExternalConfig, steps: int, stall_s: float) -> None:
    """Exactly one way to start the agent; a reward; kinds of calls that exist."""
    given = [name for name in START_OPTIONS if getattr(options, name)]
    if len(given) != 1:
      raise ValueError(
        f"external needs exactly one of {', '.join(START_OPTIONS)} to start the agent, and has "
        f"{' and '.join(given) or 'none'}"
      )
    if not options.hook and not options.reward:
      raise ValueError(
        f"external.reward is empty, and with external.{given[0]} nothing else gives a reward; set "
        "it to a function package.module:name (a hook may attach rewards itself)"
      )
    if unknown := set(options.trains) - set(KINDS):
      raise ValueError(f"external.trains has {sorted(unknown)}; kinds are {', '.join(KINDS)}")

  def tasks(self, setting: Setting, report: Any = print) -> ExternalTasks:
    """The rows that `external.tasks` names."""
    return ExternalTasks(setting.options.tasks)

  def services(self, chat: Chat, options: ExternalConfig, shared: Any) -> ExternalServices:
    """The gateway of a worker process."""
    return ExternalServices(chat, options)

  def episode(
    self, task: Task, services: ExternalServices, seed: int, sampler: Sampler
  ) -> SelfDriven:
    """One rollout of the agent with the policy."""
    return ExternalEpisode(task, services)

  def player(
    self, name: str, task: Task, services: ExternalServices, seed: int, chat: Chat
  ) -> SelfDriven:
    """One rollout of the agent with a scripted player in the place of the policy."""
    self.check_player(name, services.options)
    answer = import_path.load(dict(services.options.players)[name], "external.players")
    return ExternalEpisode(task, services, answer, seed)

  def check_player(self, name: str, options: ExternalConfig) -> None:
    """Raises ValueError where `external.players` does not name the player."""
    names = [each for each, _ in options.players]
    if name not in names:
      raise ValueError(
        f"external.players has no {name!r}, only {', '.join(names) or 'none'}; add it there"
      )

  def max_turn_s(self, options: ExternalConfig, stall_s: float) -> float:
    """A rollout may be silent to its end, while its agent uses a tool, and while it is judged."""
    return stall_s + 2 * options.timeout_s

  def named_code_digest(self, options: ExternalConfig) -> str:
    """Of the code of its function and of the demonstrator, and of the files of its command."""
    paths = [options.function, dict(options.players).get(DEMONSTRATOR, "")]
    found = hashlib.sha256()
    if modules := sorted({path.partition(":")[0] for path in paths if path}):
      found.update(code_digest.of(*modules).encode())
    files = [file for file in map(pathlib.Path, shlex.split(options.command)) if file.is_file()]
    for file in files:
      found.update(file.read_bytes())
    return found.hexdigest() if modules or files else ""

  def baselines(self, options: ExternalConfig) -> Sequence[str]:
    """The scripted players besides the demonstrator."""
    return tuple(name for name, _ in options.players if name != DEMONSTRATOR)


AGENT = ExternalAgent()
