"""The agent of a run with what it may read of its config, and its tasks. Imports no jax."""

from __future__ import annotations

from typing import Any

from jaxrl_agents import chat as chat_lib
from jaxrl_agents.agents.agent import Agent, Setting, Tasks
from jaxrl_agents.chat import Chat
from jaxrl_agents.config import RunConfig, cache_folder, import_path


def agent(config: RunConfig) -> Agent:
  """The agent of the run."""
  return import_path.agent(config.agent)


def load_chat(config: RunConfig) -> Chat:
  """The tokenizer and template of the run.

  Raises:
    ValueError: the policy's vocabulary is smaller than the tokenizer's.
  """
  chat = chat_lib.load(config.policy.tokenizer, config.policy.thinking)
  if chat.vocab_size > config.policy.model.vocab_size:
    raise ValueError(
      f"policy.model.vocab_size={config.policy.model.vocab_size} is smaller than the "
      f"{chat.vocab_size} ids of the tokenizer {config.policy.tokenizer!r}; raise it"
    )
  return chat


def setting(config: RunConfig) -> Setting:
  """The parts of the run that its agent may read."""
  return Setting(
    options=config.agent_config,
    corpus=config.corpus,
    sft=config.sft,
    chat=load_chat(config),
    cache=cache_folder(config.corpus),
    seed=config.seed,
    resamples=config.eval.bootstrap_resamples,
    threshold=config.eval.threshold,
    judge_weight=config.judge.weight,
  )


def open_tasks(config: RunConfig, report: Any = print) -> Tasks:
  """The tasks of the run's agent, made or read from the cache; `report` prints progress.

  Raises:
    ValueError: no tasks can be made.
  """
  return agent(config).tasks(setting(config), report)
