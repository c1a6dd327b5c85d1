"""Versions of weights with one number in them, for parts of the simulation without a policy."""

import pathlib

from jaxrl_agents.weights import manifest as manifest_lib
from jaxrl_agents.weights.manifest import Manifest, Shard, Tensor


def publish(folder: pathlib.Path, version: int) -> None:
  """Publishes a version whose file says its number."""
  files = manifest_lib.files(folder, version) / "number"
  files.mkdir(parents=True, exist_ok=True)
  (files / "0").write_text(str(version))
  tensor = Tensor("number", (1,), "float32", (Shard((0,), (1,), "0"),))
  manifest_lib.write(folder, Manifest(version, None, (tensor,)))
