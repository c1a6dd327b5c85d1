"""The harmony format of gpt-oss.

    <|start|>system<|message|>You are ChatGPT ... # Valid channels: ...<|end|>
    <|start|>developer<|message|># Instructions ... # Tools ... namespace functions {...}<|end|>
    <|start|>user<|message|>...<|end|>
    <|start|>assistant<|channel|>analysis<|message|>...<|end|>
    <|start|>assistant<|channel|>commentary to=functions.search_corpus <|constrain|>json
      <|message|>{"query": "..."}<|call|>
    <|start|>functions.search_corpus to=assistant<|channel|>commentary<|message|>...<|end|>
    <|start|>assistant<|channel|>final<|message|>...<|return|>

without the line breaks between and within messages. The prompt ends with `<|start|>assistant`.

`<|call|>` ends a generation, so a policy makes one call a turn; the calls of a scripted turn are
written one after another. The system message has no date, so that a prompt does not change from one
day to the next. As the conversation goes on, a sampled answer keeps its `<|return|>` and analysis.

Source: https://github.com/openai/harmony/blob/main/docs/format.md.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence

import numpy as np

from jaxrl_agents.chat import replies, typescript
from jaxrl_agents.chat.vocabulary import Part, Vocabulary
from jaxrl_agents.types import Message, ToolCall, ToolSpec

CONTROL_TOKENS = (
  "<|endoftext|>",
  "<|start|>",
  "<|end|>",
  "<|message|>",
  "<|channel|>",
  "<|constrain|>",
  "<|return|>",
  "<|call|>",
)
TEMPLATE_MARKS = ("<|channel|>commentary", "namespace ")
NAMESPACE = "functions"
REASONING = ("low", "medium", "high")
"""How much a policy thinks, as its system message says."""
SYSTEM = """\
You are ChatGPT, a large language model trained by OpenAI.
Knowledge cutoff: 2024-06

Reasoning: {reasoning}

# Valid channels: analysis, commentary, final. Channel must be included for every message."""
SYSTEM_WITH_TOOLS = """
Calls to these tools must go to the commentary channel: 'functions'."""


@dataclasses.dataclass(frozen=True)
class Said:
  """One message of a reply.

  Attributes:
    role: of the author; "" if the reply has text outside of messages.
    channel: "analysis", "commentary", "final" or what stands in its place.
    recipient: of a call, "functions.NAME"; else "".
    text: the content.
    called: whether the message ends with the token of a call.
  """

  role: str
  channel: str
  recipient: str
  text: str
  called: bool


