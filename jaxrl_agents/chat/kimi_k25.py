"""The format of Kimi K2.5: that of Kimi K2 Thinking with other declarations and openings of turns.

    <|im_system|>tool_declare<|im_middle|># Tools

    ## functions
    namespace functions {
    // Searches the corpus.
    type search_corpus = (_: {
      query: string
    }) => any;
    }
    <|im_end|>
    ...
    <|im_assistant|>assistant<|im_middle|><think>

The prompt opens a thought, in which the reply begins, or without thinking has an empty one. Tools
with a schema that the declarations cannot express are all declared as Kimi K2 has them.

The template empties the thoughts of turns before the last answer. Here they stay, because what was
sampled is not edited.

Source: chat_template.jinja and tokenization_kimi.py of https://huggingface.co/moonshotai/Kimi-K2.5.
"""

from __future__ import annotations

from collections.abc import Sequence

from jaxrl_agents.chat import kimi_k2, kimi_typescript, replies
from jaxrl_agents.chat.vocabulary import Part, Vocabulary
from jaxrl_agents.types import ToolSpec

CONTROL_TOKENS = (*kimi_k2.CONTROL_TOKENS, *kimi_k2.THOUGHT_TOKENS)
TEMPLATE_MARKS = (*kimi_k2.TEMPLATE_MARKS, "tools_ts_str")
THINKING, UNTHINKING = "on", "off"
"""Values of `thinking` (see `chat.load`); untold, the model thinks."""


class KimiK25Format(kimi_k2.KimiK2Format):
  """As of Kimi K2, with tools in TypeScript and prompts that open or skip the thought."""

  def __init__(self, vocabulary: Vocabulary, thinking: str = THINKING):
    super().__init__(vocabulary)
    self._thinking = thinking == THINKING
    self._opening = [*self._opening, *(self._thought[:1] if self._thinking else self._thought)]

  def _declared(self, tools: Sequence[ToolSpec]) -> str:
    try:
      return kimi_typescript.declared(tools)
    except ValueError:
      return super()._declared(tools)

  def _encoded_thought(self, text: str) -> list[Part]:
    return [text, self._thought[1]] if self._thinking else []

  def _split_thought(self, body: list[int]) -> tuple[list[int], list[int]]:
    """A thought ends where calls begin, if the policy does not close it before."""
    opening, closing = self._thought
    calls = self._id["<|tool_calls_section_begin|>"]
    if self._thinking and opening not in body and closing not in body:
      end = body.index(calls) if calls in body else len(body)
      return body[:end], body[end:]
    return replies.split_thought(body, opening, closing)
