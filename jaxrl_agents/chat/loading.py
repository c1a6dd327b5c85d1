"""Finds the tokenizer of a policy and recognises the chat format it was made for."""

from __future__ import annotations

import dataclasses
import functools
import json
import pathlib
from collections.abc import Callable, Iterable, Mapping

import tokenizers

from jaxrl_agents import file_digests
from jaxrl_agents.chat import base_format, deepseek_v31, harmony, kimi_k2, kimi_k25, qwen3
from jaxrl_agents.chat.chat import Chat, Format
from jaxrl_agents.chat.vocabulary import Vocabulary, with_control_tokens

ASSETS = pathlib.Path(__file__).parents[1] / "assets"
TOKENIZER_CONFIG = "tokenizer_config.json"
CHAT_TEMPLATE = "chat_template.jinja"


@dataclasses.dataclass(frozen=True)
class Family:
  """A format and how it is recognised.

  Attributes:
    make: makes the format of a vocabulary.
    control_tokens: tokens that its vocabulary must have.
    template_marks: strings in its published chat template that are absent from templates with the
      same tokens but another syntax of calls.
    thinking: {level of thinking: makes the format with it}, for levels that the model was trained
      to be told.
    always_thinks: a string in the published template of models that were trained with the level
      "on" alone, which is theirs untold.
  """

  make: Callable[[Vocabulary], Format]
  control_tokens: tuple[str, ...]
  template_marks: tuple[str, ...]
  thinking: Mapping[str, Callable[[Vocabulary], Format]] = dataclasses.field(default_factory=dict)
  always_thinks: str = ""


def _with_thinking(form: Callable[..., Format], *levels: str) -> dict[str, Callable[..., Format]]:
  """What makes a format whose argument `thinking` has these values."""
  return {level: functools.partial(form, thinking=level) for level in levels}


FORMATS: Mapping[str, Family] = {
  "own": Family(base_format.OwnFormat, base_format.CONTROL_TOKENS, base_format.TEMPLATE_MARKS),
  "qwen3": Family(
    qwen3.Qwen3Format,
    qwen3.CONTROL_TOKENS,
    qwen3.TEMPLATE_MARKS,
    _with_thinking(qwen3.Qwen3Format, qwen3.THINKING, qwen3.UNTHINKING),
    qwen3.ALWAYS_THINKS,
  ),
  "kimi_k2": Family(kimi_k2.KimiK2Format, kimi_k2.CONTROL_TOKENS, kimi_k2.TEMPLATE_MARKS),
  "kimi_k25": Family(
    kimi_k25.KimiK25Format,
    kimi_k25.CONTROL_TOKENS,
    kimi_k25.TEMPLATE_MARKS,
    _with_thinking(kimi_k25.KimiK25Format, kimi_k25.THINKING, kimi_k25.UNTHINKING),
  ),
  "deepseek_v31": Family(
    deepseek_v31.DeepSeekV31Format,
    deepseek_v31.CONTROL_TOKENS,
    deepseek_v31.TEMPLATE_MARKS,
    _with_thinking(deepseek_v31.DeepSeekV31Format, deepseek_v31.THINKING, deepseek_v31.UNTHINKING),
  ),
  "harmony": Family(
    harmony.HarmonyFormat,
    harmony.CONTROL_TOKENS,
    harmony.TEMPLATE_MARKS,
    _with_thinking(harmony.HarmonyFormat, *harmony.REASONING),
  ),
}


