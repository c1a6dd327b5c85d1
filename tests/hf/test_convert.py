import dataclasses
import json
import math

import jax
import ml_dtypes
import numpy as np
import pytest

from jaxrl_agents import chat
from jaxrl_agents.hf import checkpoint_reader, convert, families, files
from jaxrl_agents.policy import params as params_lib
from jaxrl_agents.runs import weight_files
from tests.hf import checkpoints
from tests.policy import tiny

KINDS = list(checkpoints.CONFIGS)


def imported(tmp_path, config=checkpoints.QWEN3_MOE):
  """(folder of the checkpoint, its tensors)."""
  arrays = checkpoints.write(tmp_path / "hf", config)
  return tmp_path / "hf", arrays


@pytest.mark.parametrize("kind", KINDS)
def test_tensors_fill_every_parameter_exactly_once_but_for_selection_biases(kind, tmp_path):
  model = families.read(checkpoints.write_config(tmp_path, checkpoints.CONFIGS[kind]))
  leaves, _ = jax.tree.flatten_with_path(params_lib.abstract(model.cfg))
  times = {".".join(k.key for k in path): np.zeros(leaf.shape, int) for path, leaf in leaves}
  for place in model.places.values():
    part = times[place.path][place.index]
    assert part.size == math.prod(place.shape)
    times[place.path][place.index] += 1
  for path, filled in times.items():
    absent = path.endswith("router_bias") and model.cfg.router == "softmax"
    assert np.all(filled == (0 if absent else 1)), path


@pytest.mark.parametrize("kind", KINDS)
def test_what_came_in_as_bfloat16_goes_out_with_the_same_bytes(kind, tmp_path):
  hf, arrays = imported(tmp_path, checkpoints.CONFIGS[kind])
  (hf / "tokenizer.json").write_text("{}")
  weights = tmp_path / "policy.safetensors"
  convert.import_weights(hf, weights)
  shards = convert.export_weights(weights, hf, tmp_path / "out", shard_bytes=20_000)
  assert len(shards) > 1
  again = checkpoint_reader.tensors(tmp_path / "out")  # follows the index
  assert again.keys() == arrays.keys()
  for name, array in arrays.items():
    assert again[name].dtype == array.dtype and again[name].tobytes() == array.tobytes(), name
  sizes = [sum(x.nbytes for x in files.read(shard).values()) for shard in shards]
  assert max(sizes) <= 20_000 or len(files.read(shards[int(np.argmax(sizes))])) == 1
  index = json.loads((tmp_path / "out" / checkpoint_reader.INDEX).read_text())
  assert index["metadata"]["total_size"] == sum(sizes)
  assert (tmp_path / "out" / "tokenizer.json").read_text() == "{}"
  assert families.read(tmp_path / "out").cfg == families.read(hf).cfg


def test_an_imported_folder_is_what_policy_init_loads_and_saves_unchanged(tmp_path):
  hf, _ = imported(tmp_path)
  out = tmp_path / "ours"
  cfg = convert.import_weights(hf, out / weight_files.WEIGHTS)
  weight_files.save_sizes(cfg, out)
  assert weight_files.load_sizes(out) == cfg
  params = weight_files.load(str(out), cfg)
  assert {leaf.dtype for leaf in jax.tree.leaves(params)} == {np.dtype(np.float32)}
  wide = weight_files.save(params, cfg, tmp_path / "wide") / weight_files.WEIGHTS
  first = convert.export_weights(out / weight_files.WEIGHTS, hf, tmp_path / "a")
  second = convert.export_weights(wide, hf, tmp_path / "b")
  assert [f.read_bytes() for f in first] == [f.read_bytes() for f in second]


