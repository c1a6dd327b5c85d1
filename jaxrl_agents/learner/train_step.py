"""One optimizer step: gradients of each microbatch, their sum, one update. Pure jitted functions.

  update(state, batches, cfg, objective, tx)
    gradients(params, batch)   for each microbatch; the weights of a batch hold the normaliser
    add(total, more)
    apply(state, grads)        clip, optimizer update, version + 1

Microbatches have a few shapes; a function compiles once for each. Under a mesh made ambient by
jax.set_mesh the rows are split over it; parameters and moments keep their shardings, and what the
host reads is whole in every process.

Alphabet: B rows, T time, L mixture layers, E experts.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Sequence
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import struct

from jaxrl_agents.learner import distill, losses
from jaxrl_agents.learner.metrics import ratio_metrics, summary
from jaxrl_agents.learner.packing import Batch
from jaxrl_agents.learner.state import PolicyState, TrainState
from jaxrl_agents.policy import lora, sharding, transformer
from jaxrl_agents.policy import params as params_lib
from jaxrl_agents.policy.config import PolicyConfig
from jaxrl_agents.policy.experts import moe


@dataclasses.dataclass(frozen=True)
class Objective:
  """What a step minimises; static under jit.

  Attributes:
    kind: "rl" (a policy-gradient loss), "sft" (cross-entropy of loss tokens) or "mtp"
      (distillation of the prediction modules alone, the trunk frozen).
    loss: loss of each token, for "rl".
    kl: beta of `A - beta sg(log pi - log pi_0)` on every token, for "rl": the k1 estimator as part
      of the advantage (as a loss its expected gradient is 0); pi_0 as `Batch.reference_logprobs`.
    entropy_bonus: beta of `- beta H(pi)` that is added to the loss of every token, for "rl": H is
      the entropy in nats of the distribution at `temperature`, and the token has its weight.
    temperature: sampling temperature, which divides the logits; 1 for "sft".
    mtp_weight: weight of the distillation term added to "rl" or "sft"; 0.1 in DeepSeek-V3's last
      phase.
    replay_threshold: plausibility filter of the routing replay, see moe.replayed_experts.
    balance_rate: step of the routers' selection biases towards equal load (moe.balanced_bias), for
      "sft" only: in reinforcement learning sampler and learner must agree.
    remat: what is kept of each layer for the backward pass (transformer.REMAT).
    attention_peaks: whether to report the largest attention score of each head, which QK-clip
      needs.
    max_unrolled_layers: up to this many layers run as a Python loop, which took 15 % less time than
      a scan on CPU at 4 layers; deeper policies are scanned, to compile in reasonable time.
  """

  kind: Literal["rl", "sft", "mtp"]
  loss: losses.PolicyLoss = losses.LOSSES["cispo"]
  kl: float = 0.0
  entropy_bonus: float = 0.0
  temperature: float = 1.0
  mtp_weight: float = 0.0
  replay_threshold: float = 0.0
  balance_rate: float = 0.0
  remat: transformer.Remat = "none"
  attention_peaks: bool = False
  max_unrolled_layers: int = 8

  def __post_init__(self):
    if self.kind not in ("rl", "sft", "mtp"):
      raise ValueError(f"no objective {self.kind!r}; there are rl, sft and mtp")
    if self.balance_rate and self.kind != "sft":
      raise ValueError(
        f"balance_rate={self.balance_rate} is for 'sft', not {self.kind!r}; set it 0"
      )
    if self.entropy_bonus and self.kind != "rl":
      raise ValueError(
        f"entropy_bonus={self.entropy_bonus} is for 'rl', not {self.kind!r}; set it 0"
      )
    if self.remat not in transformer.REMAT:
      raise ValueError(f"no remat {self.remat!r}; there are {', '.join(transformer.REMAT)}")

  @property
  def needs_reference(self) -> bool:
    """Whether batches must carry the log-probabilities of pi_0."""
    return self.kind == "rl" and bool(self.kl or self.loss.needs_reference)


@struct.dataclass
class Gradients:
  """Gradients and metrics of one microbatch, or sums over several.

  Attributes:
    grads: float32, tree of the trained parameters (lora.trained).
    sums: metrics that add, float32.
    maxima: metrics of which the largest counts, float32.
  """

  grads: Any
  sums: dict[str, jax.Array]
  maxima: dict[str, jax.Array]


def update(
  state: TrainState,
  batches: Sequence[Batch],
  cfg: PolicyConfig,
  objective: Objective,
  tx: optax.GradientTransformation,
  *,
  check: Callable[[dict[str, float]], None] | None = None,
) -> tuple[TrainState, dict[str, float]]:
  """One optimizer step over all microbatches of `packing.pack`. `state` is donated.

  Args:
    state: is consumed, unless `batches` is empty.
    batches: microbatches, on the host or placed by `place_batch`; on the host they are
      equal in every process.
    cfg: of the policy.
    objective: what to minimise.
    tx: the optimizer that made `state.opt_state`.
    check: called with the metrics of the gradients; if it raises, `state` is not consumed.

  Returns:
    (state, metrics). Without microbatches the state is returned unchanged, with {"skipped": 1}. A
    gradient that is not finite changes nothing except {"applied": 0, "skipped": 1} in the metrics.
  """
  if not batches:
    return state, {"skipped": 1.0}
  total = gradients(state.policy.params, placed(batches[0]), cfg, objective)
  for batch in map(placed, batches[1:]):
    total = add(total, gradients(state.policy.params, batch, cfg, objective))
  sums, maxima = total.sums, total.maxima
  found = summary(sums, maxima)
  if check:
    check(found)
  load = sums["expert_load"]
  state, step = apply(state, total.grads, tx, maxima.get("attention_score_max"))
  if objective.balance_rate and cfg.num_moe_layers:
    state = balance(state, load, objective.balance_rate * step["applied"])
  metrics = {**found, **jax.tree.map(float, step)}
  return state, {"skipped": 1.0 - metrics["applied"], **metrics}


@functools.partial(jax.jit, static_argnames=("cfg", "objective"))
def gradients(
  params: dict[str, Any], batch: Batch, cfg: PolicyConfig, objective: Objective
) -> Gradients:
  """Gradients and metrics of one microbatch's share of the loss of the step."""
  scanned = cfg.num_layers > objective.max_unrolled_layers
  whole = params if scanned else params_lib.unstack(params)

  def function(trained):
    return loss_and_metrics(lora.with_trained(whole, trained), batch, cfg, objective)

  grads, (sums, maxima) = jax.grad(function, has_aux=True)(lora.trained(whole))
  grads = {name: _restack(g) if isinstance(g, tuple) else g for name, g in grads.items()}
  # Microbatches are summed, and norms taken, in float32, whatever the dtype of the parameters.
  constrain = lambda spec, g: sharding.constrain(g.astype(jnp.float32), *spec.axes)
  specs = lora.trained_specs(cfg, params)
  grads = jax.tree.map(constrain, specs, grads, is_leaf=params_lib.is_spec)
  return Gradients(grads, *sharding.replicated((sums, maxima)))


