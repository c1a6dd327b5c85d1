import ml_dtypes
import numpy as np
import pytest

from jaxrl_agents.hf import checkpoint_reader, convert, families, quantised
from tests.hf import checkpoints


def test_four_bit_floats_are_those_of_the_format():
  blocks = np.zeros((1, 2, 1, 16), np.uint8)
  blocks[0, 0, 0, :3] = 0x21, 0x7F, 0x98  # low bits first: 0.5 1 | -6 6 | -0 -0.5
  blocks[0, 1, 0, 15] = 0x40  # the last of the row: 2
  scales = np.array([[[127], [130]]], np.uint8)  # times 1 and 8
  out = quantised.from_mxfp4(blocks, scales)
  assert out.shape == (1, 32, 2) and out.dtype == ml_dtypes.bfloat16
  row = np.zeros(32)
  row[:6] = 0.5, 1, -6, 6, -0.0, -0.5
  np.testing.assert_array_equal(out[0, :, 0].astype(float), row)
  np.testing.assert_array_equal(out[0, :, 1].astype(float), [0] * 31 + [16])


def test_scales_of_blocks_range_from_tiny_to_huge():
  blocks = np.full((1, 1, 3, 16), 0x77, np.uint8)
  out = quantised.from_mxfp4(blocks, np.array([[[17, 127, 237]]], np.uint8))
  np.testing.assert_array_equal(out[0, ::32, 0].astype(float), [6 * 2.0**-110, 6, 6 * 2.0**110])


def test_eight_bit_floats_are_scaled_tile_by_tile():
  weight = np.array([[1, 2, 3], [-4, 0.5, 448]], ml_dtypes.float8_e4m3fn)
  scales = np.array([[2, 10], [1, 0.25]], np.float32)
  out = quantised.from_block_fp8(weight, scales, (1, 2))
  np.testing.assert_array_equal(out.astype(float), [[2, 4, 30], [-4, 0.5, 112]])


