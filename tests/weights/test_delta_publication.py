"""A chain of differences: bitwise, small, and every fault found, named and repaired."""

import resource
import shutil
import subprocess
import sys
import threading
import time

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.stats

from jaxrl_agents.full_disk import FullDiskError
from jaxrl_agents.weights import chain, manifest, store
from jaxrl_agents.weights.publisher import Publisher
from jaxrl_agents.weights.receiver import Receiver
from tests import forced_devices
from tests.runs.test_several import free_port

LAST = 5


def policy(version):
  """Weights that most of a step of 1e-6 leaves as they are, and a float32 router."""
  rng = np.random.default_rng(0)
  weights = {
    "embed": rng.normal(0, 0.02, (60, 40)),
    "layers": {"up": rng.normal(0, 0.02, (2, 30, 2, 20)), "router": rng.normal(0, 0.1, (2, 30, 4))},
  }
  for i in range(version):
    steps = np.random.default_rng(100 + i)
    weights = jax.tree.map(lambda w: w + steps.normal(0, 1e-5, w.shape), weights)  # noqa: B023
  cast = lambda path, w: jnp.asarray(w, jnp.float32 if "router" in str(path) else jnp.bfloat16)
  return jax.tree_util.tree_map_with_path(cast, weights)


def assert_bitwise(found, version):
  for a, b in zip(jax.tree.leaves(found), jax.tree.leaves(policy(version)), strict=True):
    assert a.dtype == b.dtype
    assert np.asarray(a).tobytes() == np.asarray(b).tobytes()


class Pair:
  """A publisher that is at a version, and a receiver of it."""

  def __init__(self, folder, last=1, anchor_every=25, timeout_s=20.0):
    self.folder = folder
    self.differences = manifest.differences(folder)
    self.publisher = Publisher(folder, anchor_every=anchor_every)
    self.publisher.__enter__()
    for version in range(last + 1):
      self.publisher.publish(policy(version), version)
    self.receiver = Receiver(folder, 0, policy(0), timeout_s=timeout_s)
    self.held = policy(0)

  def follow(self, version):
    self.held = self.receiver.swap(self.receiver.stage(version), self.held)
    assert_bitwise(self.held, version)


def test_weights_are_trained_on_and_donated_while_their_differences_are_written(tmp_path):
  """What is published is what they were as the publication began."""
  goes_on = threading.Event()
  written = manifest.differences(tmp_path)
  step = jax.jit(lambda weights: jax.tree.map(lambda w: 2 * w, weights), donate_argnums=0)
  slow = lambda name: goes_on.wait(60) if name == "differences begun" else None
  with Publisher(tmp_path, meet=slow) as publisher:
    publisher.publish(policy(0), 0)
    weights = policy(1)
    writer = threading.Thread(target=publisher.begin(weights, 1))
    writer.start()
    for _ in range(3):
      weights = step(weights)
    jax.block_until_ready(weights)
    assert writer.is_alive() and manifest.versions(written) == []
    goes_on.set()
    publisher.publish(policy(2), 2)  # waits for the one before
    writer.join(60)
  receiver = Receiver(tmp_path, 0, policy(0))
  held = receiver.swap(receiver.stage(1), policy(0))
  assert_bitwise(held, 1)
  assert_bitwise(receiver.swap(receiver.stage(2), held), 2)


@pytest.fixture
def pair(tmp_path):
  made = Pair(tmp_path, last=LAST)
  yield made
  made.publisher.__exit__()


def file_of(pair, version, kind="gaps"):
  place = manifest.files(pair.differences, version) / "part_0" / kind / "c"
  return next(p for p in place.rglob("*") if p.is_file())


def test_versions_follow_one_another_bitwise_and_a_late_receiver_takes_all_at_once(pair, capfd):
  assert manifest.versions(pair.folder) == [0]
  assert manifest.versions(pair.differences) == [1, 2, 3, 4, 5]
  pair.follow(1)
  pair.follow(2)
  late = Receiver(pair.folder, 0, policy(0))
  assert_bitwise(late.swap(late.stage(5), policy(0)), 5)
  pair.follow(5)
  for version in range(6):
    assert_bitwise(late.whole(late.read(version)), version)
  assert capfd.readouterr().err == ""
  with pytest.raises(FileNotFoundError, match="no weights of version 9"):
    late.read(9)


def test_staging_goes_on_while_earlier_versions_wait_to_be_swapped_in(pair):
  first, second = pair.receiver.stage(2), pair.receiver.stage(3)
  held = pair.receiver.swap(second, pair.receiver.swap(first, pair.held))
  assert_bitwise(held, 3)


