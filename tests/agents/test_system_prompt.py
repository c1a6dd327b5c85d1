"""A policy that was not trained here reads what its environment needs of it, in its own format."""

import asyncio
import pathlib

import pytest

from jaxrl_agents import chat, config
from jaxrl_agents.agents import system_prompt
from jaxrl_agents.agents.coding import view as coding_view
from jaxrl_agents.agents.coding.config import CodingConfig
from jaxrl_agents.agents.coding.conversation import Conversation
from jaxrl_agents.agents.search import env as search_env
from jaxrl_agents.agents.search import reward
from jaxrl_agents.agents.search.config import SearchConfig
from jaxrl_agents.agents.search.tools import SearchServices
from jaxrl_agents.agents.swarm import env as swarm_env
from jaxrl_agents.agents.swarm import tables
from jaxrl_agents.agents.swarm import view as swarm_view
from jaxrl_agents.agents.swarm.config import SwarmConfig
from jaxrl_agents.types import Message
from tests.agents.search.arena import make_task
from tests.agents.swarm.arena import swarm_task
from tests.chat import families

CONFIGS = pathlib.Path(__file__).parents[2] / "configs"
FORMATS = ("own", *families.FAMILIES)


@pytest.fixture(params=FORMATS)
def own_chat(request, tmp_path):
  return chat.load() if request.param == "own" else families.load(tmp_path, request.param)


def search_prompt(own_chat, services, **options):
  """What a policy reads at the start of a search episode, as its format writes it."""
  limits = SearchConfig(**options)
  env = search_env.make(make_task(), SearchServices(own_chat, services.index, limits))
  context = asyncio.run(env.start())
  return own_chat.decode(own_chat.render(context.messages, context.tools))


def test_a_search_policy_reads_the_form_of_an_answer_its_tools_and_its_budget(own_chat, services):
  prompt = search_prompt(own_chat, services)
  for name in ("search_corpus", "grep_corpus", "read_document", "prune_chunks"):
    assert name in prompt
  # threshold 16384, cut-off 24326 and budget 32268: the published numbers
  for needed in ("32268 tokens", "Above 16384", "above 24326", "at most 128 turns"):
    assert needed in prompt
  assert "at most 30 documents" in prompt
  assert reward.answer_ids(prompt) == ["ID"]  # the mark that it shows is one that counts
  assert "Which river?" in prompt


def test_a_policy_that_cannot_prune_does_not_read_of_it(services):
  prompt = search_prompt(chat.load(), services, can_prune=False)
  assert "prune" not in prompt
  assert "every tool refuses" in prompt


def test_an_empty_prompt_is_no_message_and_another_text_is_itself(services):
  assert system_prompt.messages("", "own") == []
  assert system_prompt.messages("Find it.", "own") == [Message("system", "Find it.")]
  assert system_prompt.messages(system_prompt.ENVIRONMENT, "own") == [Message("system", "own")]


def swarm_services(own_chat, services, **options):
  limits = SwarmConfig(**options)
  search = SearchServices(own_chat, services.index, limits.search)
  return swarm_env.SwarmServices(search, limits)


def swarm_prompt(own_chat, services, **options):
  every = swarm_services(own_chat, services, **options)
  crew = swarm_env.sampled_crew(None, "frozen")
  context = asyncio.run(swarm_env.make(swarm_task(), every, crew, 0).start())
  return own_chat.decode(own_chat.render(context.messages, context.tools))


def test_an_orchestrator_reads_its_tools_its_steps_and_the_form_of_a_table(own_chat, services):
  prompt = swarm_prompt(own_chat, services)
  for name in ("create_subagent", "assign_task", "search_corpus", "grep_corpus", "read_document"):
    assert name in prompt
  for needed in ("32268 tokens", "[Steps left: N]", "at most 15 turns", "cut to 512 tokens"):
    assert needed in prompt
  columns, _ = tables.parse(prompt[prompt.index("| name | value |") :])
  assert columns == ["name", "value"]


def test_a_single_agent_does_not_read_of_sub_agents(services):
  prompt = swarm_prompt(chat.load(), services, alone=True)
  assert "sub-agent" not in prompt
  assert "assign_task" not in prompt


def test_a_sub_agent_reads_that_its_last_message_is_all_that_is_seen_of_it(own_chat):
  text = swarm_view.sub_agent_prompt(SwarmConfig(), 7)
  prompt = own_chat.decode(own_chat.render([Message("system", text)]))
  for needed in (
    "search_corpus",
    "grep_corpus",
    "read_document",
    "32268 tokens",
    "at most 7 turns",
  ):
    assert needed in prompt
  assert "final message alone, cut to 512 tokens" in prompt


@pytest.mark.parametrize(
  ("context", "told"),
  [
    ("summarize", "a summary of up to 4096 tokens"),
    ("discard_all", "begin again with the request alone"),
    ("hide_results", "all tool results but the last 5"),
    ("none", "you are stopped"),
  ],
)
def test_a_coding_policy_reads_its_tools_its_budget_and_how_it_ends(own_chat, context, told):
  limits = CodingConfig(tools=("read_file", "edit_file", "shell"), context=context)
  specs = [coding_view.SPECS[name] for name in limits.tools]
  talk = Conversation("Mend main.py.", limits, own_chat, specs)
  prompt = own_chat.decode(own_chat.render(talk.messages, specs))
  for needed in ("read_file", "edit_file", "shell", "131072 tokens", "at most 200 turns", told):
    assert needed in prompt
  assert "without calling a tool" in prompt
  assert "todo" not in prompt
  assert "Mend main.py." in prompt


@pytest.mark.parametrize(
  "name", ["search_cpu", "swarm_cpu", "coding_cpu", "search_base_cpu", "swarm_base_cpu"]
)
def test_recipes_of_the_shipped_base_have_no_system_prompt(name):
  loaded = config.load(str(CONFIGS / f"{name}.py"))
  options = config.options(loaded)
  prompts = [value for key, value in options.items() if key.endswith(".system_prompt")]
  assert prompts == [""]


@pytest.mark.parametrize(
  "name", ["gpt_oss_20b_rl", "kimi_k2_rl", "qwen3_30b_a3b_rl", "qwen3_4b_rl"]
)
def test_configs_of_published_models_tell_the_policy_about_its_environment(name):
  loaded = config.load(str(CONFIGS / f"{name}.py"))
  assert loaded.agent_config.system_prompt == system_prompt.ENVIRONMENT
