import json

import ml_dtypes
import numpy as np
import pytest
import safetensors.numpy

from jaxrl_agents.hf import files


def test_files_of_the_library_are_read_and_ours_are_read_by_it(tmp_path):
  arrays = {
    "b": np.arange(6, dtype=np.float32).reshape(2, 3),
    "a": np.arange(5, dtype=np.uint8),
    "empty": np.zeros((0, 3), np.float32),
  }
  safetensors.numpy.save_file(arrays, tmp_path / "theirs.safetensors")
  theirs = files.read(tmp_path / "theirs.safetensors")
  views = files.create(
    tmp_path / "ours.safetensors", {n: (x.shape, x.dtype) for n, x in arrays.items()}
  )
  for name, view in views.items():
    view[...] = arrays[name]
  ours = safetensors.numpy.load_file(tmp_path / "ours.safetensors")
  assert theirs.keys() == ours.keys() == arrays.keys()
  for name, expected in arrays.items():
    for found in (theirs[name], ours[name]):
      np.testing.assert_array_equal(found, expected)
      assert found.dtype == expected.dtype


def test_bfloat16_keeps_its_bits(tmp_path):
  x = np.arange(7).astype(ml_dtypes.bfloat16)
  files.create(tmp_path / "f", {"x": (x.shape, x.dtype)})["x"][...] = x
  assert files.read(tmp_path / "f")["x"].tobytes() == x.tobytes()


def test_what_is_read_cannot_be_written(tmp_path):
  files.create(tmp_path / "f", {"x": ((2,), np.float32)})
  with pytest.raises(ValueError, match="read-only"):
    files.read(tmp_path / "f")["x"][0] = 1


@pytest.mark.parametrize(
  ("entry", "says"),
  [
    ({"dtype": "F4", "shape": [1], "data_offsets": [0, 1]}, "x has dtype F4"),
    ({"dtype": "F32", "shape": [2], "data_offsets": [0, 4]}, "bytes 0 to 4 of 4"),
    ({"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}, "bytes 0 to 8 of 4"),
  ],
)
def test_a_header_that_does_not_fit_its_data_is_an_error_that_names_the_tensor(
  tmp_path, entry, says
):
  header = json.dumps({"x": entry}).encode()
  (tmp_path / "f").write_bytes(len(header).to_bytes(8, "little") + header + b"\0" * 4)
  with pytest.raises(ValueError, match=says):
    files.read(tmp_path / "f")


def test_another_kind_of_file_is_refused(tmp_path):
  (tmp_path / "f").write_bytes(b"version https://git-lfs.github.com/spec/v1")
  with pytest.raises(ValueError, match="not a safetensors file"):
    files.read(tmp_path / "f")