def flip(pair):
  file = file_of(pair, 1)
  content = bytearray(file.read_bytes())
  content[len(content) // 2] ^= 0x10
  file.write_bytes(content)


def halve(pair):
  file = file_of(pair, 1)
  file.write_bytes(file.read_bytes()[: file.stat().st_size // 2])


def lose_a_file(pair):
  file_of(pair, 1, "signs").unlink()


def lose_all_files(pair):
  shutil.rmtree(manifest.files(pair.differences, 1))


def exchange(pair):
  """Files of another version."""
  shutil.rmtree(manifest.files(pair.differences, 1))
  shutil.copytree(manifest.files(pair.differences, 2), manifest.files(pair.differences, 1))


def halve_the_manifest(pair):
  place = manifest.path(pair.differences, 1)
  place.write_bytes(place.read_bytes()[:300])


@pytest.mark.parametrize(
  ("damage", "named"),
  [
    (flip, "differences of version 1: "),
    (halve, "differences of version 1: "),
    (lose_a_file, "embed, shard at [0, 0] of shape [60, 40], cannot be used"),
    (lose_all_files, "of part 0 cannot be opened"),
    (exchange, "differences of version 1: "),
    (halve_the_manifest, "manifest_v0000000001.json is damaged"),
  ],
)
def test_damaged_differences_are_named_and_the_publisher_writes_the_version_complete(
  tmp_path, capfd, damage, named
):
  pair = Pair(tmp_path, last=2)
  damage(pair)
  pair.follow(2)
  errors = capfd.readouterr().err
  assert "version 2 of the weights is read from a complete version: " in errors
  assert named in errors
  assert "version 2 is written complete, as a receiver asked" in errors
  assert manifest.versions(tmp_path) == [0, 2]
  assert not list(pair.differences.glob("wanted*"))
  pair.publisher.__exit__()


def test_a_lost_version_is_replaced_by_a_complete_one(pair, capfd):
  manifest.path(pair.differences, 3).unlink()
  pair.follow(2)
  pair.follow(5)
  assert "no weights of version 3" in capfd.readouterr().err
  assert manifest.versions(pair.folder) == [0, 5]


def test_differences_that_are_applied_twice_or_in_another_order_are_found(pair, capfd):
  one, two = pair.receiver.stage(1), pair.receiver.stage(2)
  held = pair.receiver.swap(two, pair.held)
  assert_bitwise(held, 2)
  assert "it leads from version 1, and 0 is held" in capfd.readouterr().err
  held = pair.receiver.swap(one, held)  # the older one, from the complete version 0
  assert_bitwise(held, 1)
  assert "it leads from version 0, and 2 is held" in capfd.readouterr().err
  assert_bitwise(pair.receiver.swap(one, held), 1)
  assert "it leads from version 0, and 1 is held" in capfd.readouterr().err


@pytest.mark.parametrize("really", [1, 2])
def test_a_receiver_that_is_wrong_about_what_it_holds_is_repaired_by_the_digest(
  pair, capfd, really
):
  """It holds `really` and takes it for version 0: the differences of 1 twice, or out of order."""
  held = pair.receiver.swap(pair.receiver.stage(1), policy(really))
  assert_bitwise(held, 1)
  assert "before it is not that of version 0 (its digest differs)" in capfd.readouterr().err


def test_a_flipped_bit_in_the_held_weights_is_found_and_its_tensor_named(pair, capfd):
  bits = np.asarray(pair.held["layers"]["up"]).view(np.uint16).copy()
  bits[1, 2, 1, 3] ^= 0x100
  pair.held["layers"]["up"] = jnp.asarray(bits.view(jnp.bfloat16))
  pair.follow(1)
  assert "layers.up before it is not that of version 0" in capfd.readouterr().err


def test_differences_of_other_weights_than_were_published_are_found_after_they_are_added(
  pair, capfd
):
  """Their files are whole, so only the digest afterwards can tell."""
  place = manifest.path(pair.differences, 2)
  read = manifest.read(pair.differences, 2)
  lie = [t if t.name != "embed" else replaced(t) for t in read.tensors]
  place.unlink()
  manifest.write(pair.differences, manifest.Manifest(2, 1, tuple(lie)))
  pair.follow(1)
  staged = pair.receiver.stage(2)
  with pytest.raises(
    FileNotFoundError, match="version 2 in .* cannot be rebuilt .* version 5 has come"
  ):
    pair.receiver.swap(staged, pair.held)
  assert "embed after it is not that of version 2" in capfd.readouterr().err


def replaced(tensor):
  return manifest.Tensor(
    tensor.name, tensor.shape, tensor.dtype, tensor.shards, tensor.before, (1, 2)
  )


def test_a_publisher_whose_copy_changed_in_memory_publishes_the_next_version_complete(pair, capfd):
  pair.publisher._held["embed"] = pair.publisher._held["embed"].at[3, 4].set(7.0)
  pair.publisher.publish(policy(6), 6)
  assert "embed of version 5 changed in memory: 6 is published complete" in capfd.readouterr().err
  assert manifest.versions(pair.folder) == [0, 6]
  pair.publisher.publish(policy(7), 7)
  pair.follow(7)


def test_files_of_a_publisher_that_died_before_its_manifest_are_replaced(tmp_path):
  left = manifest.files(manifest.differences(tmp_path), 1)
  left.mkdir(parents=True)
  (left / "part_0").write_text("half")
  pair = Pair(tmp_path, last=1)
  pair.follow(1)
  pair.publisher.__exit__()


def test_after_a_failed_publication_the_next_version_is_complete(pair):
  manifest.files(pair.differences, 6).write_text("in the way")
  with pytest.raises(OSError, match="v0000000006"):
    pair.publisher.publish(policy(6), 6)
  pair.publisher.publish(policy(7), 7)
  assert manifest.versions(pair.folder) == [0, 7]
  pair.follow(7)


def test_every_so_many_publications_one_is_complete_too_and_two_of_those_are_kept(tmp_path):
  pair = Pair(tmp_path, last=0, anchor_every=2)
  for version in range(1, 7):
    pair.publisher.publish(policy(version), version)
    deadline = time.monotonic() + 20
    while version % 2 == 0 and version not in manifest.versions(tmp_path):
      assert time.monotonic() < deadline
      time.sleep(0.01)
    pair.follow(version)  # by its differences all the same
  pair.publisher.__exit__()
  assert manifest.versions(tmp_path) == [4, 6]
  assert manifest.versions(pair.differences) == [5, 6]
  assert sorted(p.name for p in pair.differences.glob("v*")) == ["v0000000005", "v0000000006"]
  late = Receiver(tmp_path, 1, policy(0))
  assert_bitwise(late.swap(late.stage(6), policy(1)), 6)


def test_a_publisher_that_restarts_withdraws_what_came_later(pair):
  pair.publisher.restart(policy(3), 3)
  assert manifest.versions(pair.folder) == [0, 3]
  assert manifest.versions(pair.differences) == [1, 2]
  pair.publisher.publish(policy(4), 4)
  pair.follow(4)
  with pytest.raises(ValueError, match="version 4 after 4"):
    pair.publisher.publish(policy(4), 4)


def test_a_receiver_that_holds_a_withdrawn_version_reads_the_later_one_of_its_number(pair):
  """The learner was killed, goes on from version 3, and other weights become versions 4 and 5."""
  pair.follow(5)
  pair.publisher.restart(policy(3), 3)
  pair.publisher.publish(policy(8), 4)
  pair.publisher.publish(policy(9), 5)
  pair.held = pair.receiver.swap(pair.receiver.stage(5), pair.held)
  assert_bitwise(pair.held, 9)
  pair.publisher.publish(policy(10), 6)
  pair.held = pair.receiver.swap(pair.receiver.stage(6), pair.held)
  assert_bitwise(pair.held, 10)


def test_a_full_disk_is_named_hurts_no_version_and_the_next_one_is_complete(pair):
  limits = resource.getrlimit(resource.RLIMIT_FSIZE)
  resource.setrlimit(resource.RLIMIT_FSIZE, (256, limits[1]))
  try:
    with pytest.raises(FullDiskError, match=r"differences/v0*6 could not be written.*Free some"):
      pair.publisher.publish(policy(6), 6)
  finally:
    resource.setrlimit(resource.RLIMIT_FSIZE, limits)
  assert manifest.versions(pair.differences) == [1, 2, 3, 4, 5]
  pair.follow(5)
  pair.publisher.publish(policy(7), 7)
  assert manifest.versions(pair.folder) == [0, 7]
  pair.follow(7)


def test_a_version_that_several_receivers_ask_for_is_written_once_and_publishing_goes_on(pair):
  for _ in range(2):
    chain.ask_for(pair.folder, LAST)
    deadline = time.monotonic() + 20
    while chain.is_asked_for(pair.folder, LAST) and time.monotonic() < deadline:
      time.sleep(0.02)
    assert manifest.versions(pair.folder) == [0, LAST]
  pair.publisher.publish(policy(LAST + 1), LAST + 1)
  pair.follow(LAST + 1)


TWO = """
import pathlib, sys, time
import jax, jax.numpy as jnp, numpy as np
from jax.sharding import NamedSharding, PartitionSpec as P
from jaxrl_agents.learner import barriers
from jaxrl_agents.weights.publisher import Publisher
from tests.weights.test_delta_publication import policy

folder, address, number = pathlib.Path(sys.argv[1]), sys.argv[2], int(sys.argv[3])
jax.distributed.initialize(address, 2, number)
mesh = jax.make_mesh((2,), ("x",), axis_types=(jax.sharding.AxisType.Auto,))
def placed(version):
  place = lambda x: NamedSharding(mesh, P(*["x" if n == max(x.shape) else None for n in x.shape]))
  put = lambda x: jax.make_array_from_callback(x.shape, place(x), lambda i: np.asarray(x)[i])
  return jax.tree.map(put, policy(version))

with Publisher(folder, part=number, parts=2, meet=barriers.wait_for_all) as publisher:
  for version in (0, 1, 2):
    publisher.publish(placed(version), version)
  barriers.wait_for_all("published")
  (folder / f"published_{number}").touch()
  deadline = time.monotonic() + 120
  while not (folder / "go on").exists() and time.monotonic() < deadline:
    time.sleep(0.05)
  publisher.publish(placed(3), 3)
"""


@pytest.mark.slow
def test_two_processes_write_their_shards_of_a_version_that_a_receiver_asks_for(tmp_path):
  """And publish differences again afterwards."""
  command = [sys.executable, "-c", TWO, str(tmp_path), f"127.0.0.1:{free_port()}"]
  publishers = [
    subprocess.Popen([*command, str(i)], env=forced_devices.environment(1)) for i in range(2)
  ]
  try:
    until(lambda: all((tmp_path / f"published_{i}").exists() for i in range(2)))
    assert manifest.versions(tmp_path) == [0]
    receiver = Receiver(tmp_path, 0, policy(0), timeout_s=60.0)
    held = receiver.swap(receiver.stage(1), policy(0))
    for part in manifest.files(manifest.differences(tmp_path), 2).iterdir():
      shutil.rmtree(part)
    held = receiver.swap(receiver.stage(2), held)
    assert_bitwise(held, 2)
    assert manifest.versions(tmp_path) == [0, 2]
    assert not list(tmp_path.rglob("*ed_v*")) and not list(tmp_path.rglob("part_*.json"))
    (tmp_path / "go on").touch()
    assert [each.wait(60) for each in publishers] == [0, 0]
    assert_bitwise(receiver.swap(receiver.stage(3), held), 3)
    assert manifest.versions(tmp_path) == [0, 2]
  finally:
    for each in publishers:
      each.kill()


def until(happened, limit_s=100):
  deadline = time.monotonic() + limit_s
  while not happened():
    assert time.monotonic() < deadline
    time.sleep(0.05)


def test_a_version_that_the_learner_has_left_behind_is_missing_at_once(pair):
  halve(pair)  # a file of version 1
  began = time.monotonic()
  with pytest.raises(FileNotFoundError, match=f"version {LAST} has come"):
    pair.receiver.stage(1)
  assert time.monotonic() - began < 10


def test_a_version_that_is_deleted_while_it_is_read_is_missing_and_not_damaged(pair, monkeypatch):
  read = pair.receiver._changes

  def too_late(manifests):
    store.delete_before(LAST + 1, pair.differences)
    return read(manifests)

  monkeypatch.setattr(pair.receiver, "_changes", too_late)
  with pytest.raises(FileNotFoundError, match=f"no weights of version {LAST}"):
    pair.receiver.read(LAST)


def test_a_complete_version_that_is_deleted_while_it_is_staged_is_missing_and_not_damaged(
  pair, monkeypatch
):
  pair.publisher.restart(policy(LAST + 1), LAST + 1)
  fetch = store.fetch

  def too_late(*arguments):
    for version in (LAST + 2, LAST + 3):  # two complete versions are kept
      pair.publisher.restart(policy(version), version)
    return fetch(*arguments)

  monkeypatch.setattr(store, "fetch", too_late)
  began = time.monotonic()
  with pytest.raises(FileNotFoundError, match=f"version {LAST + 3} has come"):
    pair.receiver.stage(LAST + 1)
  assert time.monotonic() - began < 10


def test_a_disk_that_fails_between_publications_is_the_error_of_the_next_one(pair, monkeypatch):
  failed = threading.Event()

  def broken(folder, version):
    failed.set()
    raise OSError(116, "stale file handle")

  monkeypatch.setattr(chain, "is_asked_for", broken)
  assert failed.wait(20)
  with pytest.raises(OSError, match="stale file handle"):
    pair.publisher.publish(policy(LAST + 1), LAST + 1)


def test_a_request_that_nobody_answers_has_a_deadline(pair):
  pair.publisher.__exit__()
  shutil.rmtree(manifest.files(pair.differences, 5))
  pair.receiver._timeout_s = 0.3
  with pytest.raises(store.CorruptWeights, match=r"did not write it complete within 0\.3 s"):
    pair.receiver.stage(5)
  assert chain.is_asked_for(pair.folder, 5)


def test_a_receiver_of_another_policy_says_so(pair):
  other = policy(0) | {"embed": jnp.zeros((60, 41), jnp.bfloat16)}
  with pytest.raises(store.CorruptWeights, match=r"embed is .*60, 40.* it follows another policy"):
    Receiver(pair.folder, 0, other)._changes(chain.route(pair.folder, 0, 1))


def test_files_take_a_few_per_cent_and_little_more_than_the_entropy(tmp_path):
  rng = np.random.default_rng(0)
  master = rng.normal(0, 0.02, (1_000, 1_000)).astype(np.float32)
  step = 1e-6 * rng.normal(0, 1, master.shape).clip(-3, 3).astype(np.float32)
  old, new = ({"w": jnp.asarray(w, jnp.bfloat16)} for w in (master, master + step))
  with Publisher(tmp_path) as publisher:
    publisher.publish(old, 0)
    publisher.publish(new, 1)
  ordered = lambda tree: (lambda bits: np.where(bits >> 15, ~bits, bits | 0x8000))(
    np.asarray(tree["w"]).view(np.uint16)
  )
  counts = np.unique(ordered(new) - ordered(old), return_counts=True)[1]
  bound = counts.sum() * scipy.stats.entropy(counts, base=2) / 8
  stored = manifest.stored_bytes(tmp_path, 1)
  assert bound < stored < 1.15 * bound
  assert stored < 0.025 * new["w"].nbytes


PAIRS = """
import pathlib, random, sys
import jax, jax.numpy as jnp, numpy as np
from jax.sharding import NamedSharding, PartitionSpec as P
from jaxrl_agents.weights.publisher import Publisher
from jaxrl_agents.weights.receiver import Receiver

mesh = jax.make_mesh((2, 2, 2), ("x", "y", "z"), axis_types=(jax.sharding.AxisType.Auto,) * 3)
draws = random.Random(0)
rng = np.random.default_rng(0)
SHAPE, TENSORS, ROUNDS, VERSIONS = (8, 16, 8), 20, 5, 3
NAMES = [f"w{i}" for i in range(TENSORS)]

def spec():
  places = [[] for _ in SHAPE]
  for axis in "xyz":
    at = draws.randrange(len(SHAPE) + 1)
    if at < len(SHAPE):
      places[at].append(axis)
  return NamedSharding(mesh, P(*(tuple(axes) or None for axes in places)))

def bits(tree):
  return {name: np.asarray(x).tobytes() for name, x in tree.items()}

for number in range(ROUNDS):
  folder = pathlib.Path(sys.argv[1]) / str(number)
  sent, received = ({name: spec() for name in NAMES} for _ in range(2))
  master = rng.normal(0, 0.02, (TENSORS, *SHAPE))
  rounded = lambda: dict(zip(NAMES, master.astype(jnp.bfloat16), strict=True))
  with Publisher(folder) as publisher:
    publisher.publish(jax.device_put(rounded(), sent), 0)
    held = jax.device_put(rounded(), received)
    receiver = Receiver(folder, 0, held, places=received)
    for version in range(1, VERSIONS + 1):
      master += rng.normal(0, 1e-5, master.shape)
      publisher.publish(jax.device_put(rounded(), sent), version)
      held = receiver.swap(receiver.stage(version), held)
      assert {name: x.sharding for name, x in held.items()} == received
      assert bits(held) == bits(rounded()), (number, version)
assert bits(receiver.whole(receiver.read(VERSIONS))) == bits(held)
print(ROUNDS * TENSORS, "pairs")
"""


@pytest.mark.slow
def test_a_hundred_random_pairs_of_shardings_receive_bitwise_what_was_sent(tmp_path):
  result = subprocess.run(
    [sys.executable, "-c", PAIRS, str(tmp_path)],
    env=forced_devices.environment(8),
    capture_output=True,
    text=True,
    timeout=200,
  )
  assert result.stdout == "100 pairs\n", result.stdout + result.stderr[-3000:]
  assert "read from a complete version" not in result.stderr
