"""Which format a folder is for, and what is said where it is for none."""

import json

import pytest

from jaxrl_agents import chat
from jaxrl_agents.chat import qwen3
from jaxrl_agents.types import Message
from tests.chat import families


def test_the_shipped_tokenizer_is_of_our_own_format():
  assert chat.load().name == "own"


def test_tokens_of_no_format_are_an_error_that_names_the_formats_and_what_is_missing(tmp_path):
  tokens = [token for token in qwen3.CONTROL_TOKENS if "think" not in token]
  folder = families.write_tokenizer(tmp_path, tokens)
  known = "own, qwen3, kimi_k2, kimi_k25, deepseek_v31, harmony"
  expected = f"none of the chat formats {known}; the nearest is 'qwen3'"
  with pytest.raises(ValueError, match=f"{expected}, for which it lacks <think>, </think>"):
    chat.load(str(folder))


@pytest.mark.parametrize("where", ["tokenizer_config.json", "chat_template.jinja"])
def test_a_template_that_writes_calls_in_another_way_is_an_error(tmp_path, where):
  """Qwen3-Coder has the tokens of Qwen3 and calls <function=name><parameter=...>."""
  folder = families.write_tokenizer(tmp_path, qwen3.CONTROL_TOKENS)
  template = "<tool_call>\n<function=example>...</tool_call> <tool_response>"
  named = [{"name": "default", "template": template}, {"name": "rag", "template": ""}]
  text = json.dumps({"chat_template": named}) if where.endswith("json") else template
  (folder / where).write_text(text)
  with pytest.raises(
    ValueError, match="'qwen3', but its chat template, which lacks '<args-json-ob"
  ):
    chat.load(str(folder))


def test_a_template_of_the_format_is_accepted(tmp_path):
  folder = families.write_tokenizer(tmp_path, qwen3.CONTROL_TOKENS)
  families.write_template(
    folder, 'XML tags: {"name": ..., "arguments": <args-json-object>} <tool_response>'
  )
  assert chat.load(str(folder / "tokenizer.json")).name == "qwen3"


def test_of_formats_with_the_same_tokens_the_template_says_which_it_is(tmp_path):
  marks = "tool_declare ## Return of "
  templates = {"kimi_k2": marks, "kimi_k25": f"{marks}{{%- if tools_ts_str -%}}"}
  for name, template in templates.items():
    (folder := tmp_path / name).mkdir()
    families.write_tokenizer(folder, families.CONTROL_TOKENS["kimi_k2"])
    assert chat.load(str(folder)).name == "kimi_k2"
    families.write_template(folder, template)
    chat.load.cache_clear()
    assert chat.load(str(folder)).name == name


@pytest.mark.parametrize(
  ("generation", "begins"),
  [
    (r"<|im_start|>assistant\n", ""),
    (r"<|im_start|>assistant\n<think>\n", "<think>\n"),
  ],
)
def test_a_model_whose_template_opens_a_thought_is_prompted_as_it_was_trained(
  tmp_path, generation, begins
):
  folder = families.write_tokenizer(tmp_path, families.CONTROL_TOKENS["qwen3"])
  families.write_template(
    folder, '"arguments": <args-json-object>} <tool_response> {{- \'' + generation + "' }}"
  )
  talk = chat.load(str(folder))
  prompt = talk.decode(talk.render([Message("user", "Hm?")]))
  assert prompt.endswith(f"<|im_start|>assistant\n{begins}")


@pytest.mark.parametrize(
  ("family", "level", "levels"),
  [
    ("own", "off", "model"),
    ("kimi_k2", "high", "model"),
    ("kimi_k25", "high", "model, on, off"),
    ("qwen3", "low", "model, on, off"),
    ("deepseek_v31", "high", "model, on, off"),
    ("harmony", "off", "model, low, medium, high"),
  ],
)
def test_a_level_of_thinking_that_a_format_lacks_is_an_error_that_lists_its_levels(
  tmp_path, family, level, levels
):
  said = (
    f"policy.thinking={level} is no level of the chat format '{family}' of .*, which has {levels};"
  )
  with pytest.raises(ValueError, match=said):
    families.load(tmp_path, family, level)


def test_a_missing_tokenizer_is_named_with_the_remedy(tmp_path):
  with pytest.raises(ValueError, match=r"no tokenizer at .*pass 'base'"):
    chat.load(str(tmp_path))


def test_a_file_that_is_no_tokenizer_is_an_error_that_names_it(tmp_path):
  (tmp_path / "tokenizer.json").write_text("{}")
  with pytest.raises(ValueError, match="cannot be read as a tokenizer"):
    chat.load(str(tmp_path))
