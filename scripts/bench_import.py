"""How fast a Hugging Face checkpoint is imported, against a plain copy of the same bytes.

    python scripts/bench_import.py --gigabytes=2 --rounds=3

Makes a synthetic checkpoint of that size in a temporary folder (of --folder), then times by turns
the import and a plain read, cast and write of every tensor in the order of the file, without a
change of layout. Each starts with the checkpoint out of the system's cache and ends when its output
is on the disk. Prints the seconds of each round, how many of them the processor worked, and the
ratio plain / import of the medians: 1 is disk speed. --warm leaves the checkpoint in the cache and
does not wait for the disk.
"""

import contextlib
import json
import os
import pathlib
import statistics
import tempfile
import time

import numpy as np
from absl import flags

from jaxrl_agents.hf import checkpoint_reader, convert, families, files
from jaxrl_agents.runs import entry_point

SHARDS = 4

_GIGABYTES = flags.DEFINE_float("gigabytes", 2.0, "size of the checkpoint, 10^9 bytes")
_ROUNDS = flags.DEFINE_integer("rounds", 3, "turns of each")
_EXPERTS = flags.DEFINE_integer("experts", 16, "experts of a layer; 0 for a dense model")
_FOLDER = flags.DEFINE_string("folder", None, "where to make the temporary folder")
_WARM = flags.DEFINE_bool("warm", False, "leave files in the system's cache")


def settings(gigabytes: float, experts: int) -> dict:
  """config.json of a Qwen3 of about that size in bfloat16: layers until it is reached."""
  width, inner = 1024, 768 if experts else 3072
  config = {
    "model_type": "qwen3_moe" if experts else "qwen3",
    "vocab_size": 32_768,
    "hidden_size": width,
    "num_attention_heads": 16,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "hidden_act": "silu",
    "attention_bias": False,
    "use_sliding_window": False,
    "rms_norm_eps": 1e-6,
    "rope_theta": 1e6,
    "intermediate_size": inner,
    "tie_word_embeddings": False,
    "dtype": "bfloat16",
  }
  if experts:
    config |= {
      "moe_intermediate_size": inner,
      "num_experts": experts,
      "num_experts_per_tok": 2,
      "norm_topk_prob": True,
      "decoder_sparse_step": 1,
      "mlp_only_layers": [],
    }
  layer = width * 128 * (2 * 16 + 2 * 8) + max(experts, 1) * 3 * width * inner
  outside = 2 * 32_768 * width
  return config | {"num_hidden_layers": max(1, round((gigabytes * 5e8 - outside) / layer))}


def write_checkpoint(folder: pathlib.Path, config: dict) -> int:
  """Writes config.json and shards of random numbers; returns the bytes of the tensors."""
  folder.mkdir()
  (folder / "config.json").write_text(json.dumps(config))
  model = families.read(folder)
  shapes = {name: place.shape for name, place in model.places.items()}
  dtype = convert.DTYPES[model.dtype]
  noise = np.random.default_rng(0).normal(size=1 << 20).astype(dtype)
  names, written = list(shapes), 0
  for shard in range(SHARDS):
    part = names[shard * len(names) // SHARDS : (shard + 1) * len(names) // SHARDS]
    file = folder / f"model-{shard + 1:05d}.safetensors"
    for view in files.create(file, {name: (shapes[name], dtype) for name in part}).values():
      view.reshape(-1)[...] = np.resize(noise, view.size)
      written += view.nbytes
  return written


def plain_copy(folder: pathlib.Path, out: pathlib.Path) -> None:
  """Every tensor read, cast to the dtype of config.json, and written as it is."""
  dtype = convert.DTYPES[families.read(folder).dtype]
  found = checkpoint_reader.tensors(folder)
  views = files.create(out, {name: (view.shape, dtype) for name, view in found.items()})
  for name, view in found.items():
    views[name][...] = view.astype(dtype)


def timed(copy, folder: pathlib.Path, out: pathlib.Path, warm: bool) -> tuple[float, float]:
  """Seconds of `copy(folder, out)`, and those of the processor; the output is removed."""
  if not warm:
    os.sync()
    for file in folder.iterdir():
      with file.open("rb") as opened:
        os.posix_fadvise(opened.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
  began, worked = time.perf_counter(), time.process_time()
  copy(folder, out)
  if not warm:
    with out.open("rb") as opened:
      os.fsync(opened.fileno())
  seconds = time.perf_counter() - began, time.process_time() - worked
  out.unlink()
  return seconds


def main() -> None:
  """Makes the checkpoint, takes turns, prints what they took."""
  copies = {"import": convert.import_weights, "plain": plain_copy}
  with contextlib.ExitStack() as stack:
    temporary = stack.enter_context(tempfile.TemporaryDirectory(dir=_FOLDER.value))
    folder = pathlib.Path(temporary) / "hf"
    size = write_checkpoint(folder, settings(_GIGABYTES.value, _EXPERTS.value))
    print(f"{size / 1e9:.2f} GB, {len(checkpoint_reader.tensors(folder)):,} tensors")
    took: dict[str, list[float]] = {name: [] for name in copies}
    for _ in range(_ROUNDS.value):
      for name, copy in copies.items():
        seconds, worked = timed(copy, folder, pathlib.Path(temporary) / name, _WARM.value)
        took[name].append(seconds)
        rate = f"{size / seconds / 1e6:5.0f} MB/s"
        print(f"{name:6} {seconds:7.2f} s {rate}, processor {worked:.2f} s", flush=True)
  ratio = statistics.median(took["plain"]) / statistics.median(took["import"])
  print(f"ratio {ratio:.2f} (plain / import, medians of {_ROUNDS.value})")


if __name__ == "__main__":
  entry_point.run(main)
