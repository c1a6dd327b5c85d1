"""The model in training behind Tinker's API: the learner's programs, one request after another."""

from __future__ import annotations

import asyncio
import concurrent.futures
import dataclasses
import functools
import pathlib
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

from jaxrl_agents.config import RunConfig
from jaxrl_agents.gateway.tinker.checkpoints import Lora
from jaxrl_agents.gateway.tinker.messages import ForwardBackward
from jaxrl_agents.gateway.tinker.service import Adam
from jaxrl_agents.learner import checkpoint, train_step
from jaxrl_agents.learner import state as state_lib
from jaxrl_agents.learner.state import TrainState
from jaxrl_agents.learner.train_step import Gradients, Objective
from jaxrl_agents.policy import lora as lora_lib
from jaxrl_agents.policy import params as params_lib
from jaxrl_agents.policy.config import PolicyConfig
from jaxrl_agents.runs import setup, tinker_losses, weight_files

ALPHA = 32.0
"""Scale of adapters: their product counts ALPHA / rank times, as on Tinker's own servers."""


class TinkerLearner:
  """A train state, and gradients that wait for the next step.

  Invariant: one thread computes, one request after another. Gradients are the sum over all requests
  since the last step; if one of them failed, the next step fails too, and begins anew.

  Args:
    config: sizes, optimizer's dtype, shape of microbatches.
    base: the parameters that a model begins with.
  """

  def __init__(self, config: RunConfig, base: Callable[[], dict[str, Any]]):
    self._config, self._base = config, base
    self._cfg = config.policy.model
    self._thread = concurrent.futures.ThreadPoolExecutor(1, thread_name_prefix="learner")
    self._state: TrainState | None = None
    self._tx = optimizer(config, adapters=False)
    self._gradients: Gradients | None = None
    self._spoiled = False

  async def _run(self, function: Callable[..., Any], *args: Any) -> Any:
    def on_devices() -> Any:
      with setup.devices(self._config), setup.learner_devices(self._config):
        return function(*args)

    return await asyncio.get_running_loop().run_in_executor(self._thread, on_devices)

  async def create(self, lora: Lora) -> None:
    """Begins a model.

    Raises:
      ValueError: the policy has no matrices for its adapters.
    """
    await self._run(self._create, lora)

  def _create(self, lora: Lora) -> None:
    self._state = self._gradients = None  # frees their memory first
    self._spoiled = False
    params = self._base()
    if lora.rank:
      params = lora_lib.adapt(
        params,
        self._cfg,
        jax.random.key(lora.seed),
        rank=lora.rank,
        alpha=ALPHA,
        targets=adapted(self._cfg, attn=lora.train_attn, mlp=lora.train_mlp),
      )
    self._tx = optimizer(self._config, adapters=lora.rank > 0)
    self._state = setup.fresh_state(self._config, params, self._tx)

  async def restore(self, folder: pathlib.Path, lora: Lora, *, optimizer: bool) -> None:
    """Begins with what `save_state` wrote; without the moments unless `optimizer`.

    Raises:
      ValueError: the files are damaged, or of another policy.
    """
    await self._run(self._restore, folder, lora, optimizer)

  def _restore(self, folder: pathlib.Path, lora: Lora, optimizer: bool) -> None:
    self._create(lora)
    fresh = self._current()
    with checkpoint.open_manager(folder / "state") as manager:
      saved, _, _ = checkpoint.restore(manager, fresh)
    kept = fresh.opt_state
    self._state = saved if optimizer else dataclasses.replace(saved, opt_state=kept)

  async def save_state(self, folder: pathlib.Path) -> None:
    """Writes the whole state into a folder."""
    await self._run(self._save_state, folder)

  def _save_state(self, folder: pathlib.Path) -> None:
    with checkpoint.open_manager(folder / "state") as manager:
      checkpoint.save(manager, 0, self._current(), {}, keep=1)

  async def save_weights(self, folder: pathlib.Path) -> None:
    """Writes the weights, adapters merged, as `runs.weight_files` does."""
    await self._run(self._save_weights, folder)

  def _save_weights(self, folder: pathlib.Path) -> None:
    merged = lora_lib.merged(self._current().policy.params)
    weight_files.save(merged, self._cfg, folder, tokenizer=self._config.policy.tokenizer)

  async def weights(self) -> Any:
    """A copy of the weights, adapters merged."""
    merged = await self._run(lambda: lora_lib.merged(self._current().policy.params))
    copied = lambda: jax.tree.map(jnp.copy, setup.for_sampler(merged))
    return await asyncio.get_running_loop().run_in_executor(self._thread, copied)

  async def forward_backward(
    self, request: ForwardBackward
  ) -> tuple[Mapping[str, float], list[np.ndarray]]:
    """Log-probabilities of the targets, raw, float32 [N] per sequence; and adds the gradients of
    the sum of the loss, unless the request is for the forward pass only.

    Raises:
      ValueError: the loss or one of its inputs is not supported.
    """
    found: tuple[Mapping[str, float], list[np.ndarray]]
    found = await self._run(self._forward_backward, request)
    return found

  def _forward_backward(
    self, request: ForwardBackward
  ) -> tuple[Mapping[str, float], list[np.ndarray]]:
    minimised = tinker_losses.objective(request.loss, request.options, self._config)
    data = [
      tinker_losses.given(each, i, request.loss, self._cfg) for i, each in enumerate(request.data)
    ]
    scored = tinker_losses.scoring(self._config)
    params = self._current().policy.params
    logprobs: list[np.ndarray] = [np.zeros(0, np.float32)] * len(data)
    total, gradients = 0.0, self._gradients
    for batch, places in tinker_losses.packed(data, self._config):
      placed = train_step.placed(batch)
      found = train_step.recompute_logprobs(params, placed, self._cfg, scored)
      for place in places:
        logprobs[place.index] = np.asarray(found[place.row, place.start : place.end])
      if request.forward_only:
        total += float(jnp.sum(_loss(found, placed, minimised)))
        continue
      more = train_step.gradients(params, placed, self._cfg, minimised)
      total += float(more.sums["loss"])
      more = Gradients(more.grads, {}, {})
      gradients = more if gradients is None else train_step.add(gradients, more)
    self._gradients = gradients
    return {"loss:sum": total}, logprobs

  def spoil(self) -> None:
    """Gradients are missing: the next step fails."""
    self._spoiled = True

  async def step(self, adam: Adam) -> Mapping[str, float]:
    """One step of AdamW with the gradients since the last one.

    Raises:
      ValueError: there are none, or one of the requests for them failed.
    """
    found: Mapping[str, float] = await self._run(self._step, adam)
    return found

  def _step(self, adam: Adam) -> Mapping[str, float]:
    gradients, self._gradients = self._gradients, None
    spoiled, self._spoiled = self._spoiled, False
    if spoiled:
      raise ValueError(
        "a request since the last step failed, so gradients are missing; they were all dropped: "
        "make the requests of this step again"
      )
    if gradients is None:
      raise ValueError("there are no gradients since the last step; call forward_backward first")
    current = self._current()
    current = dataclasses.replace(current, opt_state=with_numbers(current.opt_state, adam))
    self._state, metrics = train_step.apply(current, gradients.grads, self._tx)
    return {name: float(value) for name, value in metrics.items()}

  def _current(self) -> TrainState:
    if self._state is None:
      raise ValueError("no model is trained; its creation failed")
    return self._state

  def close(self) -> None:
    """Ends the thread; what it computes is finished first."""
    self._thread.shutdown(cancel_futures=True)


