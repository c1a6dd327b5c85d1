"""A policy that is trained in seconds, and what users may like or dislike about it.

Asked for the colour of a thing, it answers in one of four styles, which differ in a word:
"Ok: blue", "So: blue", ... Which style users prefer is hidden from it. Sometimes it asks back, and
sometimes it breaks a tool call.
"""

import dataclasses
import functools
import re

import jax
import jax.numpy as jnp
import numpy as np

from jaxrl_agents.chat import Chat
from jaxrl_agents.learner import packing, state, train_step
from jaxrl_agents.learner.advantage import Rollout
from jaxrl_agents.policy import params as params_lib
from jaxrl_agents.policy.config import PolicyConfig
from jaxrl_agents.types import Message, Segment, ToolCall

COLOURS = {"sky": "blue", "snow": "white", "blood": "red", "coal": "black", "grass": "green"}
STYLES = ("Ok", "So", "Well", "Yes")
QUESTION, BROKEN, WRONG, LONG, REFUSAL = range(len(STYLES), len(STYLES) + 5)
COMMON = (0.24, 0.24, 0.24, 0.24, 0.02, 0.02)
"""Shares of the styles, of questions and of broken calls at the start."""

ROW_TOKENS, ROWS, SFT_LR = 32, 24, 3e-3


def config(chat: Chat) -> PolicyConfig:
  """Sizes of the policy."""
  return PolicyConfig(
    vocab_size=chat.vocab_size,
    embed_dim=32,
    num_layers=2,
    num_heads=2,
    num_kv_heads=2,
    head_dim=16,
    num_dense_layers=2,
    dense_ffw_dim=64,
  )


def prompt(thing: str) -> Message:
  """What a user asks."""
  return Message("user", f"colour of {thing}")


def reply_ids(chat: Chat, thing: str, style: int) -> np.ndarray:
  """The ids of a reply in a style."""
  colour = COLOURS[thing]
  if style == WRONG:
    colour = "pink"
  texts = {QUESTION: "Which one?", LONG: f"Ok: {colour} {colour} {colour} {colour}"}
  texts[REFUSAL] = "I cannot say."
  if style != BROKEN:
    word = STYLES[style] if style < len(STYLES) else STYLES[0]
    return chat.encode_reply(Message("assistant", texts.get(style, f"{word}: {colour}")))
  ids = chat.encode_reply(Message("assistant", "", (ToolCall("", "look", {"a": 1}),)))
  return np.delete(ids, len(ids) - 2)  # the end of the call is missing


def style_of(text: str, calls: int, thing: str) -> int:
  """The style of a reply as its user sees it; WRONG for everything else."""
  if calls or "<|call|>" in text:
    return BROKEN
  if text.strip().endswith("?"):
    return QUESTION
  found = re.fullmatch(rf"({'|'.join(STYLES)}): (\w+)", text.strip())
  return STYLES.index(found[1]) if found and found[2] == COLOURS[thing] else WRONG


def demonstrations(chat: Chat, shares, rng: np.random.Generator, count: int) -> list[Rollout]:
  """Replies whose styles have these shares."""
  found = []
  weights = np.asarray(shares) / np.sum(shares)
  for i in range(count):
    thing = list(COLOURS)[i % len(COLOURS)]
    before = chat.render([prompt(thing)])
    said = reply_ids(chat, thing, int(rng.choice(len(weights), p=weights)))
    mask = np.arange(len(before) + len(said)) >= len(before)
    tokens = np.concatenate([before, said]).astype(np.int32)
    versions = np.where(mask, 0, -1).astype(np.int32)
    found.append(Rollout((Segment(tokens, mask, np.zeros(len(mask), np.float32), versions),)))
  return found


def imitated(params, cfg: PolicyConfig, chat: Chat, shares, *, steps: int, seed: int, lr=SFT_LR):
  """The parameters after steps of imitation of replies in these shares."""
  rng = np.random.default_rng(seed)
  tx = optimizer(cfg, lr)
  made = state.make_state(jax.tree.map(jnp.array, params), tx, jax.random.key(seed))
  for _ in range(steps):
    batches = packing.pack(
      demonstrations(chat, shares, rng, 2 * ROWS - 8),
      row_tokens=ROW_TOKENS,
      rows_per_microbatch=ROWS,
    )
    made, _ = train_step.update(made, batches, cfg, train_step.Objective("sft"), tx)
  return made.policy.params


@functools.cache
def optimizer(cfg: PolicyConfig, lr: float, eps: float = 1e-8):
  """AdamW, made once, so that its programs compile once.

  With a large `eps`, as the learner uses, the rows of the many words that no reply has stay where
  they are: their gradients are tiny, and Adam would scale them up.
  """
  return state.make_optimizer(cfg, learning_rate=lr, eps=eps)


def start(cfg: PolicyConfig, chat: Chat, *, steps: int = 150, seed: int = 0):
  """The policy that users meet first."""
  params = params_lib.init(cfg, jax.random.key(seed))
  return imitated(params, cfg, chat, COMMON, steps=steps, seed=seed)


@dataclasses.dataclass(frozen=True)
class Plant:
  """A change of the weights, for the gate to judge."""

  name: str
  shares: tuple[float, ...] = ()
  noise: float = 0.0
  sharper: float = 1.0


def one_of(style: int, share: float) -> tuple[float, ...]:
  """COMMON with `share` of another style."""
  found = np.zeros(max(style + 1, len(COMMON)))
  found[: len(COMMON)] = COMMON
  found *= 1 - share
  found[style] += share
  return tuple(found)


PLANTS = (
  Plant("asks back", one_of(QUESTION, 0.3)),
  Plant("breaks calls", one_of(BROKEN, 0.3)),
  Plant("answers wrongly", one_of(WRONG, 0.3)),
  Plant("writes more", one_of(LONG, 0.4)),
  Plant("refuses", one_of(REFUSAL, 0.3)),
  Plant("noise", noise=0.1),
  Plant("no entropy", sharper=8.0),
)
HARMLESS = Plant("harmless", COMMON)


def planted(params, cfg: PolicyConfig, chat: Chat, plant: Plant, seed: int):
  """The parameters with a change."""
  if plant.shares:
    regress = plant is not HARMLESS
    steps, lr = (40, 1e-3) if regress else (4, 1e-4)
    return imitated(params, cfg, chat, plant.shares, steps=steps, seed=seed, lr=lr)
  rng = np.random.default_rng(seed)
  noisy = lambda x: x + plant.noise * rng.normal(size=x.shape).astype(np.float32)
  found = jax.tree.map(noisy, params) if plant.noise else dict(params)
  name = "final_norm"  # scales the logits
  return {**found, name: found[name] * plant.sharper}
