"""Names of topologies and meshes, and the numbers of chips."""

import pytest

from jaxrl_agents.config import MeshConfig
from jaxrl_agents.planning import chips, layout, topology
from tests.policy import tiny


def test_a_topology_has_the_chips_of_its_sides_and_the_devices_that_jax_shows():
  slice_of_v5p = topology.parse("v5p:8x16x16")
  assert (slice_of_v5p.num_chips, slice_of_v5p.num_devices) == (2048, 2048)
  assert topology.parse("tpu7x:4x4x8").num_devices == 256
  assert topology.parse("h200:8").num_chips == topology.parse("h100:8").num_chips == 8


@pytest.mark.parametrize(
  ("name", "message"),
  [
    ("v5q:4x4", "no chip 'v5q', did you mean 'v5"),
    ("v5p", "is not CHIP:SIDES; write for example v5p:4x4x8"),
    ("v5p:4xx4", "is not CHIP:SIDES"),
    ("v5p:4x4", "v5p slices have 3 sides, e.g. v5p:4x4x8; got 4x4"),
    ("v6e:32x32", "1024 chips; v6e has at most 256"),
    ("h200:16", "16 chips; h200 has at most 8"),
  ],
)
def test_what_is_no_topology_is_refused_with_the_remedy(name, message):
  with pytest.raises(ValueError, match=message):
    topology.parse(name)


def test_a_missing_libtpu_is_an_error_with_the_line_that_installs_it(monkeypatch):
  monkeypatch.setattr(topology.importlib.util, "find_spec", lambda name: None)
  with pytest.raises(ValueError, match=r"pip install -e '.\[libtpu\]', or try --topology=cpu:2"):
    topology.devices(topology.parse("v5e:2x2"))


def test_peaks_are_products_per_cycle_at_the_clock_within_one_percent():
  """2 FLOPs of each cell of the matrix units: 4 of 128^2 a core of v5, 4 of 256^2 of the later."""
  cells = {"v5e": 4 * 128**2, "v5p": 8 * 128**2, "v6e": 4 * 256**2, "tpu7x": 8 * 256**2}
  for name, number in cells.items():
    assert chips.CHIPS[name].hz * 2 * number == pytest.approx(chips.CHIPS[name].flops_per_s, 0.01)


def test_experts_are_split_as_far_as_they_divide_and_the_rest_over_the_width():
  cfg = tiny.GQA  # 8 experts at most, a width of 16
  found = layout.suggested(cfg, 8)
  assert found["expert"] == min(cfg.num_experts, 8)
  assert found["data"] * found["fsdp"] * found["expert"] == 8
  assert layout.describe({"data": 1, "fsdp": 4, "expert": 2}) == "fsdp=4,expert=2"


@pytest.mark.parametrize(
  ("text", "message"),
  [
    ("fsdp=4,expert=4", "16 places for 8 devices"),
    ("fspd=8", "'fspd=8' in the mesh 'fspd=8' is not AXIS=SIZE; axes are data"),
    ("fsdp=x", "is not AXIS=SIZE"),
    ("fsdp=²", "is not AXIS=SIZE"),
    ("fsdp=2,fsdp=8", "names fsdp twice; write one size"),
  ],
)
def test_a_mesh_that_does_not_hold_the_devices_is_refused(text, message):
  with pytest.raises(ValueError, match=message):
    layout.sizes(text, tiny.GQA, 8, MeshConfig())