def _restack(layers):
  return jax.tree.map(lambda *leaves: jnp.stack(leaves), *layers)


@functools.partial(jax.jit, donate_argnums=(0,))
def add(total: Gradients, more: Gradients) -> Gradients:
  """The sum of two microbatches; `total` is donated."""
  return Gradients(
    jax.tree.map(jnp.add, total.grads, more.grads),
    jax.tree.map(jnp.add, total.sums, more.sums),
    jax.tree.map(jnp.maximum, total.maxima, more.maxima),
  )


@functools.partial(jax.jit, static_argnames=("tx",), donate_argnums=(0,))
def apply(
  state: TrainState,
  grads: Any,
  tx: optax.GradientTransformation,
  attention_peaks: jax.Array | None = None,
) -> tuple[TrainState, dict[str, jax.Array]]:
  """One update of the optimizer; `state` is donated.

  Args:
    state: is consumed.
    grads: of what is trained, see lora.trained.
    tx: the optimizer that made `state.opt_state`.
    attention_peaks: float32 [layers, heads], for an optimizer with QK-clip.

  Returns:
    (state, {"grad_norm" before clipping, "applied": 0 where it is not finite: the state is kept}).
  """
  norm = optax.tree.norm(grads)
  finite = jnp.isfinite(norm)
  old, more = lora.trained(state.policy.params), {}
  if attention_peaks is not None:
    more["attention_peaks"] = attention_peaks
  update_fn = optax.with_extra_args_support(tx).update
  updates, opt_state = update_fn(grads, state.opt_state, old, **more)
  keep = lambda new, old: jnp.where(finite, new, old)
  trained = jax.tree.map(keep, optax.apply_updates(old, updates), old)
  policy = PolicyState(
    lora.with_trained(state.policy.params, trained),
    state.policy.version + finite.astype(jnp.int32),
  )
  opt_state = jax.tree.map(keep, opt_state, state.opt_state)
  metrics = sharding.replicated({"grad_norm": norm, "applied": finite.astype(jnp.float32)})
  return dataclasses.replace(state, policy=policy, opt_state=opt_state), metrics


