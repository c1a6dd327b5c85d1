"""Texts of the search environment: hits, the pruned view, the usage line, the notices.

The log keeps every observation as the policy first read it; the view is what the policy sees now,
without the text of pruned chunks.

Source: Chroma, "Context-1", https://www.trychroma.com/research/context-1, and a relative of its
harness, https://github.com/pat-jj/harness-1.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

from jaxrl_agents.agents.search.config import SearchConfig
from jaxrl_agents.agents.system_prompt import tool_lines
from jaxrl_agents.corpus.chunks import Chunk
from jaxrl_agents.types import ToolSpec

MARK = "# DOCUMENT ID: "
USAGE = "\n\n[Token usage: "
NO_RESULTS = "No results found"
PRUNED = "Pruned"
CUT_OFF = "Your reply was cut off. Call a tool or give a shorter final answer."


def string(max_chars: int, min_chars: int = 1) -> dict[str, Any]:
  """JSON schema of a text argument."""
  least = {"minLength": min_chars} if min_chars else {}
  return {"type": "string", **least, "maxLength": max_chars}


def tool(name: str, description: str, **arguments: Mapping[str, Any]) -> ToolSpec:
  """A tool, all of whose arguments are required; each is given by its JSON schema."""
  schema = {"type": "object", "properties": arguments, "required": list(arguments)}
  return ToolSpec(name, description, schema)


SEARCH = tool(
  "search_corpus",
  "Searches the corpus by meaning and words; returns the best chunks not found before.",
  query=string(2_000),
)
GREP = tool(
  "grep_corpus",
  "Returns the first chunks whose text matches a regular expression.",
  pattern=string(500),
)
READ = tool(
  "read_document",
  "Returns a document, cut to its most relevant chunks where it is too long.",
  doc_id=string(500),
)
PRUNE = tool(
  "prune_chunks",
  "Removes chunks that no longer help from the conversation.",
  chunk_ids={"type": "array", "items": string(500, 0), "minItems": 1, "maxItems": 300},
)


_SYSTEM = """\
You search a corpus for somebody else, who will answer a question from the documents that you \
find. Do not answer the question. Find the documents that support its answer, and list them.

Tools:
{tools}

A search shows at most {max_shown} chunks, and never one that an earlier search has shown; a grep \
shows at most {grep_limit}. {quotes}Each chunk comes after a line "# DOCUMENT ID: ID (N tokens)". \
{read}

How to work: work out what the question asks for, part by part. Search for each part with words of \
its own, and for what you have just learned; you may make several calls in one turn. After each \
turn, think about what is known and what is missing. Stop when everything has a document, or when \
further searches bring nothing new.

Limits: the context holds {token_budget} tokens and you have at most {max_turns} turns. The line \
"[Token usage: USED/{threshold_tokens}]" says how many tokens are used. {budget}

