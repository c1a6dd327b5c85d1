import dataclasses

import pytest

from tests.policy.tiny import GQA, MLA


def test_cache_holds_keys_and_values_of_grouped_heads_and_one_latent_for_mla():
  assert GQA.cache_width == 2 * 2 * 8
  assert MLA.cache_width == 12 + 4
  assert GQA.num_cache_layers == 3 + 1


@pytest.mark.parametrize(
  ("change", "says"),
  [
    ({"num_heads": 3}, "multiple of num_kv_heads"),
    ({"head_dim": 7}, "make it even"),
    ({"experts_per_token": 9}, "exceeds the 8 experts"),
    ({"router_groups": 3}, "multiple of router_groups"),
    ({"router_topk_groups": 2}, "between 1 and router_groups"),
    ({"attention": "mha"}, "choose one of gqa, mla"),
    ({"router": "tanh"}, "choose one of sigmoid, softmax"),
    ({"num_dense_layers": 4}, "between 0 and num_layers"),
    ({"num_dense_layers": 3}, "lower num_dense_layers or set num_experts=0"),
    ({"dense_ffw_dim": 0}, "dense_ffw_dim is 0; set it to 1 or more"),
    ({"attention": "mla"}, "kv_lora_rank is 0"),
  ],
)
def test_sizes_that_cannot_work_are_refused_with_a_remedy(change, says):
  with pytest.raises(ValueError, match=says):
    dataclasses.replace(GQA, **change)
