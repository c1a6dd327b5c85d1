"""Run by test_weights_on_a_mesh.py on 8 forced host devices: weights from a file onto a mesh."""

import pathlib
import sys
import threading
import time

import jax
import ml_dtypes
import numpy as np

from jaxrl_agents.hf import files
from jaxrl_agents.policy import params as params_lib
from jaxrl_agents.policy import sharding
from jaxrl_agents.policy.config import PolicyConfig
from jaxrl_agents.runs import weight_files

CFG = PolicyConfig(
  vocab_size=4096,
  embed_dim=512,
  num_layers=8,
  num_heads=8,
  num_kv_heads=4,
  head_dim=64,
  num_experts=8,
  experts_per_token=2,
  expert_ffw_dim=512,
)
MIB = 2**20


def write(folder):
  """Weights of CFG in bfloat16, each tensor a different ramp; {path: shape}."""
  leaves, _ = jax.tree.flatten_with_path(params_lib.abstract(CFG, "bfloat16"))
  arrays = {".".join(k.key for k in path): (leaf.shape, leaf.dtype) for path, leaf in leaves}
  folder.mkdir()
  for i, view in enumerate(files.create(folder / weight_files.WEIGHTS, arrays).values()):
    view[...] = (np.arange(view.size).reshape(view.shape) % (251 + i)).astype(view.dtype)
  weight_files.save_sizes(CFG, folder)


def own_mib():
  """Memory of this process that is not a mapped file."""
  status = pathlib.Path("/proc/self/status").read_text()
  return int(status.split("RssAnon:")[1].split()[0]) / 1024


class Peak:
  """The largest `own_mib` while it runs, looked at every millisecond."""

  def __enter__(self):
    self.start = self.mib = own_mib()
    self._running = True
    self._thread = threading.Thread(target=self._watch)
    self._thread.start()
    return self

  def _watch(self):
    while self._running:
      self.mib = max(self.mib, own_mib())
      time.sleep(0.001)

  def __exit__(self, *_):
    self._running = False
    self._thread.join()
    self.more = self.mib - self.start


def main(folder):
  write(folder)
  mesh = sharding.make_mesh(fsdp=2, expert=4)
  places = sharding.shardings(CFG, mesh)
  stored = files.read(folder / weight_files.WEIGHTS)
  largest = max(x.nbytes for x in stored.values()) / MIB
  total = sum(x.nbytes for x in stored.values()) / MIB
  jax.device_put(np.zeros(8), jax.devices()[0]).block_until_ready()
  with Peak() as peak:
    params = weight_files.load(str(folder), CFG, dtype="bfloat16", shardings=places)
  assert peak.more < total + 2 * largest + 16, (peak.more, total, largest)
  for path, leaf in jax.tree.flatten_with_path(params)[0]:
    name = ".".join(k.key for k in path)
    assert leaf.dtype == (np.float32 if "router" in name else ml_dtypes.bfloat16), name
    for shard in leaf.addressable_shards:
      np.testing.assert_array_equal(np.asarray(shard.data), stored[name][shard.index])
  same = jax.tree.map(lambda x, s: x.sharding.is_equivalent_to(s, x.ndim), params, places)
  assert all(jax.tree.leaves(same))
  down = params["moe_layers"]["moe"]["experts"]["down"]
  assert down.addressable_shards[0].data.shape == (8, 2, 512, 256)
  again = weight_files.save(params, CFG, folder / "again")
  wide = weight_files.load(str(again), CFG)["embed"]
  assert wide.dtype == np.float32
  np.testing.assert_array_equal(wide, stored["embed"].astype(np.float32))
  print(f"{total:.0f} MiB of weights, largest {largest:.0f}: {peak.more:.0f} MiB at the peak")


if __name__ == "__main__":
  main(pathlib.Path(sys.argv[1]))
