import pytest

from jaxrl_agents.hf import families
from tests.hf import checkpoints


def read(tmp_path, config, **changes):
  return families.read(checkpoints.write_config(tmp_path, config | changes))


def test_sizes_are_read_from_either_spelling_of_the_settings(tmp_path):
  old = read(tmp_path, checkpoints.QWEN3_MOE).cfg
  renamed = dict(checkpoints.QWEN3_MOE)
  renamed["num_local_experts"] = renamed.pop("num_experts")
  theta = renamed.pop("rope_theta")
  renamed["rope_parameters"] = {"rope_type": "default", "rope_theta": theta}
  assert read(tmp_path, renamed).cfg == old
  assert (old.num_experts, old.num_dense_layers, old.rope_theta) == (6, 1, 1e6)


@pytest.mark.parametrize(
  ("config", "change", "says"),
  [
    (checkpoints.QWEN3, {"hidden_act": "gelu"}, "hidden_act is 'gelu'"),
    (checkpoints.QWEN3, {"attention_bias": True}, "attention_bias is True"),
    (checkpoints.QWEN3, {"use_sliding_window": True}, "use_sliding_window is True"),
    (checkpoints.QWEN3, {"rope_scaling": {"type": "linear"}}, "rope_type is 'linear'"),
    (checkpoints.QWEN3, {"head_dim": None}, "head_dim is not set"),
    (checkpoints.QWEN3, {"head_dim": 7}, "make it even"),
    (checkpoints.QWEN3, {"torch_dtype": "float16"}, "dtype is 'float16'"),
    (checkpoints.QWEN3_MOE, {"norm_topk_prob": False}, "norm_topk_prob is false"),
    (checkpoints.QWEN3_MOE, {"norm_topk_prob": None}, "norm_topk_prob is false"),
    (checkpoints.QWEN3_MOE, {"mlp_only_layers": [2]}, r"mlp_only_layers is \[2\]"),
    (checkpoints.QWEN3_MOE, {"decoder_sparse_step": 2}, "decoder_sparse_step is 2"),
    (checkpoints.DEEPSEEK, {"scoring_func": "softmax"}, "scoring_func is 'softmax'"),
    (checkpoints.DEEPSEEK, {"topk_method": "greedy"}, "topk_method is 'greedy'"),
    (checkpoints.DEEPSEEK, {"moe_layer_freq": 2}, "moe_layer_freq is 2"),
    (checkpoints.DEEPSEEK, {"n_group": 3}, "multiple of router_groups"),
    (checkpoints.DEEPSEEK, {"rope_scaling": {"type": "yarn"}}, "factor is not set"),
    (checkpoints.GPT_OSS, {"attention_bias": False}, "attention_bias is False"),
    (
      checkpoints.GPT_OSS,
      {"layer_types": ["full_attention"] * 4},
      "layer_types has 'full_attention' as layer 0; the policy has 'sliding_attention'",
    ),
    (checkpoints.QWEN3, {"model_type": "qwen2"}, "no model_type 'qwen2', nearest is qwen3"),
  ],
)
def test_settings_that_the_policy_cannot_follow_are_named(tmp_path, config, change, says):
  with pytest.raises(ValueError, match=says):
    read(tmp_path, config, **change)


def test_attention_scales_of_stretched_contexts_are_those_of_the_papers(tmp_path):
  deepseek = read(tmp_path, checkpoints.DEEPSEEK).cfg
  # 0.1 m ln 40 + 1: 1.36889 for m = 1, 1.25822 for m = 0.7.
  assert deepseek.score_gain == pytest.approx(1.36889**2, rel=1e-5)
  assert deepseek.rope_gain == pytest.approx(1.25822 / 1.36889, rel=1e-5)
  kimi = read(tmp_path, checkpoints.KIMI).cfg
  assert kimi.score_gain == pytest.approx(1.34657**2, rel=1e-5)  # factor 32
  assert kimi.rope_gain == 1.0
  scaling = {"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32768}
  qwen = read(tmp_path, checkpoints.QWEN3, rope_scaling=scaling).cfg
  assert (qwen.rope_gain, qwen.score_gain) == (pytest.approx(1.13863, rel=1e-5), 1.0)
  assert (qwen.rope_beta_fast, qwen.rope_beta_slow, qwen.rope_truncate) == (32.0, 1.0, True)


def test_a_folder_without_config_is_refused(tmp_path):
  with pytest.raises(ValueError, match=r"no config\.json"):
    families.read(tmp_path)
