"""Which weights a user is served: those of one arm while a candidate is tried."""

from __future__ import annotations

import hashlib
import hmac

STABLE, CANARY = "stable", "canary"

STAGES = (0.0, 0.05, 0.5, 1.0)
"""Shares of users that a candidate serves, one after another; 0 is the shadow stage, in which it
answers logged prompts and nobody sees the replies."""


def user_hash(user: str, key: bytes) -> str:
  """A name for a user in the log: 128 bits of HMAC-SHA256, hexadecimal.

  Without `key`, which is no part of the log, a name cannot be linked to a user by trying names, and
  nobody can choose a user name that falls into an arm.
  """
  return hmac.new(key, user.encode(), hashlib.sha256).hexdigest()[:32]


def place(user: str, candidate: int) -> float:
  """Where a user (hash) stands in [0, 1) for a candidate: uniform, and drawn anew for each
  candidate, so that not the same users try all of them.
  """
  digest = hashlib.blake2b(f"{candidate}\0{user}".encode(), digest_size=8).digest()
  return int.from_bytes(digest, "little") / 2.0**64


def arm(user: str, candidate: int, share: float) -> str:
  """The arm of a user (hash). Who is in the canary stays in it as `share` grows."""
  return CANARY if place(user, candidate) < share else STABLE