@functools.partial(jax.jit, donate_argnums=(0,))
def balance(state: TrainState, expert_load: jax.Array, rate: float) -> TrainState:
  """The state with the routers' selection biases moved towards equal load; `state` is donated."""
  params = dict(state.policy.params)
  layers = dict(params["moe_layers"])
  bias = moe.balanced_bias(layers["moe"]["router_bias"], expert_load, rate)
  params["moe_layers"] = layers | {"moe": layers["moe"] | {"router_bias": bias}}
  return dataclasses.replace(state, policy=dataclasses.replace(state.policy, params=params))


def loss_and_metrics(
  params: dict[str, Any], batch: Batch, cfg: PolicyConfig, objective: Objective
) -> tuple[jax.Array, tuple[dict[str, jax.Array], dict[str, jax.Array]]]:
  """This microbatch's share of the loss of the step, and (sums, maxima) for `summary`."""
  trunk = jax.lax.stop_gradient(params) if objective.kind == "mtp" else params
  output = forward(trunk, batch, cfg, objective)
  sums = {
    "loss_tokens": jnp.sum(batch.loss_mask, dtype=jnp.float32),
    "expert_load": output.expert_load,
  }
  peaks = output.attention_peaks
  maxima: dict[str, jax.Array] = {} if peaks is None else {"attention_score_max": peaks}
  loss = jnp.zeros((), jnp.float32)
  if objective.kind != "mtp":
    logprobs, entropy = loss_token_logprobs(params, output.hidden, batch, cfg, objective)
    sums["entropy"] = jnp.sum(entropy)
    if objective.kind == "sft":
      loss = -jnp.sum(batch.weights * logprobs)
    else:
      if objective.kl:
        drift = losses.drift(logprobs, batch)
        batch = batch._replace(advantages=batch.advantages - objective.kl * drift)
        sums["drift"] = jnp.sum(drift)
      loss = jnp.sum(batch.weights * objective.loss(logprobs, batch))
      if objective.entropy_bonus:
        loss -= objective.entropy_bonus * jnp.sum(batch.weights * entropy)
      more, most = ratio_metrics(logprobs, batch, objective.loss)
      sums, maxima = sums | more, maxima | most
  if objective.kind == "mtp" or objective.mtp_weight:
    distilled, more = distill.distill_loss(
      params, output.hidden, batch, cfg, temperature=objective.temperature
    )
    weight = 1.0 if objective.kind == "mtp" else objective.mtp_weight
    loss += weight * distilled
    sums |= more
  sums["loss"] = loss
  return loss, jax.lax.stop_gradient((sums, maxima))


def forward(
  params: dict[str, Any], batch: Batch, cfg: PolicyConfig, objective: Objective
) -> transformer.Output:
  """The trunk over packed rows, with the sampler's experts replayed where they were recorded."""
  routing = None if batch.routing is None else batch.routing.astype(jnp.int32)
  return transformer.forward(
    params,
    batch.tokens,
    cfg,
    rows=distill.rows_of(batch),
    routing=routing,
    replay_threshold=objective.replay_threshold,
    remat=objective.remat,
    attention_peaks=objective.attention_peaks,
  )