To end, reply without calling a tool. List at most {max_documents} documents, the most relevant \
first, each in this form:
<Document id=ID>
ID is what stands after "# DOCUMENT ID:". You may write after a mark, in a sentence, why the \
document belongs there. List only what a tool has shown you: all else counts against you."""


def system_prompt(limits: SearchConfig) -> str:
  """What a policy that does not know the environment reads first."""
  pruning = [PRUNE] if limits.can_prune else []
  cutoff = rejection_budget(limits.token_budget, limits.threshold_tokens, limits.spillage_fraction)
  if limits.can_prune:
    budget = (
      f"Above {limits.threshold_tokens}, remove with {PRUNE.name} the chunks that do not help; "
      f"above {cutoff}, every other tool refuses. A chunk that you removed can still be listed."
    )
  else:
    budget = f"Above {cutoff}, every tool refuses, and you can only end."
  read = f"{READ.name} takes the id of a document (ID up to its last _) or of one of its chunks."
  if limits.short_ids:
    read = f"{READ.name} takes the id of a chunk and shows its document."
  return _SYSTEM.format(
    tools=tool_lines((SEARCH, GREP, READ, *pruning)),
    read=read,
    quotes="The result of a search begins with its query. " if limits.quote_query else "",
    budget=budget,
    max_shown=limits.max_shown,
    grep_limit=limits.grep_limit,
    token_budget=limits.token_budget,
    threshold_tokens=limits.threshold_tokens,
    max_turns=limits.max_turns,
    max_documents=limits.max_documents,
  )


def hit(chunk_id: str, text: str, tokens: int) -> str:
  """One displayed chunk, `tokens` long, without the blank lines around its text."""
  return f"\n{MARK}{chunk_id} ({tokens} tokens) \n{disarmed(text).strip(chr(10))}"


def quoting(query: str, result: str) -> str:
  """The result of a search after its query, which is cut to one line of 100 characters."""
  line = " ".join(query.split())[:100]
  return f"{disarmed(line)}\n{result.lstrip(chr(10))}"  # only one line can read as a mark


def hits(text: str) -> list[tuple[str, str]]:
  """The (chunk id, text) of the displayed chunks of a tool result."""
  shown = re.split(rf"^{MARK}(\S+) \(\d+ tokens\) *$", text.partition(USAGE)[0], flags=re.MULTILINE)
  return [(i, passage.strip("\n")) for i, passage in zip(shown[1::2], shown[2::2], strict=True)]


def disarmed(text: str) -> str:
  """`text` in which nothing reads as the start of a hit or as the usage line."""
  return text.replace(MARK, "# DOCUMENT-ID: ").replace("[Token usage: ", "[Token-usage: ")


def without_spans(text: str, chunk_ids: Collection[str]) -> str:
  """An observation without the hits of `chunk_ids`; a hit ends at the next mark or usage line.

  Where something is cut, three newlines or more become two; other texts stay as they are.
  """
  ids = "|".join(re.escape(i) for i in sorted(chunk_ids))
  if not ids:
    return text
  span = rf"^{MARK}(?:{ids}) \(\d+ tokens\).*?(?=^{MARK}|{re.escape(USAGE)}|\Z)"
  cut, number = re.subn(span, "", text, flags=re.MULTILINE | re.DOTALL)
  return re.sub(r"\n{3,}", "\n\n", cut) if number else text


def usage_line(usage: int, threshold_tokens: int) -> str:
  """The line that ends the last observation of a turn."""
  return f"{USAGE}{usage:,}/{threshold_tokens:,}]"


def over_threshold_notice(usage: int, threshold_tokens: int, can_prune: bool) -> str:
  """The one-time message above the soft threshold."""
  prune = "Option 1: prune_chunks you no longer need. Option 2: " if can_prune else ""
  action = "give your final answer now." if can_prune else "Give your final answer now."
  return f"Over budget ({usage:,}/{threshold_tokens:,} tokens). {prune}{action}"


def too_many_calls(before: int, max_calls: int) -> str:
  """The error for a call with `before` others ahead of it in its turn; "" if it may run."""
  return "" if before < max_calls else f"Error: at most {max_calls} calls a turn. Call again."


def rejection(usage: int, threshold_tokens: int, can_prune: bool) -> str:
  """What every tool but prune_chunks returns past the hard cut-off."""
  prune = "use prune_chunks to reduce context size or " if can_prune else ""
  return (
    f"Error: Token budget exceeded ({usage}/{threshold_tokens} tokens). "
    f"You must {prune}provide your final answer."
  )


def rejection_budget(token_budget: int, threshold_tokens: int, spillage_fraction: float) -> int:
  """The hard cut-off: threshold + int(spillage_fraction * (token_budget - threshold))."""
  return threshold_tokens + int(spillage_fraction * (token_budget - threshold_tokens))


def first_that_fit(
  chunks: Sequence[Chunk], max_tokens: int, tokens_of: Callable[[Chunk], int]
) -> list[Chunk]:
  """The leading chunks of at most `max_tokens` together: stops at the first that overflows."""
  kept, used = [], 0
  for chunk in chunks:
    used += tokens_of(chunk)
    if used > max_tokens:
      break
    kept.append(chunk)
  return kept
