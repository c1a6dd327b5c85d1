"""FLOPs of kernels, by hand."""

import pytest

from jaxrl_agents.planning import hlo, kernels
from jaxrl_agents.planning.kernels import Expected, Kernel


def test_a_grouped_product_is_counted_for_the_rows_that_hold_pairs():
  product = Kernel("gmm.3", ((9,), (100, 6), (4, 6, 5)), 1, 2.0)
  assert kernels.flops(product, Expected(filled=0.5), 128) == 2 * 2 * 50 * 6 * 5
  gradient = Kernel("tgmm.1", ((9,), (100, 6), (100, 5)), 1, 1.0)
  assert kernels.flops(gradient, Expected(), 128) == 2 * 100 * 6 * 5


def splash(name, plan):
  """Two rows of 4 heads of 192 numbers, values of 128; 256 queries of 1,024 keys."""
  operands = plan, plan, (2, 4, 256, 192), (2, 4, 1024, 192), (2, 4, 1024, 128), (2, 256, 128)
  return Kernel(name + "_segmented_residuals.1", operands, 2, 1.0)


def test_attention_is_counted_over_the_keys_seen_and_widths_filled_up():
  pairs = 2 * 4 * 256 * 1024
  forward, keys, queries = (splash(f"splash_mha_{n}", (1, 4, 16)) for n in ("fwd", "dkv", "dq"))
  seen = Expected(seen=0.875)
  assert kernels.flops(forward, seen, 128) == 0.875 * pairs * 2 * (256 + 128)
  assert kernels.flops(forward, seen, 256) == 0.875 * pairs * 2 * (256 + 256)
  assert kernels.flops(keys, seen, 128) == 0.875 * pairs * 2 * 2 * (256 + 128)
  assert kernels.flops(queries, seen, 128) == 0.875 * pairs * 2 * (2 * 256 + 128)


def test_attention_to_trees_is_counted_over_its_rows_whatever_decides_its_tiles():
  """As XLA names and lists them: two rows of 4 heads of 128 numbers, 1,024 queries and keys."""
  q, k, row, lists = (2, 4, 1024, 128), (2, 2, 1024, 128), (2, 1, 1024), ((), (8,), (4,), (2,))
  statistics = (2, 4, 1, 1024)
  given = (*lists, q, k, k, q, statistics, statistics, row)
  runs = {
    "jvp_tree_attention_forward_.1": ((*lists, (4,), q, k, k, row), 2),
    "transpose_jvp_tree_attention_backward_of_keys__.1": (given, 4),
    "transpose_jvp_tree_attention_backward_of_queries__.1": (given, 3),
  }
  of_product = 0.5 * (2 * 4 * 1024 * 1024) * 2 * 128
  for name, (operands, products) in runs.items():
    assert kernels.flops(Kernel(name, operands, 4, 1.0), Expected(), 128) == products * of_product


def test_of_two_masks_each_counts_for_the_layers_that_have_it():
  expected = Expected(seen=0.5, windows=0.75)
  whole = pairs = 2 * 4 * 256 * 1024 * 2 * (256 + 128)
  full = kernels.flops(splash("splash_mha_fwd", (1, 32, 32)), expected, 128)
  near = kernels.flops(splash("splash_mha_fwd", (1, 32, 2)), expected, 128)
  assert full == pytest.approx(0.25 * 0.5 * whole)
  assert near == pytest.approx(0.75 * 2 / 32 * pairs)


def test_kernels_are_found_in_a_program_with_how_often_they_run():
  text = """
%body (x: f32[8]) -> f32[8] {
  %gmm.1 = bf16[64,8]{1,0} custom-call(%a, %b), custom_call_target="tpu_custom_call", \
operand_layout_constraints={s32[5]{0}, bf16[64,4]{1,0}, bf16[2,4,8]{2,1,0}}
}
%cond (x: f32[8]) -> pred[] {
}
ENTRY %main (x: f32[8]) -> f32[8] {
  %loop = f32[8] while(%x), condition=%cond, body=%body, \
backend_config={"known_trip_count":{"n":"7"}}
}
"""
  (found,) = hlo.cost(text, lambda *_: 1.0).kernels
  assert found == Kernel("gmm.1", ((5,), (64, 4), (2, 4, 8)), 1, 7.0)