def loss_token_logprobs(
  params: dict[str, Any],
  hidden: jax.Array,
  batch: Batch,
  cfg: PolicyConfig,
  objective: Objective,
) -> tuple[jax.Array, jax.Array]:
  """Log-probabilities of the targets and entropies, float32 [B, T], 0 outside the loss mask.

  A gradient flows through the entropies only if there is a bonus for them.
  """
  hidden = distill.at_sources(hidden, batch)
  logprobs, entropy = transformer.token_logprobs(
    params, hidden, batch.targets, cfg, objective.temperature, mask=batch.loss_mask
  )
  return logprobs, entropy if objective.entropy_bonus else jax.lax.stop_gradient(entropy)


@functools.partial(jax.jit, static_argnames=("cfg", "objective"))
def recompute_logprobs(
  params: dict[str, Any], batch: Batch, cfg: PolicyConfig, objective: Objective
) -> jax.Array:
  """The learner's own log-probabilities of what the sampler drew, float32 [B, T].

  On fresh rollouts, under the weights that sampled them, these must equal
  `batch.behaviour_logprobs` up to rounding, see `logprob_gap`.
  """
  output = forward(params, batch, cfg, objective)
  logprobs, _ = loss_token_logprobs(params, output.hidden, batch, cfg, objective)
  return sharding.replicated(logprobs)


def logprob_gap(logprobs: Sequence[np.ndarray], batches: Sequence[Batch]) -> dict[str, float]:
  """|log pi - log mu| over the loss tokens of all microbatches: mean, p50, p99 and max, exact."""
  gaps = [
    np.abs(np.asarray(lp) - np.asarray(b.behaviour_logprobs))[np.asarray(b.loss_mask)]
    for lp, b in zip(logprobs, batches, strict=True)
  ]
  return gap_figures(np.concatenate([*gaps, np.zeros(0, np.float32)]))


def gap_figures(gap: np.ndarray) -> dict[str, float]:
  """Mean, p50, p99 and max of differences [N]; 0 if there are none."""
  if not gap.size:
    return {"gap_mean": 0.0, "gap_p50": 0.0, "gap_p99": 0.0, "gap_max": 0.0}
  p50, p99 = np.quantile(gap, [0.5, 0.99])
  return {
    "gap_mean": float(gap.mean()),
    "gap_p50": float(p50),
    "gap_p99": float(p99),
    "gap_max": float(gap.max()),
  }


def placed(batch: Batch) -> Batch:
  """`batch` placed on the ambient mesh; as it is without one."""
  mesh = jax.sharding.get_mesh()
  return batch if mesh.empty else place_batch(batch, mesh)


def place_batch(batch: Batch, mesh: jax.sharding.Mesh) -> Batch:
  """`batch` on the devices of `mesh`, its rows and their time split as those of a training batch.

  Raises:
    ValueError: rows or time do not divide evenly.
  """
  check_divides(batch.tokens.shape, mesh)
  place = jax.sharding.NamedSharding(mesh, sharding.spec(("batch", "time"), sharding.TRAIN_RULES))
  return sharding.place(batch, jax.tree.map(lambda _: place, batch))


def check_divides(
  shape: tuple[int, ...], mesh: jax.sharding.Mesh | jax.sharding.AbstractMesh
) -> None:
  """Refuses microbatches of shape [B, T] whose rows or time do not divide over `mesh`.

  Raises:
    ValueError: they do not.
  """
  options = {"batch": "rows_per_microbatch", "time": "row_tokens (and rollout_row_tokens)"}
  for size, (axis, option) in zip(shape, options.items(), strict=True):
    ways = sharding.ways(axis, mesh)
    if size % ways:
      raise ValueError(
        f"microbatches of shape {shape} (rows, tokens) do not split over the {ways} devices of "
        f"{sharding.TRAIN_RULES[axis]}; make learner.{option} a multiple of {ways}, or the mesh "
        "smaller there"
      )