@functools.partial(jax.jit, static_argnames="objective")
def _loss(logprobs: jax.Array, batch: Any, objective: Objective) -> jax.Array:
  """The loss of each token times its weight, as in train_step.loss_and_metrics."""
  if objective.kind == "sft":
    return -batch.weights * logprobs
  return batch.weights * objective.loss(logprobs, batch)


def optimizer(config: RunConfig, *, adapters: bool) -> optax.GradientTransformationExtraArgs:
  """AdamW whose numbers are in its state, so that steps with other numbers compile nothing."""

  def make(learning_rate, b1, b2, eps, weight_decay, max_grad_norm):
    return state_lib.make_optimizer(
      config.policy.model,
      learning_rate=learning_rate,
      b1=b1,
      b2=b2,
      eps=eps,
      weight_decay=weight_decay,
      max_grad_norm=max_grad_norm,
      trained="adapters" if adapters else "all",
      dtype=config.policy.dtype,
    )

  return optax.inject_hyperparams(make, hyperparam_dtype=jnp.float32)(**numbers(Adam()))


def numbers(adam: Adam) -> dict[str, float]:
  """The numbers of a step by the names of `state.make_optimizer`."""
  return {
    "learning_rate": adam.learning_rate,
    "b1": adam.beta1,
    "b2": adam.beta2,
    "eps": adam.eps,
    "weight_decay": adam.weight_decay,
    "max_grad_norm": adam.grad_clip_norm or float("inf"),
  }


def with_numbers(opt_state: Any, adam: Adam) -> Any:
  """The state of `optimizer` with other numbers; moments are kept."""
  held = opt_state.hyperparams
  new = {
    name: jax.device_put(jnp.float32(value), held[name].sharding)
    for name, value in numbers(adam).items()
  }
  return opt_state._replace(hyperparams=new)


def adapted(cfg: PolicyConfig, *, attn: bool, mlp: bool) -> list[str]:
  """The matrices of layers that have adapters: of attention, and of dense layers and experts.

  Raises:
    ValueError: neither is asked for.
  """
  table = jax.tree_util.tree_leaves_with_path(params_lib.table(cfg), is_leaf=params_lib.is_spec)
  found = []
  for path, spec in table:
    name = ".".join(str(entry.key) for entry in path)
    inside = spec.matrix and spec.axes[0] == "layers" and not name.startswith("mtp.")
    if inside and (attn if ".attention." in name else mlp):
      found.append(name)
  if not found:
    raise ValueError("adapters on the unembedding alone are not supported; set train_mlp=True")
  return found