def eight_bit(folder):
  """The tiny DeepSeek with its expert weights in 8 bits, tiles of 8; the numbers they stand for."""
  arrays = checkpoints.write(folder, checkpoints.DEEPSEEK)
  config = {"quant_method": "fp8", "fmt": "e4m3", "weight_block_size": [8, 8]}
  checkpoints.write_config(folder, checkpoints.DEEPSEEK | {"quantization_config": config})
  plain = {}
  for name in [name for name in arrays if ".experts." in name]:
    small = arrays[name].astype(ml_dtypes.float8_e4m3fn)
    rows, columns = (-(-size // 8) for size in small.shape)
    scales = 2.0 ** np.arange(rows * columns, dtype=np.float32).reshape(rows, columns) / 16
    arrays |= {name: small, f"{name}_scale_inv": scales}
    plain[name] = (
      small.astype(np.float32)
      * scales.repeat(8, 0).repeat(8, 1)[: small.shape[0], : small.shape[1]]
    )
  checkpoints.write_shards(folder, arrays)
  return arrays, plain


def test_an_eight_bit_checkpoint_is_read_as_its_bfloat16_numbers(tmp_path):
  arrays, plain = eight_bit(tmp_path / "hf")
  convert.import_weights(tmp_path / "hf", tmp_path / "f")
  convert.export_weights(tmp_path / "f", tmp_path / "hf", tmp_path / "out")
  out = checkpoint_reader.tensors(tmp_path / "out")
  assert set(out) == {name for name in arrays if not name.endswith("_scale_inv")}
  for name, numbers in plain.items():
    assert out[name].dtype == ml_dtypes.bfloat16
    np.testing.assert_array_equal(out[name].astype(np.float32), numbers)
  assert "quantization_config" not in (tmp_path / "out" / "config.json").read_text()


def test_a_four_bit_checkpoint_is_read_as_the_bfloat16_one_that_it_stands_for(tmp_path):
  plain, packed = tmp_path / "plain", tmp_path / "packed"
  arrays = checkpoints.write(plain, checkpoints.GPT_OSS)
  quantised_arrays = dict(arrays)
  rng = np.random.default_rng(0)
  for name in [n for n in arrays if n.endswith(("experts.gate_up_proj", "experts.down_proj"))]:
    experts, columns, rows = arrays[name].shape
    codes = rng.integers(0, 16, (experts, rows, columns // 32, 32))
    scales = rng.integers(120, 130, codes.shape[:-1])
    numbers = quantised.FP4[codes] * 2.0 ** (scales[..., None] - 127)
    numbers = numbers.reshape(experts, rows, columns).swapaxes(1, 2)
    arrays[name] = numbers.astype(ml_dtypes.bfloat16)
    del quantised_arrays[name]
    pairs = codes[..., ::2] + 16 * codes[..., 1::2]
    quantised_arrays[f"{name}_blocks"] = pairs.astype(np.uint8)
    quantised_arrays[f"{name}_scales"] = scales.astype(np.uint8)
  checkpoints.write_shards(plain, arrays)
  quantisation = {"quantization_config": {"quant_method": "mxfp4"}}
  checkpoints.write_config(packed, checkpoints.GPT_OSS | quantisation)
  checkpoints.write_shards(packed, quantised_arrays)
  assert convert.import_weights(plain, tmp_path / "a") == convert.import_weights(
    packed, tmp_path / "b"
  )
  assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()


def test_scales_that_are_missing_are_named(tmp_path):
  name = "model.layers.1.mlp.experts.0.up_proj.weight"
  x = np.zeros((16, 8), ml_dtypes.float8_e4m3fn)
  fp8 = {"quantization_config": {"quant_method": "fp8", "weight_block_size": [8, 8]}}
  with pytest.raises(ValueError, match=rf"{name}_scale_inv is missing; .* one of \(2, 1\)"):
    checkpoint_reader.decoded({name: x}, fp8)
  with pytest.raises(ValueError, match=f"{name} is in 8 bits"):
    checkpoint_reader.decoded({name: x}, {})
  blocks = {"gate_up_proj_blocks": np.zeros((2, 4, 1, 16), np.uint8)}
  mxfp4 = {"quantization_config": {"quant_method": "mxfp4"}}
  with pytest.raises(ValueError, match=r"gate_up_proj_scales is missing.* \(2, 4, 1\)"):
    checkpoint_reader.decoded(blocks, mxfp4)
  both = blocks | {
    "gate_up_proj_scales": np.zeros((2, 4, 1), np.uint8),
    "gate_up_proj": np.zeros((2, 32, 4), np.float32),
  }
  with pytest.raises(ValueError, match="gate_up_proj is set twice"):
    checkpoint_reader.decoded(both, mxfp4)


INT4 = {
  "quant_method": "compressed-tensors",
  "format": "pack-quantized",
  "config_groups": {
    "group_0": {
      "targets": ["Linear"],
      "weights": {
        "num_bits": 4,
        "type": "int",
        "symmetric": True,
        "strategy": "group",
        "group_size": 4,
      },
    }
  },
}


def test_signed_four_bit_numbers_are_stored_with_eight_added_lowest_first():
  packed = np.array([[0x7654_3210, 0x8], [-1, 0xF]], np.int32)  # the ninth fills a second word
  scales = np.array([[1, 2, 0.5], [10, 10, 10]], ml_dtypes.bfloat16)
  out = quantised.from_packed_int4(packed, scales, 9)
  assert out.dtype == ml_dtypes.bfloat16
  first = [-8, -7, -6, -5 * 2, -4 * 2, -3 * 2, -2 * 0.5, -1 * 0.5, 0]
  np.testing.assert_array_equal(out.astype(float), [first, [70] * 9])


def test_the_language_of_kimi_k25_is_read_and_written_as_a_model_of_its_own(tmp_path):
  wrapped = tmp_path / "wrapped"
  arrays = checkpoints.write(tmp_path / "plain", checkpoints.KIMI)
  inside = dict(arrays)
  rng = np.random.default_rng(0)
  for name in [name for name in arrays if ".experts." in name]:
    rows, columns = arrays[name].shape
    codes = rng.integers(0, 16, (rows, columns))
    scales = rng.integers(1, 64, (rows, columns // 4)).astype(ml_dtypes.bfloat16)
    numbers = (codes - 8) * scales.astype(float).repeat(4, axis=1)
    arrays[name] = numbers.astype(ml_dtypes.bfloat16)
    del inside[name]
    padded = np.pad(codes, ((0, 0), (0, -columns % 8))).reshape(rows, -1, 8)
    words = (padded << np.arange(0, 32, 4)).sum(axis=-1).astype(np.uint32)
    inside |= {
      f"{name}_packed": words.view(np.int32),
      f"{name}_scale": scales,
      f"{name}_shape": np.array([rows, columns], np.int32),
    }
  checkpoints.write_shards(tmp_path / "plain", arrays)
  text = checkpoints.KIMI | {"dtype": "bfloat16", "quantization_config": INT4}
  vision = {"vision_tower.patch_embed.proj.weight": np.zeros((3, 2), np.float32)}
  config = {"model_type": "kimi_k25", "text_config": text, "vision_config": {}}
  checkpoints.write_config(wrapped, config)
  named = {f"language_model.{name}": x for name, x in inside.items()}
  checkpoints.write_shards(wrapped, vision | named)

  assert convert.import_weights(tmp_path / "plain", tmp_path / "a") == convert.import_weights(
    wrapped, tmp_path / "b"
  )
  assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()
  convert.export_weights(tmp_path / "b", wrapped, tmp_path / "out")
  assert families.read(tmp_path / "out").config["model_type"] == "kimi_k2"
  out = checkpoint_reader.tensors(tmp_path / "out")
  assert out.keys() == arrays.keys()
  assert all(out[name].tobytes() == x.tobytes() for name, x in arrays.items())


def test_packed_numbers_that_do_not_fit_their_shape_or_format_are_named():
  name = "model.layers.1.mlp.experts.0.up_proj.weight"
  found = {
    f"{name}_packed": np.zeros((2, 1), np.int32),
    f"{name}_shape": np.array([2, 16]),
    f"{name}_scale": np.zeros((2, 4), ml_dtypes.bfloat16),
  }
  with pytest.raises(ValueError, match=rf"{name}_packed is \(2, 1\); 2 rows of 16 numbers"):
    checkpoint_reader.decoded(found, {"quantization_config": INT4})
  del found[f"{name}_shape"]
  with pytest.raises(ValueError, match=f"{name}_shape is missing"):
    checkpoint_reader.decoded(found, {"quantization_config": INT4})
  other = INT4 | {"format": "nvfp4-pack-quantized"}
  with pytest.raises(ValueError, match=r"'nvfp4-pack-quantized'.* readable is 'pack-quantized'"):
    checkpoint_reader.decoded({}, {"quantization_config": other})


def test_other_number_formats_are_refused_by_name():
  with pytest.raises(ValueError, match="quant_method is 'awq'; readable are mxfp4"):
    checkpoint_reader.decoded({}, {"quantization_config": {"quant_method": "awq"}})
