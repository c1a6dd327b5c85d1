"""Makes a `tokenizer.json` of Kimi K2's tokenizer, which is published as tiktoken.model only.

Each line of tiktoken.model is a token in base64 and its rank, which is its id. The control tokens
after them are in tokenizer_config.json. Tokens are merged in the order of the rank of the result,
so every split of a token into two tokens is a merge with the token's rank.

Source: tokenization_kimi.py of https://huggingface.co/moonshotai/Kimi-K2-Instruct.
"""

from __future__ import annotations

import base64
import json
import pathlib

import tokenizers
from tokenizers import decoders, models, pre_tokenizers

RANKS = "tiktoken.model"
CLASS = "TikTokenTokenizer"

_UPPER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]"
_LOWER = r"[\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]"
_BEFORE, _AFTER = r"[^\r\n\p{L}\p{N}]?", r"(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
WORDS = "|".join(
  (
    r"[\p{Han}]+",
    f"{_BEFORE}{_UPPER}*{_LOWER}+{_AFTER}",
    f"{_BEFORE}{_UPPER}+{_LOWER}*{_AFTER}",
    r"\p{N}{1,3}",
    r" ?[^\s\p{L}\p{N}]+[\r\n]*",
    r"\s*[\r\n]+",
    r"\s+(?!\S)",
    r"\s+",
  )
)
"""What is never merged across."""


def read(folder: str | pathlib.Path) -> tokenizers.Tokenizer:
  """The tokenizer of a folder with tiktoken.model and tokenizer_config.json.

  Raises:
    ValueError: it is of another model, whose words are cut by another pattern, or ids are missing.
  """
  folder = pathlib.Path(folder)
  config = json.loads((folder / "tokenizer_config.json").read_text("utf-8"))
  if config.get("tokenizer_class") != CLASS:
    raise ValueError(
      f"{folder}: tokenizer_class is {config.get('tokenizer_class')!r}; a {RANKS} is read for "
      f"{CLASS!r} of Kimi K2 only, so put a tokenizer.json in the folder"
    )
  lines = (folder / RANKS).read_bytes().splitlines()
  ranks = {base64.b64decode(token): int(rank) for token, rank in map(bytes.split, lines)}
  if sorted(ranks.values()) != list(range(len(ranks))):
    raise ValueError(f"{folder / RANKS}: the ranks are not 0 to {len(ranks) - 1}, each once")
  named = {int(i): token["content"] for i, token in config["added_tokens_decoder"].items()}
  if not named or min(named) < len(ranks):
    raise ValueError(f"{folder}: control tokens do not come after the {len(ranks)} of {RANKS}")
  spelled = {token: _spelled(token) for token in ranks}
  tokenizer = tokenizers.Tokenizer(
    models.BPE(
      {spelled[token]: rank for token, rank in ranks.items()},
      [(spelled[left], spelled[right]) for left, right in _merges(ranks)],
      ignore_merges=True,
    )
  )
  tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
    [
      pre_tokenizers.Split(tokenizers.Regex(WORDS), "isolated"),
      pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
    ]
  )
  tokenizer.decoder = decoders.ByteLevel()
  control = [named.get(i, f"<|reserved_token_{i}|>") for i in range(len(ranks), max(named) + 1)]
  tokenizer.add_special_tokens(
    [tokenizers.AddedToken(token, normalized=False, special=True) for token in control]
  )
  return tokenizer


def _merges(ranks: dict[bytes, int]) -> list[tuple[bytes, bytes]]:
  """Every pair of tokens that makes a token, by the rank of what it makes, then of its parts."""
  pairs = (
    (rank, ranks[token[:cut]], ranks[token[cut:]], token[:cut], token[cut:])
    for token, rank in ranks.items()
    for cut in range(1, len(token))
    if token[:cut] in ranks and token[cut:] in ranks
  )
  return [(left, right) for *_, left, right in sorted(pairs)]


def _spelled(token: bytes) -> str:
  """A token in the alphabet of byte-level BPE: printable characters of latin-1 are themselves, the
  other bytes are the characters from 256 on, in order.
  """
  return "".join(_ALPHABET[byte] for byte in token)


def _alphabet() -> list[str]:
  plain = {*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), 256)}
  others = (byte for byte in range(256) if byte not in plain)
  shifted = {byte: 256 + i for i, byte in enumerate(others)}
  return [chr(shifted.get(byte, byte)) for byte in range(256)]


_ALPHABET = _alphabet()
