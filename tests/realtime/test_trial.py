"""Trials of candidates: what is compared, when a stage ends, and when the candidate goes."""

import pytest

from jaxrl_agents.realtime import feedback
from jaxrl_agents.realtime.arms import CANARY, STABLE
from jaxrl_agents.realtime.deployment import Deployer
from jaxrl_agents.realtime.feedback import Event, Join, Kind
from jaxrl_agents.realtime.trial import Rules, Trial
from tests.realtime.logged import record
from tests.realtime.test_deployment import publish

KINDS = {"persist": Kind(10.0)}
RULES = Rules(sessions=(40, 80))


@pytest.fixture
def deployer(tmp_path):
  publish(tmp_path, 0)
  publish(tmp_path, 1)
  made = Deployer(tmp_path)
  made.propose(1)
  made.advance()
  return made


class Traffic:
  """Sessions of one call, one after another, each of another user unless named."""

  def __init__(self, deployer):
    self.join, self.count = Join(KINDS), 0
    now = deployer.now
    self.digests = {CANARY: now.candidate.digest, STABLE: now.stable.digest}

  def session(self, arm, value, *, user="", time_s=0.0):
    self.count += 1
    name = f"c{self.count}"
    fields = {"arm": arm, "digest": self.digests[arm], "time_s": time_s}
    self.join.apply(record(name, name, user or name, **fields))
    self.join.apply({"kind": feedback.DELIVERED, "calls": [name]})
    self.join.apply(Event(name, name, "", user or name, "persist", value, time_s + 1).record())


def test_a_candidate_that_is_as_good_is_widened_when_enough_rewards_are_known(deployer):
  traffic = Traffic(deployer)
  trial = Trial(deployer, traffic.join, RULES)
  for i in range(80):
    traffic.session(CANARY, float(i % 2))
    traffic.session(STABLE, float(i % 2))
  assert not trial.step(10.0)  # the windows are open
  assert trial.compared.canary.n == 0
  assert trial.step(10.5) and deployer.now.share == 0.5
  assert trial.step(10.5) and deployer.now.stable.version == 1
  assert not trial.step(10.5) and not trial.rolled_back
  assert trial.compared.stable.n == trial.compared.canary.n == 80


def test_a_candidate_that_is_worse_is_rolled_back_even_after_it_became_stable(deployer):
  traffic = Traffic(deployer)
  trial = Trial(deployer, traffic.join, Rules(sessions=(1, 1)))
  traffic.session(CANARY, 1.0)
  while deployer.now.trial:
    assert trial.step(10.5)
  for _ in range(60):  # rewards of the time before come late
    traffic.session(CANARY, 0.0, time_s=1.0)
    traffic.session(STABLE, 1.0, time_s=1.0)
  assert trial.step(20.0) and trial.rolled_back
  assert deployer.now.quarantined == (1,) and deployer.now.stable.version == 2
  assert not trial.step(30.0)


@pytest.mark.parametrize("refused", [True, False])
def test_late_rewards_undo_a_version_though_another_one_was_proposed_since(
  deployer, refused, tmp_path
):
  traffic = Traffic(deployer)
  trial = Trial(deployer, traffic.join, Rules(sessions=(1, 1)))
  traffic.session(CANARY, 1.0)
  while deployer.now.trial:
    assert trial.step(10.5)
  publish(tmp_path, 2)
  deployer.propose(2)
  for _ in range(60):
    traffic.session(CANARY, 0.0, time_s=1.0)
    traffic.session(STABLE, 1.0, time_s=1.0)
  assert not trial.step(20.0)  # the trial of another candidate is not touched
  assert deployer.now.trial.version == 2
  if not refused:
    return
  deployer.roll_back()  # the gate refuses it
  assert trial.step(20.0) and trial.rolled_back
  assert deployer.now.quarantined == (2, 1) and deployer.now.stable.version == 3
  assert deployer.now.candidate is None


def test_one_user_cannot_decide(deployer):
  traffic = Traffic(deployer)
  trial = Trial(deployer, traffic.join, RULES)
  for _ in range(200):
    traffic.session(CANARY, 0.0, user="flood")
    traffic.session(STABLE, 1.0)
  trial.step(10.5)
  assert trial.compared.canary.n == 3 and not trial.rolled_back


def test_a_user_who_was_counted_with_the_stable_policy_counts_in_the_canary_when_it_is_widened(
  deployer,
):
  traffic = Traffic(deployer)
  trial = Trial(deployer, traffic.join, Rules(sessions=(1, 4)))
  traffic.session(CANARY, 1.0, user="first")
  for i in range(30):
    traffic.session(STABLE, 1.0, user=f"user {i % 3}")
  assert trial.step(20.0) and deployer.now.share == 0.5
  for i in range(3):
    traffic.session(CANARY, 1.0, user=f"user {i}", time_s=30.0)
  assert trial.step(50.0) and deployer.now.trial is None
  assert (trial.compared.stable.n, trial.compared.canary.n) == (9, 4)


def test_sessions_before_the_trial_and_of_other_weights_are_not_compared(deployer):
  traffic = Traffic(deployer)
  for _ in range(5):
    traffic.session(STABLE, 1.0, time_s=1.0)
  traffic.session(CANARY, 1.0, time_s=2.0)
  traffic.session(STABLE, 1.0, time_s=3.0)
  traffic.digests[STABLE] = "of other weights"
  traffic.session(STABLE, 1.0, time_s=3.0)
  trial = Trial(deployer, traffic.join, RULES)
  trial.step(20.0)
  assert (trial.compared.stable.n, trial.compared.canary.n) == (1, 1)
  assert len(trial.exposed) == 1


def test_a_trial_that_is_made_again_knows_what_it_knew(deployer):
  traffic = Traffic(deployer)
  for i in range(30):
    traffic.session(CANARY, float(i % 3 == 0))
    traffic.session(STABLE, float(i % 2))
  first, again = (Trial(deployer, traffic.join, RULES) for _ in range(2))
  first.step(10.5)
  again.step(10.5)
  assert first.compared.interval(True) == again.compared.interval(True)


def test_there_is_no_trial_without_a_candidate(tmp_path):
  publish(tmp_path, 0)
  with pytest.raises(ValueError, match="propose a version first"):
    Trial(Deployer(tmp_path), Join(KINDS))
