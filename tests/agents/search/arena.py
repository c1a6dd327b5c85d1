"""A corpus of twelve small documents, and a way to play scripted turns in it."""

import asyncio

from jaxrl_agents.agents.search import env
from jaxrl_agents.agents.search.config import SearchConfig
from jaxrl_agents.corpus.chunks import Chunk
from jaxrl_agents.harness.rollout import Sampling, run_episode
from jaxrl_agents.harness.scripted_player import Scripted
from jaxrl_agents.types import Message, Task, ToolCall

WORDS = (
  *("river", "stone", "copper", "lantern", "meadow", "harbor"),
  *("violin", "glacier", "saddle", "orchard", "walnut", "candle"),
)
LIMITS = SearchConfig(
  token_budget=1_024,
  threshold_tokens=512,
  tool_output_tokens=224,
  reply_reserve_tokens=32,
  max_shown=4,
  grep_limit=3,
  max_turns=8,
  max_new_tokens=200,
  system_prompt="",
)


def corpus():
  """Documents 100 + d have six chunks with the word of d and one more; 200 is one long word."""
  chunks = []
  for d, word in enumerate(WORDS):
    for i in range(6):
      text = (
        f"The {word} stands near the {WORDS[(d + i + 1) % 12]}, part {i} of {word} number{d}{i}."
      )
      chunks.append(Chunk(f"{100 + d}_{i}", str(100 + d), word, text, 60 * i))
  return [*chunks, Chunk("200_0", "200", "long", "a" * 3_000 + "!", 0)]


def make_task(prompt="Which river?", gold=("100_0", "101_1"), split="train", task_id="t"):
  facts = [{"fact": i, "chunk_ids": [i], "is_final_answer": not n} for n, i in enumerate(gold)]
  clues = [
    {"text": next(c.text for c in corpus() if c.id == i), "chunk_ids": [i], "name": ""}
    for i in gold
  ]
  return Task(task_id, "search", prompt, {"level": 0, "facts": facts, "clues": clues}, split=split)


def calls(*pairs):
  """A turn of calls: ("search_corpus", "text") or ("prune_chunks", ["1_0"])."""
  names = {
    "search_corpus": "query",
    "grep_corpus": "pattern",
    "read_document": "doc_id",
    "prune_chunks": "chunk_ids",
  }
  return Message(
    "assistant", "", tuple(ToolCall("", name, {names[name]: value}) for name, value in pairs)
  )


def answer(*ids):
  return Message("assistant", "\n".join(f"<Document id={i}>" for i in ids))


def play(services, turns, task=None):
  """Plays scripted turns (messages, or functions of the context) and returns the trajectory."""
  task = task or make_task()
  script = iter(turns)

  def next_turn(context):
    turn = next(script)
    return turn(context) if callable(turn) else turn

  player = Scripted(env.make(task, services), services.chat, next_turn)
  sampling = Sampling(max_new_tokens=services.limits.max_new_tokens)
  return asyncio.run(run_episode(player, services.chat, player, task=task, sampling=sampling))


def results(trajectory):
  return [m.content for m in trajectory.log if m.role == "tool"]
