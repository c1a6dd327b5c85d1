"""Requests for samples: what they ask for, and what is sampled for them."""

from __future__ import annotations

import asyncio
import dataclasses
import secrets
from typing import Protocol

import numpy as np

from jaxrl_agents.chat import Chat
from jaxrl_agents.gateway import progress, sampling
from jaxrl_agents.gateway.requests import Fields, Refusal, check_stops
from jaxrl_agents.gateway.tinker import messages
from jaxrl_agents.types import Generation, SamplingLimits, Watch

SAMPLE_S = 600.0
"""Seconds that a sample may take, waiting included."""

MAX_SAMPLES = 1_024
"""Samples of one request."""


class Sampler(Protocol):
  """Samples from several weights by their names.

  `generate` returns log-probabilities of the untempered, untruncated distribution, whatever
  `limits` says.
  """

  async def generate(
    self, weights: str, prompt: np.ndarray, limits: SamplingLimits, watch: Watch | None
  ) -> Generation: ...

  async def score(self, weights: str, tokens: np.ndarray) -> np.ndarray: ...


@dataclasses.dataclass(frozen=True)
class SampleRequest:
  """A request for samples.

  Attributes:
    prompt: int32 [P].
    num_samples: how many.
    limits: of the first sample; the others differ in the seed.
    stop: texts that end a sample.
    scored: how many of the last tokens of the prompt get log-probabilities; 0 for none.
  """

  prompt: np.ndarray
  num_samples: int
  limits: SamplingLimits
  stop: tuple[str, ...]
  scored: int


def read(fields: Fields, chat: Chat, max_context: int) -> SampleRequest:
  """The request of its JSON.

  Raises:
    Refusal: 400, with the field that is wrong or not supported.
  """
  prompt = _tokens(Fields(fields.need("prompt", dict), "prompt"))
  if not 0 < len(prompt) < max_context:
    raise Refusal(
      400,
      f"a prompt of {len(prompt)} tokens; send at least one, and fewer than the {max_context} of a "
      "context",
      code="context_length_exceeded",
      param="prompt",
      retry=False,
    )
  fields.refuse(
    {
      "topk_prompt_logprobs": (0,),
      "topk_sample_logprobs": (0,),
      "target_prompt_logprobs": (),
      "prompt_alt_tokens_k": (0,),
      "record_stability_info": (False,),
    }
  )
  wanted = Fields(fields.take("sampling_params", dict, {}), "sampling_params")
  wanted.refuse({"top_k": (-1, 0)})
  stop, stop_tokens = _stop(wanted, chat)
  temperature = wanted.number("temperature", least=0, most=100)
  top_p = wanted.number("top_p", least=0, most=1)
  if top_p == 0:
    raise Refusal(400, "sampling_params.top_p=0 keeps no token; send more than 0", param="top_p")
  seed = wanted.take("seed", int)
  limits = SamplingLimits(
    max_new_tokens=wanted.whole("max_tokens", least=1) or max_context - len(prompt),
    stop_tokens=stop_tokens,
    temperature=1.0 if temperature is None else temperature,
    top_p=1.0 if top_p is None else top_p,
    seed=secrets.randbits(31) if seed is None else seed,
    deadline_s=SAMPLE_S,
  )
  last = fields.whole("prompt_logprobs_last_n", least=0)
  scored = (last or len(prompt) - 1) if fields.take("prompt_logprobs", bool, False) else 0
  if scored > len(prompt) - 1:
    raise Refusal(
      400,
      f"prompt_logprobs_last_n={scored} of a prompt of {len(prompt)} tokens, whose first has none",
      param="prompt_logprobs_last_n",
      retry=False,
    )
  number = fields.whole("num_samples", least=1, default=1)
  if number > MAX_SAMPLES:
    raise Refusal(400, f"num_samples={number}; ask for at most {MAX_SAMPLES}", param="num_samples")
  return SampleRequest(prompt, number, limits, stop, scored)


def _tokens(prompt: Fields) -> np.ndarray:
  """The tokens of the chunks of a prompt, int32 [P]."""
  found: list[int] = []
  for chunk in prompt.need("chunks", list):
    part = Fields(chunk, "prompt.chunks")
    kind = part.take("type", str, "encoded_text")
    if kind != "encoded_text":
      raise Refusal(
        400, f"prompt.chunks holds {kind!r}; this policy reads tokens only", param="prompt"
      )
    found += part.need("tokens", list)
  if not all(isinstance(token, int) and 0 <= token < 2**31 for token in found):
    raise Refusal(400, "prompt.chunks.tokens holds something other than ids", param="prompt")
  return np.asarray(found, np.int32)


def _stop(fields: Fields, chat: Chat) -> tuple[tuple[str, ...], tuple[int, ...]]:
  """(texts, ids) that end a sample. Ids, also none, replace those of the chat format."""
  stop = fields.take("stop", (str, list))
  if stop is None:
    return (), tuple(chat.stop_tokens)
  if isinstance(stop, str):
    stop = [stop]
  check_stops(stop, "sampling_params.stop")
  if stop and all(isinstance(each, str) and each for each in stop):
    return tuple(stop), tuple(chat.stop_tokens)
  if all(isinstance(each, int) and not isinstance(each, bool) for each in stop):
    return (), tuple(stop)
  raise Refusal(400, "sampling_params.stop: send texts or ids, not both", param="stop")


async def samples(sampler: Sampler, weights: str, asked: SampleRequest, chat: Chat) -> bytes:
  """What was sampled for a request, as the message of its reply."""
  seeds = [asked.limits.seed]
  if asked.num_samples > 1:
    more = np.random.SeedSequence(abs(asked.limits.seed)).generate_state(asked.num_samples - 1)
    seeds += [int(seed) for seed in more]

  async def one(seed: int) -> tuple[Generation, bool]:
    limits = dataclasses.replace(asked.limits, seed=seed % 2**32)
    watch = progress.watch(chat, asked.stop, None)
    generation = await sampler.generate(weights, asked.prompt, limits, watch)
    text = ""
    if asked.stop:
      generation, text = sampling.cut(chat, generation, asked.prompt, limits, asked.stop)
    return generation, bool(text) or generation.stop == "stop"

  async with asyncio.timeout(SAMPLE_S + 60.0):
    prompt_logprobs = None
    if asked.scored:
      prompt_logprobs = np.full(len(asked.prompt), np.nan, np.float32)
      found = await sampler.score(weights, asked.prompt)
      prompt_logprobs[-asked.scored :] = found[-asked.scored :]
    drawn = await asyncio.gather(*(one(seed) for seed in seeds))
  return messages.write_samples(drawn, prompt_logprobs)
