"""Distillation of the prediction modules, against loops over whole distributions."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl_agents.learner import distill, packing
from jaxrl_agents.learner.advantage import Rollout
from jaxrl_agents.policy import mtp, transformer
from jaxrl_agents.policy import params as params_lib
from jaxrl_agents.policy.config import PolicyConfig
from jaxrl_agents.types import Segment

CFG = PolicyConfig(
  vocab_size=13,
  embed_dim=8,
  num_layers=1,
  num_heads=2,
  num_kv_heads=1,
  head_dim=4,
  num_dense_layers=1,
  dense_ffw_dim=8,
  mtp_depth=2,
)


def softmax(z):
  e = np.exp(z - z.max())
  return e / e.sum()


def test_divergence_agreement_and_acceptance_of_two_distributions_by_hand():
  p, q = np.array([0.5, 0.25, 0.25]), np.array([0.25, 0.5, 0.25])
  kl, agree, accept = distill.divergence(jnp.log(p), jnp.log(q))
  np.testing.assert_allclose(kl, 0.25 * np.log(2), rtol=1e-6)  # .5 log 2 - .25 log 2
  assert float(agree) == 0
  np.testing.assert_allclose(accept, 0.75, rtol=1e-6)
  kl, agree, accept = distill.divergence(jnp.log(p), jnp.log(p))
  np.testing.assert_allclose([kl, agree, accept], [0, 1, 1], atol=1e-6)


@pytest.mark.slow
def test_module_k_is_compared_with_the_head_k_positions_later_and_only_modules_get_a_gradient():
  rng = np.random.default_rng(0)
  segments = []
  for n in (7, 5):
    mask = np.arange(n) >= 2
    mask[1] = n == 5  # a loss token predicted at position 0, where no module reaches
    segments.append(
      Segment(
        tokens=rng.integers(1, 13, n).astype(np.int32),
        loss_mask=mask,
        logprobs=np.zeros(n, np.float32),
        versions=np.zeros(n, np.int32),
      )
    )
  (batch,) = packing.pack([Rollout(tuple(segments))], row_tokens=14, rows_per_microbatch=1)
  params = jax.jit(lambda key: params_lib.init(CFG, key))(jax.random.key(0))
  rows = distill.rows_of(batch)

  @jax.jit
  def run(params):
    hidden = transformer.forward(params, batch.tokens, CFG, rows=rows).hidden
    loss = lambda p: distill.distill_loss(p, hidden, batch, CFG, temperature=0.7)
    (value, sums), grads = jax.value_and_grad(loss, has_aux=True)(params)
    drafts = mtp.mtp(params, hidden, batch.targets, CFG, rows=rows)
    main = transformer.logits(params, hidden, CFG)
    return value, sums, grads, main, transformer.logits(params, drafts, CFG)

  value, sums, grads, main, drafts = jax.tree.map(np.asarray, run(params))
  expected = {"kl": 0.0, "accept": 0.0, "agree": 0, "tokens": 0}
  for k in (1, 2):
    for t in np.flatnonzero(batch.loss_mask[0]):
      if batch.depths[0, t] < k:
        continue
      p, q = softmax(main[0, t] / 0.7), softmax(drafts[k - 1, 0, t - k] / 0.7)
      expected["kl"] += (p * np.log(p / q)).sum()
      expected["accept"] += np.minimum(p, q).sum()
      expected["agree"] += int(p.argmax() == q.argmax())
      expected["tokens"] += 1
  loss_tokens = 5 + 4
  assert expected["tokens"] == (5 + 3) + (4 + 2)  # positions from 1, positions from 2
  np.testing.assert_allclose(value, expected["kl"] / 2 / loss_tokens, rtol=1e-5)
  names = ("mtp_kl", "mtp_acceptance", "mtp_agreement", "mtp_tokens")
  np.testing.assert_allclose([sums[n] for n in names], list(expected.values()), rtol=1e-5)
  modules = grads.pop("mtp")
  assert all((leaf == 0).all() for leaf in jax.tree.leaves(grads))
  assert all((leaf != 0).any() for leaf in jax.tree.leaves(modules))
