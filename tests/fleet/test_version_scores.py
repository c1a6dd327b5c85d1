"""A version has one result, whoever evaluates it, whoever dies meanwhile."""

import os
import re
import socket
import time

from jaxrl_agents.fleet.version_scores import VersionScores


def record(version, step=1, **scores):
  return {"version": version, "step": step, "time": 1.0, "scores": scores}


def names(folder):
  return sorted(re.sub("[0-9a-f]{8}.claim", "X.claim", path.name) for path in folder.iterdir())


def test_a_claimed_version_is_nobody_else_s_and_its_result_is_kept_once(tmp_path):
  one, two = VersionScores(tmp_path, 60.0), VersionScores(tmp_path, 60.0)
  claim = one.claim(4)
  assert two.claim(4) is None and two.newest() is None
  assert one.keep(claim, record(4, step=2))
  assert two.claim(4) is None and two.newest() == (4, 2)
  assert names(tmp_path) == ["v0000000004.json"]


def test_of_two_results_for_one_version_the_first_stays(tmp_path):
  scores = VersionScores(tmp_path, 60.0)
  first = scores.claim(4)
  os.utime(first, (0, 0))  # too old to count: another one evaluates, though the first goes on
  second = tmp_path / first.name.replace(str(os.getpid()), "1")
  second.touch()
  assert scores.keep(second, record(4, step=7))
  assert not scores.keep(first, record(4, step=9))
  assert scores.newest() == (4, 7) and names(tmp_path) == ["v0000000004.json"]


def test_a_claim_counts_no_more_when_its_process_is_gone_or_its_time_is_over(tmp_path):
  scores, host = VersionScores(tmp_path, 60.0), socket.gethostname()
  for holder in (f"{host}-{2**22 + 1}", "elsewhere-1"):
    claim = tmp_path / f"v0000000004.{holder}-00000000.claim"
    claim.touch()
    if holder.startswith("elsewhere"):
      assert scores.claim(4) is None
      os.utime(claim, (0, time.time() - 61))
    own = scores.claim(4)
    assert own is not None and not claim.exists()
    own.unlink()


def test_what_the_learner_withdraws_has_no_result_even_if_it_is_being_evaluated(tmp_path):
  scores = VersionScores(tmp_path, 60.0)
  for version in (4, 8):
    assert scores.keep(scores.claim(version), record(version))
  claim = scores.claim(12)
  scores.withdraw_after(4)
  assert not scores.keep(claim, record(12))
  assert scores.newest() == (4, 1) and names(tmp_path) == ["v0000000004.json"]
  assert scores.keep(scores.claim(12), record(12))  # published again


def test_a_result_that_is_damaged_is_not_the_newest(tmp_path):
  scores = VersionScores(tmp_path, 60.0)
  assert scores.keep(scores.claim(4), record(4))
  (tmp_path / "v0000000008.json").write_text('{"version": 8, "st')
  assert scores.newest() == (4, 1)
