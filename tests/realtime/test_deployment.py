"""Deployment: stages, arms, roll-backs, and processes that die between two writes."""

import hashlib
import json
import os
import random

import pytest

from jaxrl_agents.realtime import deployment
from jaxrl_agents.realtime.arms import CANARY, STABLE, arm, place, user_hash
from jaxrl_agents.realtime.deployment import Deployer
from jaxrl_agents.weights import manifest as manifest_lib
from jaxrl_agents.weights.manifest import Manifest, Shard, Tensor

USERS = [user_hash(f"user {i}", b"k" * 32) for i in range(4_000)]


def publish(folder, version):
  """A version of one tensor, whose file says which."""
  files = manifest_lib.files(folder, version) / "w" / "c"
  files.mkdir(parents=True)
  (files / "0").write_text(f"weights {version}")
  tensor = Tensor("w", (1,), "float32", (Shard((0,), (1,), "0"),))
  manifest_lib.write(folder, Manifest(version, None, (tensor,)))


def content(folder, version):
  return (manifest_lib.files(folder, version) / "w" / "c" / "0").read_text()


@pytest.fixture
def folder(tmp_path):
  for version in range(4):
    publish(tmp_path, version)
  return tmp_path


def test_a_users_place_is_a_keyed_digest_and_a_user_stays_in_the_canary():
  assert user_hash("a", b"1") != user_hash("a", b"2") and len(user_hash("a", b"1")) == 32
  raw = hashlib.blake2b(f"7\0{USERS[0]}".encode(), digest_size=8).digest()
  assert place(USERS[0], 7) == int.from_bytes(raw, "little") / 2**64
  small = {user for user in USERS if arm(user, 7, 0.05) == CANARY}
  half = {user for user in USERS if arm(user, 7, 0.5) == CANARY}
  assert small < half
  assert len(small) == pytest.approx(200, abs=50) and len(half) == pytest.approx(2_000, abs=110)
  other = {user for user in USERS if arm(user, 8, 0.05) == CANARY}
  assert len(small & other) < 30  # 10 of 4,000 by chance


def test_a_file_of_before_versions_were_watched_on_is_read(folder):
  content = deployment._to_json(Deployer(folder).now)
  del content["replaced"]
  whole = {"sha256": deployment._digest(content), "deployment": content}
  (folder / deployment.FILE).write_text(json.dumps(whole))
  assert Deployer(folder).now.replaced is None


def test_a_candidate_goes_from_shadow_to_all_users(folder):
  deployer = Deployer(folder)
  deployer.propose(1)
  shares = [deployer.now.share]
  assert {deployer.now.arm(user) for user in USERS} == {STABLE}
  for _ in range(2):
    deployer.advance()
    shares.append(deployer.now.share)
    exposed = sum(deployer.now.arm(user) == CANARY for user in USERS) / len(USERS)
    assert exposed == pytest.approx(shares[-1], abs=0.03)
    assert deployer.now.served(CANARY).version == 1 and deployer.now.served(STABLE).version == 0
  deployer.advance()
  assert shares == [0.0, 0.05, 0.5] and deployer.now.stable.version == 1
  assert deployer.now.share == 0.0 and deployer.now.history == (0, 1)
  with pytest.raises(ValueError, match="no candidate is being tried"):
    deployer.advance()
  deployer.propose(2)
  with pytest.raises(ValueError, match="version 2 is being tried; advance it or roll it back"):
    deployer.propose(3)


def test_a_canary_that_is_rolled_back_is_quarantined_and_its_number_is_used_up(folder):
  deployer = Deployer(folder)
  deployer.propose(1)
  deployer.advance()
  deployer.roll_back()
  now = deployer.now
  assert (now.stable.version, now.candidate, now.quarantined) == (0, None, (1,))
  with pytest.raises(ValueError, match="version 1 is not new"):
    deployer.propose(1)
  deployer.propose(2)
  assert deployer.now.age(0) == 0


def test_after_a_full_deployment_the_old_weights_come_back_under_a_new_number(folder):
  deployer = Deployer(folder)
  deployer.propose(1)
  for _ in range(3):
    deployer.advance()
  assert deployer.now.age(0) == 1
  deployer.roll_back()
  now = deployer.now
  assert now.stable.version == 4 and now.quarantined == (1,)
  assert content(folder, 4) == "weights 0"
  tensors = lambda version: manifest_lib.read(folder, version).tensors
  assert tensors(4) == tensors(0)
  assert (now.age(0), now.age(4)) == (0, 0)  # the same weights
  publish(folder, 5)
  deployer.propose(5)
  for _ in range(3):
    deployer.advance()
  assert (deployer.now.age(0), deployer.now.age(4), deployer.now.age(5)) == (1, 1, 0)
  deployer.roll_back()
  with pytest.raises(ValueError, match="there is nothing to undo"):
    deployer.roll_back()


def test_the_file_is_read_back_and_damage_is_named(folder):
  deployer = Deployer(folder)
  deployer.propose(1)
  deployer.advance()
  assert Deployer(folder).now == deployer.now == deployment.read(folder)
  place = folder / deployment.FILE
  whole = json.loads(place.read_text())
  whole["deployment"]["stage"] = 2
  place.write_text(json.dumps(whole))
  with pytest.raises(ValueError, match="does not have its digest"):
    deployment.read(folder)


def test_weights_that_were_published_again_are_not_served(folder):
  Deployer(folder)
  manifest_lib.write(folder, Manifest(0, None, (), created_s=1.0))
  with pytest.raises(ValueError, match="somebody published it again"):
    Deployer(folder)


class Killed(BaseException):
  """The process died."""


class DiesAt:
  """Calls of the system that change files, of which the one of this number and later ones die."""

  NAMES = ("replace", "fsync", "link", "mkdir")

  def __init__(self, number, patch):
    self.left = number
    for name in self.NAMES:
      patch.setattr(os, name, self.counted(getattr(os, name)))

  def counted(self, real):
    def call(*args, **kwargs):
      self.left -= 1
      if self.left < 0:
        raise Killed
      return real(*args, **kwargs)

    return call


def test_a_step_that_dies_at_any_write_leaves_the_deployment_before_or_after_it(folder):
  steps = [lambda d: d.propose(max(manifest_lib.versions(folder)))]
  steps += [Deployer.advance, Deployer.advance, Deployer.advance, Deployer.roll_back]
  rng, deaths = random.Random(0), 0
  Deployer(folder)
  for step in steps * 4:
    if step is steps[0]:
      publish(folder, max(manifest_lib.versions(folder)) + 1)
    before, deployer = deployment.read(folder), Deployer(folder)
    with pytest.MonkeyPatch.context() as patch:
      DiesAt(rng.randrange(6), patch)
      try:
        step(deployer)
      except Killed:
        deaths += 1
    deployer = Deployer(folder)  # checks what it names
    if deployer.now == before:
      step(deployer)
    assert content(folder, deployer.now.stable.version).startswith("weights")
  assert deaths >= 5
