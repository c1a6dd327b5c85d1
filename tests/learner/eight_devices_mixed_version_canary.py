"""Run by test_mixed_version_canary.py on 8 forced host devices: caches that are built again on a
mesh, from weights that were published, give the log-probabilities of one device.
"""

import dataclasses
import math
import pathlib
import tempfile

import jax
import numpy as np
import pytest

from jaxrl_agents.learner import canary, mixed_version_canary
from jaxrl_agents.policy import params as params_lib
from jaxrl_agents.runs import cores, setup
from jaxrl_agents.runs.published_weights import Published
from jaxrl_agents.weights import store
from tests.learner.test_mixed_version_canary import FIRST, SECOND, THIRD, made_engine, sampled
from tests.policy import tiny
from tests.runs.small_run import configured

MIXTURE = {"num_layers": 2, "num_dense_layers": 0, "dense_ffw_dim": 0, "mtp_depth": 0}
GQA = dataclasses.replace(tiny.GQA, vocab_size=40, **MIXTURE)
MLA = dataclasses.replace(tiny.MLA, vocab_size=40, **MIXTURE)
LEARNER = {"row_tokens": 40, "rows_per_microbatch": 8, "canary_bound": 1e-4}
PLACES = [
  (GQA, {"mesh": {"data": 8}}),
  (GQA, {"mesh": {"fsdp": 2, "expert": 2, "tensor": 2}}),
  (MLA, {"mesh": {"data": 2, "expert": 2, "context": 2}}),
  (GQA, {"learner": {"split_cores": True}}),
]


def published_weights(cfg, folder):
  """Weights of three versions, and those of a wrong second one; each set in a folder of its own."""
  made = lambda seed: params_lib.init(cfg, jax.random.key(seed))
  right = {version: made(version) for version in (FIRST, SECOND, THIRD)}
  for name, weights in {"right": right, "wrong": right | {SECOND: made(9)}}.items():
    for version, params in weights.items():
      store.publish(params, version, folder / name, keep=3)
  return right


def gaps(rollouts, config, folder):
  """|log pi - log mu| of the tokens that were sampled from several versions; devices of weights."""
  with setup.devices(config), setup.learner_devices(config):
    published = Published(config, folder)
    found, versions = mixed_version_canary.gaps(
      rollouts,
      published,
      cfg=config.policy.model,
      temperature=1.0,
      rows=config.learner.rows_per_microbatch,
      row_tokens=config.learner.row_tokens,
    )
    devices = len(published(FIRST)["embed"].sharding.device_set)
  assert versions == (FIRST, SECOND, THIRD)
  return found, devices


def check(cfg, places, folder):
  right = published_weights(cfg, folder)
  rollouts = sampled(made_engine(cfg, right), right)
  alone = configured(policy={"model": cfg}, learner=LEARNER)
  expected = {name: gaps(rollouts, alone, folder / name)[0] for name in ("right", "wrong")}
  assert len(expected["right"]) > 16 and expected["wrong"].max() > 0.1
  for sections in places:
    learner = LEARNER | sections.get("learner", {})
    config = configured(policy={"model": cfg}, **sections | {"learner": learner})
    for name, wanted in expected.items():
      found, devices = gaps(rollouts, config, folder / name)
      assert devices == (8 if "mesh" in sections else math.gcd(8, cores.usable())), sections
      np.testing.assert_allclose(found, wanted, atol=1e-5, err_msg=f"{sections} {name}")
    with setup.devices(config), setup.learner_devices(config):
      with pytest.raises(canary.CanaryError, match="at version 3, then 5, then 6"):
        canary.of_mixed_caches(
          rollouts,
          Published(config, folder / "wrong"),
          cfg=cfg,
          learner=config.learner,
          temperature=1.0,
        )


def main():
  with tempfile.TemporaryDirectory() as folder:
    for name, cfg in {"gqa": GQA, "mla": MLA}.items():
      check(cfg, [sections for one, sections in PLACES if one is cfg], pathlib.Path(folder) / name)
  print("eight devices equal one")


if __name__ == "__main__":
  main()
