"""The engines of a run."""

from __future__ import annotations

import dataclasses
import pathlib
import time
from collections.abc import Callable
from typing import Any

import jax

from jaxrl_agents.config import RunConfig
from jaxrl_agents.policy.config import PolicyConfig
from jaxrl_agents.runs import setup, weight_files
from jaxrl_agents.sampler.core_engines import AnyEngine, CoreEngines
from jaxrl_agents.sampler.draft_gains import UNMEASURED_COST
from jaxrl_agents.sampler.engine import Engine


def make_engine(
  config: RunConfig,
  params: dict[str, Any],
  version: int,
  clock: Callable[[], float] = time.monotonic,
  model: PolicyConfig | None = None,
) -> AnyEngine:
  """An engine on the ambient mesh for a policy of the sizes in `model` (default: of `config`), or
  `sampler.engines` on as many cores.
  """
  devices = setup.engine_devices(config)
  if len(devices) == 1:
    return _engine(config, params, version, clock, model)
  sampler = config.sampler
  slots, pages = -(-sampler.slots // len(devices)), sampler.num_pages // len(devices)
  share = dataclasses.replace(
    config, sampler=dataclasses.replace(sampler, slots=slots, num_pages=pages)
  )
  make = lambda params: _engine(share, params, version, clock, model)
  # The record of an asynchronous run has no steps of single engines.
  lockstep = config.workers.deterministic or config.fleet.depth > 0
  return CoreEngines(make, params, devices, slots=slots, lockstep=lockstep)


def frozen_engine(
  config: RunConfig,
  folder: pathlib.Path | str,
  version: int,
  clock: Callable[[], float] = time.monotonic,
) -> AnyEngine:
  """The engine of a policy that is not trained, with the sizes that its folder records.

  Raises:
    ValueError: its vocabulary differs from that of the policy in training.
  """
  named, vocab = weight_files.place(folder), config.policy.model.vocab_size
  model = (
    weight_files.load_sizes(named)
    if (named / weight_files.SIZES).is_file()
    else config.policy.model
  )
  if model.vocab_size != vocab:
    raise ValueError(
      f"{folder} has a vocabulary of {model.vocab_size} tokens and the policy in training has "
      f"{vocab}; both must use policy.tokenizer={config.policy.tokenizer}"
    )
  sized = dataclasses.replace(config, policy=dataclasses.replace(config.policy, model=model))
  params = setup.loaded(sized, str(folder))
  return make_engine(config, params, version, clock, model=model)


def _engine(
  config: RunConfig,
  params: dict[str, Any],
  version: int,
  clock: Callable[[], float],
  model: PolicyConfig | None,
) -> Engine:
  sampler = config.sampler
  model = model or config.policy.model
  # Processes of one engine must choose alike, and a deterministic run as the time before.
  fixed = config.workers.deterministic or jax.process_count() > 1
  return Engine(
    model,
    params,
    version=version,
    slots=sampler.slots,
    page_tokens=sampler.page_tokens,
    num_pages=sampler.num_pages,
    max_context_tokens=config.agent_config.token_budget,
    prefill_tokens=sampler.prefill_tokens,
    draft_tokens=sampler.draft_tokens if model.mtp_depth else 0,
    lookup_tokens=sampler.lookup_tokens,
    draft_cost=UNMEASURED_COST if fixed else None,
    dtype=config.policy.dtype,
    clock=clock,
  )