def test_a_second_import_leaves_no_tokenizer_of_the_first_model(tmp_path):
  hf, out = tmp_path / "hf", tmp_path / "out"
  for folder in (hf, out):
    folder.mkdir()
  for name in ("tokenizer.json", "chat_template.jinja"):
    (out / name).write_text("of the first")
  (hf / "chat_template.jinja").write_text("of the second")
  assert not convert.copy_tokenizer(hf, out)
  assert [(f.name, f.read_text()) for f in out.iterdir()] == [
    ("chat_template.jinja", "of the second")
  ]


def test_saved_weights_have_the_named_tokenizer_also_in_a_folder_that_had_another(
  tmp_path,
):
  params = params_lib.init(tiny.GQA, jax.random.key(0))
  shipped, one, other = chat.tokenizer_files("base")[0], tmp_path / "one", tmp_path / "other"
  for folder, end in ((one, b"\n"), (other, b"\n\n")):
    folder.mkdir()
    (folder / "tokenizer.json").write_bytes(shipped.read_bytes() + end)
  (one / "chat_template.jinja").write_text("of one")
  for tokenizer in (one, other):
    out = weight_files.save(params, tiny.GQA, tmp_path / "out", tokenizer=str(tokenizer))
  assert (out / "tokenizer.json").read_bytes() == (other / "tokenizer.json").read_bytes()
  assert not (out / "chat_template.jinja").exists()


@pytest.mark.parametrize(
  ("name", "text", "says"),
  [
    ("config.json", '{"model_type": "qw', "config.json is damaged"),
    ("config.json", "[]", "config.json holds a list, not an object"),
    (checkpoint_reader.INDEX, "{}", "has no weight_map; download it again"),
  ],
)
def test_a_file_that_was_not_downloaded_to_its_end_is_named(tmp_path, name, text, says):
  hf, _ = imported(tmp_path)
  (hf / name).write_text(text)
  with pytest.raises(ValueError, match=says):
    convert.import_weights(hf, tmp_path / "out" / weight_files.WEIGHTS)


def test_a_checkpoint_of_read_only_files_is_exported_twice(tmp_path):
  hf, _ = imported(tmp_path)
  convert.import_weights(hf, tmp_path / "ours" / weight_files.WEIGHTS)
  for file in hf.iterdir():
    file.chmod(0o444)
  for _ in range(2):
    convert.export_weights(tmp_path / "ours" / weight_files.WEIGHTS, hf, tmp_path / "out")
  assert (tmp_path / "out" / "config.json").stat().st_mode & 0o200


