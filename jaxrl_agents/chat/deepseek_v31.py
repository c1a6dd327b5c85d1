"""The format of DeepSeek-V3.1.

    <｜begin▁of▁sentence｜>...

    ## Tools
    You have access to the following tools:
    ...<｜User｜>...<｜Assistant｜></think>...<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>search_corpus
      <｜tool▁sep｜>{"query": "..."}<｜tool▁call▁end｜><｜tool▁calls▁end｜><｜end▁of▁sentence｜>
      <｜tool▁output▁begin｜>...<｜tool▁output▁end｜>...<｜end▁of▁sentence｜>

without the line breaks but those of the first turn. The system prompt has no mark of its own, and
nothing stands between the results of calls and the reply to them. By default the prompt skips the
thought; with thinking it opens one, in which the reply begins. The model was trained to call tools
without thinking.

A turn that was not sampled has a thought only where `Message.reasoning` is set, and then only with
thinking. The template drops the thoughts of earlier turns; here they stay, because what was sampled
is not edited. It moves all system messages to the beginning; here later ones are turns of the user.

Source: chat_template.jinja and "ToolCall" of https://huggingface.co/deepseek-ai/DeepSeek-V3.1.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from jaxrl_agents.chat import replies
from jaxrl_agents.chat.vocabulary import Part, Vocabulary
from jaxrl_agents.types import Message, ToolCall, ToolSpec

BEGIN, END = "<｜begin▁of▁sentence｜>", "<｜end▁of▁sentence｜>"
USER, ASSISTANT = "<｜User｜>", "<｜Assistant｜>"
CALLS, CALLS_END = "<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>"
CALL, SEPARATOR, CALL_END = "<｜tool▁call▁begin｜>", "<｜tool▁sep｜>", "<｜tool▁call▁end｜>"
RESULT, RESULT_END = "<｜tool▁output▁begin｜>", "<｜tool▁output▁end｜>"
THOUGHT, THOUGHT_END = "<think>", "</think>"
CONTROL_TOKENS = (
  *(BEGIN, END, USER, ASSISTANT),
  *(CALLS, CALLS_END, CALL, SEPARATOR, CALL_END, RESULT, RESULT_END),
  *(THOUGHT, THOUGHT_END),
)
TEMPLATE_MARKS = (f"{ASSISTANT}{THOUGHT_END}", RESULT)
THINKING, UNTHINKING = "on", "off"
"""Values of `thinking` (see `chat.load`); untold, the model does not think."""

TOOLS_HEAD = "## Tools\nYou have access to the following tools:\n"
TOOLS_RULES = (
  "\nWhere:\n"
  "- `tool_call_name` must be an exact match to one of the available tools\n"
  "- `tool_call_arguments` must be valid JSON that strictly follows the tool's Parameters Schema\n"
  "- For multiple tool calls, chain them directly without separators or spaces"
)


class DeepSeekV31Format:
  """Turns of a user and of the assistant; results follow the calls in their order."""

  def __init__(self, vocabulary: Vocabulary, thinking: str = UNTHINKING):
    self._vocabulary = vocabulary
    self._id = vocabulary.ids_by_name(CONTROL_TOKENS)
    self._thinking = thinking == THINKING
    self._opening = [self._id[ASSISTANT], self._id[THOUGHT if self._thinking else THOUGHT_END]]
    self.stop_tokens: tuple[int, ...] = (self._id[END],)

  def render(self, messages: Sequence[Message], tools: Sequence[ToolSpec]) -> np.ndarray:
    """See `Chat.render`. The tools stand after the system prompt."""
    with_system = bool(messages) and messages[0].role == "system"
    parts: list[Part] = [self._id[BEGIN]]
    if with_system:
      parts.append(messages[0].content)
    if tools:
      parts += ["\n\n" if with_system else "", *self._declared(tools)]
    before = "system"
    for i, message in enumerate(messages[with_system:], int(with_system)):
      if message.role == "assistant":
        parts += [*self._header(before), *self._assistant(message, messages[:i])]
      elif message.role == "tool":
        parts += [self._id[RESULT], message.content, self._id[RESULT_END]]
      else:
        parts += [self._id[USER], message.content]
      before = message.role
    return self._vocabulary.ids([*parts, *self._header(before)])

  def encode_reply(self, reply: Message, earlier: Sequence[Message]) -> np.ndarray:
    """See `Chat.encode_reply`. Without thinking, and in replies to results, whose prompt opens no
    thought, the reasoning is left out.
    """
    parts: list[Part] = []
    if self._thinking and not (earlier and earlier[-1].role == "tool"):
      parts += [reply.reasoning, self._id[THOUGHT_END]]
    parts.append(reply.content)
    calls: list[Part] = []
    for call in reply.tool_calls:
      arguments = replies.json_text(dict(call.arguments))
      calls += [self._id[CALL], call.name, self._id[SEPARATOR], arguments, self._id[CALL_END]]
    if calls:
      parts += [self._id[CALLS], *calls, self._id[CALLS_END]]
    return self._vocabulary.ids([*parts, self._id[END]])

  def parse(self, tokens: np.ndarray) -> Message:
    """See `Chat.parse`. What stands before the end of a thought is one, whether the prompt has
    opened it or not.
    """
    body = tokens.tolist()
    if body and body[-1] in self.stop_tokens:
      body.pop()
    thought, body = replies.split_thought(body, self._id[THOUGHT], self._id[THOUGHT_END])
    content: list[int] = []
    found: list[ToolCall] = []
    inner: list[int] | None = None  # of the open call
    in_section = False
    for token in [*body, self._id[CALL]]:  # a call that is still open at the end is not closed
      if inner is not None and token in (self._id[CALL], self._id[CALL_END]):
        closed = token == self._id[CALL_END]
        found.append(self._parse_call(inner, f"call_{len(found)}", closed, in_section))
        inner = None
      elif token not in (self._id[CALL], self._id[CALLS], self._id[CALLS_END]):
        (content if inner is None else inner).append(token)
      if token == self._id[CALL]:
        inner = []
      in_section = in_section or token == self._id[CALLS]
    return replies.said(self._vocabulary, tokens, content=content, calls=found, thought=thought)

  def settled(self, tokens: np.ndarray) -> int:
    """See `Chat.settled`; the number of these ids. Where the prompt may have opened a thought, all
    may be one until it ends.
    """
    open_thought = self._thinking and self._id[THOUGHT_END] not in tokens.tolist()
    return 0 if open_thought else len(tokens)

  def _parse_call(self, ids: list[int], call_id: str, closed: bool, in_section: bool) -> ToolCall:
    """A call from `name <｜tool▁sep｜> json`; `error` says what is wrong with it."""
    text, split = self._vocabulary.decode(ids), self._id[SEPARATOR]
    cut = ids.index(split) if split in ids else len(ids)
    name = self._vocabulary.decode(ids[:cut]).strip()
    problem = ""
    if not in_section:
      problem = f"stands before {CALLS}"
    elif not closed:
      problem = f"is not closed with {CALL_END}"
    elif cut == len(ids):
      problem = f"has no {SEPARATOR}"
    elif not name:
      problem = "has no name"
    if problem:
      return replies.malformed(call_id, text, problem, name="" if cut == len(ids) else name)
    return replies.with_arguments(call_id, name, self._vocabulary.decode(ids[cut + 1 :]))

  def _declared(self, tools: Sequence[ToolSpec]) -> list[Part]:
    listed = "".join(
      f"\n### {tool.name}\nDescription: {tool.description}\n\n"
      f"Parameters: {replies.json_text(dict(tool.parameters))}\n"
      for tool in tools
    )
    form: list[Part] = [
      *(self._id[CALLS], self._id[CALL], "tool_call_name", self._id[SEPARATOR]),
      *("tool_call_arguments", self._id[CALL_END], "{additional_tool_calls}", self._id[CALLS_END]),
    ]
    rule = "\nIMPORTANT: ALWAYS adhere to this exact format for tool use:\n"
    return [TOOLS_HEAD, listed, rule, *form, "\n", TOOLS_RULES]

  def _header(self, before: str) -> list[Part]:
    """What opens a turn of the assistant after a message of a role."""
    return [] if before in ("tool", "assistant") else list(self._opening)

  def _assistant(self, message: Message, earlier: Sequence[Message]) -> list[Part]:
    reply = message.tokens if message.tokens is not None else self.encode_reply(message, earlier)
    end = self._id[END]
    ended = len(reply) and int(reply[-1]) == end
    return [reply, *(() if ended else (end,))]