class HarmonyFormat:
  """Messages between `<|start|>header<|message|>` and `<|end|>`; a reply may be several of them."""

  def __init__(self, vocabulary: Vocabulary, thinking: str = "medium"):
    self._vocabulary = vocabulary
    self._system = SYSTEM.format(reasoning=thinking)
    self._id = vocabulary.ids_by_name(CONTROL_TOKENS)
    self.stop_tokens: tuple[int, ...] = (
      self._id["<|return|>"],
      self._id["<|call|>"],
      self._id["<|endoftext|>"],
    )
    self._ends = (self._id["<|end|>"], self._id["<|return|>"], self._id["<|call|>"])

  def render(self, messages: Sequence[Message], tools: Sequence[ToolSpec]) -> np.ndarray:
    """See `Chat.render`. System messages become the developer's instructions."""
    rest = messages
    sections = []
    if messages and messages[0].role == "system":
      sections.append(f"# Instructions\n\n{messages[0].content}")
      rest = messages[1:]
    if tools:
      sections.append(f"# Tools\n\n{typescript.declared(NAMESPACE, tools)}")
    parts = self._message("system", self._system + (SYSTEM_WITH_TOOLS if tools else ""))
    if sections:
      parts += self._message("developer", "\n\n".join(sections))
    labels: dict[str, str] = {}
    for message in rest:
      if message.role == "assistant":
        parts += self._assistant(message)
        labels |= {call.id: _recipient(call) for call in message.tool_calls}
      elif message.role == "tool":
        author = replies.label_of(labels, message)
        header: list[Part] = [f"{author} to=assistant", self._id["<|channel|>"], "commentary"]
        parts += [self._id["<|start|>"], *header, *self._body(message.content, "<|end|>")]
      elif message.role == "system":
        parts += self._message("developer", f"# Instructions\n\n{message.content}")
      else:
        parts += self._message(message.role, message.content)
    return self._vocabulary.ids([*parts, self._id["<|start|>"], "assistant"])

  def encode_reply(self, reply: Message, earlier: Sequence[Message]) -> np.ndarray:
    """See `Chat.encode_reply`. Content beside calls becomes a preamble: commentary without a
    recipient.
    """
    del earlier
    said: list[list[Part]] = []
    if reply.reasoning:
      said.append([self._id["<|channel|>"], "analysis", *self._body(reply.reasoning, "<|end|>")])
    if reply.tool_calls and reply.content:
      said.append([self._id["<|channel|>"], "commentary", *self._body(reply.content, "<|end|>")])
    for call in reply.tool_calls:
      to: list[Part] = [f"commentary to={_recipient(call)} ", self._id["<|constrain|>"], "json"]
      text = replies.json_text(dict(call.arguments))
      said.append([self._id["<|channel|>"], *to, *self._body(text, "<|call|>")])
    if not reply.tool_calls:
      said.append([self._id["<|channel|>"], "final", *self._body(reply.content, "<|return|>")])
    parts = list(said[0])
    for message in said[1:]:
      parts += [self._id["<|start|>"], "assistant", *message]
    return self._vocabulary.ids(parts)

  def parse(self, tokens: np.ndarray) -> Message:
    """See `Chat.parse`. Analysis becomes `reasoning`; messages in another role are ignored."""
    thought: list[str] = []
    content: list[str] = []
    found: list[ToolCall] = []
    for said in self._messages(tokens.tolist()):
      if said.role not in ("", "assistant"):
        continue
      if said.recipient:
        found.append(_parse_call(said, f"call_{len(found)}"))
      elif said.called:
        problem = "names no recipient; write to=functions.NAME"
        found.append(replies.malformed(f"call_{len(found)}", said.text, problem))
      else:
        (thought if said.channel == "analysis" else content).append(said.text.strip())
    return Message(
      "assistant",
      "\n".join(filter(None, content)),
      tuple(found),
      tokens=tokens,
      reasoning="\n".join(filter(None, thought)),
    )

  def settled(self, tokens: np.ndarray) -> int:
    """See `Chat.settled`; the number of these ids. What a message is, its header says; any but the
    answer may be followed by a thought.
    """
    body = tokens.tolist()
    breaks = (*self._ends, self._id["<|start|>"], self._id["<|endoftext|>"])
    start, settled, answers = 0, 0, False
    for i, token in enumerate(body):
      if token in breaks:
        start = settled = i + 1
      elif token == self._id["<|message|>"] and settled == start:
        said = self._said(body[start : i + 1], first=start == 0, called=False)
        answers = answers or (said.channel == "final" and not said.recipient)
        settled = len(body)
    return settled if answers else 0

  def _messages(self, body: list[int]) -> Iterator[Said]:
    """The messages of a reply, whose beginning `<|start|>assistant` is in the prompt."""
    start = 0
    for i, token in enumerate([*body, self._id["<|end|>"]]):
      if token in self._ends or token in (self._id["<|start|>"], self._id["<|endoftext|>"]):
        if i > start:
          called = token == self._id["<|call|>"]
          yield self._said(body[start:i], first=start == 0, called=called)
        start = i + 1

  def _said(self, ids: list[int], first: bool, called: bool) -> Said:
    split = self._id["<|message|>"]
    if split not in ids:
      return Said("", "", "", self._vocabulary.decode(ids), called)
    header = ids[: ids.index(split)]
    text = self._vocabulary.decode(ids[ids.index(split) + 1 :])
    cut = (
      header.index(self._id["<|channel|>"]) if self._id["<|channel|>"] in header else len(header)
    )
    before, after = self._words(header[:cut]), self._words(header[cut + 1 :])
    named = [word.removeprefix("to=") for word in before + after if word.startswith("to=")]
    role = "assistant" if first or not before else before[0]
    return Said(role, after[0] if after else "", named[0] if named else "", text, called)

  def _words(self, ids: list[int]) -> list[str]:
    """The words of a part of a header, of which the type of the content is one."""
    return self._vocabulary.decode(ids).replace("<|constrain|>", " ").split()

  def _assistant(self, message: Message) -> list[Part]:
    """An earlier turn: as it was sampled, or else with the answer ended like any other message."""
    opening: list[Part] = [self._id["<|start|>"], "assistant"]
    if message.tokens is None:
      reply = self.encode_reply(message, ())
      answered = int(reply[-1]) == self._id["<|return|>"]
      return [*opening, reply[:-1] if answered else reply, *self._end(answered)]
    ended = len(message.tokens) and int(message.tokens[-1]) in self._ends
    return [*opening, message.tokens, *self._end(not ended)]

  def _end(self, missing: bool) -> list[Part]:
    return [self._id["<|end|>"]] if missing else []

  def _message(self, role: str, text: str) -> list[Part]:
    return [self._id["<|start|>"], role, *self._body(text, "<|end|>")]

  def _body(self, text: str, end: str) -> list[Part]:
    return [self._id["<|message|>"], text, self._id[end]]


def _recipient(call: ToolCall) -> str:
  """The recipient of a call, which is also the author of its result; the namespace if the call has
  no name.
  """
  return call.label or (f"{NAMESPACE}.{call.name}" if call.name else NAMESPACE)


def _parse_call(said: Said, call_id: str) -> ToolCall:
  """The call made by a message to a recipient; `error` names what is wrong with it."""
  label = replies.clipped(said.recipient)
  space, _, name = said.recipient.partition(".")
  if space != NAMESPACE or not name:
    problem = f"goes to {label!r}; write to=functions.NAME"
    return replies.malformed(call_id, said.text, problem, label=label)
  if not said.called:
    problem = "is not ended with <|call|>"
    return replies.malformed(call_id, said.text, problem, name=name, label=label)
  return replies.with_arguments(call_id, name, said.text, label)