def test_an_export_that_is_stopped_leaves_the_one_before_it_whole(tmp_path, monkeypatch):
  hf, arrays = imported(tmp_path)
  weights = tmp_path / "ours" / weight_files.WEIGHTS
  convert.import_weights(hf, weights)
  shards = convert.export_weights(weights, hf, tmp_path / "out", shard_bytes=20_000)
  copy, left = files.copy, [len(arrays) // 2]

  def stops(*arguments):
    left[0] -= 1
    if not left[0]:
      raise KeyboardInterrupt
    copy(*arguments)

  monkeypatch.setattr(files, "copy", stops)
  with pytest.raises(KeyboardInterrupt):
    convert.export_weights(weights, hf, tmp_path / "out", shard_bytes=20_000)
  again = checkpoint_reader.tensors(tmp_path / "out")
  assert all(again[name].tobytes() == array.tobytes() for name, array in arrays.items())
  assert sorted((tmp_path / "out").glob("model-*")) == sorted(shards)


def test_weights_of_another_network_with_the_same_shapes_are_refused(tmp_path):
  hf, _ = imported(tmp_path)
  out = tmp_path / "ours"
  cfg = convert.import_weights(hf, out / weight_files.WEIGHTS)
  weight_files.save_sizes(cfg, out)
  other = dataclasses.replace(cfg, rope_theta=2 * cfg.rope_theta)
  with pytest.raises(
    ValueError, match=r"policy with rope_theta=.*, not .*: set policy\.model as in"
  ):
    weight_files.load(str(out), other)
  weight_files.load(str(out), dataclasses.replace(cfg, kernels="reference"))


def test_heads_and_experts_lie_where_the_policy_looks_for_them(tmp_path):
  hf, arrays = imported(tmp_path)
  cfg = convert.import_weights(hf, tmp_path / "f")
  ours = files.read(tmp_path / "f")
  q, k, v = (arrays[f"model.layers.1.self_attn.{x}_proj.weight"] for x in "qkv")
  qkv = ours["moe_layers.attention.qkv"][0]
  h = cfg.head_dim
  np.testing.assert_array_equal(qkv[:, 1, 0], q[2 * h : 3 * h].T)  # third head: group 1, first
  np.testing.assert_array_equal(qkv[:, 1, 2], k[h:].T)
  np.testing.assert_array_equal(qkv[:, 0, 3], v[:h].T)
  out = arrays["model.layers.1.self_attn.o_proj.weight"]
  np.testing.assert_array_equal(ours["moe_layers.attention.out"][0, 1, 1], out[:, 3 * h :].T)
  up = arrays["model.layers.2.mlp.experts.5.up_proj.weight"]
  np.testing.assert_array_equal(ours["moe_layers.moe.experts.gate_up"][1, 5, :, 1], up.T)


def test_a_head_that_a_tied_checkpoint_repeats_is_checked_and_not_written(tmp_path):
  hf, arrays = imported(tmp_path, checkpoints.QWEN3)
  extra = hf / "model-2.safetensors"
  checkpoints.write_file(extra, {"lm_head.weight": arrays["model.embed_tokens.weight"]})
  convert.import_weights(hf, tmp_path / "f")
  convert.export_weights(tmp_path / "f", hf, tmp_path / "out")
  assert "lm_head.weight" not in checkpoint_reader.tensors(tmp_path / "out")
  checkpoints.write_file(extra, {"lm_head.weight": arrays["model.embed_tokens.weight"] + 1})
  with pytest.raises(ValueError, match=r"lm_head\.weight differs from model\.embed_tokens"):
    convert.import_weights(hf, tmp_path / "g")
  assert not list(tmp_path.glob("g*"))


GATE = "model.layers.1.mlp.experts.0.gate_proj.weight"


@pytest.mark.parametrize(
  ("change", "says"),
  [
    (lambda arrays: arrays.pop(GATE), f"missing {GATE}$"),
    (lambda arrays: arrays.update({"model.layers.9.x": np.zeros(1)}), "unknown model.layers.9.x$"),
    (lambda arrays: arrays.update({GATE: arrays[GATE].T}), rf"{GATE} is \(32, 12\).*\(12, 32\)"),
    (lambda arrays: arrays.update({GATE: np.full((12, 32), 0.1, np.float32)}), f"{GATE} .* loses"),
  ],
)
def test_tensors_that_do_not_fit_are_named(tmp_path, change, says):
  hf, arrays = imported(tmp_path)
  change(arrays)
  checkpoints.write_shards(hf, arrays)
  with pytest.raises(ValueError, match=says):
    convert.import_weights(hf, tmp_path / "f")
  assert not (tmp_path / "f").exists()


def test_a_tensor_in_two_shards_is_named_and_so_is_a_wrong_index(tmp_path):
  hf, arrays = imported(tmp_path)
  checkpoints.write_file(hf / "other.safetensors", {GATE: arrays[GATE]})
  with pytest.raises(ValueError, match=f"{GATE} is set twice, in model-"):
    checkpoint_reader.tensors(hf)
  listed = dict.fromkeys(arrays, "model-0.safetensors")
  (hf / checkpoint_reader.INDEX).write_text(json.dumps({"weight_map": listed}))
  with pytest.raises(ValueError, match=r"in model-0.safetensors; it is in no shard"):
    checkpoint_reader.tensors(hf)
  listed[GATE] = "gone.safetensors"
  (hf / checkpoint_reader.INDEX).write_text(json.dumps({"weight_map": listed}))
  with pytest.raises(ValueError, match=r"gone.safetensors, which is not there"):
    checkpoint_reader.tensors(hf)


def test_frequencies_among_the_tensors_are_passed_over(tmp_path):
  hf, arrays = imported(tmp_path)
  arrays["model.layers.0.self_attn.rotary_emb.inv_freq"] = np.zeros(4, np.float32)
  checkpoints.write_shards(hf, arrays)
  convert.import_weights(hf, tmp_path / "f")


def test_a_selection_bias_that_the_family_lacks_cannot_be_exported(tmp_path):
  hf, _ = imported(tmp_path)
  cfg = convert.import_weights(hf, tmp_path / "f")
  stored = dict(files.read(tmp_path / "f"))
  name = "moe_layers.moe.router_bias"
  stored[name] = np.ones_like(stored[name])
  checkpoints.write_file(tmp_path / "g", stored)
  with pytest.raises(ValueError, match=f"{name} is not zero, and a checkpoint of qwen3_moe has no"):
    convert.export_weights(tmp_path / "g", hf, tmp_path / "out")
  assert cfg.router == "softmax"


def test_weights_of_other_sizes_cannot_be_exported(tmp_path):
  hf, _ = imported(tmp_path)
  convert.import_weights(hf, tmp_path / "f")
  other = checkpoints.write_config(tmp_path / "other", checkpoints.QWEN3_MOE | {"vocab_size": 60})
  with pytest.raises(ValueError, match=r"embed is \(61, 32\); config.json asks for \(60, 32\)"):
    convert.export_weights(tmp_path / "f", other, tmp_path / "out")
  with pytest.raises(ValueError, match="would be overwritten"):
    convert.export_weights(tmp_path / "f", hf, hf)


@pytest.mark.parametrize("kind", KINDS)
def test_layouts_are_undone_by_their_inverses(kind, tmp_path):
  model = families.read(checkpoints.write_config(tmp_path, checkpoints.CONFIGS[kind]))
  shapes = {
    ".".join(k.key for k in path): leaf.shape
    for path, leaf in jax.tree.flatten_with_path(params_lib.abstract(model.cfg))[0]
  }
  for place in model.places.values():
    x = np.arange(math.prod(place.shape)).reshape(place.shape)
    part = np.zeros(shapes[place.path], np.int8)[place.index].shape
    np.testing.assert_array_equal(
      place.layout.to_theirs(place.layout.to_ours(x, part), place.shape), x
    )


def test_float32_weights_are_rounded_to_the_dtype_of_the_config(tmp_path):
  hf, _ = imported(tmp_path, checkpoints.QWEN3)
  cfg = convert.import_weights(hf, tmp_path / "f")
  params = params_lib.init(cfg, jax.random.key(0))
  folder = weight_files.save(params, cfg, tmp_path / "trained")
  convert.export_weights(folder / weight_files.WEIGHTS, hf, tmp_path / "out")
  found = checkpoint_reader.tensors(tmp_path / "out")["model.embed_tokens.weight"]
  np.testing.assert_array_equal(found, np.asarray(params["embed"]).astype(ml_dtypes.bfloat16))


def test_neighbouring_rotary_pairs_move_half_a_head_apart(tmp_path):
  hf, arrays = imported(tmp_path, checkpoints.DEEPSEEK)
  cfg = convert.import_weights(hf, tmp_path / "f")
  ours = files.read(tmp_path / "f")
  rotated = ours["moe_layers.attention.q_up"][0][:, 2, cfg.qk_nope_dim :]
  rows = arrays["model.layers.1.self_attn.q_b_proj.weight"][2 * 16 + 8 : 3 * 16].T
  np.testing.assert_array_equal(rotated[:, :4], rows[:, ::2])
  np.testing.assert_array_equal(rotated[:, 4:], rows[:, 1::2])
  key = arrays["model.layers.1.self_attn.kv_a_proj_with_mqa.weight"].T
  np.testing.assert_array_equal(ours["moe_layers.attention.kv_down"][0][:, :17], key[:, :17])
  np.testing.assert_array_equal(ours["moe_layers.attention.kv_down"][0][:, 20], key[:, 17])


def test_embeddings_that_a_prediction_module_repeats_must_be_the_trunks(tmp_path):
  hf, arrays = imported(tmp_path, checkpoints.DEEPSEEK)
  head = "model.layers.3.shared_head.head.weight"
  arrays[head] = arrays[head] + 1
  checkpoints.write_shards(hf, arrays)
  with pytest.raises(ValueError, match=f"{head} differs from lm_head.weight"):
    convert.import_weights(hf, tmp_path / "f")
  without = {name: x for name, x in arrays.items() if not name.startswith("model.layers.3.")}
  checkpoints.write_shards(hf, without)
  with pytest.raises(ValueError, match="set num_nextn_predict_layers=0"):
    convert.import_weights(hf, tmp_path / "f")
  checkpoints.write_config(hf, checkpoints.DEEPSEEK | {"num_nextn_predict_layers": 0})
  assert convert.import_weights(hf, tmp_path / "f").mtp_depth == 0


DEEPSEEK_671B = {
  "vocab_size": 129280,
  "hidden_size": 7168,
  "intermediate_size": 18432,
  "moe_intermediate_size": 2048,
  "num_hidden_layers": 61,
  "num_attention_heads": 128,
  "kv_lora_rank": 512,
  "q_lora_rank": 1536,
  "qk_rope_head_dim": 64,
  "v_head_dim": 128,
  "qk_nope_head_dim": 128,
  "n_routed_experts": 256,
  "n_shared_experts": 1,
  "num_experts_per_tok": 8,
  "n_group": 8,
  "topk_group": 4,
  "first_k_dense_replace": 3,
  "num_nextn_predict_layers": 0,
}
KIMI_1T = DEEPSEEK_671B | {
  "vocab_size": 163840,
  "num_attention_heads": 64,
  "n_routed_experts": 384,
  "n_group": 1,
  "topk_group": 1,
  "first_k_dense_replace": 1,
}


GPT_OSS_20B = {
  "vocab_size": 201088,
  "hidden_size": 2880,
  "intermediate_size": 2880,
  "num_hidden_layers": 24,
  "num_attention_heads": 64,
  "num_key_value_heads": 8,
  "head_dim": 64,
  "num_local_experts": 32,
  "num_experts_per_tok": 4,
  "layer_types": None,
}


def test_sizes_of_the_large_models_are_theirs():
  """Parameter counts that the model cards state."""
  qwen = checkpoints.QWEN3_MOE | {
    "vocab_size": 151936,
    "hidden_size": 2048,
    "num_hidden_layers": 48,
    "num_attention_heads": 32,
    "num_key_value_heads": 4,
    "head_dim": 128,
    "mlp_only_layers": [],
    "moe_intermediate_size": 768,
    "num_experts": 128,
    "num_experts_per_tok": 8,
  }
  cfg = families.qwen3_moe(qwen)
  selection_biases = cfg.num_moe_layers * cfg.num_experts
  assert params_lib.count(cfg) - selection_biases == 30_532_122_624  # Qwen3-30B-A3B
  deepseek = params_lib.count(families.deepseek_v3(checkpoints.DEEPSEEK | DEEPSEEK_671B))
  kimi = params_lib.count(families.deepseek_v3(checkpoints.DEEPSEEK | KIMI_1T))
  assert (round(deepseek / 1e9), round(kimi / 1e9)) == (671, 1026)
  small = params_lib.count(families.gpt_oss(checkpoints.GPT_OSS | GPT_OSS_20B))
  large = GPT_OSS_20B | {"num_hidden_layers": 36, "num_local_experts": 128}
  large = params_lib.count(families.gpt_oss(checkpoints.GPT_OSS | large))
  assert (round(small / 1e9, 2), round(large / 1e9, 2)) == (20.91, 116.83)
