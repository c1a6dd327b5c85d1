"""Trains the byte-level BPE tokenizer of the shipped base policy on a corpus.

    python scripts/train_tokenizer.py --corpus=python --out=jaxrl_agents/assets/base/tokenizer.json

The id 12_345 of chunk 345 of document 12 is two tokens, "12" and "_345": a policy must copy it, and
what follows a token is what a small one can look up. The fixed strings of tools and observations
are single tokens too.
"""

from __future__ import annotations

import pathlib
import re

import tokenizers
from absl import flags

from jaxrl_agents.agents.search.tasks import make_tasks
from jaxrl_agents.chat import base_format
from jaxrl_agents.runs import entry_point

FIXED_STRINGS = (
  "search_corpus",
  "grep_corpus",
  "read_document",
  "prune_chunks",
  '{"query": "',
  '{"pattern": "',
  '{"doc_id": "',
  '{"chunk_ids": ["',
  '", "',
  '"}',
  '"]}',
  "<Document id=",
  ">\n",
  "\n# DOCUMENT ID: ",
  " tokens) \n",
  "\n\n[Token usage: ",
  "No results found",
  "Pruned",
)

_CORPUS = flags.DEFINE_string("corpus", "python", "'python' or a folder of documents")
_OUT = flags.DEFINE_string("out", None, "the tokenizer.json to write", required=True)
_VOCAB = flags.DEFINE_integer("vocab_size", 5096, "ids in all, control tokens included")


def train(texts, vocab_size: int) -> tokenizers.Tokenizer:
  """A byte-level BPE with the control tokens, the fixed strings, 0-999 and _0-_999 as ids."""
  numbers = [*(str(n) for n in range(10, 1000)), *(f"_{n}" for n in range(1000))]
  extra = len(FIXED_STRINGS) + len(numbers)
  tokenizer = tokenizers.Tokenizer(tokenizers.models.BPE())
  tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.Sequence(
    [
      tokenizers.pre_tokenizers.Digits(individual_digits=True),
      tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False),
    ]
  )
  tokenizer.decoder = tokenizers.decoders.ByteLevel()
  trainer = tokenizers.trainers.BpeTrainer(
    vocab_size=vocab_size - extra,
    special_tokens=list(base_format.CONTROL_TOKENS),
    initial_alphabet=tokenizers.pre_tokenizers.ByteLevel.alphabet(),
    show_progress=False,
  )
  tokenizer.train_from_iterator(texts, trainer)
  tokenizer.add_tokens(
    [tokenizers.AddedToken(s, normalized=False) for s in (*FIXED_STRINGS, *numbers)]
  )
  return tokenizer


def with_prose(texts):
  """Every text, and its docstrings five times more: questions are prose, most of the corpus is
  code.
  """
  for text in texts:
    yield text
    for docstring in re.findall(r'"""(.*?)"""', text, re.DOTALL):
      yield from [docstring, *[docstring.lower()] * 4]


def main() -> None:
  """Reads the corpus, trains, writes."""
  task_set, _ = make_tasks.make(
    _CORPUS.value, count_tokens=lambda text: len(text) // 4, chunk_tokens=64, report=print
  )
  texts = list(with_prose(document.text for document in task_set.documents))
  texts += [clue.text for clues in task_set.clues.values() for clue in clues] * 5
  tokenizer = train(texts, _VOCAB.value)
  out = pathlib.Path(_OUT.value)
  out.parent.mkdir(parents=True, exist_ok=True)
  tokenizer.save(str(out), pretty=False)
  print(f"{tokenizer.get_vocab_size()} ids from {len(texts)} texts -> {out}")


if __name__ == "__main__":
  entry_point.run(main)
