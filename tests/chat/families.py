"""Small tokenizers with the control tokens of each family, and a conversation to render."""

import json

import tokenizers

from jaxrl_agents import chat
from jaxrl_agents.chat import base_format, deepseek_v31, harmony, kimi_k2, kimi_k25, qwen3
from jaxrl_agents.types import Message, ToolCall, ToolSpec

# Which tokens the published tokenizer.json files mark as special. Qwen's tags are ordinary ones.
ORDINARY = {*qwen3.CONTROL_TOKENS[3:]}
CONTROL_TOKENS = {
  "own": base_format.CONTROL_TOKENS,
  "qwen3": qwen3.CONTROL_TOKENS,
  "kimi_k2": (*kimi_k2.CONTROL_TOKENS, *kimi_k2.THOUGHT_TOKENS),
  "kimi_k25": kimi_k25.CONTROL_TOKENS,
  "deepseek_v31": deepseek_v31.CONTROL_TOKENS,
  "harmony": harmony.CONTROL_TOKENS,
}
TEMPLATES = {"kimi_k25": " ".join(kimi_k25.TEMPLATE_MARKS)}
"""Of families that have the tokens of another one."""
FAMILIES = ("qwen3", "kimi_k2", "kimi_k25", "deepseek_v31", "harmony")
TEXT = """the user asks for documents about rivers and the assistant searches the corpus system tool
functions.search_corpus {"query": "river", "name": "arguments"} json analysis commentary final 0123
"""

SEARCH = ToolSpec(
  "search_corpus",
  "Searches the corpus.\nGives chunks.",
  {
    "type": "object",
    "properties": {
      "query": {"type": "string", "description": "What to find, e.g. rivière"},
      "limit": {"type": "integer", "default": 5},
      "order": {"type": "string", "enum": ["best", "newest"], "default": "best"},
    },
    "required": ["query"],
  },
)
CLOCK = ToolSpec("clock", "Tells the time.", {"type": "object", "properties": {}})

CALLS = (
  ToolCall("0.0", "search_corpus", {"query": 'say "rivière"', "limit": 2}),
  ToolCall("0.1", "clock", {}),
)
CONVERSATION = (
  Message("system", "Find it."),
  Message("user", "Which river?"),
  Message("assistant", "", CALLS),
  Message("tool", '{"found": 1}', tool_call_id="0.0"),
  Message("tool", '{"hour": 12}', tool_call_id="0.1"),
  Message("assistant", "The Loire."),
  Message("user", "And the next?"),
)


def write_tokenizer(folder, tokens):
  """A byte-level BPE with `tokens` added, as tokenizer.json in `folder`; returns the folder."""
  tokenizer = tokenizers.Tokenizer(tokenizers.models.BPE())
  tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
  tokenizer.decoder = tokenizers.decoders.ByteLevel()
  trainer = tokenizers.trainers.BpeTrainer(
    vocab_size=400,
    initial_alphabet=tokenizers.pre_tokenizers.ByteLevel.alphabet(),
    show_progress=False,
  )
  tokenizer.train_from_iterator([TEXT] * 3, trainer)
  added = [
    tokenizers.AddedToken(token, special=token not in ORDINARY, normalized=False)
    for token in tokens
  ]
  tokenizer.add_tokens(added)
  folder.mkdir(parents=True, exist_ok=True)
  tokenizer.save(str(folder / "tokenizer.json"))
  return folder


def write_template(folder, template):
  """A tokenizer_config.json with a chat template."""
  (folder / "tokenizer_config.json").write_text(json.dumps({"chat_template": template}))
  return folder


def load(folder, family, thinking="model"):
  """The chat of a small tokenizer of the family."""
  write_tokenizer(folder, CONTROL_TOKENS[family])
  if family in TEMPLATES:
    write_template(folder, TEMPLATES[family])
  return chat.load(str(folder), thinking)


def spelled(chat, pieces):
  """Ids of pieces, of which those that name a control token are that token, and of the end."""
  ids = []
  for piece in pieces:
    token = chat.id_of(piece) if piece.startswith("<") else None
    ids += [token] if token is not None else chat.encode(piece).tolist()
  return [*ids, chat.stop_tokens[0]]
