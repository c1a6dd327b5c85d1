import dataclasses

import jax
import numpy as np
import pytest

from jaxrl_agents.policy import params as params_lib
from jaxrl_agents.policy import sharding
from tests.policy.tiny import BIASED, DENSE, GQA, MLA


def test_parameters_are_counted_as_by_hand():
  attention = 16 * (2 * 4 * 8) + (2 * 2 * 8) * 16 + 2 * 8 + 2 * 16
  dense = attention + 16 * 2 * 24 + 24 * 16
  expert = 16 * 2 * 12 + 12 * 16
  moe = attention + 16 * 8 + 8 + (8 + 1) * expert
  module = moe + 3 * 16 + 2 * 16 * 16
  assert params_lib.count(GQA) == 2 * 53 * 16 + 16 + dense + 2 * moe + module


@pytest.mark.slow
def test_drawn_arrays_have_the_shapes_of_the_table_and_the_promised_scales():
  cfg = dataclasses.replace(GQA, embed_dim=128, expert_ffw_dim=64)
  params = params_lib.init(cfg, jax.random.key(0))
  assert jax.tree.map(lambda a: (a.shape, a.dtype), params) == jax.tree.map(
    lambda a: (a.shape, a.dtype), params_lib.abstract(cfg)
  )
  experts = params["moe_layers"]["moe"]["experts"]
  np.testing.assert_allclose(np.std(params["embed"]), 1.0, rtol=0.05)
  np.testing.assert_allclose(np.std(experts["gate_up"]), 128**-0.5, rtol=0.05)
  np.testing.assert_allclose(np.std(experts["down"]), 64**-0.5 / np.sqrt(2 * 3), rtol=0.05)


@pytest.mark.slow
def test_unstacking_gives_each_layer_its_slice_and_leaves_the_rest():
  params = params_lib.init(MLA, jax.random.key(0))
  flat = params_lib.unstack(params)
  assert len(flat["moe_layers"]) == 2 and len(flat["mtp"]) == 1
  np.testing.assert_array_equal(
    flat["moe_layers"][1]["attention"]["kv_up"], params["moe_layers"]["attention"]["kv_up"][1]
  )
  assert flat["embed"] is params["embed"]
  again = params_lib.unstack(flat)
  assert again["moe_layers"] is flat["moe_layers"]


def test_only_selection_biases_are_kept_from_the_optimiser():
  frozen = [
    jax.tree_util.keystr(path)
    for path, trained in jax.tree_util.tree_leaves_with_path(params_lib.trainable(GQA))
    if not trained
  ]
  assert len(frozen) == 2 and all(path.endswith("['router_bias']") for path in frozen)


def test_a_tied_dense_policy_has_neither_head_nor_experts():
  assert set(params_lib.table(DENSE)) == {"embed", "final_norm", "dense_layers"}


def test_a_sampler_holds_gate_and_up_of_an_expert_as_one_matrix_unless_they_are_split():
  params = params_lib.init(BIASED, jax.random.key(0))
  held = sharding.served(params)["moe_layers"]
  stored = params["moe_layers"]["moe"]["experts"]
  for layer in range(4):
    mine = held[layer]["moe"]["experts"]
    np.testing.assert_array_equal(mine["gate_up"][..., :12], stored["gate_up"][layer, ..., 0, :])
    np.testing.assert_array_equal(mine["gate_up"][..., 12:], stored["gate_up"][layer, ..., 1, :])
    np.testing.assert_array_equal(mine["gate_up_bias"][:, 12:], stored["gate_up_bias"][layer, :, 1])
  split = jax.sharding.AbstractMesh((1, 1, 1, 1, 2), sharding.MESH_AXES)
  with jax.sharding.use_abstract_mesh(split):
    held = jax.eval_shape(sharding.served, params)["moe_layers"]
  assert held[0]["moe"]["experts"]["gate_up"].shape == stored["gate_up"].shape[1:]
