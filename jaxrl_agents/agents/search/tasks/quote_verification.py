"""Verification of a question by its quotes, without a model.

The deterministic half of Context-1's check (core/verify.py and core/utils.py of
https://github.com/chroma-core/context-1-data-gen): every claim of a task is a quote that must
occur. Stricter than theirs in three places: an item without quotes fails, the rule that lets a
quote pass by its first five long words is off unless asked for, and the truth may stand neither in
the clues nor in the question.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from jaxrl_agents.agents.search.tasks.chains import Chain, Item, Level

_LINK = re.compile(r"\[([^\]]*)\]\([^)]*\)|https?://\S+")
_DASHES = str.maketrans(
  {"\u2018": "'", "\u2019": "'", "\u201c": '"', "\u201d": '"', "\u2013": "-", "\u2014": "-"}
)
_WORD = re.compile(r"\w+")


def contains(content: str, quote: str, *, loose: bool = False) -> bool:
  """Whether a quote occurs in a text.

  Tried in order, all ignoring case: as it stands; with white space folded; with links stripped;
  with quotes and dashes unified and punctuation dropped (' and - stay).

  Args:
    content: the text.
    quote: what should occur in it; a quote without a word never does.
    loose: also accept a quote whose first five words of more than three letters occur in order
      with anything between them (Context-1's last rule, which passes some wrong quotes).
  """
  if not _WORD.search(quote):
    return False
  content, quote = content.lower(), quote.lower()
  if quote in content:
    return True
  for view in (_folded, _unlinked, _normalised):
    wanted = view(quote)
    if wanted and wanted in view(content):
      return True
  if not loose:
    return False
  words = [word for word in _WORD.findall(quote) if len(word) > 3]
  pattern = ".*?".join(map(re.escape, words[:5]))
  return len(words) >= 3 and re.search(pattern, content, re.DOTALL) is not None


def names(content: str, truth: str) -> bool:
  """Whether a text holds the truth as whole words, ignoring case and the kind of white space."""
  pattern = r"\s+".join(map(re.escape, truth.split()))
  return bool(pattern) and re.search(rf"(?<!\w){pattern}(?!\w)", content, re.IGNORECASE) is not None


def failures(
  chain: Chain, level: int, *, loose: bool = False, literal_truth: bool = True
) -> list[str]:
  """Why a level of a chain does not pass, as "what: which"; empty when it does.

  Args:
    chain: the levels before it give the earlier truths.
    level: which to verify.
    loose: see `contains`.
    literal_truth: the truth itself must stand in a truth quote, and not in any clue or question.
      Truths that were written in other words than their source's (by a model) need False.
  """
  asked = chain.levels[level]
  reasons = _structure(asked)
  if asked.bridging_item is not None:
    reasons += _bridge(chain, level, loose=loose)
  for item in asked.items:
    reasons += _item(item, asked, loose=loose, literal_truth=literal_truth)
  if not any(item.contains_truth for item in asked.supporting_items):
    reasons.append("no supporting item contains the truth")
  if literal_truth:
    so_far = chain.levels[: level + 1]
    for truth in (each.truth for each in so_far):
      if any(names(f"{each.clues} {each.question}", truth) for each in so_far):
        reasons.append(f"a truth stands in the clues or in a question: {truth!r}")
  truths = [each.truth for each in chain.levels]
  for distractor in asked.distractors:
    if any(names(distractor.text, truth) for truth in truths):
      reasons.append(f"a distractor contains a truth of the chain: {distractor.id}")
  return reasons


def _structure(level: Level) -> list[str]:
  """Three supporting items at level 0; a bridging and two supporting ones after it; distinct."""
  wanted = 3 if level.level == 0 else 2
  reasons = []
  if len(level.supporting_items) != wanted:
    reasons.append(f"wrong number of supporting items: {len(level.supporting_items)}, not {wanted}")
  if (level.bridging_item is None) != (level.level == 0):
    reasons.append("a bridging item belongs to every level after 0, and to no other")
  if len({item.id for item in level.items}) < len(level.items):
    reasons.append("two items are the same passage")
  if not level.clues.strip() or not level.question.strip() or not level.truth.strip():
    reasons.append("clues, question or truth is empty")
  return reasons


def _item(item: Item, level: Level, *, loose: bool, literal_truth: bool) -> list[str]:
  reasons = []
  if any(quote.strip().lower() == "none" for quote in (*item.clue_quotes, *item.item_quotes)):
    reasons.append(f"an item is not relevant, a quote is None: {item.id}")
  if not _enough(item.clue_quotes, level.clues, loose=loose):
    reasons.append(f"under two thirds of the clue quotes of an item are in the clues: {item.id}")
  if not _enough(item.item_quotes, item.text, loose=loose):
    reasons.append(f"under two thirds of the item quotes of an item are in its text: {item.id}")
  if literal_truth and item.is_answer and item.chunk_ids and not item.answer_chunk_ids:
    reasons.append(f"no single chunk of the answer holds the truth: {item.id}")
  if item.contains_truth:
    quotes = item.truth_quotes
    if not quotes or not all(contains(item.text, quote, loose=loose) for quote in quotes):
      reasons.append(f"a truth quote of an item is not in its text: {item.id}")
    elif literal_truth and not any(names(quote, level.truth) for quote in quotes):
      reasons.append(f"no truth quote of an item holds the truth: {item.id}")
  return reasons


def _bridge(chain: Chain, level: int, *, loose: bool) -> list[str]:
  """A bridging item is tied, by quotes, to a passage of an earlier level."""
  bridge = chain.levels[level].bridging_item
  assert bridge is not None
  earlier = {item.id: item for each in chain.levels[:level] for item in each.items}
  if bridge.previous_id not in earlier:
    return [f"the bridging item is tied to no item of an earlier level: {bridge.id}"]
  if bridge.id in earlier:
    return [f"the bridging item is an item of an earlier level: {bridge.id}"]
  quotes, text = bridge.previous_quotes, earlier[bridge.previous_id].text
  if quotes and not _enough(quotes, text, loose=loose):
    return [f"the quotes that tie the bridging item are not in the earlier passage: {bridge.id}"]
  return []


def _enough(quotes: Sequence[str], content: str, *, loose: bool) -> bool:
  """Whether at least ceil(2/3 n) of n > 0 quotes occur."""
  found = sum(contains(content, quote, loose=loose) for quote in quotes)
  return len(quotes) > 0 and 3 * found >= 2 * len(quotes)


def _folded(text: str) -> str:
  return " ".join(text.split())


def _unlinked(text: str) -> str:
  return _folded(_LINK.sub(lambda match: match[1] or "", text))


def _normalised(text: str) -> str:
  return _folded(re.sub(r"[^\w\s'-]", "", text.translate(_DASHES)))