@functools.cache
def load(path: str = "base", thinking: str = "model") -> Chat:
  """The chat of a `tokenizer.json` file or of a folder holding one; "base" is the shipped one.

  The format is the one of FORMATS whose control tokens the tokenizer has. A chat template beside it
  (CHAT_TEMPLATE, or in TOKENIZER_CONFIG) must be of that format too. `thinking` is how much the
  prompts tell the policy to think: a level of its format, or "model", as the model does untold.

  Raises:
    ValueError: there is no readable tokenizer at `path`, it is made for another format, or its
      format has no such level of thinking.
  """
  file = _file(path)
  files = tokenizer_files(path)
  problem = (
    file_digests.damage(file.parent, only=[each.name for each in files])
    if file_digests.is_there(file.parent)
    else ""
  )
  if problem:
    raise ValueError(
      f"the tokenizer in {file.parent} is damaged: {problem}; restore the folder from a copy"
    )
  template = chat_template(file.parent)
  try:
    text = file.read_text("utf-8")
    tokenizer = tokenizers.Tokenizer.from_str(text)
    name = detect(tokenizer.get_added_tokens_decoder().values(), template)
    if name != "own":
      tokenizer = tokenizers.Tokenizer.from_str(with_control_tokens(text))
  except Exception as error:  # the Rust side raises plain Exception
    raise ValueError(f"{file} cannot be read as a tokenizer: {error}") from error
  _check_template(file.parent, name, template)
  family = FORMATS[name]
  levels = {"model": family.make, **family.thinking}
  if family.always_thinks and family.always_thinks in template:
    levels["model"] = levels[qwen3.THINKING]
  if thinking not in levels:
    raise ValueError(
      f"policy.thinking={thinking} is no level of the chat format {name!r} of {file}, which has "
      f"{', '.join(levels)}; choose one of these"
    )
  vocabulary = Vocabulary(tokenizer)
  return Chat(name, vocabulary, levels[thinking](vocabulary))


def tokenizer_files(path: str) -> list[pathlib.Path]:
  """The files that `load` reads of `path`: tokenizer.json first, then those of its chat template.

  Raises:
    ValueError: there is no tokenizer at `path`.
  """
  file = _file(path)
  beside = (file.parent / name for name in (TOKENIZER_CONFIG, CHAT_TEMPLATE))
  return [file, *(each for each in beside if each.is_file())]


def detect(tokens: Iterable[tokenizers.AddedToken], template: str = "") -> str:
  """The name in FORMATS of the format whose tokens are among the added tokens; of several the one
  with the most marks in the chat template, or the first.

  Raises:
    ValueError: there is none; the message lists the formats and what the nearest lacks.
  """
  known = {token.content for token in tokens}
  lacking = {
    name: [token for token in family.control_tokens if token not in known]
    for name, family in FORMATS.items()
  }
  share = lambda name: len(lacking[name]) / len(FORMATS[name].control_tokens)
  nearest = min(lacking, key=share)
  if lacking[nearest]:
    raise ValueError(
      f"its added tokens are of none of the chat formats {', '.join(FORMATS)}; the nearest is "
      f"{nearest!r}, for which it lacks {', '.join(lacking[nearest])}"
    )
  known_marks = lambda name: sum(mark in template for mark in FORMATS[name].template_marks)
  return max((name for name in FORMATS if not lacking[name]), key=known_marks)


def chat_template(folder: pathlib.Path) -> str:
  """The published template of a folder, as text; "" if there is none.

  Raises:
    ValueError: TOKENIZER_CONFIG is damaged.
  """
  if (folder / CHAT_TEMPLATE).is_file():
    return (folder / CHAT_TEMPLATE).read_text("utf-8")
  config = folder / TOKENIZER_CONFIG
  try:
    template = json.loads(config.read_bytes()).get("chat_template") if config.is_file() else ""
    if isinstance(template, list):  # several templates, each with a name
      template = next((t["template"] for t in template if t["name"] == "default"), "")
  except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
    raise ValueError(
      f"{config} is damaged ({error}); copy it again from where it is from"
    ) from None
  return template or ""


def _file(path: str) -> pathlib.Path:
  place = ASSETS / "base" if path == "base" else pathlib.Path(path).expanduser()
  file = place / "tokenizer.json" if place.is_dir() else place
  if not file.is_file():
    raise ValueError(f"no tokenizer at {file}; pass 'base' or the folder of a tokenizer.json")
  return file


def _check_template(folder: pathlib.Path, name: str, template: str) -> None:
  absent = [mark for mark in FORMATS[name].template_marks if mark not in template]
  if template and absent:
    raise ValueError(
      f"the tokenizer in {folder} has the control tokens of the chat format {name!r}, but its chat "
      f"template, which lacks {absent[0]!r}, writes calls in another way; supported are "
      f"{', '.join(FORMATS)}"
    )
